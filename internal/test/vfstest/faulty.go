package vfstest

import (
	"errors"
	"io"
	"io/fs"
	"sync"
	"sync/atomic"
	"syscall"

	"sheaf.dev/sheaf/internal/storage/vfs"
)

// Effect determines how a fault affects an operation, in addition to the error that the operation returns.
type Effect uint8

// These are the effects that a fault can have.
const (
	// EffectNone means that the error is returned and nothing is done.
	EffectNone Effect = iota
	// EffectDone means that the operation is done, but the error is returned nevertheless.
	EffectDone
	// EffectPart means that half of a read or write is done, in whole sectors, and the error is returned. For any other
	// operation it is the same as EffectNone.
	EffectPart
	// EffectDrop means that a Sync fails as on Linux: data written since the last Sync can still be read from the page
	// cache, but it never reaches the disk, even if later Syncs succeed. This works only for Sync of a file in a Mem.
	// Otherwise the loss cannot be simulated, and EffectDrop is the same as EffectNone.
	EffectDrop
	// EffectFlip means that a read succeeds, but one bit in the middle of the result is wrong. Err is not used. For any
	// other operation it is the same as EffectNone with EIO.
	EffectFlip
	// EffectPass means that the operation is performed as if there were no fault. Err is not used. It is for faults that
	// only need Before.
	EffectPass
)

// Fault is a rule that makes operations fail. Add activates it. A Fault must not be changed after the call to Add.
type Fault struct {
	// Match selects the operations for which it returns true. Op.Number is the number of the operation among those of
	// its kind, from 1. If Match is nil, all operations are selected.
	Match  func(Op) bool
	Skip   int64 // number of selected operations that are let through before the first one is affected
	Count  int64 // maximum number of operations that are affected; 0 means no limit
	Err    error // error that the operation returns; nil means EIO
	Effect Effect
	Before func(Op) // called before the effect, without holding locks, so that a test may block in it; may be nil

	matched atomic.Int64
	fired   atomic.Int64
	removed atomic.Bool
}

// Fired returns how many times the fault has fired.
func (f *Fault) Fired() int64 { return f.fired.Load() }

// Remove ends the fault. Operations that wait in Before continue.
func (f *Fault) Remove() { f.removed.Store(true) }

// Faulty wraps a file system and can make its operations fail. Files that are opened through a Faulty have no Fd, so
// that no read can bypass it. Faulty is safe for concurrent use.
type Faulty struct {
	inner vfs.FS
	calls [OpSpace + 1]atomic.Int64
	fired atomic.Int64
	mu    sync.RWMutex // guards faults
	list  []*Fault
}

var _ vfs.FS = (*Faulty)(nil)

// Unwrap returns the inner file system.
func (f *Faulty) Unwrap() vfs.FS { return f.inner }

// NewFaulty wraps a file system. As long as no fault is added, it behaves like inner.
func NewFaulty(inner vfs.FS) *Faulty { return &Faulty{inner: inner} }

// Add activates a fault and returns it. If several faults match an operation, the one that was added first fires.
func (f *Faulty) Add(fault *Fault) *Fault {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.list = append(f.list, fault)
	return fault
}

// Clear removes all faults.
func (f *Faulty) Clear() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, fault := range f.list {
		fault.Remove()
	}
	f.list = nil
}

// Fired returns how many times faults have fired. Removed faults are included.
func (f *Faulty) Fired() int64 { return f.fired.Load() }

// Calls returns the number of operations of the given kind so far.
func (f *Faulty) Calls(kind OpKind) int64 {
	if int(kind) >= len(f.calls) {
		return 0
	}
	return f.calls[kind].Load()
}

// fire counts an operation. It returns the fault that applies to it and the error to return, or nil for both if no
// fault applies.
func (f *Faulty) fire(op Op) (*Fault, error) {
	op.Number = f.calls[op.Kind].Add(1)
	f.mu.RLock()
	hit := f.match(op)
	f.mu.RUnlock()
	if hit == nil {
		return nil, nil
	}
	f.fired.Add(1)
	if hit.Before != nil {
		hit.Before(op)
	}
	if hit.Effect == EffectPass {
		return nil, nil
	}
	err := hit.Err
	if err == nil {
		err = syscall.EIO
	}
	return hit, &fs.PathError{Op: op.Kind.String(), Path: op.Name, Err: err}
}

func (f *Faulty) match(op Op) *Fault {
	for _, fault := range f.list {
		if fault.removed.Load() || fault.Match != nil && !fault.Match(op) {
			continue
		}
		if fault.matched.Add(1) <= fault.Skip {
			continue
		}
		if n := fault.fired.Add(1); fault.Count > 0 && n > fault.Count {
			fault.fired.Add(-1)
			continue
		}
		return fault
	}
	return nil
}

// do runs an operation that is performed either completely or not at all.
func (f *Faulty) do(op Op, run func() error) error {
	fault, err := f.fire(op)
	if fault == nil {
		return run()
	}
	if fault.Effect == EffectDone {
		return errors.Join(err, run())
	}
	return err
}

func (f *Faulty) open(op Op, run func() (vfs.File, error)) (vfs.File, error) {
	var file vfs.File
	err := f.do(op, func() (err error) {
		file, err = run()
		return err
	})
	if err != nil {
		if file != nil {
			err = errors.Join(err, file.Close())
		}
		return nil, err
	}
	return &faultyFile{f: f, inner: file}, nil
}

// Create implements vfs.FS.
func (f *Faulty) Create(name string) (vfs.File, error) {
	return f.open(Op{Kind: OpCreate, Name: name}, func() (vfs.File, error) { return f.inner.Create(name) })
}

// Open implements vfs.FS.
func (f *Faulty) Open(name string) (vfs.File, error) {
	return f.open(Op{Kind: OpOpen, Name: name}, func() (vfs.File, error) { return f.inner.Open(name) })
}

// OpenWrite implements vfs.FS.
func (f *Faulty) OpenWrite(name string) (vfs.File, error) {
	return f.open(Op{Kind: OpOpen, Name: name}, func() (vfs.File, error) { return f.inner.OpenWrite(name) })
}

// OpenDirect implements vfs.FS.
func (f *Faulty) OpenDirect(name string) (vfs.File, error) {
	return f.open(Op{Kind: OpOpen, Name: name}, func() (vfs.File, error) { return f.inner.OpenDirect(name) })
}

// Remove implements vfs.FS.
func (f *Faulty) Remove(name string) error {
	return f.do(Op{Kind: OpRemove, Name: name}, func() error { return f.inner.Remove(name) })
}

// Rename implements vfs.FS.
func (f *Faulty) Rename(oldName, newName string) error {
	op := Op{Kind: OpRename, Name: oldName, NewName: newName}
	return f.do(op, func() error { return f.inner.Rename(oldName, newName) })
}

// Link implements vfs.FS.
func (f *Faulty) Link(oldName, newName string) error {
	op := Op{Kind: OpLink, Name: oldName, NewName: newName}
	return f.do(op, func() error { return f.inner.Link(oldName, newName) })
}

// MkdirAll implements vfs.FS.
func (f *Faulty) MkdirAll(dir string) error {
	return f.do(Op{Kind: OpMkdir, Name: dir}, func() error { return f.inner.MkdirAll(dir) })
}

// List implements vfs.FS.
func (f *Faulty) List(dir string) (names []string, err error) {
	err = f.do(Op{Kind: OpList, Name: dir}, func() (err error) {
		names, err = f.inner.List(dir)
		return err
	})
	return names, err
}

// Stat implements vfs.FS.
func (f *Faulty) Stat(name string) (info fs.FileInfo, err error) {
	err = f.do(Op{Kind: OpStat, Name: name}, func() (err error) {
		info, err = f.inner.Stat(name)
		return err
	})
	return info, err
}

// SyncDir implements vfs.FS.
func (f *Faulty) SyncDir(dir string) error {
	return f.do(Op{Kind: OpSyncDir, Name: dir}, func() error { return f.inner.SyncDir(dir) })
}

// SyncAll implements vfs.FS. If it fails, the changes remain unsynced, and each file may still be synced separately.
func (f *Faulty) SyncAll(dir string) error {
	return f.do(Op{Kind: OpSyncAll, Name: dir}, func() error { return f.inner.SyncAll(dir) })
}

// Lock implements vfs.FS.
func (f *Faulty) Lock(name string) (lock io.Closer, err error) {
	err = f.do(Op{Kind: OpLock, Name: name}, func() (err error) {
		lock, err = f.inner.Lock(name)
		return err
	})
	if err != nil && lock != nil {
		err = errors.Join(err, lock.Close())
		lock = nil
	}
	return lock, err
}

// Space implements vfs.FS.
func (f *Faulty) Space(dir string) (space vfs.Space, err error) {
	err = f.do(Op{Kind: OpSpace, Name: dir}, func() (err error) {
		space, err = f.inner.Space(dir)
		return err
	})
	return space, err
}

// faultyFile is a file opened through a Faulty.
type faultyFile struct {
	f     *Faulty
	inner vfs.File
}

func (f *faultyFile) Name() string         { return f.inner.Name() }
func (f *faultyFile) Fd() (uintptr, bool)  { return 0, false }
func (f *faultyFile) Direct() bool         { return f.inner.Direct() }
func (f *faultyFile) ReadAlign() int64     { return f.inner.ReadAlign() }
func (f *faultyFile) CheapOverwrite() bool { return f.inner.CheapOverwrite() }
func (f *faultyFile) Close() error         { return f.inner.Close() }

func (f *faultyFile) Size() (size int64, err error) {
	err = f.f.do(Op{Kind: OpSize, Name: f.Name()}, func() (err error) {
		size, err = f.inner.Size()
		return err
	})
	return size, err
}

func (f *faultyFile) DataEnd(from int64) (end int64, err error) {
	err = f.f.do(Op{Kind: OpSize, Name: f.Name()}, func() (err error) {
		end, err = f.inner.DataEnd(from)
		return err
	})
	return end, err
}

// half returns half of n bytes, rounded down to whole sectors.
func half(n int) int { return n / 2 / sectorBytes * sectorBytes }

func (f *faultyFile) ReadAt(p []byte, off int64) (int, error) {
	fault, err := f.f.fire(Op{Kind: OpRead, Name: f.Name(), Offset: off, Length: int64(len(p))})
	if fault == nil {
		return f.inner.ReadAt(p, off)
	}
	switch fault.Effect {
	case EffectDone:
		// An error of the read itself, such as io.EOF, must not replace the error of the fault.
		n, _ := f.inner.ReadAt(p, off)
		return n, err
	case EffectFlip:
		n, err := f.inner.ReadAt(p, off)
		if n > 0 {
			p[n/2] ^= 0x10
		}
		return n, err
	case EffectPart:
		n, _ := f.inner.ReadAt(p[:half(len(p))], off)
		return n, err
	default:
		return 0, err
	}
}

func (f *faultyFile) WriteAt(p []byte, off int64) (int, error) {
	fault, err := f.f.fire(Op{Kind: OpWrite, Name: f.Name(), Offset: off, Length: int64(len(p))})
	if fault == nil {
		return f.inner.WriteAt(p, off)
	}
	switch fault.Effect {
	case EffectDone:
		n, innerErr := f.inner.WriteAt(p, off)
		return n, errors.Join(err, innerErr)
	case EffectPart:
		n, innerErr := f.inner.WriteAt(p[:half(len(p))], off)
		return n, errors.Join(err, innerErr)
	default:
		return 0, err
	}
}

// dropper is implemented by files that can lose unsynced data.
type dropper interface{ dropUnsynced() error }

func (f *faultyFile) Sync() error {
	fault, err := f.f.fire(Op{Kind: OpSync, Name: f.Name()})
	if fault == nil {
		return f.inner.Sync()
	}
	switch d, ok := f.inner.(dropper); {
	case fault.Effect == EffectDone:
		return errors.Join(err, f.inner.Sync())
	case fault.Effect == EffectDrop && ok:
		return errors.Join(err, d.dropUnsynced())
	}
	return err
}

func (f *faultyFile) Truncate(size int64) error {
	op := Op{Kind: OpTruncate, Name: f.Name(), Length: size}
	return f.f.do(op, func() error { return f.inner.Truncate(size) })
}

func (f *faultyFile) Allocate(offset, length int64) error {
	op := Op{Kind: OpAllocate, Name: f.Name(), Offset: offset, Length: length}
	return f.f.do(op, func() error { return f.inner.Allocate(offset, length) })
}
