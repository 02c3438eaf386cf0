package vfs_test

import (
	"errors"
	"slices"
	"syscall"
	"testing"
	"time"

	"sheaf.dev/sheaf/internal/storage/vfs"
	"sheaf.dev/sheaf/internal/test/must"
	"sheaf.dev/sheaf/internal/test/vfstest"
)

// TestTimedReportsEachSyncOfAFile checks that Timed reports each sync with the file's name, the time and the error.
func TestTimedReportsEachSyncOfAFile(t *testing.T) {
	faulty := vfstest.NewFaulty(vfstest.NewMem())
	const late = 20 * time.Millisecond
	faulty.Add(&vfstest.Fault{Match: func(op vfstest.Op) bool {
		return op.Kind == vfstest.OpSync && op.Name == "/slow"
	}, Effect: vfstest.EffectPass,
		Before: func(vfstest.Op) { time.Sleep(late) }})
	faulty.Add(&vfstest.Fault{Match: func(op vfstest.Op) bool {
		return op.Kind == vfstest.OpSync && op.Name == "/bad"
	}, Err: syscall.EIO})
	var names []string
	timed := vfs.NewTimed(faulty, func(name string, took time.Duration, err error) {
		names = append(names, name)
		if took < 0 || name == "/slow" && took < late {
			t.Errorf("the sync of %s took %v", name, took)
		}
		if (name == "/bad") != errors.Is(err, syscall.EIO) {
			t.Errorf("the sync of %s: %v", name, err)
		}
	})
	for _, name := range []string{"/slow", "/bad"} {
		f, err := timed.Create(name)
		must.OK(t, err)
		if err := f.Sync(); (err != nil) != (name == "/bad") {
			t.Errorf("%s: %v", name, err)
		}
		must.OK(t, f.Close())
	}
	f, err := timed.OpenWrite("/slow")
	must.OK(t, err)
	defer f.Close()
	must.OK(t, f.Sync())
	if !slices.Equal(names, []string{"/slow", "/bad", "/slow"}) {
		t.Errorf("told of %v", names)
	}
	if _, err := timed.OpenWrite("/none"); err == nil {
		t.Error("opened a file that is not there")
	}
	if timed.Unwrap() != vfs.FS(faulty) {
		t.Error("Unwrap is not the file system inside")
	}
}
