package vfs

import "time"

// Timed wraps a file system and reports how long each file sync took. It does not report folder syncs.
type Timed struct {
	FS     // the wrapped file system
	synced func(name string, took time.Duration, err error)
}

// NewTimed returns a Timed for the file system inner. After each file sync, the goroutine that has called Sync calls
// the function synced. It passes the name under which the file was opened. The function synced must be safe for
// concurrent use.
func NewTimed(inner FS, synced func(name string, took time.Duration, err error)) *Timed {
	return &Timed{FS: inner, synced: synced}
}

// Unwrap returns the wrapped file system.
func (t *Timed) Unwrap() FS { return t.FS }

// Create implements FS.
func (t *Timed) Create(name string) (File, error) { return t.timed(t.FS.Create(name)) }

// OpenWrite implements FS.
func (t *Timed) OpenWrite(name string) (File, error) { return t.timed(t.FS.OpenWrite(name)) }

func (t *Timed) timed(f File, err error) (File, error) {
	if err != nil {
		return nil, err
	}
	return &timedFile{f, t}, nil
}

type timedFile struct {
	File
	fs *Timed
}

// Sync implements File.
func (f *timedFile) Sync() error {
	began := time.Now()
	err := f.File.Sync()
	f.fs.synced(f.Name(), time.Since(began), err)
	return err
}
