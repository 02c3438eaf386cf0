package vfs

import (
	"errors"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"unsafe"
)

// The kernel takes syncs here, many at the same time, and each is answered once. Where it does not, as in a sandbox, the
// test says so: then fdatasync does the work.
func TestKernelSyncer(t *testing.T) {
	s, err := newSyncer()
	if err != nil {
		t.Skipf("the kernel takes no asynchronous syncs here: %v", err)
	}
	go s.complete()
	f, err := os.Create(filepath.Join(t.TempDir(), "file"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var wait sync.WaitGroup
	var mu sync.Mutex
	taken := 0
	for i := range 2 * syncsUnderWay {
		wait.Go(func() {
			if _, err := f.WriteAt([]byte{1}, int64(i)*4096); err != nil {
				t.Error(err)
			}
			ok, err := s.sync(int(f.Fd()))
			if err != nil {
				t.Error(err)
			}
			if ok {
				mu.Lock()
				taken++
				mu.Unlock()
			}
		})
	}
	wait.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	if taken == 0 || s.underWay.Load() != 0 || len(s.waiting) != 0 {
		t.Errorf("%d were taken, %d are under way, %d wait", taken, s.underWay.Load(), len(s.waiting))
	}
}

// A file that cannot be synced is an error, not a wait for ever.
func TestSyncOfWhatCannotBeSynced(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	if err := fdatasync(int(w.Fd())); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("a pipe: %v", err)
	}
	if err := fdatasync(1 << 20); !errors.Is(err, syscall.EBADF) {
		t.Errorf("no file: %v", err)
	}
}

// The structures are those of linux/aio_abi.h.
func TestLayoutOfAsynchronousIO(t *testing.T) {
	var c iocb
	if unsafe.Sizeof(c) != 64 || unsafe.Offsetof(c.opcode) != 16 || unsafe.Offsetof(c.fd) != 20 || unsafe.Offsetof(c.flags) != 56 {
		t.Error("iocb")
	}
	var e ioEvent
	if unsafe.Sizeof(e) != 32 || unsafe.Offsetof(e.result) != 16 {
		t.Error("ioEvent")
	}
}
