package pieces

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"

	"sheaf.dev/sheaf/internal/archive/object"
	"sheaf.dev/sheaf/internal/storage/group/format"
)

// indexSpan limits the range of indexes in a segment: the difference between any two must be smaller (docs/format.md).
const indexSpan = 1 << 32

// ErrSpan means that an entry does not fit into a segment, because its index exceeds the segment's first index by
// 2^32 or more. The entry must go into a new segment.
var ErrSpan = errors.New("the index is too far above the first one of the segment")

// Builder builds one segment in memory. The segment consists of its header and frames, without trailing zeros. The
// caller must limit its size (see Bytes). A Builder is not safe for concurrent use.
type Builder struct {
	header format.SegmentHeader
	buf    []byte // space for the header, followed by the frames
	marks  []mark // one mark for each frame
}

// mark describes one frame of a Builder.
type mark struct {
	index   uint64
	offset  int64
	commit  int64 // Unix ns
	version bool  // the entry is a put or delete
}

// NewBuilder starts a segment with a random id. The time created is written to the segment's header.
func NewBuilder(store, group uuid.UUID, created time.Time) *Builder {
	return &Builder{
		// Compaction creates entries of the kind request. Only rewritten segments may contain them.
		header: format.SegmentHeader{
			Store: store, Group: group, ID: format.NewSegmentID(), Created: created.UnixNano(), Rewritten: true,
		},
		buf: make([]byte, format.SegmentHeaderBytes, 4<<10),
	}
}

// UseBuffer makes the Builder use the memory of a buffer, so that a large segment is not moved in memory repeatedly
// while it grows. It must be called before the first entry is added.
func (b *Builder) UseBuffer(buffer []byte) { b.buf = append(buffer[:0], b.buf...) }

// Buffer returns the memory of the segment, for UseBuffer of another Builder. The Builder must not be used any more.
func (b *Builder) Buffer() []byte { return b.buf }

// ID returns the segment's id.
func (b *Builder) ID() format.SegmentID { return b.header.ID }

// Empty reports whether the segment has no entries.
func (b *Builder) Empty() bool { return len(b.marks) == 0 }

// Bytes returns the segment's size.
func (b *Builder) Bytes() int64 { return int64(len(b.buf)) }

// Last returns the index of the last entry, or 0 if there is none.
func (b *Builder) Last() uint64 {
	if b.Empty() {
		return 0
	}
	return b.marks[len(b.marks)-1].index
}

// Commit returns the commit time of the last version, or 0 if there is none.
func (b *Builder) Commit() int64 {
	for _, m := range slices.Backward(b.marks) {
		if m.version {
			return m.commit
		}
	}
	return 0
}

// fits returns an error if the entry cannot be the next one.
func (b *Builder) fits(e *format.Entry) error {
	switch {
	case e.Kind == format.KindState:
		return errors.New("a state record is no entry of the log")
	case max(e.Index, e.Term) > format.NumberMax:
		return fmt.Errorf("index %d or term %d is above %d", e.Index, e.Term, int64(format.NumberMax))
	case e.Index <= b.Last():
		return fmt.Errorf("index %d follows %d", e.Index, b.Last())
	case e.Kind.IsVersion() && (e.CommitTime < b.Commit() || e.CommitTime > format.NumberMax):
		return fmt.Errorf("index %d: commit time %d follows %d", e.Index, e.CommitTime, b.Commit())
	case !b.Empty() && e.Index-b.marks[0].index >= indexSpan:
		return fmt.Errorf("%w: %d, from %d", ErrSpan, e.Index, b.marks[0].index)
	}
	return e.Check()
}

// Append adds an entry that has no checksum yet, and computes the checksum. It sets the used flag of versions,
// because each of them was the newest version at some time. A flag that is no longer true only costs time
// (docs/format.md). If Append returns an error, the Builder is unchanged.
func (b *Builder) Append(e *format.Entry) error {
	if err := b.fits(e); err != nil {
		return err
	}
	used := *e
	used.Used = e.Kind.IsVersion()
	b.note(e)
	b.buf = format.AppendFrame(b.buf, b.header.ID, b.Bytes(), &used)
	return nil
}

// Copy adds an entry together with its frame, which a Reader or segio.FrameReader must have checked. The frame keeps
// its entry checksum. If Copy returns an error, the Builder is unchanged.
func (b *Builder) Copy(e *format.Entry, frame []byte) error {
	if err := b.fits(e); err != nil {
		return err
	}
	at := b.Bytes()
	b.note(e)
	b.buf = append(b.buf, frame...)
	format.MoveFrame(b.buf[at:], b.header.ID, at, e.Used)
	return nil
}

func (b *Builder) note(e *format.Entry) {
	b.marks = append(b.marks, mark{index: e.Index, offset: b.Bytes(), commit: e.CommitTime, version: e.Kind.IsVersion()})
}

// Truncate removes all entries whose index is at least the given one.
func (b *Builder) Truncate(from uint64) {
	i, _ := slices.BinarySearchFunc(b.marks, from, func(m mark, from uint64) int {
		if m.index < from {
			return -1
		}
		return 1
	})
	if i < len(b.marks) {
		b.buf, b.marks = b.buf[:b.marks[i].offset], b.marks[:i]
	}
}

// Range describes the entries. The group's name and the floor are not set.
func (b *Builder) Range() object.Range {
	r := object.Range{Group: b.header.Group}
	for i, m := range b.marks {
		if i == 0 {
			r.First = m.index
		}
		r.Last = m.index
		if m.version {
			if r.Records++; r.Records == 1 {
				r.FirstCommit = m.commit
			}
			r.LastCommit = m.commit
		}
	}
	return r
}

// Finish returns the segment. It first reads the segment as a reader of the archive would, so that an entry that was
// damaged in memory is not archived. The result is valid until the Builder is changed. There must be at least one
// entry.
func (b *Builder) Finish() ([]byte, error) {
	r := b.Range()
	b.header.FirstIndex = r.First
	copy(b.buf, b.header.Encode())
	reader := NewReader(bytes.NewReader(b.buf), Want{Store: b.header.Store, Range: r, Bytes: b.Bytes()})
	for reader.Next() {
		continue
	}
	if err := reader.Err(); err != nil {
		return nil, fmt.Errorf("the segment that was made is not valid: %w", err)
	}
	return b.buf, nil
}
