package powercut

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sheaf.dev/sheaf/internal/test/faultdisk"
	"sheaf.dev/sheaf/internal/test/loop"
)

// fileSystem is a file system of the kernel, with its programs. DEVICE in a command stands for the block device.
type fileSystem struct {
	name        string
	bytes       int64 // size of the disk
	sectorBytes int   // number of bytes that the disk writes atomically
	mkfs, check []string
	repair      []string // command that a user runs if the file system cannot be mounted; nil if there is none
	forget      []string // command that makes the kernel forget an unmounted device
}

// ext4 works on a disk that writes only 512 bytes atomically, apparently except for its superblocks of 1 KiB. After
// about one in a thousand cuts the kernel refused to mount ext4 ("bad message"), and the file system had to be
// repaired first. xfs and btrfs need a disk that writes 4 KiB atomically, as real disks do. If writes could tear at
// 512 bytes, xfs could sometimes not be mounted because checksums of its metadata were wrong. btrfs overwrites
// superblocks of 4 KiB in place.
var fileSystems = []*fileSystem{
	{
		name: "ext4", bytes: 192 << 20, sectorBytes: 512,
		mkfs: []string{"mkfs.ext4", "-q", "-F", "-m", "0", "-E", "lazy_itable_init=0,lazy_journal_init=0,nodiscard",
			"DEVICE"},
		check: []string{"e2fsck", "-f", "-n", "DEVICE"},
		// The exit code is 1 if the repair changed something, and 4 or more if errors remain.
		repair: []string{"sh", "-c", "e2fsck -f -y DEVICE; [ $? -lt 4 ]"},
	},
	{
		name: "xfs", bytes: 320 << 20, sectorBytes: 4096,
		mkfs:  []string{"mkfs.xfs", "-q", "-f", "-K", "DEVICE"},
		check: []string{"xfs_repair", "-n", "DEVICE"},
	},
	{
		name: "btrfs", bytes: 320 << 20, sectorBytes: 4096,
		mkfs:   []string{"mkfs.btrfs", "-q", "-f", "-K", "DEVICE"},
		check:  []string{"btrfs", "check", "--readonly", "DEVICE"},
		forget: []string{"btrfs", "device", "scan", "--forget", "DEVICE"},
	},
}

func fileSystemOf(name string) *fileSystem {
	for _, f := range fileSystems {
		if f.name == name {
			return f
		}
	}
	panic("no file system " + name)
}

// skipUnlessMountable skips a test if this machine cannot mount the file system. If SHEAF_LOOP=required, it fails the
// test instead.
func (f *fileSystem) skipUnlessMountable(t *testing.T) {
	t.Helper()
	var missing []string
	if os.Geteuid() != 0 {
		missing = append(missing, "root")
	} else if !loop.HasOwnMounts() {
		missing = append(missing, "a mount namespace of its own")
	}
	for _, device := range []string{"/dev/fuse", "/dev/loop-control"} {
		if _, err := os.Stat(device); err != nil {
			missing = append(missing, err.Error())
		}
	}
	for _, program := range []string{f.mkfs[0], f.check[0]} {
		if _, err := exec.LookPath(program); err != nil {
			missing = append(missing, err.Error())
		}
	}
	if len(missing) == 0 {
		return
	}
	message := fmt.Sprintf("NOT TESTED: no power was cut under %s, it needs %s", f.name, strings.Join(missing, ", "))
	if os.Getenv("SHEAF_LOOP") == "required" {
		t.Fatal(message)
	}
	t.Skip(message)
}

func run(command []string, device string) error {
	words := make([]string, len(command))
	for i, w := range command {
		words[i] = strings.Replace(w, "DEVICE", device, 1)
	}
	out, err := exec.CommandContext(context.Background(), words[0], words[1:]...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s: %w: %s", strings.Join(words, " "), err, bytes.TrimSpace(out))
	}
	return nil
}

// mounted is a file system on a disk.
type mounted struct {
	fs    *fileSystem
	drive *faultdisk.Drive
	point string // mount point; "" if the file system is not mounted
}

// errMount means that after a power cut the kernel refused to mount the disk.
var errMount = errors.New("the file system cannot be mounted")

// mount attaches a disk and mounts the file system on it. If anew is true, mount creates the file system first.
func (f *fileSystem) mount(dir string, disk *faultdisk.Device, anew bool) (m *mounted, err error) {
	drive, err := faultdisk.Attach(disk, dir, f.sectorBytes)
	if err != nil {
		return nil, err
	}
	m = &mounted{fs: f, drive: drive}
	defer func() {
		if err != nil {
			err = errors.Join(err, m.detach())
		}
	}()
	if anew {
		if err := run(f.mkfs, drive.Path()); err != nil {
			return m, err
		}
	}
	point := filepath.Join(dir, "point")
	if err := os.MkdirAll(point, 0o700); err != nil {
		return m, err
	}
	if err := unix.Mount(drive.Path(), point, f.name, unix.MS_NOATIME, ""); err != nil {
		return m, fmt.Errorf("%w: %s: %w", errMount, f.name, err)
	}
	m.point = point
	return m, nil
}

// mountOrRepair mounts a disk after a power cut. If the kernel refuses, it runs the file system's own repair program
// and tries again.
func (f *fileSystem) mountOrRepair(dir string, disk *faultdisk.Device) (m *mounted, repaired bool, err error) {
	m, err = f.mount(dir, disk, false)
	if !errors.Is(err, errMount) || f.repair == nil {
		return m, false, err
	}
	drive, failed := faultdisk.Attach(disk, dir, f.sectorBytes)
	if failed != nil {
		return nil, false, errors.Join(err, failed)
	}
	if failed := errors.Join(run(f.repair, drive.Path()), drive.Detach()); failed != nil {
		return nil, false, errors.Join(err, failed)
	}
	m, err = f.mount(dir, disk, false)
	return m, true, err
}

// unmount unmounts the file system, and retries while the mount is busy. The mount can be busy if another test has
// just forked a child process, because the child holds this process's open files until it executes its program.
func (m *mounted) unmount() error {
	if m.point == "" {
		return nil
	}
	for end := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		err := unix.Unmount(m.point, 0)
		if err == nil {
			m.point = ""
			return nil
		}
		if !errors.Is(err, unix.EBUSY) || time.Now().After(end) {
			return errors.Join(fmt.Errorf("unmounting %s: %w", m.point, err), unix.Unmount(m.point, unix.MNT_DETACH))
		}
	}
}

// check runs the file system's own check. The file system must not be mounted.
func (m *mounted) check() error { return run(m.fs.check, m.drive.Path()) }

// detach unmounts and releases the disk.
func (m *mounted) detach() error {
	err := m.unmount()
	if m.fs.forget != nil {
		_ = run(m.fs.forget, m.drive.Path()) // fails if the kernel does not remember the device, which is fine
	}
	return errors.Join(err, m.drive.Detach())
}
