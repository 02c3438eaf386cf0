package segio

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"

	"sheaf.dev/sheaf/internal/storage/vfs"
)

const (
	loadChunkBytes = 1 << 20 // size of one read
	loaderReads    = 8       // number of concurrent reads on an SSD
)

// LoaderOptions holds the options of NewLoader.
type LoaderOptions struct {
	// Reads is the number of concurrent reads for all groups together. 0 means 8, or 1 on a rotational device.
	Reads int
	// Rotational means that seeks are expensive, so that segments are read one after another.
	Rotational bool
	// KeepBytes is the maximum number of bytes of freed images that the loader keeps for later images. Reusing such
	// memory causes no page faults. If KeepBytes is 0, the loader keeps none.
	KeepBytes int64
	// CacheBytes is the number of bytes that the page cache is expected to hold. 0 means half of the machine's memory.
	CacheBytes int64
}

// Loader reads segment files into anonymous mappings. Each read is 1 MiB long and bypasses the page cache. All groups
// of a volume share one Loader, so that the device receives requests from one bounded queue. A Loader is safe for
// concurrent use.
type Loader struct {
	opts  LoaderOptions
	reads chan struct{} // holds one element for each read in progress
	turn  chan struct{} // on a rotational device, held by the segment that is being read; nil on other devices
	cache *pageCache

	mu        sync.Mutex
	kept      [][]byte // guarded by mu
	keptBytes int64    // guarded by mu
	closed    bool     // guarded by mu
}

// NewLoader returns a loader. The caller must call Close to release the memory that the loader keeps.
func NewLoader(opts LoaderOptions) *Loader {
	if opts.Reads <= 0 {
		opts.Reads = loaderReads
		if opts.Rotational {
			opts.Reads = 1
		}
	}
	l := &Loader{opts: opts, reads: make(chan struct{}, opts.Reads), cache: newPageCache(opts.CacheBytes)}
	if opts.Rotational {
		l.turn = make(chan struct{}, 1)
	}
	return l
}

// ColdFile returns a ColdFile for a sealed segment of the given size that this process has not written.
func (l *Loader) ColdFile(fs vfs.FS, name string, bytes int64) *ColdFile {
	return &ColdFile{fs: fs, name: name, bytes: bytes, cache: l.cache}
}

// CacheRound returns the number of the page cache's current round. A round ends when CacheBytes bytes were read into
// the cache. After that, all files count as cold again.
func (l *Loader) CacheRound() uint32 { return l.cache.round.Load() }

// ForgetCache makes all files count as cold again.
func (l *Loader) ForgetCache() { l.cache.round.Add(1) }

// Close releases the memory that the loader keeps. Images still in use are released when they are freed.
func (l *Loader) Close() {
	l.mu.Lock()
	kept := l.kept
	l.kept, l.keptBytes, l.closed = nil, 0, true
	l.mu.Unlock()
	for _, buffer := range kept {
		_ = unix.Munmap(buffer) // fails only for memory that is not mapped
	}
}

// Allocate returns memory for the given number of bytes. Its capacity is a multiple of 4 KiB. If fresh is false, the
// memory may be reused and have old content. If fresh is true, the memory is zeroed, and takes physical memory only
// where it is written to. Callers that fill the memory slowly should set fresh.
func (l *Loader) Allocate(bytes int64, fresh bool) ([]byte, error) {
	size := (max(bytes, 1) + vfs.DirectAlign - 1) &^ (vfs.DirectAlign - 1)
	if !fresh {
		if buffer := l.takeKept(size); buffer != nil {
			return buffer[:bytes], nil
		}
	}
	buffer, err := unix.Mmap(-1, 0, int(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		return nil, fmt.Errorf("map %d bytes for a segment: %w", size, err)
	}
	// ADR 13 says why huge pages are not wanted. The error is ignored, because it means that the kernel has no huge
	// pages.
	_ = unix.Madvise(buffer, unix.MADV_NOHUGEPAGE)
	return buffer[:bytes], nil
}

// takeKept returns the smallest piece of kept memory that is at least as large as requested and not much larger. It
// returns nil if there is no such piece.
func (l *Loader) takeKept(size int64) []byte {
	l.mu.Lock()
	defer l.mu.Unlock()
	best := -1
	for i, buffer := range l.kept {
		have := int64(cap(buffer))
		if have >= size && have <= size+size/4 && (best < 0 || have < int64(cap(l.kept[best]))) {
			best = i
		}
	}
	if best < 0 {
		return nil
	}
	buffer := l.kept[best]
	l.kept[best] = l.kept[len(l.kept)-1]
	l.kept = l.kept[:len(l.kept)-1]
	l.keptBytes -= int64(cap(buffer))
	return buffer
}

// Release takes back memory from Allocate. The argument touched is the number of bytes that were written to. If it is
// small, Release does not keep the memory, because most of it is not backed by physical memory.
func (l *Loader) Release(buffer []byte, touched int64) {
	buffer = buffer[:cap(buffer)]
	l.mu.Lock()
	if !l.closed && touched >= int64(len(buffer))/4*3 && l.keptBytes+int64(len(buffer)) <= l.opts.KeepBytes {
		l.kept = append(l.kept, buffer)
		l.keptBytes += int64(len(buffer))
		l.mu.Unlock()
		return
	}
	l.mu.Unlock()
	_ = unix.Munmap(unsafe.Slice(unsafe.SliceData(buffer), len(buffer))) // fails only for memory that is not mapped
}

// ImageRead reads one file into memory. The beginning of the file can be used while the rest is still being read.
type ImageRead struct {
	file  vfs.File
	into  []byte // length is the number of bytes to read; capacity is a multiple of 4 KiB
	ctx   context.Context
	onto  func(bytes int64) // called with the size of each chunk, in bytes
	after sync.WaitGroup    // waits for the goroutines that read

	mu         sync.Mutex
	moved      sync.Cond
	next       int    // number of the next chunk to read; guarded by mu
	whole      []bool // which chunks have arrived; guarded by mu
	prefix     int    // number of chunks at the start of the file that have all arrived; guarded by mu
	unreadable []byteRange
	err        error // guarded by mu
}

// Read starts to read a file, which OpenDirect has opened, into memory. The caller must call Finish.
func (l *Loader) Read(ctx context.Context, file vfs.File, into []byte, onto func(bytes int64)) (*ImageRead, error) {
	chunks := (len(into) + loadChunkBytes - 1) / loadChunkBytes
	r := &ImageRead{file: file, into: into, ctx: ctx, onto: onto, whole: make([]bool, chunks)}
	r.moved.L = &r.mu
	if l.turn != nil {
		select {
		case l.turn <- struct{}{}:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	for range min(l.opts.Reads, chunks) {
		r.after.Go(func() {
			for l.readNext(r) {
			}
		})
	}
	if l.turn != nil {
		go func() {
			r.after.Wait()
			<-l.turn
		}()
	}
	return r, nil
}

// readNext reads one chunk. It returns false if no chunk is left, or if the read has failed.
func (l *Loader) readNext(r *ImageRead) bool {
	select {
	case l.reads <- struct{}{}:
	case <-r.ctx.Done():
		r.fail(r.ctx.Err())
		return false
	}
	defer func() { <-l.reads }()
	// The select statement above may take a token although the context is already done.
	if err := r.ctx.Err(); err != nil {
		r.fail(err)
		return false
	}
	r.mu.Lock()
	chunk := r.next
	r.next++
	done := r.err != nil || chunk >= len(r.whole)
	r.mu.Unlock()
	if done {
		return false
	}
	from := chunk * loadChunkBytes
	to := min(from+loadChunkBytes, (len(r.into)+vfs.DirectAlign-1)&^(vfs.DirectAlign-1))
	bad, err := readChunk(r.file, r.into[from:to:to], int64(from), len(r.into)-from)
	if err != nil {
		r.fail(err)
		return false
	}
	if r.onto != nil {
		r.onto(int64(min(to, len(r.into)) - from))
	}
	r.arrived(chunk, bad)
	return true
}

// readChunk reads a chunk. The file must hold at least the first `wanted` bytes of the chunk. If the device fails to
// read these bytes, readChunk reads block by block, and replaces unreadable blocks with bytes that pass no checksum.
func readChunk(file vfs.File, into []byte, offset int64, wanted int) ([]byteRange, error) {
	n, err := file.ReadAt(into, offset)
	if n >= min(wanted, len(into)) {
		return nil, nil
	}
	if err == nil || errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("%s: ends at offset %d, while it is read: %w", file.Name(), offset+int64(n),
			io.ErrUnexpectedEOF)
	}
	w := Window{src: file}
	n, err = w.readBlocks(into, offset)
	if n < min(wanted, len(into)) {
		return nil, errors.Join(fmt.Errorf("%s: read %d bytes at offset %d", file.Name(), len(into), offset), err)
	}
	return w.unreadable, nil
}

// arrived records that a chunk has arrived.
func (r *ImageRead) arrived(chunk int, bad []byteRange) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.unreadable = append(r.unreadable, bad...)
	r.whole[chunk] = true
	if chunk != r.prefix {
		return
	}
	for r.prefix < len(r.whole) && r.whole[r.prefix] {
		r.prefix++
	}
	r.moved.Broadcast()
}

// isUnreadable reports whether the device failed to read a part of the range. The range must have arrived.
func (r *ImageRead) isUnreadable(offset, bytes int64) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return overlaps(r.unreadable, offset, bytes)
}

func (r *ImageRead) fail(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.err == nil {
		r.err = err
	}
	r.moved.Broadcast()
}

// await waits until all bytes before the offset through have arrived. It returns an offset before which all bytes have
// arrived.
func (r *ImageRead) await(through int64) (int64, error) {
	through = min(through, int64(len(r.into)))
	r.mu.Lock()
	defer r.mu.Unlock()
	for {
		have := min(int64(r.prefix)*loadChunkBytes, int64(len(r.into)))
		if have >= through || r.err != nil {
			return have, r.err
		}
		r.moved.Wait()
	}
}

// Finish waits until all reads have finished, so that no goroutine writes into the memory. It returns the first error.
func (r *ImageRead) Finish() error {
	r.after.Wait()
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.err
}
