package group

import (
	"context"
	"errors"
	"fmt"

	"sheaf.dev/sheaf/internal/group/format"
	"sheaf.dev/sheaf/internal/group/replay"
	"sheaf.dev/sheaf/internal/group/segio"
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
	room, err := l.loader.Allocate(bytes, grows)
	if err != nil {
		return err
	}
	s.image = room
	s.free = func() {
		touched := int64(len(room))
		if grows {
			touched = s.bytes // 0 unless it was sealed. Nobody else has the segment any more
		}
		l.loader.Release(room, touched)
	}
	return nil
}

// loadImage reads a segment that was just written into memory, in Resident residency, and checks every frame: reads do
// not do it any more.
func (l *Log) loadImage(ctx context.Context, s *segment, size int64) error {
	if l.opts.Residency != Resident {
		return nil
	}
	w := replay.New(s.first, false)
	err := l.walkImage(ctx, s, size, size, func() *replay.Walk { return w }, nil)
	if err != nil {
		return err
	}
	if err := w.Whole(size); err != nil {
		return fmt.Errorf("%s: what was written is read back wrong: %w", s.path, err)
	}
	return nil
}

// walkImage reads the first size bytes of a segment's file into an image with room, and walks the frames while it does.
// begin gives the walk, after the first reads were begun.
func (l *Log) walkImage(ctx context.Context, s *segment, size, room int64, begin func() *replay.Walk, onto func(bytes int64)) error {
	return l.fillImage(ctx, s, size, room, onto, func(read *segio.ImageRead) error {
		frames := segio.NewFrameReaderBytes(s.image[:size], s.id, format.SegmentHeaderBytes)
		frames.Await(read)
		return begin().GoOn(frames, s.first, size)
	})
}

// fillImage reads the first size bytes of a segment's file past the page cache into a new image with room; use works on
// it meanwhile.
func (l *Log) fillImage(ctx context.Context, s *segment, size, room int64, onto func(int64), use func(*segio.ImageRead) error) error {
	f, err := l.fs.OpenDirect(s.path)
	if err != nil {
		return err
	}
	if err := l.mapImage(s, max(room, 1), room > size); err != nil {
		return errors.Join(err, f.Close())
	}
	if size == 0 {
		return errors.Join(use(&segio.ImageRead{}), f.Close())
	}
	read, err := l.loader.Read(ctx, f, s.image[:size], onto)
	if err != nil {
		return errors.Join(err, f.Close())
	}
	if err := errors.Join(use(read), read.Finish(), f.Close()); err != nil {
		return fmt.Errorf("%s: %w", s.path, err)
	}
	return nil
}
