package vfstest

import (
	"errors"
	"io"
	"io/fs"

	"sheaf.dev/sheaf/internal/storage/vfs"
)

// Lock implements vfs.FS.
func (m *Mem) Lock(name string) (io.Closer, error) {
	if _, err := m.Stat(name); errors.Is(err, fs.ErrNotExist) {
		f, err := m.Create(name)
		if err == nil {
			err = f.Close()
		}
		if err != nil && !errors.Is(err, fs.ErrExist) {
			return nil, err
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	err := m.checkCrashed()
	var n *memNode
	if err == nil {
		n, err = m.lookupFile(name)
	}
	if err == nil && m.locks[n] {
		err = vfs.ErrLocked
	}
	if err != nil {
		return nil, &fs.PathError{Op: "lock", Path: name, Err: err}
	}
	m.locks[n] = true
	return &memLock{m: m, node: n}, nil
}

// memLock is a lock.
type memLock struct {
	m    *Mem
	node *memNode // nil after the release
}

// Close releases the lock.
func (l *memLock) Close() error {
	l.m.mu.Lock()
	defer l.m.mu.Unlock()
	if l.node == nil {
		return fs.ErrClosed
	}
	delete(l.m.locks, l.node)
	l.node = nil
	return nil
}
