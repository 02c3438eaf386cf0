package layouts

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"sheaf.dev/sheaf/bench/drive"
	"sheaf.dev/sheaf/bench/rounds"
	"sheaf.dev/sheaf/internal/storage/vfs"
	"sheaf.dev/sheaf/internal/storage/volume"
	"sheaf.dev/sheaf/internal/test/loop"
)

// place is where the measurements run, which is either a device on which file systems are created, or a folder on an
// existing file system.
type place interface {
	// begin returns an empty folder on a file system with space for the given number of files.
	begin(ctx context.Context, fs *fileSystem, files int) (*site, error)
	// end removes everything that begin() created.
	end(s *site) error
	close() error
	// words describes the place for the report.
	words() string
}

// site is the place of one measurement.
type site struct {
	*rounds.Figures // receives the results of the measurement
	dir             string
	// mkfsSeconds is the time that mkfs took. It is 0 if no file system was created.
	mkfsSeconds float64
	// cold writes all data to the device, and drops as much as possible from the kernel's caches.
	cold func(ctx context.Context) error
	// check checks the file system with its own program, and returns how long that took. It is nil if there is no such
	// program.
	check func(ctx context.Context) (seconds float64, err error)
}

// since returns the number of seconds since begin.
func since(begin time.Time) float64 { return time.Since(begin).Seconds() }

// syncFS syncs the file system that contains a folder.
func syncFS(dir string) error {
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("%s: %w", dir, err)
	}
	err = unix.Syncfs(fd)
	if err = errors.Join(err, unix.Close(fd)); err != nil {
		return fmt.Errorf("syncfs %s: %w", dir, err)
	}
	return nil
}

// dropCaches drops the kernel's cached data, names and inodes. Tests replace it, because empty caches slow down all
// other processes of the machine.
var dropCaches = drive.DropCaches

// usedBytes returns the used space of the file system that contains a folder.
func usedBytes(dir string) (int64, error) {
	var s unix.Statfs_t
	if err := unix.Statfs(dir, &s); err != nil {
		return 0, fmt.Errorf("statfs %s: %w", dir, err)
	}
	return int64(s.Blocks-s.Bfree) * s.Bsize, nil
}

// typeOf returns the kernel's name for the file system that contains a folder.
func typeOf(dir string) string {
	m, err := volume.MountOf(vfs.OS{}, dir)
	if err != nil {
		return "unknown"
	}
	return m.FileSystem
}

// pathPlace is a place in a folder of an existing file system.
type pathPlace struct {
	path string
	warm string // reason why the caches cannot be dropped; empty if they can
}

func newPathPlace(path string) (*pathPlace, error) {
	info, err := os.Stat(path)
	if err == nil && !info.IsDir() {
		err = fmt.Errorf("%s is no folder", path)
	}
	if err != nil {
		return nil, err
	}
	p := &pathPlace{path: path}
	if err := dropCaches(); err != nil {
		p.warm = "drop_caches needs root: data was dropped from the page cache file by file, names and inodes stayed warm"
	}
	return p, nil
}

func (p *pathPlace) begin(context.Context, *fileSystem, int) (*site, error) {
	dir, err := os.MkdirTemp(p.path, "sheaf-bench-")
	if err != nil {
		return nil, err
	}
	return &site{dir: dir, cold: func(ctx context.Context) error {
		if err := syncFS(dir); err != nil {
			return err
		}
		if p.warm == "" {
			return dropCaches()
		}
		return Evict(ctx, dir, false)
	}}, nil
}

func (p *pathPlace) end(s *site) error { return os.RemoveAll(s.dir) }
func (p *pathPlace) close() error      { return nil }

func (p *pathPlace) words() string {
	return "the folder " + p.path + " of a file system that was there"
}

// Evict drops the pages of a folder's files from the page cache. Users may drop the pages of their own files. Pages
// that are not on disk remain in the cache. Therefore, if sync is true, each file is synced first.
func Evict(ctx context.Context, dir string, sync bool) error {
	i := 0
	return walkFiles(dir, func(name string) error {
		i++
		if err := stopped(ctx, i); err != nil {
			return err
		}
		fd, err := open(name, unix.O_RDONLY, 0)
		if err != nil {
			return err
		}
		if sync {
			err = unix.Fdatasync(fd)
		}
		return errors.Join(err, unix.Fadvise(fd, 0, 0, unix.FADV_DONTNEED), unix.Close(fd))
	})
}

// blockPlace is a block device. Every measurement creates a new file system on it.
type blockPlace struct {
	device  string
	file    *os.File // kept open, so that no other process takes the device
	bytes   int64
	point   string
	about   string
	blank   bool // overwrite the device's ends with zeros when the run is over
	mounted *mounted
}

// newLoopPlace creates a loop device on a new file.
func newLoopPlace(ctx context.Context, dir string, bytes, prewritten int64) (*blockPlace, error) {
	image, err := newImage(ctx, dir, bytes, prewritten)
	if err != nil {
		return nil, err
	}
	device, err := loop.Attach(image, 0)
	if err != nil {
		return nil, err
	}
	past := "through its page cache"
	if device.Direct() {
		past = "past its page cache"
	}
	p := &blockPlace{device: device.Name, file: device.File, bytes: bytes}
	p.about = fmt.Sprintf("a loop device of %d MiB on a file in %s, %s", bytes>>20, dir, past)
	if prewritten < bytes {
		p.about += fmt.Sprintf(" (%d MiB of it written before, the rest sparse)", prewritten>>20)
	}
	return p.withPoint(dir)
}

// newDevicePlace uses the device that the caller names.
func newDevicePlace(device, dir string, destroy bool) (*blockPlace, error) {
	f, size, err := openDevice(device, destroy)
	if err != nil {
		return nil, err
	}
	p := &blockPlace{device: device, file: f, bytes: size, blank: true,
		about: fmt.Sprintf("the device %s of %d MiB", device, size>>20)}
	return p.withPoint(dir)
}

func (p *blockPlace) withPoint(dir string) (*blockPlace, error) {
	point, err := os.MkdirTemp(dir, "sheaf-bench-mount-")
	if err != nil {
		return nil, errors.Join(err, p.file.Close())
	}
	p.point = point
	return p, nil
}

func (p *blockPlace) words() string { return p.about }

func (p *blockPlace) begin(ctx context.Context, fs *fileSystem, files int) (*site, error) {
	if err := p.awaitFree(ctx); err != nil {
		return nil, err
	}
	begin := time.Now()
	if err := command(ctx, nil, fs.mkfsCommand(p.device, files)...); err != nil {
		return nil, err
	}
	s := &site{mkfsSeconds: since(begin)}
	if err := p.mount(ctx, fs); err != nil {
		return nil, err
	}
	s.dir = filepath.Join(p.point, "records")
	if err := os.Mkdir(s.dir, 0o755); err != nil {
		return nil, errors.Join(err, p.unmount())
	}
	s.cold = func(ctx context.Context) error {
		if err := p.unmount(); err != nil {
			return err
		}
		if err := dropCaches(); err != nil {
			return err
		}
		return p.mount(ctx, fs)
	}
	s.check = func(ctx context.Context) (float64, error) {
		if err := p.unmount(); err != nil {
			return 0, err
		}
		if err := dropCaches(); err != nil {
			return 0, err
		}
		if err := p.awaitFree(ctx); err != nil {
			return 0, err
		}
		begin := time.Now()
		err := command(ctx, fs.fine, append(append([]string{}, fs.check...), p.device)...)
		took := since(begin)
		if err != nil {
			return 0, err
		}
		return took, p.mount(ctx, fs)
	}
	return s, nil
}

// awaitFree waits until no process uses the device. If another process has seen the mount, the kernel releases the
// device a little after the unmount.
func (p *blockPlace) awaitFree(ctx context.Context) error {
	for end := time.Now().Add(mountWait); ; {
		fd, err := unix.Open(p.device, unix.O_RDONLY|unix.O_EXCL|unix.O_CLOEXEC, 0)
		if err == nil {
			return unix.Close(fd)
		}
		if !errors.Is(err, unix.EBUSY) || time.Now().After(end) {
			return fmt.Errorf("%s: %w", p.device, err)
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(mountLook):
		}
	}
}

func (p *blockPlace) mount(ctx context.Context, fs *fileSystem) (err error) {
	p.mounted, err = mount(ctx, fs, p.device, p.point)
	return err
}

func (p *blockPlace) unmount() error {
	if p.mounted == nil {
		return nil
	}
	if err := p.mounted.unmount(); err != nil {
		return err
	}
	p.mounted = nil
	return nil
}

func (p *blockPlace) end(*site) error { return p.unmount() }

func (p *blockPlace) close() error {
	err := p.unmount()
	if p.blank && err == nil {
		err = makeBlank(p.file, p.bytes)
	}
	return errors.Join(err, p.file.Close(), os.Remove(p.point))
}
