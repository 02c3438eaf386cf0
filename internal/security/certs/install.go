package certs

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// Install atomically replaces the files in a folder, which it creates if needed. A reader that uses Open, or that
// reads through a single link, finds either all old files or all new ones. The layout is that of a mounted Secret:
// each name is a link that leads through ..data, and a single rename replaces ..data. Only the owner may read the
// files.
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
	_ = os.Remove(next) // removes what an interrupted call to Install has left behind
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
	dataFolder = "..sheaf-" // prefix of the names of folders, each of which holds one set of files
)
