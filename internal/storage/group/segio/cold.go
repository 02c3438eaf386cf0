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

// A record that is read once is not worth a place in the page cache, and getting it there keeps a processor of the
// runtime waiting for the device. So the first read of a block goes past the page cache; one that is read again goes
// through it and stays. docs/adr/0008-cold-reads.md.

const (
	coldBlocksPerWord = 32 // two bits each: was read, goes through the page cache
	coldBufferBytes   = 64 << 10
	coldCacheShare    = 2 // of the machine's memory
)

// coldBuffers hold most frames wherever they begin in a block; greater ones are read into FrameBuffers.
var coldBuffers = sync.Pool{New: func() any { b := vfs.AlignedBytes(coldBufferBytes); return &b }}

// pageCache is what the segments of a volume assume about the page cache: which round of it they are in. When so many
// bytes went through it as it may hold, a new round begins, in which everything is cold again: what is hot costs one
// read of the device then, and what the kernel dropped is not read through the cache for ever.
type pageCache struct {
	bytesMax int64
	bytes    atomic.Int64 // that went into it in this round
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

// fill notes that bytes are read into the cache.
func (c *pageCache) fill(bytes int64) {
	if c.bytes.Add(bytes) > c.bytesMax {
		c.bytes.Store(0)
		c.round.Add(1)
	}
}

// ColdFile is the file of a sealed segment that was not written by this process, so that the page cache is not assumed
// to hold it.
type ColdFile struct {
	fs     vfs.FS
	name   string
	bytes  int64
	cache  *pageCache
	blocks atomic.Pointer[coldBlocks] // nil: none was read

	mu     sync.Mutex
	file   atomic.Pointer[directFile] // opened past the page cache at the first read
	refuse atomic.Bool                // it cannot be opened that way: all reads go through the page cache
}

// directFile makes an interface fit into an atomic pointer.
type directFile struct{ vfs.File }

// coldBlocks remembers what was read in a round of the page cache.
type coldBlocks struct {
	round uint32
	words []atomic.Uint64
}

// direct decides whether the frame at offset is read past the page cache, and remembers that it was read.
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

// open is the file, opened past the page cache; nil where that cannot be.
func (f *ColdFile) open() vfs.File {
	if file := f.file.Load(); file != nil {
		return file
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if file := f.file.Load(); file != nil || f.refuse.Load() {
		if file == nil {
			return nil
		}
		return file
	}
	file, err := f.fs.OpenDirect(f.name)
	if err != nil {
		return nil // perhaps too many files are open: the ordinary read says what is wrong, if anything is
	}
	if !file.Direct() {
		f.refuse.Store(true)
		_ = file.Close() // only read from
		return nil
	}
	f.file.Store(&directFile{file})
	return file
}

// Close closes the file, if it was opened. Nobody may read from it then.
func (f *ColdFile) Close() {
	if file := f.file.Load(); file != nil {
		_ = file.Close() // only read from
	}
}

// Read reads a frame past the page cache, where that is right for it, and gives its bytes; done gives their memory
// back. ok is false where it is to be read in the ordinary way.
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

// ReadInOrder gives what a part of the file is read from in order: past the page cache, with more reads under way,
// where that part is long, cold, and read for the first time. Nil: the file as it is.
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
