package group

import (
	"errors"
	"fmt"

	"sheaf.dev/sheaf/internal/group/format"
	"sheaf.dev/sheaf/internal/group/replay"
	"sheaf.dev/sheaf/internal/group/segio"
)

// walkFile reads all frames of a segment's file up to an offset. It reads past the page cache where it can: after a
// failed sync the cache holds what the disk does not (rule 5). rows as for replay.Segment.
func (s *segment) walkFile(through int64, rows bool) (*replay.Walk, error) {
	w := replay.New(s.first, rows)
	return w, s.walkFileOn(w, format.SegmentHeaderBytes, through)
}

// walkFileOn is walkFile from an offset on, with what is known of the frames before it.
func (s *segment) walkFileOn(w *replay.Walk, from, through int64) error {
	f, err := s.fs.OpenDirect(s.path)
	if err != nil {
		return err
	}
	window := segio.FrameBuffers.Get().(*[]byte)
	defer segio.FrameBuffers.Put(window)
	r := segio.NewFrameReader(f, s.id, from, through)
	r.UseBuffer(*window)
	err = w.GoOn(r, s.first, through)
	if err := errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("%s: %w", s.path, err)
	}
	return nil
}
