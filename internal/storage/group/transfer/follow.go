package transfer

import (
	"fmt"
	"io"
	"sync"

	"sheaf.dev/sheaf/internal/storage/group/format"
	"sheaf.dev/sheaf/internal/storage/group/segio"
	"sheaf.dev/sheaf/internal/storage/vfs"
)

// FollowBytesMin is the least number of missing bytes for which a file is checked while it arrives. The check of a
// large file is then almost finished when its last byte arrives, and its processor time is spread over the transfer. A
// file with fewer missing bytes is checked when it is complete.
const FollowBytesMin = 4 << 20

// check reads a complete file, and returns the error that it finds, or the hint of a segment.
func (w *installFile) check(f io.ReaderAt) (*format.Hint, error) {
	if w.in.Kind == SegmentFile {
		return checkSegment(f, w.install.opts.Identity, w.in.segment)
	}
	bad, err := checkBlob(f, w.in.Bytes, w.in.ref)
	if len(bad) > 0 {
		return nil, fmt.Errorf("%w: %d bytes at offset %d: %s", format.ErrCorrupt, bad[0].Length, bad[0].Offset, bad[0].What)
	}
	return nil, err
}

// arrivals reads a file while another goroutine writes it: a read waits until its bytes are written.
type arrivals struct {
	file vfs.File
	size int64 // size of the whole file
	over chan struct{}
	// hint and err are the results of the check. They are set when over is closed.
	hint *format.Hint
	err  error

	mu    sync.Mutex
	come  sync.Cond
	at    int64 // number of bytes written. Guarded by mu
	ended bool  // no more bytes will arrive. Guarded by mu
	read  int64 // the bytes before this offset were read. Guarded by mu
}

// follow starts to check a file while it is still being received.
func (w *installFile) follow() *arrivals {
	f := &arrivals{file: w.file, size: w.in.Bytes, at: w.at, over: make(chan struct{})}
	f.come.L = &f.mu
	go func() {
		defer close(f.over)
		f.hint, f.err = w.check(f)
	}()
	return f
}

// ReadAt implements io.ReaderAt.
func (f *arrivals) ReadAt(p []byte, offset int64) (int, error) {
	through := min(offset+int64(len(p)), f.size)
	f.mu.Lock()
	f.read = max(f.read, offset) // reads are sequential
	for f.at < through && !f.ended {
		f.come.Wait()
	}
	short := f.at < through
	f.mu.Unlock()
	if short {
		return 0, segio.ErrStop
	}
	return f.file.ReadAt(p, offset)
}

// advance records that the file was written up to an offset. It returns the offset up to which the file was read.
func (f *arrivals) advance(at int64) (read int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.at = at
	f.come.Signal()
	return f.read
}

// end waits until the check is over. If the whole file was written, the check reads it to its end.
func (f *arrivals) end() (*format.Hint, error) {
	f.mu.Lock()
	f.ended = true
	f.come.Signal()
	f.mu.Unlock()
	<-f.over
	return f.hint, f.err
}
