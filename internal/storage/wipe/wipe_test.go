package wipe

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"sheaf.dev/sheaf/internal/test/loop"
	"sheaf.dev/sheaf/internal/test/must"
)

// without is called if the machine does not provide a real device that a test needs. It skips the test, or fails it
// if SHEAF_LOOP=required.
func without(t *testing.T, why string) {
	t.Helper()
	message := "NOT TESTED on a real block device: " + why
	if os.Getenv("SHEAF_LOOP") == "required" {
		t.Fatal(message)
	}
	t.Skip(message)
}

// newDevice creates a loop device on which all bits are set.
func newDevice(t *testing.T, size int64) *loop.Device {
	t.Helper()
	if os.Geteuid() != 0 {
		without(t, "loop devices need root")
	}
	image, err := os.Create(filepath.Join(t.TempDir(), "image"))
	must.OK(t, err)
	must.OK(t, image.Truncate(size))
	d, err := loop.Attach(image, 0)
	if err != nil {
		without(t, "this machine gives no loop device: "+err.Error())
	}
	t.Cleanup(func() { _ = d.File.Close() })
	ones := bytes.Repeat([]byte{1}, mib)
	for at := int64(0); at < size; at += mib {
		if _, err := d.File.WriteAt(ones, at); err != nil {
			t.Fatal(err)
		}
	}
	must.OK(t, d.File.Sync())
	return d
}

func TestDeviceIsBlank(t *testing.T) {
	const size = 96 * mib
	d := newDevice(t, size)
	report, err := Device(d.Name)
	must.OK(t, err)
	if report.Bytes != size || report.Zeroed != 2*edge+around {
		t.Errorf("%+v", report)
	}
	for _, r := range ranges(size) {
		if err := verify(d.File, r); err != nil {
			t.Error(err)
		}
	}
	if report.Discarded {
		if err := verify(d.File, span{0, size}); err != nil {
			t.Error(err)
		}
	}
}

// TestWhatIsInUseIsRefused checks that no byte changes on a device that is mounted or opened exclusively.
func TestWhatIsInUseIsRefused(t *testing.T) {
	d := newDevice(t, 32*mib)
	alone, err := os.OpenFile(d.Name, os.O_RDONLY|unix.O_EXCL, 0)
	must.OK(t, err)
	if _, err := Device(d.Name); !errors.Is(err, ErrInUse) {
		t.Errorf("a device that somebody holds is wiped: %v", err)
	}
	must.OK(t, alone.Close())
	if out, err := exec.Command("mkfs.ext4", "-q", "-F", d.Name).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	point := t.TempDir()
	if err := unix.Mount(d.Name, point, "ext4", 0, ""); err != nil {
		without(t, "this machine mounts no loop device: "+err.Error())
	}
	mounted := true
	unmount := func() {
		if mounted {
			mounted = false
			if err := unix.Unmount(point, 0); err != nil {
				t.Error(err)
			}
		}
	}
	defer unmount()
	file := filepath.Join(point, "file")
	must.OK(t, os.WriteFile(file, []byte("kept"), 0o600))
	if _, err := Device(d.Name); !errors.Is(err, ErrInUse) {
		t.Errorf("a device that is mounted is wiped: %v", err)
	}
	if got, err := os.ReadFile(file); err != nil || string(got) != "kept" {
		t.Errorf("%q, %v", got, err)
	}
	unmount()
	if _, err := Device(d.Name); err != nil {
		t.Errorf("it is not mounted any more: %v", err)
	}
	if err := unix.Mount(d.Name, point, "ext4", 0, ""); err == nil {
		mounted = true
		t.Error("there is a file system on a device that was wiped")
	}
}

func TestWhatIsNoDeviceIsRefused(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	must.OK(t, os.WriteFile(file, []byte("kept"), 0o600))
	for _, path := range []string{file, "/dev/null", filepath.Join(t.TempDir(), "none"), t.TempDir()} {
		if report, err := Device(path); err == nil {
			t.Errorf("%s: %+v", path, report)
		}
	}
	if got, err := os.ReadFile(file); err != nil || string(got) != "kept" {
		t.Errorf("%q, %v", got, err)
	}
}

func TestRanges(t *testing.T) {
	for size, want := range map[int64][]span{
		mib:       {{0, mib}},
		2 * edge:  {{0, 2 * edge}},
		65 * mib:  {{0, edge}, {49 * mib, edge}},
		300 * gib: {{0, edge}, {64 * mib, around}, {256 * gib, around}, {300*gib - edge, edge}},
	} {
		if got := ranges(size); !slices.Equal(got, want) {
			t.Errorf("%d bytes: %v, want %v", size, got, want)
		}
	}
}
