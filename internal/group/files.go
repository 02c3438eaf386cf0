package group

import (
	"errors"
	"fmt"
	"io"
	iofs "io/fs"
	"path"
	"syscall"

	"sheaf.dev/sheaf/internal/vfs"
)

// readAll reads a file of at most maxBytes into memory.
func readAll(fs vfs.FS, name string, maxBytes int64) (b []byte, err error) {
	f, err := fs.Open(name)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	size, err := f.Size()
	if err != nil {
		return nil, err
	}
	if size > maxBytes {
		return nil, fmt.Errorf("%s: %w: %d bytes are above the limit of %d", name, ErrCorrupt, size, maxBytes)
	}
	b = make([]byte, size)
	return b, readFull(f, b, 0)
}

// readFull fills b from offset; a file that ends before is an error.
func readFull(f io.ReaderAt, b []byte, offset int64) error {
	n, err := f.ReadAt(b, offset)
	if n == len(b) {
		return nil
	}
	if err == nil || errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	return fmt.Errorf("read %d bytes at offset %d: %w", len(b), offset, err)
}

// writeReplace makes or replaces a file: written aside, synced, renamed, the folder synced. What stood aside from an
// earlier try is removed first.
func writeReplace(fs vfs.FS, dir, name string, content []byte) error {
	tmp := path.Join(dir, name+TmpSuffix)
	if err := writeAside(fs, tmp, content); err != nil {
		return noSpace(err)
	}
	if err := fs.Rename(tmp, path.Join(dir, name)); err != nil {
		return noSpace(err)
	}
	return noSpace(fs.SyncDir(dir))
}

func writeAside(fs vfs.FS, tmp string, content []byte) (err error) {
	f, err := createAnew(fs, tmp)
	if err != nil {
		return err
	}
	defer func() {
		err = errors.Join(err, f.Close())
		if err != nil {
			err = errors.Join(err, fs.Remove(tmp))
		}
	}()
	if _, err := f.WriteAt(content, 0); err != nil {
		return err
	}
	return f.Sync()
}

// createAnew makes a file; one that is left over from before a crash is removed first.
func createAnew(fs vfs.FS, name string) (vfs.File, error) {
	f, err := fs.Create(name)
	if !errors.Is(err, iofs.ErrExist) {
		return f, err
	}
	if err := fs.Remove(name); err != nil {
		return nil, err
	}
	return fs.Create(name)
}

// noSpace marks an error of a full disk as ErrNoSpace.
func noSpace(err error) error {
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
		return fmt.Errorf("%w: %w", ErrNoSpace, err)
	}
	return err
}
