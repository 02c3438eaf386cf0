package journal

import (
	"fmt"
	"io"

	"sheaf.dev/sheaf/internal/storage/vfs"
)

// Dump writes the content of a journal file as text.
func Dump(out io.Writer, fsys vfs.FS, name string) error {
	c, err := readFile(fsys, name)
	if err != nil {
		return err
	}
	u := c.scan()
	for i := range u.records {
		r := &u.records[i]
		if i == 0 {
			fmt.Fprintf(out, "journal, %d bytes, epoch %x, %d records\n", len(c.bytes), r.epoch, len(u.records))
		}
		fmt.Fprintf(out, "record %d at offset %d, %d bytes\n", r.sequence, r.at, r.bytes)
		for _, one := range r.ranges {
			fmt.Fprintf(out, "  group %s, segment %d (%x), offset %d, %d bytes\n", one.Group, one.Number, one.Segment,
				one.Offset, len(one.Bytes))
		}
	}
	if len(u.records) == 0 {
		fmt.Fprintf(out, "journal, %d bytes, no record\n", len(c.bytes))
	}
	for _, err := range u.bad {
		fmt.Fprintln(out, err)
	}
	return nil
}
