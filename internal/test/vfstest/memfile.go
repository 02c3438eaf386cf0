package vfstest

import (
	"fmt"
	"io"
	"io/fs"
	"maps"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"sheaf.dev/sheaf/internal/storage/vfs"
)

const (
	sectorBytes    = 512 // a disk writes a sector completely or not at all
	pageBytes      = 4096
	sectorsPerPage = pageBytes / sectorBytes
	sizesMax       = 64 // maximum number of sizes that a file remembers between two syncs
	// memFileMax is the maximum size of a file in bytes. A limit is needed because even the pages of a hole take memory,
	// one pointer each.
	memFileMax = 1 << 36
)

// memPage is one page of a file. Several disks may share a page (CrashClone). A shared page is copied before a change.
type memPage struct {
	shared atomic.Bool
	b      [pageBytes]byte
}

// zeroPage stands for all pages that occupy space but were never written.
var zeroPage = func() *memPage {
	p := new(memPage)
	p.shared.Store(true)
	return p
}()

// memNode is a file or a folder. Mem.mu guards it.
type memNode struct {
	number int64 // creation order, which makes seeded choices repeatable
	dir    bool
	mtime  time.Time

	// The following fields are used only by folders.
	entries map[string]*memNode // current names
	durable map[string]*memNode // names at the last SyncDir

	// The following fields are used only by files.
	links       int        // number of names
	handles     int        // number of open files
	pages       []*memPage // a nil page is a hole; bytes at and after size are zero
	usedBytes   int64      // bytes in pages that are not holes
	size        int64
	durableSize int64
	sizes       []int64          // sizes since the last Sync
	dirty       map[int64][]byte // content at the last Sync, for each sector that was changed since; nil stands for zeros
	// lost has, for each sector that a failed Sync has lost, the content on the disk. Later Syncs do not change it.
	lost map[int64][]byte
	last memWrite // last write since the last Sync
}

// memWrite holds the data that is needed to undo a part of a write.
type memWrite struct {
	first, count int64    // the sectors that were written
	before       [][]byte // content that each of these sectors had before the write; nil stands for zeros
	sizeBefore   int64
}

// sector returns the current content of a sector without copying it. nil means zeros.
func (n *memNode) sector(s int64) []byte {
	i := s / sectorsPerPage
	if i >= int64(len(n.pages)) || n.pages[i] == nil || n.pages[i] == zeroPage {
		return nil
	}
	at := s % sectorsPerPage * sectorBytes
	return n.pages[i].b[at : at+sectorBytes]
}

// setSector sets the content of a sector, without counting the space that it uses. It is for the new disks that
// CrashClone creates.
func (n *memNode) setSector(s int64, content []byte) {
	if content == nil && n.sector(s) == nil {
		return
	}
	for int64(len(n.pages)) <= s/sectorsPerPage {
		n.pages = append(n.pages, nil)
	}
	n.writable(s / sectorsPerPage)
	at := s % sectorsPerPage * sectorBytes
	clear(n.pages[s/sectorsPerPage].b[at : at+sectorBytes])
	copy(n.pages[s/sectorsPerPage].b[at:], content)
}

// writable returns page i for changes, after copying it if other disks share it. i must be less than len(pages).
func (n *memNode) writable(i int64) *memPage {
	p := n.pages[i]
	if p == nil || p.shared.Load() {
		fresh := new(memPage)
		if p != nil {
			fresh.b = p.b
		}
		n.pages[i], p = fresh, fresh
	}
	return p
}

// touch remembers the durable content of a sector that is about to be changed.
func (n *memNode) touch(s int64) {
	if _, ok := n.dirty[s]; ok {
		return
	}
	if n.dirty == nil {
		n.dirty = make(map[int64][]byte)
	}
	if onDisk, ok := n.lost[s]; ok {
		n.dirty[s] = onDisk
		delete(n.lost, s)
		return
	}
	var onDisk []byte
	if s*sectorBytes < n.durableSize {
		if now := n.sector(s); now != nil {
			onDisk = append([]byte(nil), now...)
		}
	}
	n.dirty[s] = onDisk
}

// grow allocates pages for the bytes from offset to end, until no free space remains. It returns the offset up to
// which there are pages.
func (m *Mem) grow(n *memNode, offset, end int64) int64 {
	for i := offset / pageBytes; i*pageBytes < end; i++ {
		for int64(len(n.pages)) <= i {
			n.pages = append(n.pages, nil)
		}
		if n.pages[i] != nil {
			continue
		}
		if m.freeBytes() < pageBytes {
			return max(offset, i*pageBytes)
		}
		n.pages[i] = zeroPage
		n.usedBytes += pageBytes
		m.usedBytes += pageBytes
	}
	return end
}

// setSize sets a new size, which is not durable until the next sync.
func (n *memNode) setSize(size int64) {
	if size == n.size {
		return
	}
	n.size = size
	if len(n.sizes) < sizesMax {
		n.sizes = append(n.sizes, size)
	} else {
		n.sizes[sizesMax-1] = size
	}
}

// sectorsOf returns the first sector that a range of bytes touches, and the sector after the last one.
func sectorsOf(offset, length int64) (first, end int64) {
	return offset / sectorBytes, (offset + length + sectorBytes - 1) / sectorBytes
}

// write writes p at offset. grow must have allocated the space.
func (n *memNode) write(p []byte, offset int64) {
	first, end := sectorsOf(offset, int64(len(p)))
	n.last = memWrite{first: first, count: end - first, before: make([][]byte, end-first), sizeBefore: n.size}
	for s := first; s < end; s++ {
		if now := n.sector(s); now != nil {
			n.last.before[s-first] = append([]byte(nil), now...)
		}
		n.touch(s)
	}
	for done := 0; done < len(p); {
		at := offset + int64(done)
		page := n.writable(at / pageBytes)
		done += copy(page.b[at%pageBytes:], p[done:])
	}
	n.setSize(max(n.size, offset+int64(len(p))))
	n.mtime = time.Now()
}

func (m *Mem) truncate(n *memNode, size int64) {
	n.last = memWrite{}
	if size < n.size {
		first, end := sectorsOf(size, n.size-size)
		for s := first; s < end; s++ {
			if n.sector(s) != nil {
				n.touch(s)
			}
		}
		keep := (size + pageBytes - 1) / pageBytes
		for i := keep; i < int64(len(n.pages)); i++ {
			if n.pages[i] != nil {
				n.usedBytes -= pageBytes
				m.usedBytes -= pageBytes
			}
		}
		n.pages = n.pages[:min(keep, int64(len(n.pages)))]
		if i := size / pageBytes; i < int64(len(n.pages)) && n.pages[i] != nil && n.pages[i] != zeroPage {
			clear(n.writable(i).b[size%pageBytes:])
		}
	}
	n.setSize(size)
	n.mtime = time.Now()
}

// sync makes the current content and size durable, except for the sectors that a failed sync has lost.
func (n *memNode) sync() {
	n.dirty, n.sizes, n.last = nil, nil, memWrite{}
	n.durableSize = n.size
	for s := range n.lost {
		if s*sectorBytes >= n.size {
			delete(n.lost, s)
		}
	}
}

// drop simulates a failed sync: the data written since the last sync can still be read, but it will never reach the
// disk.
func (n *memNode) drop() {
	if n.lost == nil {
		n.lost = make(map[int64][]byte)
	}
	maps.Copy(n.lost, n.dirty)
	n.dirty, n.last = nil, memWrite{}
}

// readLost corrects the result of a direct read. Data that a failed sync has lost is still in the page cache, which a
// direct read bypasses. So readLost replaces this data in b with the content of the disk. The argument offset is the
// position of b in the file, at the beginning of a sector.
func (n *memNode) readLost(b []byte, offset int64) {
	if len(n.lost) == 0 {
		return
	}
	for s := offset / sectorBytes; len(b) > 0; s++ {
		one := b[:min(sectorBytes, len(b))]
		if onDisk, lost := n.lost[s]; lost {
			clear(one[copy(one, onDisk):])
		}
		b = b[len(one):]
	}
}

// memFile is an open file of a Mem.
type memFile struct {
	m      *Mem
	node   *memNode
	name   string
	write  bool
	direct bool
	closed bool // guarded by Mem.mu
}

var _ vfs.File = (*memFile)(nil)

func (f *memFile) Name() string        { return f.name }
func (f *memFile) Fd() (uintptr, bool) { return 0, false }
func (f *memFile) Direct() bool        { return f.direct }
func (f *memFile) ReadAlign() int64    { return memReadAlign }

// checkUsable returns an error if the file cannot be used. The caller holds Mem.mu.
func (f *memFile) checkUsable(write bool) error {
	switch {
	case f.closed:
		return fs.ErrClosed
	case write && !f.write:
		return syscall.EBADF
	}
	return f.m.checkCrashed()
}

func (f *memFile) Close() error {
	f.m.mu.Lock()
	defer f.m.mu.Unlock()
	if f.closed {
		return &fs.PathError{Op: "close", Path: f.name, Err: fs.ErrClosed}
	}
	f.closed = true
	f.node.handles--
	f.m.release(f.node)
	return nil
}

func (f *memFile) Size() (int64, error) {
	f.m.mu.RLock()
	defer f.m.mu.RUnlock()
	if err := f.checkUsable(false); err != nil {
		return 0, &fs.PathError{Op: "size", Path: f.name, Err: err}
	}
	return f.node.size, nil
}

// DataEnd implements vfs.File. A whole page counts as data once any byte in it was written.
func (f *memFile) DataEnd(from int64) (int64, error) {
	f.m.mu.RLock()
	defer f.m.mu.RUnlock()
	err := f.checkUsable(false)
	if err == nil && from < 0 {
		err = syscall.EINVAL
	}
	if err != nil {
		return 0, &fs.PathError{Op: "dataend", Path: f.name, Err: err}
	}
	n := f.node
	from = min(from, n.size)
	for i := int64(len(n.pages)) - 1; i*pageBytes+pageBytes > from && i >= 0; i-- {
		if n.pages[i] != nil && n.pages[i] != zeroPage {
			return min((i+1)*pageBytes, n.size), nil
		}
	}
	return from, nil
}

// CheapOverwrite implements vfs.File.
func (f *memFile) CheapOverwrite() bool {
	f.m.mu.RLock()
	defer f.m.mu.RUnlock()
	return f.m.cheap
}

// memReadAlign is the alignment that most devices require.
const memReadAlign = 512

func (f *memFile) ReadAt(p []byte, off int64) (int, error) {
	f.m.mu.RLock()
	defer f.m.mu.RUnlock()
	err := f.checkUsable(false)
	switch {
	case err != nil:
	case off < 0:
		err = syscall.EINVAL
	case f.direct && (off%memReadAlign != 0 || len(p)%memReadAlign != 0 || !Aligned(p)):
		err = fmt.Errorf("direct read of %d bytes at %d into memory that is aligned %v: %w", len(p), off, Aligned(p),
			syscall.EINVAL)
	}
	if err != nil {
		return 0, &fs.PathError{Op: "read", Path: f.name, Err: err}
	}
	n := f.node
	want := p[:min(int64(len(p)), max(0, n.size-off))]
	for done := 0; done < len(want); {
		at := off + int64(done)
		part := want[done:min(len(want), done+pageBytes-int(at%pageBytes))]
		if i := at / pageBytes; i < int64(len(n.pages)) && n.pages[i] != nil {
			copy(part, n.pages[i].b[at%pageBytes:])
		} else {
			clear(part)
		}
		done += len(part)
	}
	if f.direct {
		n.readLost(want, off)
	}
	if len(want) < len(p) {
		return len(want), io.EOF
	}
	return len(p), nil
}

// WriteAt implements vfs.File. If the disk becomes full, it writes the part for which there is space, as write(2)
// does.
func (f *memFile) WriteAt(p []byte, off int64) (int, error) {
	written := 0
	op := Op{Kind: OpWrite, Name: f.name, Offset: off, Length: int64(len(p))}
	err := f.m.mutate(op, func(begin func() error) error {
		if err := f.checkUsable(true); err != nil {
			return err
		}
		if off < 0 {
			return syscall.EINVAL
		}
		if off > memFileMax-int64(len(p)) {
			return syscall.EFBIG
		}
		if len(p) == 0 {
			return nil
		}
		if err := begin(); err != nil {
			return err
		}
		end := f.m.grow(f.node, off, off+int64(len(p)))
		written = int(end - off)
		if written > 0 {
			f.node.write(p[:written], off)
		}
		if written < len(p) {
			return syscall.ENOSPC
		}
		return nil
	})
	return written, err
}

func (f *memFile) Truncate(size int64) error {
	return f.m.mutate(Op{Kind: OpTruncate, Name: f.name, Length: size}, func(begin func() error) error {
		if err := f.checkUsable(true); err != nil {
			return err
		}
		if size < 0 {
			return syscall.EINVAL
		}
		if err := begin(); err != nil {
			return err
		}
		f.m.truncate(f.node, size)
		return nil
	})
}

// Allocate implements vfs.File. If the disk does not have enough space, it allocates nothing.
func (f *memFile) Allocate(offset, length int64) error {
	op := Op{Kind: OpAllocate, Name: f.name, Offset: offset, Length: length}
	return f.m.mutate(op, func(begin func() error) error {
		if err := f.checkUsable(true); err != nil {
			return err
		}
		if offset < 0 || length <= 0 {
			return syscall.EINVAL
		}
		if length > memFileMax || offset > memFileMax-length {
			return syscall.EFBIG
		}
		missing := int64(0)
		for i := offset / pageBytes; i*pageBytes < offset+length; i++ {
			if i >= int64(len(f.node.pages)) || f.node.pages[i] == nil {
				missing += pageBytes
			}
		}
		if missing > f.m.freeBytes() {
			return syscall.ENOSPC
		}
		if err := begin(); err != nil {
			return err
		}
		f.m.grow(f.node, offset, offset+length)
		f.node.last = memWrite{}
		f.node.setSize(max(f.node.size, offset+length))
		return nil
	})
}

func (f *memFile) Sync() error {
	return f.m.mutate(Op{Kind: OpSync, Name: f.name}, func(begin func() error) error {
		if err := f.checkUsable(false); err != nil {
			return err
		}
		if err := begin(); err != nil {
			return err
		}
		f.node.sync()
		return nil
	})
}

// dropUnsynced implements dropper, through which Faulty simulates a failed sync.
func (f *memFile) dropUnsynced() error {
	f.m.mu.Lock()
	defer f.m.mu.Unlock()
	if err := f.checkUsable(false); err != nil {
		return err
	}
	f.node.drop()
	return nil
}

// Aligned reports whether the memory of p is aligned to vfs.DirectAlign.
func Aligned(p []byte) bool {
	return len(p) == 0 || uintptr(unsafe.Pointer(&p[0]))%vfs.DirectAlign == 0
}
