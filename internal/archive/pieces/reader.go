package pieces

import (
	"errors"
	"fmt"
	"io"

	"github.com/google/uuid"

	"sheaf.dev/sheaf/internal/archive/object"
	"sheaf.dev/sheaf/internal/storage/group/format"
)

// Want is what the headers of an object say of a segment in it.
type Want struct {
	Store uuid.UUID
	object.Range
	Bytes int64             // exact size of the segment
	ID    *format.SegmentID // as in the name of a segment object; nil: any
}

// Reader reads one segment, and checks everything: its header, each frame with both checksums, the order of the
// entries, and that they are those of the Want. It holds one frame in memory, at most about 1.1 MiB. It is not safe for
// concurrent use.
//
//	for r.Next() { e := r.Entry() ... }
//	err := r.Err()
//
// Entries that were handed out are right, but only if Err is nil at the end are they all entries.
type Reader struct {
	src  io.Reader
	want Want
	id   format.SegmentID
	at   int64  // offset of the next frame; 0 before the header is read
	buf  []byte // the current frame
	e    format.Entry
	got  object.Range
	err  error
}

// NewReader returns a reader of the segment whose first byte src has next. It reads no byte behind the segment.
func NewReader(src io.Reader, want Want) *Reader { return &Reader{src: src, want: want} }

// Next moves to the next entry. It returns false at the end, or if Err is set.
func (r *Reader) Next() bool {
	if r.err != nil {
		return false
	}
	if r.at == 0 {
		if r.err = r.header(); r.err != nil {
			return false
		}
	}
	if r.at == r.want.Bytes {
		r.err = r.end()
		return false
	}
	if r.err = r.frame(); r.err == nil {
		r.err = r.order()
	}
	return r.err == nil
}

// Err returns why the segment is not valid, nil if it is. Damage wraps object.ErrCorrupt; a header that is newer than
// this program wraps object.ErrVersion; errors of src are returned as they are.
func (r *Reader) Err() error {
	if errors.Is(r.err, io.EOF) {
		return nil
	}
	return r.err
}

// Entry returns the current entry. It is valid until the next call of Next.
func (r *Reader) Entry() *format.Entry { return &r.e }

// Frame returns the frame of the current entry, valid until the next call of Next.
func (r *Reader) Frame() []byte { return r.buf }

func (r *Reader) damage(text string, args ...any) error {
	return fmt.Errorf("%w: segment of group %s, offset %d: %s", object.ErrCorrupt, r.want.Group, r.at,
		fmt.Sprintf(text, args...))
}

// read fills b with the next bytes of the segment.
func (r *Reader) read(b []byte) error {
	n, err := io.ReadFull(r.src, b)
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return r.damage("it ends %d bytes too early", len(b)-n)
	}
	return err
}

func (r *Reader) header() error {
	if r.want.Bytes < format.SegmentHeaderBytes {
		return r.damage("%d bytes are too few", r.want.Bytes)
	}
	b := make([]byte, format.SegmentHeaderBytes)
	if err := r.read(b); err != nil {
		return err
	}
	h, err := format.DecodeSegmentHeader(b)
	switch {
	case errors.Is(err, format.ErrFormatVersion):
		return fmt.Errorf("%w: %w", object.ErrVersion, err)
	case err != nil:
		return r.damage("%v", err)
	case h.Store != r.want.Store || h.Group != r.want.Group:
		return r.damage("it is of store %s, group %s", h.Store, h.Group)
	case r.want.ID != nil && h.ID != *r.want.ID:
		return r.damage("its id is %x, not %x", h.ID, *r.want.ID)
	case h.FirstIndex != r.want.First:
		return r.damage("it begins at index %d, not at %d", h.FirstIndex, r.want.First)
	}
	r.id, r.at = h.ID, format.SegmentHeaderBytes
	return nil
}

// frame reads the next frame. No length is used before the checksum of the header that has it was checked.
func (r *Reader) frame() error {
	left := r.want.Bytes - r.at
	if left < format.FrameHeaderBytes {
		return r.damage("%d bytes are no frame", left)
	}
	r.buf = append(r.buf[:0], make([]byte, format.FrameHeaderBytes)...)
	if err := r.read(r.buf); err != nil {
		return err
	}
	e, attributesBytes, dataBytes, bytes, err := format.DecodeHeader(r.buf, r.id, r.at)
	if err != nil {
		return r.damage("%v", err)
	}
	if bytes > left {
		return r.damage("a frame of %d bytes, where %d remain", bytes, left)
	}
	r.buf = append(r.buf, make([]byte, bytes-format.FrameHeaderBytes)...)
	if err := r.read(r.buf[format.FrameHeaderBytes:]); err != nil {
		return err
	}
	if err := e.DecodeContent(r.buf, attributesBytes, dataBytes, bytes); err != nil {
		return r.damage("index %d: %v", e.Index, err)
	}
	r.e = e
	r.at += bytes
	return nil
}

// order checks the current entry against the entries before it, and counts it.
func (r *Reader) order() error {
	e, got := &r.e, &r.got
	switch {
	case e.Kind == format.KindState:
		return r.damage("a state record")
	case got.First == 0 && e.Index != r.want.First:
		return r.damage("the first entry has index %d, not %d", e.Index, r.want.First)
	case e.Index <= got.Last:
		return r.damage("index %d follows %d", e.Index, got.Last)
	case e.Index > r.want.Last || e.Index-r.want.First >= indexSpan:
		return r.damage("index %d is beyond %d", e.Index, r.want.Last)
	}
	if got.First == 0 {
		got.First = e.Index
	}
	got.Last = e.Index
	if !e.Kind.IsVersion() {
		return nil
	}
	if got.Records > 0 && e.CommitTime < got.LastCommit {
		return r.damage("index %d: its commit time is below the one before", e.Index)
	}
	if got.Records++; got.Records == 1 {
		got.FirstCommit = e.CommitTime
	}
	got.LastCommit = e.CommitTime
	return nil
}

// end checks that the entries are those that were wanted.
func (r *Reader) end() error {
	want := r.want.Range
	want.Name, want.Floor = "", 0
	if r.got.Group = want.Group; r.got != want {
		return r.damage("it has %+v, its header says %+v", r.got, want)
	}
	return io.EOF
}
