package wipe

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"sheaf.dev/sheaf/internal/test/must"
)

// TestLookRecognizesFileSystems checks that Look recognizes and names the file systems that a kubelet creates and
// mounts for a DiskSet.
func TestLookRecognizesFileSystems(t *testing.T) {
	for want, mkfs := range map[string][]string{
		`an ext2, ext3 or ext4 file system named "payroll"`: {"mkfs.ext4", "-q", "-L", "payroll"},
		"an ext2, ext3 or ext4 file system":                 {"mkfs.ext3", "-q"},
		`an xfs file system named "payroll"`:                {"mkfs.xfs", "-q", "-L", "payroll"},
		`a btrfs file system named "payroll"`:               {"mkfs.btrfs", "-q", "-L", "payroll"},
	} {
		if _, err := exec.LookPath(mkfs[0]); err != nil {
			without(t, err.Error())
		}
		image := sparse(t, 320*mib)
		if out, err := exec.Command(mkfs[0], append(mkfs[1:], image)...).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		if got, err := Look(image); err != nil || got != want {
			t.Errorf("%s: %q, %v; want %q", mkfs[0], got, err, want)
		}
	}
}

// sparse creates a file that contains only zeros.
func sparse(t *testing.T, size int64) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "image")
	f, err := os.Create(path)
	must.OK(t, err)
	must.OK(t, f.Truncate(size))
	must.OK(t, f.Close())
	return path
}

// TestLookRecognizesSignatures checks that Look recognizes each signature, even at the very end of the content, and
// recognizes no other bytes.
func TestLookRecognizesSignatures(t *testing.T) {
	for _, s := range signatures {
		for _, size := range []int64{s.at + int64(len(s.magic)), 200 * kib} {
			path := sparse(t, size)
			f, err := os.OpenFile(path, os.O_RDWR, 0)
			must.OK(t, err)
			if _, err := f.WriteAt([]byte(s.magic), s.at); err != nil {
				t.Fatal(err)
			}
			if got, err := Look(path); err != nil || got != s.what {
				t.Errorf("%s, %d bytes: %q, %v", s.what, size, got, err)
			}
			if _, err := f.WriteAt([]byte{0}, s.at); err != nil {
				t.Fatal(err)
			}
			if got, err := Look(path); err != nil || got != "" {
				t.Errorf("not %s, %d bytes: %q, %v", s.what, size, got, err)
			}
			_ = f.Close()
		}
	}
}

// TestLookFailsWithoutADisk checks that Look returns an error for a disk that it cannot read, and does not call the
// disk blank.
func TestLookFailsWithoutADisk(t *testing.T) {
	for path, says := range map[string]string{
		sparse(t, 0):                       "has no bytes",
		filepath.Join(t.TempDir(), "none"): "no such file",
		t.TempDir():                        "is a directory",
	} {
		if got, err := Look(path); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %q, %v", path, got, err)
		}
	}
}
