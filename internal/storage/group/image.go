package group

import (
	"context"
	"errors"
	"fmt"

	"sheaf.dev/sheaf/internal/storage/group/format"
	"sheaf.dev/sheaf/internal/storage/group/replay"
	"sheaf.dev/sheaf/internal/storage/group/segio"
)

// images allocates and fills the images of segments if the residency is Resident.
type images struct {
	resident bool
	loader   *segio.Loader
}

// begin allocates an image for a new segment if the residency is Resident. The segment's frames are encoded into the
// image.
func (m *images) begin(s *segment, bytes int64) error {
	if !m.resident {
		return nil
	}
	return m.allocate(s, bytes, true)
}

// allocate allocates memory for a segment's image. The caller sets grows to true if it will append frames to the image
// one by one, and to false if it will read the whole segment at once.
func (m *images) allocate(s *segment, bytes int64, grows bool) error {
	room, err := m.loader.Allocate(bytes, grows)
	if err != nil {
		return err
	}
	s.image = room
	s.free = func() {
		touched := int64(len(room))
		if grows {
			// s.bytes is 0 if the segment was never sealed. Reading it needs no lock, because nothing else uses the segment at
			// this point.
			touched = s.bytes
		}
		m.loader.Release(room, touched)
	}
	return nil
}

// load reads a newly written segment back into memory, if the residency is Resident. It verifies every frame, because
// later reads of the image do not.
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

// walk reads the first `size` bytes of a segment's file, bypassing the page cache, into a new image that has space for
// `room` bytes. It walks the frames while the reads are in progress. Once the first reads have started, walk calls the
// function begin, which returns the replay.Walk to continue. It calls the function onto for each part that has been
// read, with the part's size.
func (m *images) walk(ctx context.Context, s *segment, size, room int64, begin func() *replay.Walk,
	onto func(bytes int64)) error {
	f, err := s.fs.OpenDirect(s.path)
	if err != nil {
		return err
	}
	if err := m.allocate(s, room, room > size); err != nil {
		return errors.Join(err, f.Close())
	}
	read, err := m.loader.Read(ctx, f, s.image[:size], onto)
	if err != nil {
		return errors.Join(err, f.Close())
	}
	frames := segio.NewFrameReaderBytes(s.image[:size], s.id, format.SegmentHeaderBytes)
	frames.Await(read)
	err = begin().GoOn(frames, s.first, size)
	if err := errors.Join(err, read.Finish(), f.Close()); err != nil {
		return fmt.Errorf("%s: %w", s.path, err)
	}
	return nil
}
