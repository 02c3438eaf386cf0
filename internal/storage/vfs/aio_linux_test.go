package vfs

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"unsafe"

	"sheaf.dev/sheaf/internal/test/must"
)

// TestKernelAIO checks that the kernel accepts many syncs and reads at the same time, and completes each of them
// once. If the kernel accepts no asynchronous calls, for example in a sandbox, the test logs this and checks nothing
// else.
func TestKernelAIO(t *testing.T) {
	a, err := newAIO()
	if err != nil {
		t.Skipf("the kernel takes no asynchronous calls here: %v", err)
	}
	go a.complete()
	f, err := os.Create(filepath.Join(t.TempDir(), "file"))
	must.OK(t, err)
	defer f.Close()
	var wait sync.WaitGroup
	var syncs, reads atomic.Int32
	for i := range 2 * aioUnderWay {
		wait.Go(func() {
			block := bytes.Repeat([]byte{byte(i), byte(i >> 8)}, DirectAlign/2)
			if _, err := f.WriteAt(block, int64(i)*DirectAlign); err != nil {
				t.Error(err)
			}
			_, ok, err := a.do(iocb{opcode: iocbFdsync, fd: uint32(f.Fd())}, nil)
			if err != nil {
				t.Error(err)
			}
			if ok {
				syncs.Add(1)
			}
			got := AlignedBytes(DirectAlign)
			n, ok, err := a.do(iocb{opcode: iocbPread, fd: uint32(f.Fd()), bytes: DirectAlign, offset: int64(i) * DirectAlign,
				buffer: uint64(uintptr(unsafe.Pointer(&got[0])))}, got)
			if err != nil || ok && (n != len(got) || !bytes.Equal(got, block)) {
				t.Errorf("read of block %d: %d bytes, %v", i, n, err)
			}
			if ok {
				reads.Add(1)
			}
		})
	}
	wait.Wait()
	a.mu.Lock()
	defer a.mu.Unlock()
	if syncs.Load() == 0 || reads.Load() == 0 || len(a.free) != aioUnderWay {
		t.Errorf("%d syncs and %d reads were taken, %d calls are free", syncs.Load(), reads.Load(), len(a.free))
	}
}

// TestKernelRefusesAIO checks that nothing was done if the kernel refuses a call, for example in a sandbox, and that
// the ordinary call is then used.
func TestKernelRefusesAIO(t *testing.T) {
	f, err := os.Create(filepath.Join(t.TempDir(), "file"))
	must.OK(t, err)
	defer f.Close()
	want := bytes.Repeat([]byte{7}, DirectAlign)
	if _, err := f.WriteAt(want, 0); err != nil {
		t.Fatal(err)
	}
	whole := kernelAIO
	defer func() { kernelAIO = whole }()
	refusing := &aio{free: []int{0}} // has no AIO context, so io_submit returns EINVAL
	full := &aio{}
	for what, a := range map[string]*aio{"no context": refusing, "too many under way": full, "no kernel": nil} {
		asked := 0
		kernelAIO = func() *aio { asked++; return a }
		got := AlignedBytes(DirectAlign)
		if n, err := preadDirect(int(f.Fd()), got, 0); n != len(got) || err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s: read %d bytes, %v", what, n, err)
		}
		if err := fdatasync(int(f.Fd())); err != nil || asked != 2 {
			t.Errorf("%s: sync: %v; asked %d times", what, err, asked)
		}
	}
	if len(refusing.free) != 1 {
		t.Error("a refused call is not free again")
	}
}

// TestKernelAIOEndAndError checks that a direct read stops at the end of the file, and that a read at a negative offset
// returns the kernel's error.
func TestKernelAIOEndAndError(t *testing.T) {
	f, err := os.Create(filepath.Join(t.TempDir(), "file"))
	must.OK(t, err)
	defer f.Close()
	if _, err := f.WriteAt([]byte("abc"), 0); err != nil {
		t.Fatal(err)
	}
	b := AlignedBytes(DirectAlign)
	if n, err := preadDirect(int(f.Fd()), b, 0); n != 3 || err != nil {
		t.Errorf("at the end: %d bytes, %v", n, err)
	}
	if n, err := preadDirect(int(f.Fd()), b, DirectAlign); n != 0 || err != nil {
		t.Errorf("behind the end: %d bytes, %v", n, err)
	}
	if _, err := preadDirect(int(f.Fd()), b, -1); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("before the begin: %v", err)
	}
}

// TestSyncOfWhatCannotBeSynced checks that the sync of a pipe, which cannot be synced, returns an error and does not
// wait forever.
func TestSyncOfWhatCannotBeSynced(t *testing.T) {
	r, w, err := os.Pipe()
	must.OK(t, err)
	defer r.Close()
	defer w.Close()
	if err := fdatasync(int(w.Fd())); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("a pipe: %v", err)
	}
	if err := fdatasync(1 << 20); !errors.Is(err, syscall.EBADF) {
		t.Errorf("no file: %v", err)
	}
}

// TestLayoutOfAsynchronousIO checks that the structures have the layout in linux/aio_abi.h.
func TestLayoutOfAsynchronousIO(t *testing.T) {
	var c iocb
	if unsafe.Sizeof(c) != 64 || unsafe.Offsetof(c.opcode) != 16 || unsafe.Offsetof(c.fd) != 20 ||
		unsafe.Offsetof(c.buffer) != 24 ||
		unsafe.Offsetof(c.offset) != 40 || unsafe.Offsetof(c.flags) != 56 {
		t.Error("iocb")
	}
	var e ioEvent
	if unsafe.Sizeof(e) != 32 || unsafe.Offsetof(e.result) != 16 {
		t.Error("ioEvent")
	}
}
