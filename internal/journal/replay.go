package journal

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"slices"

	"github.com/google/uuid"

	"sheaf.dev/sheaf/internal/vfs"
)

// names of the files, which are used in turn.
var names = [2]string{"journal-0", "journal-1"}

// Found is what the files of a volume hold.
type Found struct {
	Files  int // that there are
	Ranges []Range
	// Bad are records between others that cannot be read: what was in them may be lost, unless it stands in the segments too. One at
	// the end is torn, and was never acknowledged; so may be the first ones, where what follows is left over from an earlier use.
	Bad []error
}

// Read reads what the files of a volume hold, oldest first. No file: nothing.
func Read(fsys vfs.FS, dir string) (Found, error) {
	var found Found
	var all []record
	for _, name := range names {
		name := path.Join(dir, name)
		content, err := readFile(fsys, name)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return Found{}, fmt.Errorf("journal %s: %w", name, err)
		}
		found.Files++
		records, bad := scan(content)
		all = append(all, records...)
		for _, err := range bad {
			found.Bad = append(found.Bad, fmt.Errorf("journal %s: %w", name, err))
		}
	}
	slices.SortStableFunc(all, func(a, b record) int {
		return cmp.Or(cmp.Compare(a.epoch, b.epoch), cmp.Compare(a.sequence, b.sequence))
	})
	for _, r := range all {
		found.Ranges = append(found.Ranges, r.ranges...)
	}
	return found, nil
}

func readFile(fsys vfs.FS, name string) (b []byte, err error) {
	f, err := fsys.Open(name)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	size, err := f.Size()
	if err != nil || size == 0 {
		return nil, err
	}
	b = make([]byte, size)
	n, err := f.ReadAt(b, 0)
	if err == nil || errors.Is(err, io.EOF) {
		return b[:n], nil
	}
	// Block by block: one that cannot be read costs only its own record.
	for at := int64(0); at < size; at += blockBytes {
		block := b[at:min(at+blockBytes, size)]
		if n, err := f.ReadAt(block, at); n < len(block) && !errors.Is(err, io.EOF) {
			clear(block)
		}
	}
	return b, nil
}

// scan finds the records of a file's last use.
func scan(content []byte) (records []record, bad []error) {
	for at := 0; at < len(content); {
		r, err := decode(content[at:])
		if err != nil {
			at += blockBytes
			continue
		}
		records = append(records, r)
		at += r.bytes
	}
	if len(records) == 0 {
		return nil, nil
	}
	epoch, next := records[0].epoch, records[0].sequence
	records = slices.DeleteFunc(records, func(r record) bool { return r.epoch != epoch })
	for _, r := range records {
		if r.sequence > next {
			bad = append(bad, fmt.Errorf("records %d to %d of epoch %x cannot be read", next, r.sequence-1, epoch))
		}
		next = r.sequence + 1
	}
	return records, bad
}

// Replay gives each group what the files hold for it, oldest first; apply makes it durable in the group's own files. The files stay.
func Replay(fsys vfs.FS, dir string, apply func(group uuid.UUID, ranges []Range) error) (Found, error) {
	found, err := Read(fsys, dir)
	if err != nil {
		return Found{}, err
	}
	byGroup := map[uuid.UUID][]Range{}
	var order []uuid.UUID
	for _, r := range found.Ranges {
		if byGroup[r.Group] == nil {
			order = append(order, r.Group)
		}
		byGroup[r.Group] = append(byGroup[r.Group], r)
	}
	for _, group := range order {
		if err := apply(group, byGroup[group]); err != nil {
			return Found{}, fmt.Errorf("journal in %s: what it holds of group %s cannot be written to the group's segment: %w", dir, group, err)
		}
	}
	return found, nil
}

// Remove removes the files, durably.
func Remove(fsys vfs.FS, dir string) error {
	removed := false
	for _, name := range names {
		err := fsys.Remove(path.Join(dir, name))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("journal: %w", err)
		}
		removed = removed || err == nil
	}
	if !removed {
		return nil
	}
	return fsys.SyncDir(dir)
}
