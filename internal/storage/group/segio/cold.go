package segio

import (
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"sheaf.dev/sheaf/internal/storage/group/format"
	"sheaf.dev/sheaf/internal/storage/index"
	"sheaf.dev/sheaf/internal/storage/vfs"
)

// A record that is read only once should not occupy the page cache. In addition, a read through the cache blocks one of
// the Go runtime's processors while the device works. Therefore the first read of a block bypasses the page cache. A
// block that is read again goes through the cache and remains there. See docs/adr/0008-cold-reads.md.

const (
	// Each block has two bits. One says that the first read has taken place, the other that later reads use the page
	// cache.
	coldBlocksPerWord = 32
	coldBufferBytes   = 64 << 10
	coldCacheShare    = 2 // the page cache is assumed to hold 1/coldCacheShare of the machine's memory
)

// coldBuffers holds buffers that are large enough for most frames at any offset in a block. Larger frames are read into
// FrameBuffers.
var coldBuffers = sync.Pool{New: func() any { b := vfs.AlignedBytes(coldBufferBytes); return &b }}

// pageCache estimates what the kernel's page cache holds of a volume's segments. It counts rounds. When as many bytes
// were read through the cache as the cache can hold, a new round begins, and all blocks count as cold again. As a
// result, a hot block costs one device read in each round, and a block that the kernel has dropped from the cache
// becomes cold again.
type pageCache struct {
	bytesMax int64
	bytes    atomic.Int64 // bytes read into the cache in this round
	round    atomic.Uint32
}

func newPageCache(bytesMax int64) *pageCache {
	if bytesMax <= 0 {
		bytesMax = 1 << 30
		var info unix.Sysinfo_t
		if unix.Sysinfo(&info) == nil {
			bytesMax = max(bytesMax, int64(info.Totalram)*int64(info.Unit)/coldCacheShare)
		}
	}
	return &pageCache{bytesMax: bytesMax}
}

// fill records that bytes were read into the page cache, and begins a new round if necessary.
func (c *pageCache) fill(bytes int64) {
	if c.bytes.Add(bytes) > c.bytesMax {
		c.bytes.Store(0)
		c.round.Add(1)
	}
}

// ColdFile is a sealed segment's file. The page cache is assumed not to hold the file, because this process did not
// write it.
type ColdFile struct {
	fs     vfs.FS
	name   string
	bytes  int64
	cache  *pageCache
	blocks atomic.Pointer[coldBlocks] // nil until the first read

	mu     sync.Mutex
	file   atomic.Pointer[directFile] // opened with O_DIRECT when the first frame is read
	refuse atomic.Bool                // O_DIRECT is not possible, so all reads use the page cache
}

// directFile wraps the interface vfs.File for an atomic pointer.
type directFile struct{ vfs.File }

// coldBlocks records the blocks that were read in one round of the page cache.
type coldBlocks struct {
	round uint32
	words []atomic.Uint64
}

// direct decides whether reading a frame bypasses the page cache, and records the read.
func (f *ColdFile) direct(offset, length int64) bool {
	if f.refuse.Load() {
		return false
	}
	round := f.cache.round.Load()
	blocks := f.blocks.Load()
	if blocks == nil || blocks.round != round {
		anew := &coldBlocks{round: round, words: make([]atomic.Uint64, f.bytes/(format.BlockBytes*coldBlocksPerWord)+1)}
		if f.blocks.CompareAndSwap(blocks, anew) {
			blocks = anew
		} else {
			blocks = f.blocks.Load()
		}
	}
	block := offset / format.BlockBytes
	word := &blocks.words[min(int(block/coldBlocksPerWord), len(blocks.words)-1)]
	read := uint64(1) << (2 * uint(block%coldBlocksPerWord))
	cached := read << 1
	for {
		old := word.Load()
		switch {
		case old&cached != 0:
			return false
		case old&read == 0:
			if word.CompareAndSwap(old, old|read) {
				return true
			}
		case word.CompareAndSwap(old, old|cached):
			f.cache.fill(length)
			return false
		}
	}
}

// open returns the file, opened with O_DIRECT, or nil if that is not possible.
func (f *ColdFile) open() vfs.File {
	if file := f.file.Load(); file != nil {
		return file
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if file := f.file.Load(); file != nil {
		return file
	}
	if f.refuse.Load() {
		return nil
	}
	file, err := f.fs.OpenDirect(f.name)
	if err != nil {
		// Too many files may be open. In that case the read through the page cache fails too, and reports it.
		return nil
	}
	if !file.Direct() {
		f.refuse.Store(true)
		_ = file.Close() // an error loses nothing, because the file was only read
		return nil
	}
	f.file.Store(&directFile{file})
	return file
}

// Close closes the file if it was opened. No read may be in progress or follow.
func (f *ColdFile) Close() {
	if file := f.file.Load(); file != nil {
		_ = file.Close() // an error loses nothing, because the file was only read
	}
}

// Read reads a frame without using the page cache, and returns the frame's bytes. The caller must call done when it
// no longer needs them. If ok is false, bypassing the page cache is impossible or would not pay off, and the caller
// must read the frame through the cache.
func (f *ColdFile) Read(loc index.Loc) (frame []byte, done func(), ok bool, err error) {
	if !f.direct(loc.Offset(), loc.LengthBound()) {
		return nil, nil, false, nil
	}
	file := f.open()
	if file == nil {
		return nil, nil, false, nil
	}
	align := file.ReadAlign()
	skip := loc.Offset() % align
	wanted := (skip + loc.LengthBound() + align - 1) &^ (align - 1)
	pool := &coldBuffers
	if wanted > coldBufferBytes {
		pool = &FrameBuffers
	}
	buffer := pool.Get().(*[]byte)
	n, err := file.ReadAt((*buffer)[:wanted], loc.Offset()-skip)
	if err != nil && !errors.Is(err, io.EOF) {
		pool.Put(buffer)
		return nil, nil, false, fmt.Errorf("%s: read %d bytes at offset %d: %w", f.name, wanted, loc.Offset()-skip, err)
	}
	frame = (*buffer)[min(skip, int64(n)):min(skip+loc.LengthBound(), int64(n))]
	return frame, func() { pool.Put(buffer) }, true, nil
}

// ReadInOrder returns a reader for a part of the file. The reader bypasses the page cache and keeps several reads in
// flight. ReadInOrder returns nil unless the part is long, cold, and read for the first time. In that case, the caller
// reads the file itself.
func (f *ColdFile) ReadInOrder(from, to int64) *ReadAhead {
	if to-from < aheadBytes || !f.direct(from, to-from) {
		return nil
	}
	file := f.open()
	if file == nil {
		return nil
	}
	return NewReadAhead(file, to)
}
