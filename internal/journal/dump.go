package journal

import (
	"fmt"
	"io"
	"slices"

	"sheaf.dev/sheaf/internal/vfs"
)

// IsName tells whether a file's name is that of a journal.
func IsName(name string) bool { return slices.Contains(names[:], name) }

// Dump writes what a file holds in words.
func Dump(out io.Writer, fsys vfs.FS, name string) error {
	content, err := readFile(fsys, name)
	if err != nil {
		return err
	}
	records, bad := scan(content)
	for i := range records {
		r := &records[i]
		if i == 0 {
			fmt.Fprintf(out, "journal, %d bytes, epoch %x, %d records\n", len(content), r.epoch, len(records))
		}
		fmt.Fprintf(out, "record %d, %d bytes\n", r.sequence, r.bytes)
		for _, one := range r.ranges {
			fmt.Fprintf(out, "  group %s, segment %d (%x), offset %d, %d bytes\n", one.Group, one.Number, one.Segment, one.Offset, len(one.Bytes))
		}
	}
	if len(records) == 0 {
		fmt.Fprintf(out, "journal, %d bytes, no record\n", len(content))
	}
	for _, err := range bad {
		fmt.Fprintln(out, err)
	}
	return nil
}
