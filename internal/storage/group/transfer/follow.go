package transfer

import (
	"fmt"
	"io"
	"sync"

	"sheaf.dev/sheaf/internal/storage/group/format"
	"sheaf.dev/sheaf/internal/storage/group/segio"
	"sheaf.dev/sheaf/internal/storage/vfs"
)

// FollowBytesMin is how much of a file has to be missing for it to be checked while it comes, so that little is left
// when it is whole, and the processor is not busy with all of it at once. A smaller one is checked then.
const FollowBytesMin = 4 << 20

// check reads a file that is whole, and tells what is wrong with it.
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

// arrivals reads a file behind the one who writes it: a read waits for its bytes.
type arrivals struct {
	file vfs.File
	size int64 // of the whole file
	over chan struct{}
	// What was found out. Set when over is closed.
	hint *format.Hint
	err  error

	mu    sync.Mutex
	come  sync.Cond
	at    int64 // so many bytes were written. Guarded by mu
	ended bool  // no more come. Guarded by mu
	read  int64 // what is before was read. Guarded by mu
}

// follow begins to check a file of which the first bytes are there.
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
	f.read = max(f.read, offset) // it is read in order
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

// advance tells that the file was written up to an offset, and gives up to where it was read.
func (f *arrivals) advance(at int64) (read int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.at = at
	f.come.Signal()
	return f.read
}

// end waits until the check is over: to the file's end where all of it was written.
func (f *arrivals) end() (*format.Hint, error) {
	f.mu.Lock()
	f.ended = true
	f.come.Signal()
	f.mu.Unlock()
	<-f.over
	return f.hint, f.err
}
