package group

import (
	"context"
	"errors"
	"fmt"
)

// newImage gives a segment that is being made an image to encode frames into, in Resident residency.
func (l *Log) newImage(s *segment, bytes int64) error {
	if l.opts.Residency != Resident {
		return nil
	}
	return l.mapImage(s, bytes, true)
}

// mapImage gives a segment memory for so many bytes. One that grows into its room is told apart from one that is read
// whole.
func (l *Log) mapImage(s *segment, bytes int64, grows bool) error {
	room, err := l.loader.allocate(bytes, grows)
	if err != nil {
		return err
	}
	s.image = room
	s.free = func() {
		touched := int64(len(room))
		if grows {
			touched = s.bytes // 0 unless it was sealed. Nobody else has the segment any more
		}
		l.loader.release(room, touched)
	}
	return nil
}

// loadImage reads a segment that was just written into memory, in Resident residency, and checks every frame: reads do not do it any more.
func (l *Log) loadImage(ctx context.Context, s *segment, size int64) error {
	if l.opts.Residency != Resident {
		return nil
	}
	w := newWalk(s.first, false)
	err := l.walkImage(ctx, s, size, size, func() *segmentWalk { return w }, nil)
	switch {
	case err != nil:
		return err
	case len(w.bad) > 0:
		b := w.bad[0]
		return fmt.Errorf("%s: what was written is read back wrong at offset %d, %d bytes: %s: %w", s.path, b.offset, b.bytes, b.what, ErrCorrupt)
	case w.zeros < size:
		return fmt.Errorf("%s: what was written is read back as zeros from offset %d on: %w", s.path, w.zeros, ErrCorrupt)
	}
	return nil
}

// walkImage reads the first size bytes of a segment's file into an image with room, and walks the frames while it does.
// begin gives the walk, after the first reads were begun.
func (l *Log) walkImage(ctx context.Context, s *segment, size, room int64, begin func() *segmentWalk, onto func(bytes int64)) error {
	return l.fillImage(ctx, s, size, room, onto, func(read *imageRead) error {
		frames := NewFrameReaderBytes(s.image[:size], s.id, SegmentHeaderBytes)
		frames.read = read
		return begin().goOn(frames, s.first, size)
	})
}

// fillImage reads the first size bytes of a segment's file past the page cache into a new image with room; use works on it meanwhile.
func (l *Log) fillImage(ctx context.Context, s *segment, size, room int64, onto func(int64), use func(*imageRead) error) error {
	f, err := l.fs.OpenDirect(s.path)
	if err != nil {
		return err
	}
	if err := l.mapImage(s, max(room, 1), room > size); err != nil {
		return errors.Join(err, f.Close())
	}
	if size == 0 {
		return errors.Join(use(&imageRead{}), f.Close())
	}
	read, err := l.loader.read(ctx, f, s.image[:size], onto)
	if err != nil {
		return errors.Join(err, f.Close())
	}
	if err := errors.Join(use(read), read.finish(), f.Close()); err != nil {
		return fmt.Errorf("%s: %w", s.path, err)
	}
	return nil
}
