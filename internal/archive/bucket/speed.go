package bucket

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
)

// SpeedOptions are the options of MeasureSpeed.
type SpeedOptions struct {
	Bytes       int64 // total size of the objects, at least 1
	ObjectBytes int64 // size of one object, at least 1; the last object may be smaller
	Parallel    int   // number of objects that are sent or read at the same time, at least 1
}

// Speed is the result of MeasureSpeed.
type Speed struct {
	Objects  int
	Bytes    int64         // total size of the objects
	Upload   time.Duration // how long it took to create all objects
	Download time.Duration // how long it took to read all objects
	// Kept is the reason why some of the objects could not be deleted, or nil if all were deleted.
	Kept error
}

const (
	speedBlockBytes = 1 << 20          // the content of objects repeats after this many random bytes
	speedDeleteMax  = 30 * time.Second // how long the deletion may take after the context has ended
)

// MeasureSpeed measures how fast a bucket takes and returns objects of random bytes. The objects are new ones below
// ProbePrefix. They are deleted at the end, even if ctx has ended or another error has occurred. It returns an error
// that wraps ErrReadsOther if the bucket does not return what was written to it.
func MeasureSpeed(ctx context.Context, b Bucket, opts SpeedOptions) (s Speed, err error) {
	if min(opts.Bytes, opts.ObjectBytes, int64(opts.Parallel)) < 1 {
		return s, fmt.Errorf("measuring a bucket: %d bytes in objects of %d, %d at once: each must be at least 1",
			opts.Bytes, opts.ObjectBytes, opts.Parallel)
	}
	m := speedMeter{bucket: b, opts: opts, block: make([]byte, speedBlockBytes)}
	_, _ = rand.Read(m.block) // never fails
	for left := opts.Bytes; left > 0; left -= opts.ObjectBytes {
		m.names = append(m.names, ProbePrefix+uuid.NewString())
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), speedDeleteMax)
		defer cancel()
		s.Kept = m.each(ctx, func(ctx context.Context, i int) error { return b.Delete(ctx, m.names[i]) })
	}()
	s.Objects, s.Bytes = len(m.names), opts.Bytes
	began := time.Now()
	if err := m.each(ctx, m.create); err != nil {
		return s, fmt.Errorf("measure how fast objects are created: %w", err)
	}
	s.Upload = time.Since(began)
	began = time.Now()
	if err := m.each(ctx, m.read); err != nil {
		return s, fmt.Errorf("measure how fast objects are read: %w", err)
	}
	s.Download = time.Since(began)
	return s, nil
}

// speedMeter is a measurement in progress.
type speedMeter struct {
	bucket Bucket
	opts   SpeedOptions
	block  []byte // the content of each object is this block again and again
	names  []string
}

// each calls a function for each object, for several objects at a time. It returns the first error, and calls the
// function for no further object after it.
func (m *speedMeter) each(ctx context.Context, do func(ctx context.Context, i int) error) error {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	var next atomic.Int64
	var workers sync.WaitGroup
	for range min(m.opts.Parallel, len(m.names)) {
		workers.Go(func() {
			for i := int(next.Add(1)) - 1; i < len(m.names) && ctx.Err() == nil; i = int(next.Add(1)) - 1 {
				if err := do(ctx, i); err != nil {
					stop(err)
				}
			}
		})
	}
	workers.Wait()
	return context.Cause(ctx)
}

// size returns the size of an object.
func (m *speedMeter) size(i int) int64 {
	return min(m.opts.ObjectBytes, m.opts.Bytes-int64(i)*m.opts.ObjectBytes)
}

// create creates an object. Its name is new, so an object that exists was created by an attempt whose answer was lost.
func (m *speedMeter) create(ctx context.Context, i int) error {
	size := m.size(i)
	err := m.bucket.Create(ctx, m.names[i], size, io.LimitReader(&repeated{block: m.block}, size))
	if errors.Is(err, fs.ErrExist) {
		return nil
	}
	return err
}

// read reads an object, and compares it with what was written.
func (m *speedMeter) read(ctx context.Context, i int) (err error) {
	r, err := m.bucket.Open(ctx, m.names[i], 0, -1)
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%w: %s, which was just created, does not exist", ErrReadsOther, m.names[i])
	}
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.Close()) }()
	c := &comparing{block: m.block}
	if n, err := io.Copy(c, r); err != nil {
		return err
	} else if c.differs || n != m.size(i) {
		return fmt.Errorf("%w: %s has other bytes", ErrReadsOther, m.names[i])
	}
	return nil
}

// repeated reads a block again and again, without end.
type repeated struct {
	block []byte
	at    int
}

// Read implements io.Reader.
func (r *repeated) Read(p []byte) (int, error) {
	n := copy(p, r.block[r.at:])
	r.at = (r.at + n) % len(r.block)
	return n, nil
}

// comparing compares what is written to it with a block that is repeated without end.
type comparing struct {
	block   []byte
	at      int
	differs bool
}

// Write implements io.Writer.
func (c *comparing) Write(p []byte) (int, error) {
	for rest := p; len(rest) > 0; {
		n := min(len(rest), len(c.block)-c.at)
		c.differs = c.differs || !bytes.Equal(rest[:n], c.block[c.at:c.at+n])
		c.at, rest = (c.at+n)%len(c.block), rest[n:]
	}
	return len(p), nil
}
