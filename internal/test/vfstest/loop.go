package vfstest

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"sheaf.dev/sheaf/internal/test/must"
)

// LoopMount creates a file system of the given type (ext2, ext3, ext4, xfs, btrfs) in a file of sizeBytes, mounts it,
// and returns the mount point. The argument driver is the name of the driver with which to mount it. If it is empty,
// the file system type's own driver is used. The file system is unmounted when the test ends. If mkfs for the type is
// not installed, the test is skipped. LoopMount also needs root and loop devices. Without them, the test is skipped
// too, or fails if SHEAF_LOOP=required.
func LoopMount(t *testing.T, fsType, driver string, sizeBytes int64, options ...string) string {
	t.Helper()
	without := func(format string, args ...any) {
		t.Helper()
		message := "NOT TESTED on a real " + fsType + " file system: " + fmt.Sprintf(format, args...)
		if os.Getenv("SHEAF_LOOP") == "required" {
			t.Fatal(message)
		}
		t.Skip(message)
	}
	if os.Geteuid() != 0 {
		without("mounting needs root, this is user %d", os.Geteuid())
	}
	if _, err := os.Stat("/dev/loop-control"); err != nil {
		without("no loop devices: %v", err)
	}
	mkfs, err := exec.LookPath("mkfs." + fsType)
	if err != nil {
		t.Skipf("NOT TESTED on a real %s file system: %v", fsType, err)
	}
	dir := t.TempDir()
	image, point := filepath.Join(dir, "image"), filepath.Join(dir, "mount point")
	must.OK(t, os.Mkdir(point, 0o700))
	must.OK(t, os.WriteFile(image, nil, 0o600))
	must.OK(t, os.Truncate(image, sizeBytes))
	if out, err := exec.CommandContext(t.Context(), mkfs, append(options, "-q", image)...).CombinedOutput(); err != nil {
		t.Fatalf("%s: %v: %s", mkfs, err, out)
	}
	if driver == "" {
		driver = fsType
	}
	if out, err := exec.CommandContext(t.Context(), "mount", "-o", "loop", "-t", driver, image, point).
		CombinedOutput(); err != nil {
		without("mount: %v: %s", err, out)
	}
	t.Cleanup(func() { unmount(t, point) })
	return point
}

// unmount unmounts a file system, and retries while the mount is busy. A process that another test has just forked
// holds the open files of this process until it executes its program.
func unmount(t *testing.T, point string) {
	t.Helper()
	for end := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		out, err := exec.CommandContext(context.Background(), "umount", point).CombinedOutput()
		if err == nil {
			return
		}
		if time.Now().After(end) {
			// This removes the mount even if it is busy.
			_ = exec.CommandContext(context.Background(), "umount", "--lazy", point).Run()
			t.Fatalf("umount %s: %v: %s", point, err, out)
		}
	}
}
