package pieces

import (
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/google/uuid"

	"sheaf.dev/sheaf/internal/archive/object"
	"sheaf.dev/sheaf/internal/storage/group/format"
)

// Want describes the expected segment, according to the headers of the object that contains it.
type Want struct {
	Store uuid.UUID
	object.Range
	Bytes int64             // exact size of the segment
	ID    *format.SegmentID // the id in the name of a segment object; nil accepts any id
}

// frames reads the header and the frames of one segment. It checks both checksums of each frame.
type frames struct {
	src   io.Reader
	group uuid.UUID // for error messages
	bytes int64     // exact size of the segment
	id    format.SegmentID
	at    int64  // offset of the next frame; 0 before the header is read
	buf   []byte // the current frame
	e     format.Entry
	err   error
}

// Err returns the reason why the segment is not valid, or nil if it is valid. If the segment is damaged, the error
// wraps object.ErrCorrupt. If the header was written by a newer program, it wraps object.ErrVersion. Errors of the
// underlying reader are returned unchanged.
func (r *frames) Err() error {
	if errors.Is(r.err, io.EOF) {
		return nil
	}
	return r.err
}

// Entry returns the current entry. It is valid until the next call of Next.
func (r *frames) Entry() *format.Entry { return &r.e }

// Frame returns the frame of the current entry. It is valid until the next call of Next.
func (r *frames) Frame() []byte { return r.buf }

func (r *frames) damage(text string, args ...any) error {
	return fmt.Errorf("%w: segment of group %s, offset %d: %s", object.ErrCorrupt, r.group, r.at,
		fmt.Sprintf(text, args...))
}

// read fills b with the next bytes of the segment.
func (r *frames) read(b []byte) error {
	n, err := io.ReadFull(r.src, b)
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return r.damage("it ends %d bytes too early", len(b)-n)
	}
	return err
}

// begin reads the header of the segment.
func (r *frames) begin(store uuid.UUID, first uint64, id *format.SegmentID) error {
	if r.bytes < format.SegmentHeaderBytes {
		return r.damage("%d bytes are too few", r.bytes)
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
	case h.Store != store || h.Group != r.group:
		return r.damage("it is of store %s, group %s", h.Store, h.Group)
	case id != nil && h.ID != *id:
		return r.damage("its id is %x, not %x", h.ID, *id)
	case h.FirstIndex != first:
		return r.damage("it begins at index %d, not at %d", h.FirstIndex, first)
	}
	r.id, r.at = h.ID, format.SegmentHeaderBytes
	return nil
}

// frame reads the next frame. It uses a length in the frame's header only after it has checked the header's checksum.
func (r *frames) frame() error {
	left := r.bytes - r.at
	if left < format.FrameHeaderBytes {
		return r.damage("%d bytes are no frame", left)
	}
	r.buf = slices.Grow(r.buf[:0], format.FrameHeaderBytes)[:format.FrameHeaderBytes]
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
	r.buf = slices.Grow(r.buf, int(bytes-format.FrameHeaderBytes))[:bytes]
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

// Reader reads one segment of an archive and checks all of it: the header, both checksums of each frame, the order of
// the entries, and that the entries match the Want. It holds one frame in memory, at most about 1.1 MiB. It is not
// safe for concurrent use.
//
//	for r.Next() { e := r.Entry() ... }
//	err := r.Err()
//
// Every entry that Entry returns is correct. But all entries have been read only if Err then returns nil.
type Reader struct {
	frames
	want Want
	got  object.Range
}

// NewReader returns a reader of the segment that begins at the current position of src. It does not read beyond the
// segment.
func NewReader(src io.Reader, want Want) *Reader {
	return &Reader{frames: frames{src: src, group: want.Group, bytes: want.Bytes}, want: want}
}

// Next advances to the next entry. It returns false at the end and after an error (see Err).
func (r *Reader) Next() bool {
	if r.err == nil && r.at == 0 {
		r.err = r.begin(r.want.Store, r.want.First, r.want.ID)
	}
	if r.err == nil && r.at == r.bytes {
		r.err = r.end()
	}
	if r.err == nil {
		r.err = r.frame()
	}
	if r.err == nil {
		r.err = r.order()
	}
	return r.err == nil
}

// order checks that the current entry may follow the entries before it, and counts it.
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

// end checks that the entries as a whole are the expected ones.
func (r *Reader) end() error {
	want := r.want.Range
	want.Name, want.Floor = "", 0
	if r.got.Group = want.Group; r.got != want {
		return r.damage("it has %+v, its header says %+v", r.got, want)
	}
	return io.EOF
}

// FileReader reads a sealed segment file of a replica, for a group's first copy. It checks the header and both
// checksums of each frame. It checks neither the order nor the kinds of entries, because such a file may contain
// state records, and entries that later ones make void. It is used like a Reader.
type FileReader struct {
	frames
	identity format.Identity
	segment  format.ManifestSegment
}

// NewFileReader returns a reader of the file that begins at the current position of src.
func NewFileReader(src io.Reader, identity format.Identity, segment format.ManifestSegment) *FileReader {
	return &FileReader{
		frames: frames{src: src, group: identity.Group, bytes: segment.Bytes}, identity: identity, segment: segment,
	}
}

// Next advances to the next frame. It returns false at the end and after an error (see Err).
func (r *FileReader) Next() bool {
	if r.err == nil && r.at == 0 {
		r.err = r.begin(r.identity.Store, r.segment.FirstIndex, &r.segment.ID)
	}
	if r.err == nil && r.at == r.bytes {
		r.err = io.EOF
	}
	if r.err == nil {
		r.err = r.frame()
	}
	return r.err == nil
}
