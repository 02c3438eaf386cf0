package dev

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"sheaf.dev/sheaf/internal/storage/vfs"
)

// The first sync of a real file starts a goroutine that runs until the process ends. TestMain starts it, because a
// goroutine that starts in a bubble of testing/synctest would stop virtual time.
func TestMain(m *testing.M) {
	if err := syncOnce(); err != nil {
		fmt.Fprintln(os.Stderr, "sync a file before the tests:", err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

func syncOnce() error {
	dir, err := os.MkdirTemp("", "sheaf-dev-test-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }() // the folder is used only by this function
	f, err := vfs.OS{}.Create(filepath.Join(dir, "f"))
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }() // errors no longer matter after the sync
	return f.Sync()
}
