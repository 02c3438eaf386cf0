// Package vfs defines a small file system interface and its implementation OS. Package vfstest has two more
// implementations for tests: an in-memory disk that can crash, and a wrapper that injects errors into another file
// system. Package vfs imports no other package of this module.
package vfs

import (
	"errors"
	"io"
	"io/fs"
	"unsafe"
)

// ErrLocked is returned by FS.Lock if another holder, in this or another process, has the lock.
var ErrLocked = errors.New("vfs: locked by another holder")

// ErrCrashed is returned by every operation after a simulated machine crash, because nothing can be stored any longer.
// Only test file systems return it.
var ErrCrashed = errors.New("vfs: the machine has crashed")

// FS is a file system. Names are slash-separated paths. Implementations must be safe for concurrent use. Errors
// satisfy errors.Is with fs.ErrNotExist, fs.ErrExist and the syscall.Errno values (ENOSPC, EIO...) where they apply.
type FS interface {
	// Create creates a new file for reading and writing. It returns fs.ErrExist if the name exists. The new name is not
	// durable until SyncDir has been called for its folder.
	Create(name string) (File, error)
	// Open opens a file for reading.
	Open(name string) (File, error)
	// OpenWrite opens an existing file for reading and writing.
	OpenWrite(name string) (File, error)
	// OpenDirect opens a file for reads that bypass the page cache (O_DIRECT). A read's memory must be aligned to
	// DirectAlign, and its offset and length to File.ReadAlign. Reads may be short only at the end of the file. If the
	// file system does not support O_DIRECT, the file is opened normally, and File.Direct returns false.
	OpenDirect(name string) (File, error)
	// Remove removes a file or an empty folder. The removal is not durable until SyncDir has been called for its folder.
	Remove(name string) error
	// Rename renames a file and atomically replaces newName if it exists. The rename is not durable until SyncDir has
	// been called for the folder, or for both folders if they differ.
	Rename(oldName, newName string) error
	// Link gives a file a second name. It returns fs.ErrExist if the new name exists, so that only one of several
	// callers succeeds. The new name is not durable until SyncDir has been called for its folder.
	Link(oldName, newName string) error
	// MkdirAll creates a folder and its parents, and syncs the folders that it changed.
	MkdirAll(dir string) error
	// List returns the names in a folder, sorted.
	List(dir string) ([]string, error)
	// Stat describes a file or folder.
	Stat(name string) (fs.FileInfo, error)
	// SyncDir makes the names in a folder durable. Safety rule 6 requires a call to SyncDir after a file was created,
	// renamed or removed.
	SyncDir(dir string) error
	// SyncAll makes durable all files and names that the file system of dir holds at the time of the call. It returns
	// errors.ErrUnsupported if the kernel's result cannot be trusted, or if the call would have to wait for a large
	// amount of other programs' data. After any error, the caller has to sync each file separately.
	SyncAll(dir string) error
	// Lock takes an exclusive lock (flock) on a file, which is created if it does not exist. The lock is held until the
	// Closer is closed or the process exits. Lock returns ErrLocked if another holder has the lock.
	Lock(name string) (io.Closer, error)
	// Space returns the size and the free bytes (for unprivileged users) of the file system that holds dir.
	Space(dir string) (Space, error)
}

// TempSuffix is the suffix of the name under which WriteAside writes a file.
const TempSuffix = ".tmp"

// WriteAside creates or replaces a file. It writes and syncs the content under a temporary name, and then renames
// that file. The rename is not durable until SyncDir has been called for the folder. After an error, WriteAside
// removes the temporary file. If the removal also fails, the error contains both causes.
func WriteAside(fsys FS, name string, content []byte) error {
	temp := name + TempSuffix
	f, err := CreateReplacing(fsys, temp)
	if err != nil {
		return err
	}
	_, err = f.WriteAt(content, 0)
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err == nil {
		err = fsys.Rename(temp, name)
	}
	if err != nil {
		err = errors.Join(err, fsys.Remove(temp))
	}
	return err
}

// CreateReplacing creates a file. If a crash has left a file with that name, CreateReplacing removes that file first.
func CreateReplacing(fsys FS, name string) (File, error) {
	f, err := fsys.Create(name)
	if !errors.Is(err, fs.ErrExist) {
		return f, err
	}
	if err := fsys.Remove(name); err != nil {
		return nil, err
	}
	return fsys.Create(name)
}

// DirectAlign is an alignment, in bytes, that is always sufficient for the offset, the length and the memory of a read
// from a file opened with OpenDirect.
const DirectAlign = 4096

// AlignedBytes returns a slice of n bytes whose memory is aligned to DirectAlign, as required for reads from a file
// opened with OpenDirect.
func AlignedBytes(n int) []byte {
	if n <= 0 {
		return nil
	}
	buf := make([]byte, n+DirectAlign)
	skip := int(-uintptr(unsafe.Pointer(&buf[0])) % DirectAlign)
	return buf[skip : skip+n : skip+n]
}

// Space is the size and the number of free bytes of a file system.
type Space struct {
	TotalBytes int64
	FreeBytes  int64
}

// File is an open file. ReadAt and WriteAt are safe for concurrent use. WriteAt returns an error if it writes fewer
// bytes than given.
type File interface {
	io.ReaderAt
	io.WriterAt
	io.Closer
	// Name returns the name under which the file was opened.
	Name() string
	// Size returns the current size in bytes.
	Size() (int64, error)
	// Sync makes the content and the size durable (fdatasync). After an error the file must neither be synced again nor
	// trusted, because bytes written since the last successful Sync may be lost although they can still be read.
	Sync() error
	// Truncate sets the size. The new size is not durable until Sync has been called.
	Truncate(size int64) error
	// Allocate reserves space for length bytes from offset on. If the range extends beyond the end of the file, the file
	// grows, and the new bytes are zeros. If the file system cannot reserve space, Allocate only grows the file.
	Allocate(offset, length int64) error
	// DataEnd returns the offset at which the file's data ends. Every byte after it reads as zero because it was never
	// written, for example in space that Allocate has reserved. DataEnd starts its search at the offset in the argument
	// from. The result is at least this offset and at most Size, and is rounded up to whole file system blocks. Written
	// bytes count as data even if they are not synced. If the file system cannot tell which bytes were written (with OS,
	// if it does not support FIEMAP), the result is Size.
	DataEnd(from int64) (int64, error)
	// CheapOverwrite compares two ways of writing and syncing bytes: overwriting bytes that were written before, and
	// writing to space that was only allocated. It reports whether the first way is cheaper. This is true on ext4 and
	// xfs, where the sync of overwritten bytes has no metadata to commit, but not on copy-on-write file systems.
	CheapOverwrite() bool
	// Fd returns the file descriptor, and false if the file has none.
	Fd() (uintptr, bool)
	// Direct reports whether reads bypass the page cache.
	Direct() bool
	// ReadAlign returns the alignment in bytes that direct reads require for offsets and lengths. It is a power of two,
	// at most DirectAlign. With an alignment smaller than DirectAlign, fewer bytes need to be read.
	ReadAlign() int64
}
