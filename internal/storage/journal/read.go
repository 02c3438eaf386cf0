package journal

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"path"
	"slices"

	"github.com/google/uuid"

	"sheaf.dev/sheaf/internal/storage/vfs"
)

// names of the files, which are used in turn.
var names = [2]string{"journal-0", "journal-1"}

// Found is what the files of a volume hold.
type Found struct {
	Files  int // that there are
	Ranges []Range
	// Bad says what cannot be read and may have been acknowledged. A record at the end that is not whole is torn, and
	// is not among them: a last record that rots looks like one that is torn.
	Bad []error
	// Lost are places of segments that a record made durable which cannot be read: the next one tells of it. Bytes is
	// empty.
	Lost []Range

	gaps []gap                     // records of which nothing is known
	last map[uuid.UUID]placeInTime // the last record of each group that is known
}

// placeInTime is that of a record.
type placeInTime struct{ epoch, sequence uint64 }

func (p placeInTime) compare(q placeInTime) int {
	return cmp.Or(cmp.Compare(p.epoch, q.epoch), cmp.Compare(p.sequence, q.sequence))
}

// gap is where records cannot be read.
type gap struct {
	last  placeInTime // of these
	bytes int64       // that they had at most
}

// Share is what the files hold for one group.
type Share struct {
	Ranges []Range // oldest first
	Lost   []Range // as Found.Lost
	// Doubt is how many bytes records had at most which cannot be read, and may have held something of the group behind
	// all else; 0: there are none.
	Doubt int64
}

// Share is what was found for a group.
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

// groups are those for which something was found.
func (f *Found) groups() (groups []uuid.UUID) {
	seen := map[uuid.UUID]bool{}
	for _, ranges := range [][]Range{f.Ranges, f.Lost} {
		for i := range ranges {
			if g := ranges[i].Group; !seen[g] {
				seen[g] = true
				groups = append(groups, g)
			}
		}
	}
	return groups
}

// Doubtful tells whether groups may have lost something for which nothing was found.
func (f *Found) Doubtful() bool { return len(f.gaps) > 0 }

// Read reads what the files of a volume hold, oldest first. No file: nothing. A file of which no block can be read is
// an error: the device may answer the next time.
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

// note notes which groups a record had.
func (f *Found) note(ranges []Range, at placeInTime) {
	for i := range ranges {
		if g := ranges[i].Group; at.compare(f.last[g]) > 0 {
			f.last[g] = at
		}
	}
}

// compareEnd finds that the last record of a use is gone: the first one of the next use tells of it.
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
	case slices.EqualFunc(last, before, same): // so nothing stood behind it
		f.gaps = slices.DeleteFunc(f.gaps, func(g gap) bool { return g.last == placeInTime{ended.epoch, math.MaxUint64} })
		return
	}
	f.Bad = append(f.Bad, fmt.Errorf("journal: the last record of epoch %x, behind record %d, cannot be read", ended.epoch,
		at.sequence))
	at.sequence++
	f.note(before, at)
	f.Lost = append(f.Lost, before...)
}

// content is what a file holds.
type content struct {
	bytes      []byte
	unreadable []bool // by block
}

// readTries is how often a block is read before it counts as unreadable: some devices fail once and then answer.
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
	// Block by block: one that cannot be read costs only its own record.
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

// isUnreadable tells whether a block cannot be read in a part of a file.
func (c *content) isUnreadable(from, to int) bool {
	if c.unreadable == nil || from >= to {
		return false
	}
	return slices.Contains(c.unreadable[from/blockBytes:(to+blockBytes-1)/blockBytes], true)
}

// use is the last use of a file.
type use struct {
	epoch   uint64
	records []record
	bad     []error
	gaps    []gap
	lost    []record // those whose record before is lost, and known by them
}

// scan finds the records of a file's last use, and what is missing among them.
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

// missing notes the records from a sequence on in front of one: that one knows the last of them, and the first of a use
// holds nothing.
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

// mayGoOn tells whether a record may begin at an offset that cannot be read to its end.
func (c *content) mayGoOn(at int, epoch, sequence uint64) bool {
	if c.isUnreadable(at, min(at+blockBytes, len(c.bytes))) {
		return true
	}
	b := c.bytes[at:]
	return len(b) >= headerBytes && string(b[:len(magic)]) == magic &&
		binary.LittleEndian.Uint64(b[epochAt:]) == epoch && binary.LittleEndian.Uint64(b[sequenceAt:]) == sequence
}
