package chaos

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"sheaf.dev/sheaf/internal/test/must"
)

// mountDisk creates a file system of the given size on a loop device, mounts it so that only this machine sees it,
// and returns its folder. When the machine is removed, the kernel unmounts the file system and releases the device.
func (m *machine) mountDisk(bytes int64) string {
	image := filepath.Join(m.rig.dir, m.name+".image")
	m.makeImage(image, bytes)
	return m.mountImage(image)
}

func (m *machine) makeImage(image string, bytes int64) {
	file, err := os.Create(image)
	must.OK(m.rig.t, err)
	must.OK(m.rig.t, file.Truncate(bytes))
	must.OK(m.rig.t, file.Close())
	m.must("mkfs.ext4", "-q", "-m", "0", "-E", "lazy_itable_init=0,lazy_journal_init=0", image)
}

func (m *machine) mountImage(image string) string {
	at := filepath.Join(m.rig.dir, "disk-"+m.name)
	must.OK(m.rig.t, os.Mkdir(at, 0o755))
	must.OK(m.rig.t, m.mountAt(image, at))
	return at
}

func (m *machine) mountAt(image, at string) error {
	_, err := m.run("mount", "-t", "ext4", "-o", "loop,noatime", image, at)
	return err
}

// unmount unmounts a folder if something is mounted there. Nothing may be mounted there if an earlier attempt to
// remount it has failed after the unmount.
func (m *machine) unmount(at string) error {
	if _, err := m.run("findmnt", "--noheadings", "--mountpoint", at); err != nil {
		return nil //nolint:nilerr // nothing is mounted there
	}
	_, err := m.run("umount", at)
	return err
}

// slowDisk is a disk whose speed can be set. The program hack/kube/slowdisk serves its image.
type slowDisk struct {
	rate string // path of the file that sets the rate
	file string // file that is the image of the loop device, as a path inside the machine
	at   string // mount point inside the machine
	m    *machine
}

// mountSlowDisk is like mountDisk, but the disk is a slowDisk.
func (m *machine) mountSlowDisk(bytes int64) string {
	t, dir := m.rig.t, filepath.Join(m.rig.dir, "slow-"+m.name)
	image, fuse, rate := filepath.Join(dir, "image"), filepath.Join(dir, "fuse"), filepath.Join(dir, "rate")
	must.OK(t, os.MkdirAll(fuse, 0o755))
	m.makeImage(image, bytes)
	m.slow = &slowDisk{rate: rate, m: m}
	m.slow.set("off")
	_, err := m.launch("slowdisk", slowdiskBinary, image, fuse, rate)
	must.OK(t, err)
	file := filepath.Join(fuse, "sheaf-slowdisk")
	must.OK(t, await("slowdisk", time.Minute, func() error {
		_, err := os.Stat(m.path(file))
		return err
	}))
	m.slow.file = file
	m.slow.at = m.mountImage(file)
	return m.slow.at
}

// mountAgain unmounts the disk and mounts it again. This is necessary after an I/O error, because the file system
// then refuses all access until it is remounted. No process may use the disk in the meantime.
func (s *slowDisk) mountAgain() error {
	if err := s.m.unmount(s.at); err != nil {
		return err
	}
	return s.m.mountAt(s.file, s.at)
}

// set changes the rate. The new rate takes effect within a tenth of a second. A rate is "off", bytes per second such as
// "64K", "error" (EIO), or "hang".
func (s *slowDisk) set(rate string) {
	if err := os.WriteFile(s.rate+".new", []byte(rate), 0o644); err == nil {
		_ = os.Rename(s.rate+".new", s.rate) // fails if the run has finished and removed the folder
	}
}

// probe writes and syncs a file, and returns how long that takes.
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

// fill writes a file until the file system is full, and checks that it is full.
func (m *machine) fill(at string) error {
	file, err := os.OpenFile(m.path(filepath.Join(at, "filler")), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return err
	}
	for size := 1 << 20; err == nil || size > 1; { // ever smaller pieces, down to one byte, fill the disk completely
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

// releaseSpace removes the file that fill wrote.
func (m *machine) releaseSpace(at string) error {
	return os.Remove(m.path(filepath.Join(at, "filler")))
}

// free returns the free bytes in one of the machine's file systems.
func (m *machine) free(at string) (int64, error) {
	var s syscall.Statfs_t
	err := syscall.Statfs(m.path(at), &s)
	return int64(s.Bavail) * s.Bsize, err
}
