package leaktest

import (
	"errors"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"sheaf.dev/sheaf/internal/storage/vfs"
	"sheaf.dev/sheaf/internal/test/must"
)

func TestSlowGoroutinesAreAwaitedAndLeaksFound(t *testing.T) {
	options := []goleak.Option{goleak.IgnoreCurrent()}
	end := make(chan struct{})
	go func() { <-end }()
	if err := find(0, options); err == nil {
		t.Error("a goroutine that stays is not found")
	}
	time.AfterFunc(time.Second, func() { close(end) }) // longer than goleak itself waits for a goroutine
	if err := find(patience, options); err != nil {
		t.Errorf("a goroutine that ends late: %v", err)
	}
}

// VerifyNone recognizes this goroutine by the name of its function. If the function is renamed, this test fails.
// Otherwise the only sign would be a failure of some test that happens to be the first to sync a file.
func TestProcessLifetimeGoroutineIsIgnored(t *testing.T) {
	before := goleak.IgnoreCurrent()
	f, err := vfs.OS{}.Create(filepath.Join(t.TempDir(), "file"))
	must.OK(t, err)
	must.OK(t, errors.Join(f.Sync(), f.Close()))
	stacks := make([]byte, 1<<20)
	stacks = stacks[:runtime.Stack(stacks, true)]
	if !strings.Contains(string(stacks), "internal/storage/vfs.") {
		t.Skip("the kernel takes no asynchronous calls here, so that nothing completes them")
	}
	if err := find(0, []goleak.Option{before}); err != nil {
		t.Error(err)
	}
}
