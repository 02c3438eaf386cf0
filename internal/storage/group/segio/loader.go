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
	loaderReads    = 8       // reads under way on an SSD
)

// LoaderOptions of NewLoader.
type LoaderOptions struct {
	// Reads is the number of concurrent reads over all groups; 0: 8, and 1 on a rotational device.
	Reads int
	// Rotational says that seeks are expensive: segments are read one after another.
	Rotational bool
	// KeepBytes is the amount of memory that is kept when images are freed, for use by later ones: memory that was
	// touched before costs no page faults. 0: none is kept.
	KeepBytes int64
	// CacheBytes is how much of the page cache can be expected to stay cached; 0: half of the machine's memory.
	CacheBytes int64
}

// Loader reads segment files into memory: 1 MiB reads past the page cache, into anonymous mappings. One
// Loader is shared by all groups of a volume, so that the device sees one bounded queue. Safe for concurrent use.
type Loader struct {
	opts  LoaderOptions
	reads chan struct{} // a token for each read under way
	turn  chan struct{} // rotational: held by the segment that is read; nil: no turns
	cache *pageCache

	mu        sync.Mutex
	kept      [][]byte // guarded by mu
	keptBytes int64    // guarded by mu
	closed    bool     // guarded by mu
}

// NewLoader returns a loader. Close releases the memory that it keeps.
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

// ColdFile returns the file of a sealed segment with the given number of bytes, which this process has not written.
func (l *Loader) ColdFile(fs vfs.FS, name string, bytes int64) *ColdFile {
	return &ColdFile{fs: fs, name: name, bytes: bytes, cache: l.cache}
}

// CacheRound counts how often the record of the page cache's content was reset: each time after CacheBytes went into
// the cache.
func (l *Loader) CacheRound() uint32 { return l.cache.round.Load() }

// ForgetCache makes all files count as cold again.
func (l *Loader) ForgetCache() { l.cache.round.Add(1) }

// Close releases the memory that is kept. Images still in use are released when they are freed.
func (l *Loader) Close() {
	l.mu.Lock()
	kept := l.kept
	l.kept, l.keptBytes, l.closed = nil, 0, true
	l.mu.Unlock()
	for _, room := range kept {
		_ = unix.Munmap(room) // fails only for memory that is not mapped
	}
}

// Allocate maps memory for bytes; its capacity is a multiple of 4 KiB. Kept memory may hold old content. Memory that is
// filled little by little must be fresh: it is zero, and is backed by physical memory only as it is written.
func (l *Loader) Allocate(bytes int64, fresh bool) ([]byte, error) {
	size := (max(bytes, 1) + vfs.DirectAlign - 1) &^ (vfs.DirectAlign - 1)
	if !fresh {
		if room := l.takeKept(size); room != nil {
			return room[:bytes], nil
		}
	}
	room, err := unix.Mmap(-1, 0, int(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		return nil, fmt.Errorf("map %d bytes for a segment: %w", size, err)
	}
	_ = unix.Madvise(room, unix.MADV_NOHUGEPAGE) // ADR 13. A kernel that does not know it has no huge pages
	return room[:bytes], nil
}

// takeKept finds the smallest kept memory that is large enough, but not much larger than requested.
func (l *Loader) takeKept(size int64) []byte {
	l.mu.Lock()
	defer l.mu.Unlock()
	best := -1
	for i, room := range l.kept {
		have := int64(cap(room))
		if have >= size && have <= size+size/4 && (best < 0 || have < int64(cap(l.kept[best]))) {
			best = i
		}
	}
	if best < 0 {
		return nil
	}
	room := l.kept[best]
	l.kept[best] = l.kept[len(l.kept)-1]
	l.kept = l.kept[:len(l.kept)-1]
	l.keptBytes -= int64(cap(room))
	return room
}

// Release takes back memory from Allocate. touched is the number of bytes that were written to: if it is small, most of
// the mapping is not backed by memory yet, so it is not worth keeping.
func (l *Loader) Release(room []byte, touched int64) {
	room = room[:cap(room)]
	l.mu.Lock()
	if !l.closed && touched >= int64(len(room))/4*3 && l.keptBytes+int64(len(room)) <= l.opts.KeepBytes {
		l.kept = append(l.kept, room)
		l.keptBytes += int64(len(room))
		l.mu.Unlock()
		return
	}
	l.mu.Unlock()
	_ = unix.Munmap(unsafe.Slice(unsafe.SliceData(room), len(room))) // fails only for memory that is not mapped
}

// ImageRead reads one file into memory. While the read goes on, bytes up to a growing bound may be used.
type ImageRead struct {
	file  vfs.File
	into  []byte // length: bytes wanted; the capacity is a multiple of 4 KiB
	ctx   context.Context
	onto  func(bytes int64) // called with the number of bytes of each chunk
	after sync.WaitGroup    // the goroutines that read

	mu         sync.Mutex
	moved      sync.Cond
	next       int    // the next chunk to read. Guarded by mu
	whole      []bool // chunks that have arrived. Guarded by mu
	prefix     int    // all chunks before this one have arrived. Guarded by mu
	unreadable []byteRange
	err        error // guarded by mu
}

// Read starts to read a file, opened by OpenDirect, into memory. The caller must call Finish.
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

// readNext reads one chunk. It returns false if nothing is left to do.
func (l *Loader) readNext(r *ImageRead) bool {
	select {
	case l.reads <- struct{}{}:
	case <-r.ctx.Done():
		r.fail(r.ctx.Err())
		return false
	}
	defer func() { <-l.reads }()
	if err := r.ctx.Err(); err != nil { // a select may choose a token all the same
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

// readChunk reads a chunk; its first wanted bytes must be in the file. If the device fails the read, readChunk reads
// block by block. Unreadable blocks become bytes that no checksum passes.
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

// arrived records a chunk.
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

// isUnreadable reports whether the device failed to read a part of a range that has arrived.
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

// await waits until the bytes up to through have arrived, and returns the offset up to which bytes have arrived.
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

// Finish waits until no goroutine reads into the memory any more.
func (r *ImageRead) Finish() error {
	r.after.Wait()
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.err
}
