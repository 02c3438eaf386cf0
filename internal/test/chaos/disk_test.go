package chaos

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"time"
)

// mountDisk makes a file system of so many bytes on a loop device, in the machine only, and gives its folder. The
// kernel lets go of the device with the mount, and of the mount with the machine.
func (m *machine) mountDisk(bytes int64) string {
	image := filepath.Join(m.rig.dir, m.name+".image")
	m.makeImage(image, bytes)
	return m.mountImage(image)
}

func (m *machine) makeImage(image string, bytes int64) {
	file, err := os.Create(image)
	must(m.rig.t, err)
	must(m.rig.t, file.Truncate(bytes))
	must(m.rig.t, file.Close())
	m.must("mkfs.ext4", "-q", "-m", "0", "-E", "lazy_itable_init=0,lazy_journal_init=0", image)
}

func (m *machine) mountImage(image string) string {
	at := filepath.Join(m.rig.dir, "disk-"+m.name)
	must(m.rig.t, os.Mkdir(at, 0o755))
	must(m.rig.t, m.mountAt(image, at))
	return at
}

func (m *machine) mountAt(image, at string) error {
	_, err := m.run("mount", "-t", "ext4", "-o", "loop,noatime", image, at)
	return err
}

// unmount takes down what is mounted at a folder, if anything is: an earlier try to mount it anew may have come so far
// and no further.
func (m *machine) unmount(at string) error {
	if _, err := m.run("findmnt", "--noheadings", "--mountpoint", at); err != nil {
		return nil //nolint:nilerr // nothing is mounted there
	}
	_, err := m.run("umount", at)
	return err
}

// slowDisk is a disk whose speed can be set: hack/kube/slowdisk serves its image.
type slowDisk struct {
	rate string // file
	file string // in the machine: what the loop device is on
	at   string // folder, in the machine
	m    *machine
}

// mountSlowDisk is mountDisk of a slow disk.
func (m *machine) mountSlowDisk(bytes int64) string {
	t, dir := m.rig.t, filepath.Join(m.rig.dir, "slow-"+m.name)
	image, fuse, rate := filepath.Join(dir, "image"), filepath.Join(dir, "fuse"), filepath.Join(dir, "rate")
	must(t, os.MkdirAll(fuse, 0o755))
	m.makeImage(image, bytes)
	m.slow = &slowDisk{rate: rate, m: m}
	m.slow.set("off")
	_, err := m.launch("slowdisk", slowdiskBinary, image, fuse, rate)
	must(t, err)
	file := filepath.Join(fuse, "sheaf-slowdisk")
	must(t, await("slowdisk", time.Minute, func() error {
		_, err := os.Stat(m.path(file))
		return err
	}))
	m.slow.file = file
	m.slow.at = m.mountImage(file)
	return m.slow.at
}

// mountAgain mounts the disk anew, as a file system that met an error refuses all from then on. Nobody uses it.
func (s *slowDisk) mountAgain() error {
	if err := s.m.unmount(s.at); err != nil {
		return err
	}
	return s.m.mountAt(s.file, s.at)
}

// set takes effect within a tenth of a second: off, bytes per second as 64K, error (EIO) or hang.
func (s *slowDisk) set(rate string) {
	if err := os.WriteFile(s.rate+".new", []byte(rate), 0o644); err == nil {
		_ = os.Rename(s.rate+".new", s.rate) // a run that ends removes the folder
	}
}

// probe writes and syncs a file, and tells how long that takes.
func (s *slowDisk) probe(bytes int) (took time.Duration, err error) {
	begin := time.Now()
	file, err := os.Create(s.m.path(filepath.Join(s.at, "probe")))
	if err != nil {
		return 0, err
	}
	_, err = file.Write(make([]byte, bytes))
	err = errors.Join(err, file.Sync(), file.Close())
	return time.Since(begin), err
}

// fill writes a file until the file system takes nothing more, and tells that it is full.
func (m *machine) fill(at string) error {
	file, err := os.OpenFile(m.path(filepath.Join(at, "filler")), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return err
	}
	for size := 1 << 20; err == nil || size > 1; { // the smallest hole too
		if _, err = file.Write(make([]byte, size)); err != nil {
			size /= 2
		}
	}
	if closed := file.Close(); closed != nil && !errors.Is(closed, syscall.ENOSPC) {
		return closed
	}
	if !errors.Is(err, syscall.ENOSPC) {
		return fmt.Errorf("filling %s: %w, want that it is full", at, err)
	}
	return nil
}

// makeRoom removes what fill wrote.
func (m *machine) makeRoom(at string) error { return os.Remove(m.path(filepath.Join(at, "filler"))) }

// free bytes of a file system of the machine.
func (m *machine) free(at string) (int64, error) {
	var s syscall.Statfs_t
	err := syscall.Statfs(m.path(at), &s)
	return int64(s.Bavail) * s.Bsize, err
}
