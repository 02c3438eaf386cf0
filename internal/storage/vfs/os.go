package vfs

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// The permissions of new files and folders let the group read and write, because Kubernetes gives a pod access to its
// volume through fsGroup.
const (
	filePerm = 0o660
	dirPerm  = 0o770
)

// OS is the file system of the operating system (Linux).
type OS struct{}

// Create implements FS.
func (OS) Create(name string) (File, error) {
	return openOS(name, os.O_RDWR|os.O_CREATE|os.O_EXCL, false)
}

// Open implements FS.
func (OS) Open(name string) (File, error) { return openOS(name, os.O_RDONLY, false) }

// OpenWrite implements FS.
func (OS) OpenWrite(name string) (File, error) { return openOS(name, os.O_RDWR, false) }

// OpenDirect implements FS. The kernel returns EINVAL if the file system does not support O_DIRECT. In that case,
// OpenDirect opens the file normally.
func (OS) OpenDirect(name string) (File, error) {
	f, err := openOS(name, os.O_RDONLY|unix.O_DIRECT, true)
	if errors.Is(err, unix.EINVAL) {
		return openOS(name, os.O_RDONLY, false)
	}
	return f, err
}

// openOS opens a file. It refuses folders, which os.Open would open. After an error it returns a File that is nil,
// and not a File that holds a nil *osFile.
func openOS(name string, flag int, direct bool) (File, error) {
	f, err := os.OpenFile(name, flag, filePerm)
	if err != nil {
		return nil, err
	}
	if flag&(os.O_RDWR|os.O_CREATE) == 0 { // the kernel itself refuses to open a folder for writing
		info, err := f.Stat()
		if err == nil && info.IsDir() {
			err = &fs.PathError{Op: "open", Path: name, Err: syscall.EISDIR}
		}
		if err != nil {
			return nil, errors.Join(err, f.Close())
		}
	}
	file := &osFile{f: f, direct: direct, align: DirectAlign}
	if direct {
		file.align = readAlign(f)
	}
	return file, nil
}

// Remove implements FS.
func (OS) Remove(name string) error { return os.Remove(name) }

// Rename implements FS.
func (OS) Rename(oldName, newName string) error { return os.Rename(oldName, newName) }

// Link implements FS.
func (OS) Link(oldName, newName string) error { return os.Link(oldName, newName) }

// MkdirAll implements FS.
func (o OS) MkdirAll(dir string) error {
	return MakeFolders(o, filepath.Clean(dir), func(dir string) error { return os.Mkdir(dir, dirPerm) })
}

// MakeFolders helps implementations of FS to implement MkdirAll. It creates a folder and its parents with mkdir, and
// syncs the parent of each folder that it has created.
func MakeFolders(fsys FS, dir string, mkdir func(string) error) error {
	info, err := fsys.Stat(dir)
	if err == nil {
		if info.IsDir() {
			return nil
		}
		return &fs.PathError{Op: "mkdir", Path: dir, Err: syscall.ENOTDIR}
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	parent := filepath.Dir(dir)
	if parent != dir {
		if err := MakeFolders(fsys, parent, mkdir); err != nil {
			return err
		}
	}
	// Another caller may have created the folder first, and may not have synced the parent yet. So the parent must be
	// synced in any case.
	if err := mkdir(dir); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return fsys.SyncDir(parent)
}

// List implements FS.
func (OS) List(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	names := make([]string, len(entries))
	for i, e := range entries {
		names[i] = e.Name()
	}
	return names, nil
}

// Stat implements FS.
func (OS) Stat(name string) (fs.FileInfo, error) { return os.Stat(name) }

// SyncDir implements FS.
func (OS) SyncDir(dir string) error {
	return syncFolder("syncdir", dir, unix.Fsync)
}

// syncFolder opens a folder and calls sync with its descriptor. The argument op names the operation in errors.
func syncFolder(op, dir string, sync func(fd int) error) error {
	d, err := os.OpenFile(dir, os.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return err
	}
	err = control(d, sync)
	if err != nil {
		err = &fs.PathError{Op: op, Path: dir, Err: err}
	}
	return errors.Join(err, d.Close())
}

// syncAllDirtyMax is the largest number of bytes that may be waiting in memory to be written to disk if OS.SyncAll is
// to be worthwhile. The number includes the data of all programs on this machine, because a sync of the whole file
// system also writes the data of other programs, which could take too long.
const syncAllDirtyMax = 128 << 20

// SyncAll implements FS with the system call syncfs.
func (OS) SyncAll(dir string) error {
	unsupported := func(why string) error {
		return &fs.PathError{Op: "syncall", Path: dir, Err: fmt.Errorf("%w: %s", errors.ErrUnsupported, why)}
	}
	if !syncfsReportsErrors() {
		return unsupported("syncfs of this kernel does not tell errors of the device")
	}
	if dirty, err := dirtyBytes(); err != nil || dirty > syncAllDirtyMax {
		return unsupported(fmt.Sprintf("%d bytes of memory are not written yet: %v", dirty, err))
	}
	return syncFolder("syncall", dir, unix.Syncfs)
}

// syncfsReportsErrors reports whether syncfs returns the errors of earlier writes, as it does since Linux 5.8.
var syncfsReportsErrors = sync.OnceValue(func() bool {
	var name unix.Utsname
	if unix.Uname(&name) != nil {
		return false
	}
	var major, minor int
	n, _ := fmt.Sscanf(unix.ByteSliceToString(name.Release[:]), "%d.%d", &major, &minor)
	return n == 2 && (major > 5 || major == 5 && minor >= 8)
})

// dirtyBytes returns how many bytes of this machine's memory wait to be written or are being written.
func dirtyBytes() (bytes int64, err error) {
	content, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return 0, err
	}
	for _, name := range []string{"Dirty", "Writeback"} {
		var kib int64
		_, value, _ := strings.Cut(string(content), "\n"+name+":")
		if _, err := fmt.Sscanf(value, "%d kB", &kib); err != nil {
			return 0, fmt.Errorf("/proc/meminfo does not tell what is dirty: %s: %w", name, err)
		}
		bytes += kib << 10
	}
	return bytes, nil
}

// Lock implements FS.
func (OS) Lock(name string) (io.Closer, error) {
	f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE, filePerm)
	if err != nil {
		return nil, err
	}
	err = control(f, func(fd int) error { return unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB) })
	if err == nil {
		return f, nil
	}
	if errors.Is(err, unix.EWOULDBLOCK) {
		err = ErrLocked
	}
	return nil, errors.Join(&fs.PathError{Op: "lock", Path: name, Err: err}, f.Close())
}

// Space implements FS.
func (OS) Space(dir string) (Space, error) {
	var st unix.Statfs_t
	err := unix.Statfs(dir, &st)
	for errors.Is(err, unix.EINTR) {
		err = unix.Statfs(dir, &st)
	}
	var space Space
	if err == nil {
		space, err = spaceOf(st.Blocks, st.Bavail, cmp.Or(st.Frsize, st.Bsize))
	}
	if err != nil {
		return Space{}, &fs.PathError{Op: "statfs", Path: dir, Err: err}
	}
	return space, nil
}

// spaceOf converts blocks to bytes. If the superblock of a file system was overwritten, the kernel may report
// impossible numbers, for example because it subtracts the file system's own blocks from a size of 0. spaceOf returns
// EUCLEAN for such numbers. If only the number of free blocks is below zero, root has used blocks that are reserved for
// it, and spaceOf returns 0 free bytes.
func spaceOf(blocks, free uint64, block int64) (Space, error) {
	if block < 0 || block > 0 && blocks > uint64(math.MaxInt64/block) {
		return Space{}, fmt.Errorf("it says that it has %d blocks of %d bytes, which cannot be: %w", int64(blocks), block,
			unix.EUCLEAN)
	}
	if int64(free) < 0 {
		free = 0
	}
	return Space{TotalBytes: int64(blocks) * block, FreeBytes: int64(min(free, blocks)) * block}, nil
}

// osFile is an open file of OS.
type osFile struct {
	f      *os.File
	direct bool  // whether the file was opened with O_DIRECT
	align  int64 // alignment of direct reads, in bytes
}

// readAlign asks the kernel (since 6.1) for the alignment that O_DIRECT reads of a file require.
func readAlign(f *os.File) (align int64) {
	align = DirectAlign
	_ = control(f, func(fd int) error {
		var facts unix.Statx_t
		err := unix.Statx(fd, "", unix.AT_EMPTY_PATH, unix.STATX_DIOALIGN, &facts)
		offsets := int64(facts.Dio_offset_align)
		if err == nil && facts.Mask&unix.STATX_DIOALIGN != 0 && offsets > 0 && offsets < align && align%offsets == 0 {
			align = offsets
		}
		return nil
	})
	return align
}

func (o *osFile) Name() string                             { return o.f.Name() }
func (o *osFile) Close() error                             { return o.f.Close() }
func (o *osFile) WriteAt(p []byte, off int64) (int, error) { return o.f.WriteAt(p, off) }
func (o *osFile) Truncate(size int64) error                { return o.f.Truncate(size) }
func (o *osFile) Fd() (uintptr, bool)                      { return o.f.Fd(), true }
func (o *osFile) Direct() bool                             { return o.direct }
func (o *osFile) ReadAlign() int64                         { return o.align }

// CheapOverwrite implements File.
func (o *osFile) CheapOverwrite() bool {
	kind := o.fileSystem()
	return kind == unix.EXT4_SUPER_MAGIC || kind == unix.XFS_SUPER_MAGIC
}

// fileSystem returns the magic number of the file system type, or 0 if the type is unknown.
func (o *osFile) fileSystem() (kind int64) {
	_ = control(o.f, func(fd int) error {
		var facts unix.Statfs_t
		if err := unix.Fstatfs(fd, &facts); err != nil {
			return err
		}
		kind = facts.Type
		return nil
	})
	return kind
}

func (o *osFile) Size() (int64, error) {
	info, err := o.f.Stat()
	if err != nil {
		return 0, err
	}
	return info.Size(), nil
}

// ReadAt reads until p is full or the file ends. With O_DIRECT, a read that ends at an unaligned offset has reached the
// end of the file, so ReadAt stops. os.File would read again from that offset, which some file systems refuse.
func (o *osFile) ReadAt(p []byte, off int64) (int, error) {
	if !o.direct {
		return o.f.ReadAt(p, off)
	}
	done := 0
	err := control(o.f, func(fd int) error {
		for done < len(p) {
			n, err := preadDirect(fd, p[done:], off+int64(done))
			if errors.Is(err, unix.EINTR) {
				continue
			}
			if err != nil {
				return err
			}
			done += n
			if n == 0 || (off+int64(done))%o.align != 0 {
				break
			}
		}
		return nil
	})
	if err != nil {
		return done, &fs.PathError{Op: "read", Path: o.Name(), Err: err}
	}
	if done < len(p) {
		return done, io.EOF
	}
	return done, nil
}

// Sync implements File with fdatasync, which makes the content and a changed size durable, but not the file's times. It
// is never retried, not even after EINTR, because the kernel reports a lost page only once and a second call would
// falsely succeed.
func (o *osFile) Sync() error {
	err := control(o.f, fdatasync)
	if err != nil {
		return &fs.PathError{Op: "fdatasync", Path: o.Name(), Err: err}
	}
	return nil
}

func (o *osFile) Allocate(offset, length int64) error {
	if offset < 0 || length <= 0 {
		return &fs.PathError{Op: "fallocate", Path: o.Name(), Err: fmt.Errorf("offset %d length %d: %w", offset, length,
			syscall.EINVAL)}
	}
	if offset > math.MaxInt64-length {
		return &fs.PathError{Op: "fallocate", Path: o.Name(), Err: fmt.Errorf("offset %d length %d: %w", offset, length,
			syscall.EFBIG)}
	}
	if o.fileSystem() == unix.BTRFS_SUPER_MAGIC {
		// On btrfs, every write goes to a new place on the disk, so space that was allocated in advance is never used.
		// Allocating it would only cost time: about a tenth of the time of small commits, and more while a store is being
		// filled with small records.
		return o.grow(offset + length)
	}
	err := control(o.f, func(fd int) error {
		for {
			err := unix.Fallocate(fd, 0, offset, length)
			if !errors.Is(err, unix.EINTR) {
				return err
			}
		}
	})
	if err == nil {
		return nil
	}
	if !errors.Is(err, unix.EOPNOTSUPP) && !errors.Is(err, unix.ENOSYS) {
		return &fs.PathError{Op: "fallocate", Path: o.Name(), Err: err}
	}
	return o.grow(offset + length)
}

// grow extends the file to the given length if it is shorter.
func (o *osFile) grow(length int64) error {
	size, err := o.Size()
	if err != nil || size >= length {
		return err
	}
	return o.Truncate(length)
}

// control calls f with the descriptor. During the call the descriptor cannot be closed and reused for another file.
func control(file *os.File, f func(fd int) error) error {
	raw, err := file.SyscallConn()
	if err != nil {
		return err
	}
	var inner error
	if err := raw.Control(func(fd uintptr) { inner = f(int(fd)) }); err != nil {
		// The only possible cause is that the file is closed. The os package does not export the error that it returns for
		// this.
		return fs.ErrClosed
	}
	return inner
}

// ReplaceFile creates or replaces a file in the operating system's file system. It writes the content to a file with a
// different name in the same folder, and renames that file when it is complete. So the name always refers either to the
// whole old file or to the whole new file. ReplaceFile syncs nothing.
func ReplaceFile(name string, write func(io.Writer) error) (err error) {
	f, err := os.CreateTemp(filepath.Dir(name), ".sheaf-new-*")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.Remove(f.Name()))
		}
	}()
	if err := errors.Join(write(f), f.Chmod(0o644), f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), name)
}
