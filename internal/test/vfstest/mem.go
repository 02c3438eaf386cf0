package vfstest

import (
	"fmt"
	"io/fs"
	"math"
	"path"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"sheaf.dev/sheaf/internal/storage/vfs"
)

// Mem is a file system in memory that can return the disk that a power cut would leave. For this purpose it keeps
//   - for each file: the current content and, for each sector of 512 bytes, the content at the last Sync; the same for
//     the size;
//   - for each folder: the current names, the names at the last SyncDir, and the changes between the two in order.
//
// CrashClone creates the disk that a power cut leaves. Every operation that changes the disk has a number, from 1
// (OpCount). CrashAfter stops the machine at one of these operations, and AfterOp observes each of them. Mem is as
// harsh as POSIX allows, and harsher than the file systems we know: Sync of a file does not make its name durable,
// changes of names may survive out of order, and a truncation followed by an extension may leave old and new sectors
// side by side.
//
// Names are cleaned by path.Clean: "/a", "a" and "./a" are the same. Mem is safe for concurrent use.
type Mem struct {
	mu         sync.RWMutex // guards all fields below and those of all nodes
	root       *memNode
	nodes      int64       // number of the node that was created last
	pending    []*memNames // changes of names that are not durable yet, oldest first
	capacity   int64       // size of the disk in bytes; 0 means unlimited
	cheap      bool        // result of vfs.File.CheapOverwrite
	usedBytes  int64       // bytes in the pages of all files that have a name or are open
	opCount    int64
	crashAfter int64 // number of operations that take effect before the crash; negative if no crash is scheduled
	crashed    bool
	locks      map[*memNode]bool
	afterOp    func(Op)
}

var _ vfs.FS = (*Mem)(nil)

// memNames is one atomic change of names. When SyncDir makes some of its changes durable, these are removed from it.
type memNames struct{ changes []memNameChange }

// memNameChange sets one name in one folder to a node. nil removes the name.
type memNameChange struct {
	dir  *memNode
	name string
	node *memNode
}

// unlimitedBytes is the size that Space returns if no capacity is set.
const unlimitedBytes = 1 << 40

// NewMem returns an empty file system with unlimited space.
func NewMem() *Mem {
	m := &Mem{crashAfter: -1, locks: make(map[*memNode]bool)}
	m.root = m.newNode(true)
	return m
}

// InMemory tells package volume that the file system is not a mount of the kernel.
func (m *Mem) InMemory() bool { return true }

// SetCapacity sets the size of the disk in bytes. 0 means unlimited. If a write would exceed this size, the part for
// which there is space is written, and the write returns ENOSPC.
func (m *Mem) SetCapacity(bytes int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.capacity = bytes
}

// SetCheapOverwrite sets the result of CheapOverwrite for all files. By default, the result is false.
func (m *Mem) SetCheapOverwrite(cheap bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.cheap = cheap
}

// OpCount returns the number of operations that have changed the disk so far.
func (m *Mem) OpCount() int64 {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.opCount
}

// CrashAfter makes the machine crash at the first operation with a number above n. This operation has no effect. It
// fails with vfs.ErrCrashed, as do all later operations, including reads. If n is negative, the machine does not
// crash.
func (m *Mem) CrashAfter(n int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.crashAfter = n
}

// Crashed reports whether the machine has crashed.
func (m *Mem) Crashed() bool {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.crashed
}

// AfterOp sets a function that is called after each operation that changes the disk. It is called on the goroutine of
// that operation, without holding a lock. It may call CrashClone, so that a single run of a workload can test a crash
// at each of its operations. nil removes the function.
func (m *Mem) AfterOp(f func(Op)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.afterOp = f
}

// mutate calls do() while it holds the lock. do() first checks its arguments. Then it calls begin(), which gives the
// operation its number, or returns an error if the machine has crashed. Only after that may do() change the disk.
func (m *Mem) mutate(op Op, do func(begin func() error) error) error {
	begun := false
	m.mu.Lock()
	hook := m.afterOp
	err := m.checkCrashed()
	if err == nil {
		err = do(func() error {
			if m.crashAfter >= 0 && m.opCount >= m.crashAfter {
				m.crashed = true
				return vfs.ErrCrashed
			}
			m.opCount++
			op.Number, begun = m.opCount, true
			return nil
		})
	}
	m.mu.Unlock()
	if begun && hook != nil {
		hook(op)
	}
	if err != nil {
		return &fs.PathError{Op: op.Kind.String(), Path: op.Name, Err: err}
	}
	return nil
}

// checkCrashed returns vfs.ErrCrashed if the machine has crashed.
func (m *Mem) checkCrashed() error {
	if m.crashed {
		return vfs.ErrCrashed
	}
	return nil
}

func (m *Mem) newNode(dir bool) *memNode {
	m.nodes++
	n := &memNode{number: m.nodes, dir: dir, mtime: time.Now()}
	if dir {
		n.entries, n.durable = make(map[string]*memNode), make(map[string]*memNode)
	}
	return n
}

// split cleans a name and splits it into its parts.
func split(name string) []string {
	clean := strings.TrimPrefix(path.Clean("/"+name), "/")
	if clean == "" {
		return nil
	}
	return strings.Split(clean, "/")
}

// lookup finds a node by name.
func (m *Mem) lookup(name string) (*memNode, error) {
	n := m.root
	for _, part := range split(name) {
		if !n.dir {
			return nil, syscall.ENOTDIR
		}
		next, ok := n.entries[part]
		if !ok {
			return nil, syscall.ENOENT
		}
		n = next
	}
	return n, nil
}

// lookupFile finds a file by name.
func (m *Mem) lookupFile(name string) (*memNode, error) {
	n, err := m.lookup(name)
	if err == nil && n.dir {
		return nil, syscall.EISDIR
	}
	return n, err
}

// lookupParent returns the folder that contains a name, and the last part of the name.
func (m *Mem) lookupParent(name string) (*memNode, string, error) {
	parts := split(name)
	if len(parts) == 0 {
		return nil, "", syscall.EBUSY // the name is that of the root, which is in no folder
	}
	last := len(parts) - 1
	dir, err := m.lookup(path.Join(parts[:last]...))
	if err == nil && !dir.dir {
		err = syscall.ENOTDIR
	}
	return dir, parts[last], err
}

// changeNames applies changes of names, and notes that they are not durable yet.
func (m *Mem) changeNames(changes ...memNameChange) {
	for _, c := range changes {
		if old := c.dir.entries[c.name]; old != nil {
			old.links--
			m.release(old)
		}
		if c.node == nil {
			delete(c.dir.entries, c.name)
		} else {
			c.node.links++
			c.dir.entries[c.name] = c.node
		}
	}
	m.pending = append(m.pending, &memNames{changes: changes})
}

// release frees the space of a file that no longer has a name and is not open. Its synced content remains, because a
// power cut may restore the name.
func (m *Mem) release(n *memNode) {
	if n.links == 0 && n.handles == 0 {
		m.usedBytes -= n.usedBytes
		n.usedBytes = 0
	}
}

// Create implements vfs.FS.
func (m *Mem) Create(name string) (vfs.File, error) {
	var f *memFile
	err := m.mutate(Op{Kind: OpCreate, Name: name}, func(begin func() error) error {
		dir, last, err := m.lookupParent(name)
		if err != nil {
			return err
		}
		if dir.entries[last] != nil {
			return syscall.EEXIST
		}
		if err := begin(); err != nil {
			return err
		}
		n := m.newNode(false)
		m.changeNames(memNameChange{dir, last, n})
		f = m.open(n, name, true, false)
		return nil
	})
	if err != nil {
		return nil, err
	}
	return f, nil
}

// Open implements vfs.FS.
func (m *Mem) Open(name string) (vfs.File, error) { return m.openExisting(name, false, false) }

// OpenWrite implements vfs.FS.
func (m *Mem) OpenWrite(name string) (vfs.File, error) { return m.openExisting(name, true, false) }

// OpenDirect implements vfs.FS. As with O_DIRECT, unaligned reads fail with EINVAL.
func (m *Mem) OpenDirect(name string) (vfs.File, error) { return m.openExisting(name, false, true) }

func (m *Mem) openExisting(name string, write, direct bool) (vfs.File, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	err := m.checkCrashed()
	if err == nil {
		var n *memNode
		if n, err = m.lookupFile(name); err == nil {
			return m.open(n, name, write, direct), nil
		}
	}
	return nil, &fs.PathError{Op: "open", Path: name, Err: err}
}

func (m *Mem) open(n *memNode, name string, write, direct bool) *memFile {
	n.handles++
	return &memFile{m: m, node: n, name: name, write: write, direct: direct}
}

// Remove implements vfs.FS.
func (m *Mem) Remove(name string) error {
	return m.mutate(Op{Kind: OpRemove, Name: name}, func(begin func() error) error {
		dir, last, err := m.lookupParent(name)
		if err != nil {
			return err
		}
		n := dir.entries[last]
		switch {
		case n == nil:
			return syscall.ENOENT
		case n.dir && len(n.entries) > 0:
			return syscall.ENOTEMPTY
		}
		if err := begin(); err != nil {
			return err
		}
		m.changeNames(memNameChange{dir, last, nil})
		return nil
	})
}

// Rename implements vfs.FS. Like os.Rename, it replaces only files.
func (m *Mem) Rename(oldName, newName string) error {
	return m.mutate(Op{Kind: OpRename, Name: oldName, NewName: newName}, func(begin func() error) error {
		oldDir, oldLast, err := m.lookupParent(oldName)
		if err != nil {
			return err
		}
		newDir, newLast, err := m.lookupParent(newName)
		if err != nil {
			return fmt.Errorf("to %s: %w", newName, err)
		}
		n, target := oldDir.entries[oldLast], newDir.entries[newLast]
		switch {
		case n == nil:
			return syscall.ENOENT
		case n == target:
			return nil
		case target != nil && target.dir:
			return fmt.Errorf("to %s: %w", newName, syscall.EEXIST)
		case target != nil && n.dir:
			return fmt.Errorf("to %s: %w", newName, syscall.ENOTDIR)
		case n.dir && slices.Equal(split(oldName), split(newName)[:min(len(split(oldName)), len(split(newName)))]):
			return fmt.Errorf("to %s, which is inside it: %w", newName, syscall.EINVAL)
		}
		if err := begin(); err != nil {
			return err
		}
		m.changeNames(memNameChange{newDir, newLast, n}, memNameChange{oldDir, oldLast, nil})
		return nil
	})
}

// Link implements vfs.FS.
func (m *Mem) Link(oldName, newName string) error {
	return m.mutate(Op{Kind: OpLink, Name: oldName, NewName: newName}, func(begin func() error) error {
		n, err := m.lookup(oldName)
		if err != nil {
			return err
		}
		dir, last, err := m.lookupParent(newName)
		switch {
		case err != nil:
			return fmt.Errorf("to %s: %w", newName, err)
		case n.dir:
			return syscall.EPERM
		case dir.entries[last] != nil:
			return fmt.Errorf("to %s: %w", newName, syscall.EEXIST)
		}
		if err := begin(); err != nil {
			return err
		}
		m.changeNames(memNameChange{dir, last, n})
		return nil
	})
}

// MkdirAll implements vfs.FS. For each folder, its creation and the SyncDir of its parent are two operations.
func (m *Mem) MkdirAll(dir string) error {
	return vfs.MakeFolders(m, path.Clean(dir), m.mkdir)
}

func (m *Mem) mkdir(dir string) error {
	return m.mutate(Op{Kind: OpMkdir, Name: dir}, func(begin func() error) error {
		parent, last, err := m.lookupParent(dir)
		if err != nil {
			return err
		}
		if parent.entries[last] != nil {
			return syscall.EEXIST
		}
		if err := begin(); err != nil {
			return err
		}
		m.changeNames(memNameChange{parent, last, m.newNode(true)})
		return nil
	})
}

// SyncAll implements vfs.FS.
func (m *Mem) SyncAll(dir string) error {
	return m.mutate(Op{Kind: OpSyncAll, Name: dir}, func(begin func() error) error {
		n, err := m.lookup(dir)
		if err != nil {
			return err
		}
		if !n.dir {
			return syscall.ENOTDIR
		}
		if err := begin(); err != nil {
			return err
		}
		for _, p := range m.pending {
			for _, c := range p.changes {
				setName(c.dir.durable, c)
			}
		}
		m.pending = nil
		m.root.syncAll()
		return nil
	})
}

// syncAll syncs the content of all files below a folder.
func (n *memNode) syncAll() {
	if !n.dir {
		n.sync()
		return
	}
	for _, entry := range n.entries {
		entry.syncAll()
	}
}

// SyncDir implements vfs.FS.
func (m *Mem) SyncDir(dir string) error {
	return m.mutate(Op{Kind: OpSyncDir, Name: dir}, func(begin func() error) error {
		n, err := m.lookup(dir)
		if err != nil {
			return err
		}
		if !n.dir {
			return syscall.ENOTDIR
		}
		if err := begin(); err != nil {
			return err
		}
		m.pending = slices.DeleteFunc(m.pending, func(p *memNames) bool {
			p.changes = slices.DeleteFunc(p.changes, func(c memNameChange) bool {
				if c.dir != n {
					return false
				}
				setName(n.durable, c)
				return true
			})
			return len(p.changes) == 0
		})
		return nil
	})
}

// setName applies one change to the names in a folder.
func setName(names map[string]*memNode, c memNameChange) {
	if c.node == nil {
		delete(names, c.name)
	} else {
		names[c.name] = c.node
	}
}

// List implements vfs.FS.
func (m *Mem) List(dir string) ([]string, error) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	err := m.checkCrashed()
	if err == nil {
		var n *memNode
		if n, err = m.lookup(dir); err == nil && !n.dir {
			err = syscall.ENOTDIR
		}
		if err == nil {
			names := make([]string, 0, len(n.entries))
			for name := range n.entries {
				names = append(names, name)
			}
			slices.Sort(names)
			return names, nil
		}
	}
	return nil, &fs.PathError{Op: "list", Path: dir, Err: err}
}

// Stat implements vfs.FS.
func (m *Mem) Stat(name string) (fs.FileInfo, error) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	err := m.checkCrashed()
	if err == nil {
		var n *memNode
		if n, err = m.lookup(name); err == nil {
			return memInfo{name: path.Base(path.Clean(name)), size: n.size, dir: n.dir, mtime: n.mtime}, nil
		}
	}
	return nil, &fs.PathError{Op: "stat", Path: name, Err: err}
}

// Space implements vfs.FS.
func (m *Mem) Space(dir string) (vfs.Space, error) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	err := m.checkCrashed()
	if err == nil {
		_, err = m.lookup(dir)
	}
	if err != nil {
		return vfs.Space{}, &fs.PathError{Op: "statfs", Path: dir, Err: err}
	}
	total := m.capacity
	if total == 0 {
		total = unlimitedBytes
	}
	return vfs.Space{TotalBytes: total, FreeBytes: max(0, total-m.usedBytes)}, nil
}

// freeBytes returns the number of free bytes on the disk.
func (m *Mem) freeBytes() int64 {
	if m.capacity == 0 {
		return math.MaxInt64
	}
	return m.capacity - m.usedBytes
}
