package group

import (
	"context"
	"errors"
	"fmt"

	"sheaf.dev/sheaf/internal/storage/group/format"
	"sheaf.dev/sheaf/internal/storage/group/replay"
	"sheaf.dev/sheaf/internal/storage/group/segio"
)

// images gives segments their place in memory, in Resident residency.
type images struct {
	resident bool
	loader   *segio.Loader
}

// begin gives a segment that is being made an image to encode frames into, in Resident residency.
func (m *images) begin(s *segment, bytes int64) error {
	if !m.resident {
		return nil
	}
	return m.allocate(s, bytes, true)
}

// allocate gives a segment memory for so many bytes. One that grows into its room is told apart from one that is read
// whole.
func (m *images) allocate(s *segment, bytes int64, grows bool) error {
	room, err := m.loader.Allocate(bytes, grows)
	if err != nil {
		return err
	}
	s.image = room
	s.free = func() {
		touched := int64(len(room))
		if grows {
			touched = s.bytes // 0 unless it was sealed. Nobody else has the segment any more
		}
		m.loader.Release(room, touched)
	}
	return nil
}

// load reads a segment that was just written into memory, in Resident residency, and checks every frame: reads do
// not do it any more.
func (m *images) load(ctx context.Context, s *segment, size int64) error {
	if !m.resident {
		return nil
	}
	w := replay.New(s.first, false)
	err := m.walk(ctx, s, size, size, func() *replay.Walk { return w }, nil)
	if err != nil {
		return err
	}
	if err := w.Whole(size); err != nil {
		return fmt.Errorf("%s: what was written is read back wrong: %w", s.path, err)
	}
	return nil
}

// walk reads the first size bytes of a segment's file into an image with room, and walks the frames while it does.
// begin gives the walk, after the first reads were begun.
func (m *images) walk(ctx context.Context, s *segment, size, room int64, begin func() *replay.Walk,
	onto func(bytes int64)) error {
	return m.fill(ctx, s, size, room, onto, func(read *segio.ImageRead) error {
		frames := segio.NewFrameReaderBytes(s.image[:size], s.id, format.SegmentHeaderBytes)
		frames.Await(read)
		return begin().GoOn(frames, s.first, size)
	})
}

// fill reads the first size bytes of a segment's file past the page cache into a new image with room; use works on
// it meanwhile.
func (m *images) fill(ctx context.Context, s *segment, size, room int64, onto func(int64),
	use func(*segio.ImageRead) error) error {
	f, err := s.fs.OpenDirect(s.path)
	if err != nil {
		return err
	}
	if err := m.allocate(s, max(room, 1), room > size); err != nil {
		return errors.Join(err, f.Close())
	}
	if size == 0 {
		return errors.Join(use(&segio.ImageRead{}), f.Close())
	}
	read, err := m.loader.Read(ctx, f, s.image[:size], onto)
	if err != nil {
		return errors.Join(err, f.Close())
	}
	if err := errors.Join(use(read), read.Finish(), f.Close()); err != nil {
		return fmt.Errorf("%s: %w", s.path, err)
	}
	return nil
}
