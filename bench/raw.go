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

// These constants make the raw reader read 1 MiB at a time, with 2 workers that each have 2 reads in flight.
const (
	rawReadBytes = 1 << 20
	rawInFlight  = 4
)

// piece is a part of a file that is read with one call.
type piece struct {
	file   vfs.File
	offset int64
	length int64 // a multiple of vfs.DirectAlign, except for the last piece of a file
	place  int64 // offset of the piece's bytes in the memory that receives all pieces
}

// rawFiles are files that are opened for reading without the page cache.
type rawFiles struct {
	files      []vfs.File
	pieces     []piece
	bytes      int64 // the total size of all files
	bufferSize int64 // size of the memory that receives all pieces, including padding for alignment
}

// openRaw opens files for raw reading. All of them must support O_DIRECT, because a read from the page cache would not
// show the limit of the device.
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
			r.pieces = append(r.pieces, piece{file: f, offset: offset, length: n, place: r.bufferSize})
			r.bufferSize += n
		}
	}
	return r, nil
}

func alignUp(n int64) int64 { return (n + vfs.DirectAlign - 1) &^ (vfs.DirectAlign - 1) }

func (r *rawFiles) close() {
	for _, f := range r.files {
		_ = f.Close() // an error of Close does not matter, because the file was only read
	}
}

// readInto reads all pieces into memory, each at its own offset. memory must have at least bufferSize bytes.
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

// allocate maps fresh anonymous memory with small pages, as Sheaf does (ADR 13). If touch is true, it also writes to
// every page, so that the kernel provides the memory now.
func allocate(bytes int64, touch bool) (memory []byte, release func(), err error) {
	memory, err = unix.Mmap(-1, 0, int(bytes), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return nil, nil, fmt.Errorf("mapping %d bytes: %w", bytes, err)
	}
	_ = unix.Madvise(memory, unix.MADV_NOHUGEPAGE) // an error does not matter, because this is only advice to the kernel
	if touch {
		for i := 0; i < len(memory); i += vfs.DirectAlign {
			memory[i] = 1
		}
	}
	return memory, func() { _ = unix.Munmap(memory) }, nil
}

// readPlain reads a piece with pread, independent of how package vfs reads. Each read in progress occupies a thread.
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

// rawRandom makes n reads at random aligned offsets of files, without the page cache, and returns the number of reads
// per second. The argument length is the number of bytes of each read, and depth is the number of reads in flight. The
// argument read is either readPlain, or readPiece, which uses the kernel's asynchronous reads if they are available.
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

// cachedRandom makes n reads at random offsets of a file that is in the page cache, and returns the number of reads per
// second. The argument length is the number of bytes of each read, and depth is the number of reads in flight.
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

// appendMode determines to which files concurrent writers append, and who syncs the files.
type appendMode int

const (
	ownFiles   appendMode = iota // each writer appends to its own file and syncs it
	groupOfOne                   // all writers append to one file, and one sync serves all waiting writers
)

// rawAppend lets concurrent writers append records of the given size for the given duration. Each writer calls
// fdatasync, or waits for a shared one, before it appends its next record.
func rawAppend(dir string, mode appendMode, writers, size int, duration time.Duration) (out drive.Load, err error) {
	a, err := newAppender(dir, "put", mode, writers)
	defer func() { err = errors.Join(err, a.close()) }()
	if err != nil {
		return out, err
	}
	payload := randomBytes(size)
	return drive.Callers(writers, duration, func(worker int, _ int64) error { return a.append(worker, payload) })
}

// groupFile is a minimal group commit. Writers append to memory, and one of them writes and syncs for all writers.
type groupFile struct {
	f *os.File

	mu      sync.Mutex // guards all fields below
	cond    sync.Cond
	pending []byte
	spare   []byte
	round   int64 // number of the next round, which will write the bytes in pending
	synced  int64 // number of the last round whose bytes are durable
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
