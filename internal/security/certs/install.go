package certs

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// Install replaces the files of a folder atomically, and creates the folder if needed. A reader that uses Open, or that
// reads a single link, finds either the old or the new files. The layout is that of a mounted Secret, in which each
// name is a link through ..data, and one rename replaces ..data. Only the owner may read the files.
func Install(dir string, content map[string][]byte) (err error) {
	fail := func(err error) error { return fmt.Errorf("put certificates into %s: %w", dir, err) }
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fail(err)
	}
	before, _ := os.Readlink(filepath.Join(dir, dataLink)) // empty if the folder is new
	data, err := os.MkdirTemp(dir, dataFolder)
	if err != nil {
		return fail(err)
	}
	defer func() {
		if err != nil {
			err = fail(errors.Join(err, os.RemoveAll(data)))
		}
	}()
	for name, bytes := range content {
		if err := os.WriteFile(filepath.Join(data, name), bytes, 0o600); err != nil {
			return err
		}
	}
	next := filepath.Join(dir, "..next")
	_ = os.Remove(next) // removes what an interrupted attempt has left behind
	if err := os.Symlink(filepath.Base(data), next); err != nil {
		return err
	}
	if err := os.Rename(next, filepath.Join(dir, dataLink)); err != nil {
		return err
	}
	for name := range content {
		if err := os.Symlink(filepath.Join(dataLink, name), filepath.Join(dir, name)); err != nil &&
			!errors.Is(err, os.ErrExist) {
			return err
		}
	}
	if strings.HasPrefix(before, dataFolder) && filepath.Base(before) == before {
		return os.RemoveAll(filepath.Join(dir, before))
	}
	return nil
}

const (
	dataLink   = "..data"
	dataFolder = "..sheaf-" // prefix of the folders that each hold one set of files
)
