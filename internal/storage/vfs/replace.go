package vfs

import (
	"errors"
	"io"
	"os"
	"path/filepath"
)

// ReplaceFile creates or replaces a real file, by package os. It writes the content to a file with a different name in
// the same folder, and renames that file when it is complete. So the name always refers to the whole old or the whole
// new file. ReplaceFile syncs nothing.
func ReplaceFile(name string, write func(io.Writer) error) (err error) {
	f, err := os.CreateTemp(filepath.Dir(name), ".sheaf-new-*")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.Remove(f.Name()))
		}
	}()
	if err := errors.Join(write(f), f.Chmod(0o644), f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), name)
}
