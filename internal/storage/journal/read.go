package journal

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"math"
	"path"
	"slices"

	"github.com/google/uuid"

	"sheaf.dev/sheaf/internal/storage/vfs"
)

// names are the names of the two files, which are used in turn.
var names = [2]string{"journal-0", "journal-1"}

// Found is the content of a volume's journal files.
type Found struct {
	Files  int // number of files
	Ranges []Range
	// Bad lists the unreadable parts that may have held acknowledged data. An incomplete record at the end counts as
	// torn by a power cut, so it is not listed. A complete last record that was damaged later looks the same, so it is
	// not listed either.
	Bad []error
	// Lost lists ranges of segments that an unreadable record made durable. Only the ranges of the last unreadable
	// record are known, because the next readable record repeats them. The field Bytes of these ranges is empty.
	Lost []Range

	gaps []gap // ranges of unreadable records whose content is not known
	// last is, for each group, the position of the last record that is known to have held data of the group.
	last map[uuid.UUID]placeInTime
}

// placeInTime is the position of a record in the order of all records.
type placeInTime struct{ epoch, sequence uint64 }

func (p placeInTime) compare(q placeInTime) int {
	return cmp.Or(cmp.Compare(p.epoch, q.epoch), cmp.Compare(p.sequence, q.sequence))
}

// gap is a range of consecutive records that cannot be read.
type gap struct {
	last  placeInTime // position of the last record in the range
	bytes int64       // upper bound on the total size of the records in the range
}

// Share is the part of the journal that belongs to one group.
type Share struct {
	Ranges []Range // oldest first
	Lost   []Range // the part of Found.Lost that belongs to the group
	// Doubt is the maximum number of bytes of this group that may be missing after the data in Ranges and Lost, because
	// unreadable records may have held them. It is 0 if it is certain that nothing is missing.
	Doubt int64
}

// followedBy returns a share that contains the data of s, followed by the data of a later share.
func (s Share) followedBy(later Share) Share {
	return Share{Ranges: slices.Concat(s.Ranges, later.Ranges), Lost: slices.Concat(s.Lost, later.Lost),
		Doubt: s.Doubt + later.Doubt}
}

// Share returns the part of the content that belongs to a group.
func (f *Found) Share(group uuid.UUID) (s Share) {
	of := func(ranges []Range) (out []Range) {
		for i := range ranges {
			if ranges[i].Group == group {
				out = append(out, ranges[i])
			}
		}
		return out
	}
	s.Ranges, s.Lost = of(f.Ranges), of(f.Lost)
	last, known := f.last[group]
	for _, g := range f.gaps {
		if !known || g.last.compare(last) > 0 {
			s.Doubt += g.bytes
		}
	}
	return s
}

// groups returns the groups that have data in the journal, sorted by UUID.
func (f *Found) groups() []uuid.UUID {
	return slices.SortedFunc(maps.Keys(f.last), func(a, b uuid.UUID) int { return bytes.Compare(a[:], b[:]) })
}

// Doubtful reports whether any group may have lost data, even one that has no data in Found.
func (f *Found) Doubtful() bool { return len(f.gaps) > 0 }

// Read reads a volume's journal files, oldest record first. If there is no file, the result is empty. If a file
// exists but none of its blocks can be read, Read returns an error instead of reporting damage, because the device
// may be able to read the file later.
func Read(fsys vfs.FS, dir string) (Found, error) {
	found := Found{last: map[uuid.UUID]placeInTime{}}
	var uses []use
	for _, name := range names {
		name := path.Join(dir, name)
		c, err := readFile(fsys, name)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return Found{}, fmt.Errorf("journal %s: %w", name, err)
		}
		found.Files++
		u := c.scan()
		for _, err := range u.bad {
			found.Bad = append(found.Bad, fmt.Errorf("journal %s: %w", name, err))
		}
		found.gaps = append(found.gaps, u.gaps...)
		uses = append(uses, u)
	}
	slices.SortFunc(uses, func(a, b use) int { return cmp.Compare(a.epoch, b.epoch) })
	for i := range uses {
		if i > 0 {
			found.compareEnd(&uses[i-1], &uses[i])
		}
		for _, r := range uses[i].records {
			found.note(r.ranges, placeInTime{r.epoch, r.sequence})
			found.Ranges = append(found.Ranges, r.ranges...)
		}
		for _, r := range uses[i].lost {
			found.note(r.before, placeInTime{r.epoch, r.sequence - 1})
			found.Lost = append(found.Lost, r.before...)
		}
	}
	return found, nil
}

// note remembers that the record at a position holds data of every group that has a range in ranges.
func (f *Found) note(ranges []Range, at placeInTime) {
	for i := range ranges {
		if last, known := f.last[ranges[i].Group]; !known || at.compare(last) > 0 {
			f.last[ranges[i].Group] = at
		}
	}
}

// compareEnd detects whether the last record that was written during an earlier use of one file (the argument ended)
// is lost. After that use, the journal switched to the other file (the argument next). There, the first record has no
// ranges, and the second record repeats the ranges of the last record before the switch. compareEnd compares these
// ranges with those of the last record that was read.
func (f *Found) compareEnd(ended, next *use) {
	i := slices.IndexFunc(next.records, func(r record) bool { return r.sequence == 1 })
	if i < 0 || ended.epoch>>32+1 != next.epoch>>32 {
		return
	}
	var last []Range
	at := placeInTime{ended.epoch, 0}
	if n := len(ended.records); n > 0 {
		at.sequence = ended.records[n-1].sequence
		for k := range ended.records[n-1].ranges {
			last = append(last, named(&ended.records[n-1].ranges[k]))
		}
	}
	same := func(a, b Range) bool {
		return a.Group == b.Group && a.Number == b.Number && a.Segment == b.Segment && a.Offset == b.Offset &&
			a.Before == b.Before
	}
	before := next.records[i].before
	switch {
	case len(before) == 0:
		return
	// The last record that was read is also the last one that was written, so nothing after it is lost.
	case slices.EqualFunc(last, before, same):
		f.gaps = slices.DeleteFunc(f.gaps, func(g gap) bool { return g.last == placeInTime{ended.epoch, math.MaxUint64} })
		return
	}
	f.Bad = append(f.Bad, fmt.Errorf("journal: the last record of epoch %x, behind record %d, cannot be read", ended.epoch,
		at.sequence))
	at.sequence++
	f.note(before, at)
	f.Lost = append(f.Lost, before...)
}

// content holds the bytes of one file, and its unreadable blocks.
type content struct {
	bytes      []byte
	unreadable []bool // one element for each block; nil if the whole file could be read
}

// readTries is the number of attempts to read a block before the block counts as unreadable. Several attempts are
// needed because some devices fail once and then succeed.
const readTries = 3

func readFile(fsys vfs.FS, name string) (c content, err error) {
	f, err := fsys.Open(name)
	if err != nil {
		return content{}, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	size, err := f.Size()
	if err != nil || size == 0 {
		return content{}, err
	}
	b := make([]byte, size)
	n, err := f.ReadAt(b, 0)
	if err == nil || errors.Is(err, io.EOF) {
		return content{bytes: b[:n]}, nil
	}
	// After a read error, the file is read block by block, so that an unreadable block affects only the record that
	// contains it.
	c = content{bytes: b, unreadable: make([]bool, (size+blockBytes-1)/blockBytes)}
	for i := range c.unreadable {
		at := int64(i) * blockBytes
		block := b[at:min(at+blockBytes, size)]
		for range readTries {
			if n, err = f.ReadAt(block, at); n == len(block) || errors.Is(err, io.EOF) {
				err = nil
				break
			}
		}
		if err != nil {
			clear(block)
			c.unreadable[i] = true
		}
	}
	if !slices.Contains(c.unreadable, false) {
		return content{}, err
	}
	return c, nil
}

// isUnreadable reports whether any block in a part of the file is unreadable.
func (c *content) isUnreadable(from, to int) bool {
	if c.unreadable == nil || from >= to {
		return false
	}
	return slices.Contains(c.unreadable[from/blockBytes:(to+blockBytes-1)/blockBytes], true)
}

// use holds the records that were written to a file since it was last put into use.
type use struct {
	epoch   uint64
	records []record
	bad     []error
	gaps    []gap
	lost    []record // records whose field named before repeats the ranges of an unreadable record
}

// scan finds the records of a file's last use, and determines which records are missing.
func (c *content) scan() (u use) {
	for at := 0; at < len(c.bytes); {
		r, err := decode(c.bytes[at:])
		if err != nil {
			at += blockBytes
			continue
		}
		r.at = at
		if u.records = append(u.records, r); len(u.records) == 1 {
			u.epoch = r.epoch
		}
		at += r.bytes
	}
	u.records = slices.DeleteFunc(u.records, func(r record) bool { return r.epoch != u.epoch })
	if len(u.records) == 0 {
		if c.isUnreadable(0, len(c.bytes)) || len(bytes.Trim(c.bytes, "\x00")) > 0 {
			u.bad = append(u.bad, errors.New("no record of it can be read"))
			u.gaps = append(u.gaps, gap{placeInTime{math.MaxUint64, 0}, int64(len(c.bytes))})
		}
		return u
	}
	next, end := uint64(0), 0
	for _, r := range u.records {
		if r.sequence > next {
			u.missing(next, r, end)
		}
		next, end = r.sequence+1, r.at+r.bytes
	}
	if c.isUnreadable(end, len(c.bytes)) && c.mayGoOn(end, u.epoch, next) {
		u.bad = append(u.bad, fmt.Errorf("what is behind record %d of epoch %x cannot be read", next-1, u.epoch))
		u.gaps = append(u.gaps, gap{placeInTime{u.epoch, math.MaxUint64}, int64(len(c.bytes) - end)})
	}
	return u
}

// missing notes that some records cannot be read. Their sequence numbers begin with the argument from and end before
// that of r. The record r repeats the ranges of the last of these records, so those ranges are known. Sequence number
// 0, which is the first record of a use, never counts as missing data, because it has no ranges.
func (u *use) missing(from uint64, r record, end int) {
	u.bad = append(u.bad, fmt.Errorf("records %d to %d of epoch %x cannot be read", from, r.sequence-1, u.epoch))
	unknown := r.sequence - 1
	if unknown > 0 && len(r.before) > 0 {
		u.lost = append(u.lost, r)
		unknown--
	}
	if unknown >= max(from, 1) {
		u.gaps = append(u.gaps, gap{placeInTime{u.epoch, unknown}, int64(r.at - end)})
	}
}

// mayGoOn reports whether the record with the given epoch and sequence number may begin at an offset, although it
// cannot be read. This is the case if the block at the offset is unreadable, or if it holds a header with this epoch
// and number.
func (c *content) mayGoOn(at int, epoch, sequence uint64) bool {
	if c.isUnreadable(at, min(at+blockBytes, len(c.bytes))) {
		return true
	}
	b := c.bytes[at:]
	return len(b) >= headerBytes && string(b[:len(magic)]) == magic &&
		binary.LittleEndian.Uint64(b[epochAt:]) == epoch && binary.LittleEndian.Uint64(b[sequenceAt:]) == sequence
}

// Dump writes a readable description of a journal file's content.
func Dump(out io.Writer, fsys vfs.FS, name string) error {
	c, err := readFile(fsys, name)
	if err != nil {
		return err
	}
	u := c.scan()
	if len(u.records) == 0 {
		fmt.Fprintf(out, "journal, %d bytes, no record\n", len(c.bytes))
	} else {
		fmt.Fprintf(out, "journal, %d bytes, epoch %x, %d records\n", len(c.bytes), u.epoch, len(u.records))
	}
	for _, r := range u.records {
		fmt.Fprintf(out, "record %d at offset %d, %d bytes\n", r.sequence, r.at, r.bytes)
		for _, one := range r.ranges {
			fmt.Fprintf(out, "  group %s, segment %d (%x), offset %d, %d bytes\n", one.Group, one.Number, one.Segment,
				one.Offset, len(one.Bytes))
		}
	}
	for _, err := range u.bad {
		fmt.Fprintln(out, err)
	}
	return nil
}
