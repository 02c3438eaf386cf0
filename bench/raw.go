package bench

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"sheaf.dev/sheaf/bench/drive"
	"sheaf.dev/sheaf/internal/storage/vfs"
)

// How the raw reader reads: 1 MiB at a time, 2 workers with 2 reads in flight each.
const (
	rawReadBytes = 1 << 20
	rawInFlight  = 4
)

// piece of a file that is read at once.
type piece struct {
	file   vfs.File
	offset int64
	length int64 // a multiple of vfs.DirectAlign, but at the end of the file
	place  int64 // in the memory that all is read into
}

// rawFiles are files opened for reading past the page cache.
type rawFiles struct {
	files  []vfs.File
	pieces []piece
	bytes  int64 // of all files
	room   int64 // memory that all pieces need, aligned
}

// openRaw opens files for raw reading. All must allow O_DIRECT: a limit that was read from the page cache is none.
func openRaw(names []string) (_ *rawFiles, err error) {
	r := &rawFiles{}
	defer func() {
		if err != nil {
			r.close()
		}
	}()
	for _, name := range names {
		f, err := vfs.OS{}.OpenDirect(name)
		if err != nil {
			return nil, err
		}
		r.files = append(r.files, f)
		if !f.Direct() {
			return nil, fmt.Errorf(
				"%s: the file system does not allow O_DIRECT, so there is nothing to compare with: give another --dir", name)
		}
		size, err := f.Size()
		if err != nil {
			return nil, err
		}
		r.bytes += size
		for offset := int64(0); offset < size; offset += rawReadBytes {
			n := min(rawReadBytes, alignUp(size-offset))
			r.pieces = append(r.pieces, piece{file: f, offset: offset, length: n, place: r.room})
			r.room += n
		}
	}
	return r, nil
}

func alignUp(n int64) int64 { return (n + vfs.DirectAlign - 1) &^ (vfs.DirectAlign - 1) }

func (r *rawFiles) close() {
	for _, f := range r.files {
		_ = f.Close() // only read from
	}
}

// readInto reads all pieces to their places in memory of at least r.room bytes.
func (r *rawFiles) readInto(memory []byte) error {
	return drive.Shared(rawInFlight, int64(len(r.pieces)), func(_ int, i int64) error {
		p := r.pieces[i]
		return readPiece(p, memory[p.place:p.place+p.length])
	})
}

func readPiece(p piece, b []byte) error {
	if _, err := p.file.ReadAt(b, p.offset); err != nil && !errors.Is(err, io.EOF) {
		return fmt.Errorf("%s at %d: %w", p.file.Name(), p.offset, err)
	}
	return nil
}

// allocate maps fresh anonymous memory, in small pages as ours is (ADR 13). touch writes to every page first.
func allocate(bytes int64, touch bool) (memory []byte, release func(), err error) {
	memory, err = unix.Mmap(-1, 0, int(bytes), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return nil, nil, fmt.Errorf("mapping %d bytes: %w", bytes, err)
	}
	_ = unix.Madvise(memory, unix.MADV_NOHUGEPAGE) // an advice
	if touch {
		for i := 0; i < len(memory); i += vfs.DirectAlign {
			memory[i] = 1
		}
	}
	return memory, func() { _ = unix.Munmap(memory) }, nil
}

// readPlain reads a piece by pread, whatever package vfs does: a thread waits for each read under way.
func readPlain(p piece, b []byte) error {
	fd, ok := p.file.Fd()
	if !ok {
		return fmt.Errorf("%s: has no file descriptor", p.file.Name())
	}
	for {
		_, err := unix.Pread(int(fd), b, p.offset)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return fmt.Errorf("%s at %d: %w", p.file.Name(), p.offset, err)
		}
		return nil
	}
}

// rawRandom reads length bytes at random aligned offsets of files past the page cache, depth at a time, n reads in all,
// and gives reads per second. read is readPlain, or readPiece, which hands reads to the kernel where it takes them.
func rawRandom(names []string, length int64, depth, n int, read func(piece, []byte) error) (float64, error) {
	r, err := openRaw(names)
	if err != nil {
		return 0, err
	}
	defer r.close()
	length = alignUp(length)
	memory, release, err := allocate(int64(depth)*length, true)
	if err != nil {
		return 0, err
	}
	defer release()
	sizes := make([]int64, len(r.files))
	for i, f := range r.files {
		if sizes[i], err = f.Size(); err != nil {
			return 0, err
		}
	}
	return perSecond(float64(n), func() error {
		return drive.Shared(depth, int64(n), func(worker int, _ int64) error {
			i := rand.IntN(len(r.files))
			offset := rand.Int64N(max(sizes[i]-length, 1)) &^ (vfs.DirectAlign - 1)
			return read(piece{file: r.files[i], offset: offset}, memory[int64(worker)*length:][:length])
		})
	})
}

// cachedRandom reads length bytes at random offsets of a file that the page cache holds, depth at a time, n reads in
// all, and gives reads per second.
func cachedRandom(name string, length int64, depth, n int) (rate float64, err error) {
	f, err := vfs.OS{}.Open(name)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	size, err := f.Size()
	if err != nil {
		return 0, err
	}
	memory := make([]byte, int64(depth)*length)
	return perSecond(float64(n), func() error {
		return drive.Shared(depth, int64(n), func(worker int, _ int64) error {
			_, err := f.ReadAt(memory[int64(worker)*length:][:length], rand.Int64N(max(size-length, 1)))
			return err
		})
	})
}

// How writers append in a raw append.
type appendMode int

const (
	ownFiles   appendMode = iota // each writer appends to a file of its own and syncs it
	groupOfOne                   // all append to one file; one sync serves all that wait
)

// rawAppend appends records of size bytes by so many concurrent writers, each durable by fdatasync before the next of
// the same writer, for a time.
func rawAppend(dir string, mode appendMode, writers, size int, duration time.Duration) (out drive.Load, err error) {
	a, err := newAppender(dir, "put", mode, writers)
	defer func() { err = errors.Join(err, a.close()) }()
	if err != nil {
		return out, err
	}
	payload := randomBytes(size)
	return drive.Callers(writers, duration, func(worker int, _ int64) error { return a.append(worker, payload) })
}

// groupFile is the least that a group commit can be: writers append to memory, one of them writes and syncs for all.
type groupFile struct {
	f *os.File

	mu      sync.Mutex // guards what follows
	cond    sync.Cond
	pending []byte
	spare   []byte
	round   int64 // of the batch that pending will be in
	synced  int64 // last round that is durable
	busy    bool
	err     error
}

func (g *groupFile) append(payload []byte) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.pending = append(g.pending, payload...)
	mine := g.round + 1
	for g.synced < mine && g.err == nil {
		if g.busy {
			g.cond.Wait()
			continue
		}
		g.busy = true
		g.round++
		batch := g.pending
		g.pending = g.spare[:0]
		g.mu.Unlock()
		_, err := g.f.Write(batch)
		if err == nil {
			err = unix.Fdatasync(int(g.f.Fd()))
		}
		g.mu.Lock()
		g.spare, g.busy, g.err = batch, false, err
		g.synced = g.round
		g.cond.Broadcast()
	}
	return g.err
}
