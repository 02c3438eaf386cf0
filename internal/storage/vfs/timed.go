package vfs

import "time"

// Timed is another file system that tells how long each sync of a file took. Syncs of folders are not told.
type Timed struct {
	FS     // the one inside
	synced func(name string, took time.Duration, err error)
}

// NewTimed wraps inner. synced is called after each sync with the name that the file was opened by, on the goroutine
// that synced; it must be safe for concurrent use.
func NewTimed(inner FS, synced func(name string, took time.Duration, err error)) *Timed {
	return &Timed{FS: inner, synced: synced}
}

// Unwrap is the file system inside.
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
