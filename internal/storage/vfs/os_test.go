package vfs_test

import (
	"bufio"
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"sheaf.dev/sheaf/internal/storage/vfs"
	"sheaf.dev/sheaf/internal/test/must"
	"sheaf.dev/sheaf/internal/test/vfstest"
)

// sector is the size of a disk's sector, in bytes.
const sector = 512

// TestContractOnRealFileSystems runs the contract of FS on a small disk with each file system that this machine can
// make.
func TestContractOnRealFileSystems(t *testing.T) {
	for fsType, size := range map[string]int64{"ext2": 32 << 20, "ext3": 32 << 20, "ext4": 32 << 20, "xfs": 320 << 20,
		"btrfs": 128 << 20} {
		t.Run(fsType, func(t *testing.T) {
			point := vfstest.LoopMount(t, fsType, "", size)
			vfstest.Run(t, func(t *testing.T) (vfs.FS, string) {
				dir := filepath.Join(point, filepath.Base(t.Name()))
				must.OK(t, os.Mkdir(dir, 0o700))
				return vfs.OS{}, dir
			})
			f := vfstest.Write(t, vfs.OS{}, filepath.Join(point, "f"), bytes.Repeat([]byte{1}, 10*sector))
			defer func() { must.OK(t, f.Close()) }()
			must.OK(t, f.Allocate(0, 1<<20)) // ext2 and ext3 have no fallocate
			if got := vfstest.Read(t, vfs.OS{}, f.Name()); !bytes.Equal(got,
				append(bytes.Repeat([]byte{1}, 10*sector), make([]byte, 1<<20-10*sector)...)) {
				t.Error("allocate changed content or size")
			}
			if got, want := f.CheapOverwrite(), fsType != "btrfs"; got != want {
				t.Errorf("overwriting is cheap: %v", got)
			}
			if end, err := f.DataEnd(0); err != nil || end < 10*sector || end > 64<<10 {
				t.Errorf("%d bytes were written, 1 MiB is allocated: the data ends at %d, %v", 10*sector, end, err)
			}
			direct, err := vfs.OS{}.OpenDirect(f.Name())
			must.OK(t, err)
			if !direct.Direct() {
				t.Error("not opened past the page cache")
			}
			must.OK(t, direct.Close())
		})
	}
}

func TestOSFullDisk(t *testing.T) {
	point := vfstest.LoopMount(t, "ext4", "", 16<<20)
	f := vfstest.Write(t, vfs.OS{}, filepath.Join(point, "f"), nil)
	defer func() { must.OK(t, f.Close()) }()
	if err := f.Allocate(0, 1<<30); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("allocate beyond the disk: error %v", err)
	}
	must.OK(t, f.Truncate(0))
	n, err := f.WriteAt(make([]byte, 64<<20), 0)
	if !errors.Is(err, syscall.ENOSPC) || n >= 64<<20 {
		t.Errorf("write beyond the disk: %d bytes, error %v", n, err)
	}
}

// TestOSOpenDirectFallsBack checks that OpenDirect opens a file normally on a file system without O_DIRECT.
func TestOSOpenDirectFallsBack(t *testing.T) {
	f, err := vfs.OS{}.OpenDirect("/proc/self/mountinfo")
	must.OK(t, err)
	defer func() { must.OK(t, f.Close()) }()
	if f.Direct() {
		t.Error("it says that it reads past the page cache")
	}
	buf := make([]byte, 3) // a normal read needs no alignment
	if _, err := f.ReadAt(buf, 1); err != nil {
		t.Error(err)
	}
}

// TestOSLockHoldsAgainstProcesses checks that a lock in another process excludes this process until the other one is
// killed.
func TestOSLockHoldsAgainstProcesses(t *testing.T) {
	const env = "SHEAF_TEST_HOLD_LOCK"
	if name := os.Getenv(env); name != "" {
		if _, err := (vfs.OS{}).Lock(name); err != nil {
			t.Fatal(err)
		}
		if _, err := os.Stdout.WriteString("locked\n"); err != nil {
			t.Fatal(err)
		}
		select {} // waits until the process is killed
	}
	name := filepath.Join(t.TempDir(), "lock")
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestOSLockHoldsAgainstProcesses$")
	cmd.Env = append(os.Environ(), env+"="+name)
	out, err := cmd.StdoutPipe()
	must.OK(t, err)
	must.OK(t, cmd.Start())
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil || !strings.HasPrefix(line, "locked") {
		t.Fatalf("the other process says %q, %v", line, err)
	}
	if _, err := (vfs.OS{}).Lock(name); !errors.Is(err, vfs.ErrLocked) {
		t.Errorf("lock while the other process holds it: error %v", err)
	}
	must.OK(t, cmd.Process.Kill())
	if err := cmd.Wait(); err == nil {
		t.Error("the other process ended before it was killed")
	}
	lock, err := (vfs.OS{}).Lock(name)
	must.OK(t, err)
	must.OK(t, lock.Close())
}

func TestAlignedBytes(t *testing.T) {
	for _, n := range []int{0, 1, 511, 4096, 1 << 20} {
		b := vfs.AlignedBytes(n)
		if len(b) != n || cap(b) != n || !vfstest.Aligned(b) {
			t.Errorf("AlignedBytes(%d): length %d, capacity %d, aligned %v", n, len(b), cap(b), vfstest.Aligned(b))
		}
	}
	if vfstest.Aligned(vfs.AlignedBytes(8)[1:]) {
		t.Error("one byte further is aligned too")
	}
}
