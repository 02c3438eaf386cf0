package reader

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"

	"sheaf.dev/sheaf/internal/archive/object"
	"sheaf.dev/sheaf/internal/archive/pieces"
	"sheaf.dev/sheaf/internal/storage/group/format"
)

// source is a sequence of entries of one group, either in a segment object or in a piece of a log object.
type source struct {
	object.Range
	described bool // whether all fields of Range are set; of a segment, a catalogue contains only First and Last
	name      string
	bytes     int64             // size of the object
	id        *format.SegmentID // id of the segment; nil if unknown

	log    *logObject // nil for a segment object
	offset int64      // offset of the piece in the content of the log object
	length int64      // length of the piece
}

// opened is the object of a source, and the range of the segment in the object's content.
type opened struct {
	content  *content
	from, to int64
}

// open opens the object, for a caller that then reads the whole segment.
func (s *source) open(ctx context.Context, f *folder) (o opened, err error) {
	if s.log != nil {
		c := &content{folder: f, name: s.name, kind: object.KindLog, bytes: s.bytes, chunks: s.log.chunks}
		return opened{c, s.offset, s.offset + s.length}, nil
	}
	return s.openSegment(ctx, f.openWhole)
}

// opener is folder.openContent or folder.openWhole.
type opener func(ctx context.Context, name string, kind object.Kind, bytes int64, to object.Header,
	check func() error) (*content, error)

// openSegment opens a segment object, and completes the Range from its header.
func (s *source) openSegment(ctx context.Context, open opener) (o opened, err error) {
	var h object.Segment
	c, err := open(ctx, s.name, object.KindSegment, s.bytes, &h, func() error {
		if h.Group != s.Group || h.First != s.First || h.Last != s.Last {
			return fmt.Errorf("%w: it has the entries %d to %d of group %s", object.ErrForeign, h.First, h.Last, h.Group)
		}
		return nil
	})
	if err != nil {
		return opened{}, err
	}
	s.Range, s.described = h.Range, true
	e := c.chunks.Envelope()
	return opened{c, e.HeaderBytes, e.ContentBytes}, nil
}

// describe completes the Range of a source by reading the object's header if necessary.
func (s *source) describe(ctx context.Context, f *folder) error {
	if s.described {
		return nil
	}
	o, err := s.openSegment(ctx, f.openContent)
	if err != nil {
		return err
	}
	o.content.close()
	return nil
}

// errStop ends a walk without an error.
var errStop = errors.New("stop")

// walk calls visit for each entry in order, until visit returns errStop. The entry is valid only during the call. If
// the walk reaches the end, it checks that the entries match the Range.
func (s *source) walk(ctx context.Context, f *folder, visit func(e *format.Entry) error) error {
	return s.walkFrames(ctx, f, func(e *format.Entry, _ []byte) error { return visit(e) })
}

// walkFrames is like walk, but also passes each entry's frame to visit. The frame is valid only during the call.
func (s *source) walkFrames(ctx context.Context, f *folder, visit func(e *format.Entry, frame []byte) error) error {
	return s.walkOpened(ctx, f, func() (opened, error) { return s.open(ctx, f) }, visit)
}

// walkOpened is like walkFrames. It calls open only if the bucket must be asked for the source.
func (s *source) walkOpened(ctx context.Context, f *folder, open func() (opened, error),
	visit func(e *format.Entry, frame []byte) error) error {
	if s.log != nil && s.length == 0 {
		return nil // the piece has no entries
	}
	if s.log != nil && s.log.body != nil {
		e := s.log.chunks.Envelope()
		from := s.offset - e.HeaderBytes
		return s.read(f, bytes.NewReader(s.log.body[from:from+s.length]), s.length, visit)
	}
	o, err := open()
	if err != nil {
		return err
	}
	defer o.content.close()
	return s.read(f, o.content.part(ctx, o.from, o.to), o.to-o.from, visit)
}

// read is walkFrames for a segment of the given length that is read from src.
func (s *source) read(f *folder, src io.Reader, length int64, visit func(e *format.Entry, frame []byte) error) error {
	r := pieces.NewReader(src, pieces.Want{Store: f.store, Range: s.Range, Bytes: length, ID: s.id})
	for r.Next() {
		switch err := visit(r.Entry(), r.Frame()); {
		case errors.Is(err, errStop):
			return nil
		case err != nil:
			return err
		}
	}
	if err := r.Err(); err != nil {
		return named(s.name, err)
	}
	return nil
}
