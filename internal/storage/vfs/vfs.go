// Package vfs is the file system as a small interface, and its implementation OS. Those of the tests are in vfstest: a
// disk in memory that crashes, and one that injects errors into another. It imports nothing of ours.
package vfs

import (
	"errors"
	"io"
	"io/fs"
)

// ErrLocked is returned by FS.Lock when another holder, in this or another process, has the lock.
var ErrLocked = errors.New("vfs: locked by another holder")

// ErrCrashed is what every operation returns once the machine of the file system has crashed: nothing can be kept any
// more. That of a real machine tells nobody; the one of the tests does.
var ErrCrashed = errors.New("vfs: the machine has crashed")

// FS is a file system. Names are slash-separated paths. Implementations are safe for concurrent use. Errors satisfy
// errors.Is with fs.ErrNotExist, fs.ErrExist and the syscall.Errno values (ENOSPC, EIO...) where they apply.
type FS interface {
	// Create makes a new file for reading and writing; fs.ErrExist where there is one. The new name is durable only
	// after SyncDir of its folder.
	Create(name string) (File, error)
	// Open opens a file for reading.
	Open(name string) (File, error)
	// OpenWrite opens an existing file for reading and writing.
	OpenWrite(name string) (File, error)
	// OpenDirect opens a file for reading past the page cache (O_DIRECT): memory must be aligned to DirectAlign,
	// offsets and lengths to File.ReadAlign, reads may end short only at the end of the file. Where the file system
	// cannot, it opens normally; File.Direct tells.
	OpenDirect(name string) (File, error)
	// Remove removes a file or an empty folder. Durable only after SyncDir of its folder.
	Remove(name string) error
	// Rename replaces newName atomically. Durable only after SyncDir of the folder (of both, where they differ).
	Rename(oldName, newName string) error
	// MkdirAll makes a folder and its parents, and syncs the folders it changed.
	MkdirAll(dir string) error
	// List returns the names in a folder, sorted.
	List(dir string) ([]string, error)
	// Stat describes a file or folder.
	Stat(name string) (fs.FileInfo, error)
	// SyncDir makes the names in a folder durable: the one helper for rule 6.
	SyncDir(dir string) error
	// SyncAll makes all of the file system that holds dir durable, files and names, as they are when it is called.
	// errors.ErrUnsupported where the answer of the kernel could not be trusted, or other programs' unwritten data
	// would be waited for: then each file has to be synced by itself, as after any other error.
	SyncAll(dir string) error
	// Lock takes an exclusive lock (flock) on a file, made if absent, until the Closer is closed or the process ends.
	// ErrLocked where it is taken.
	Lock(name string) (io.Closer, error)
	// Space tells the size and the free bytes (for unprivileged users) of the file system that holds dir.
	Space(dir string) (Space, error)
}

// DirectAlign is the alignment in bytes that offset, length and memory have at most to have for files opened by
// OpenDirect.
const DirectAlign = 4096

// Space is the room of a file system, in bytes.
type Space struct {
	TotalBytes int64
	FreeBytes  int64
}

// File is an open file. ReadAt and WriteAt are safe for concurrent use; a short WriteAt returns an error.
type File interface {
	io.ReaderAt
	io.WriterAt
	io.Closer
	// Name is the name that it was opened by.
	Name() string
	// Size is the present size in bytes.
	Size() (int64, error)
	// Sync makes the content and the size durable (fdatasync). After an error the file must not be synced again or
	// trusted: what was written since the last successful Sync may be gone although it still reads back.
	Sync() error
	// Truncate sets the size. Durable only after Sync.
	Truncate(size int64) error
	// Allocate reserves room for length bytes from offset and grows the size; the new room reads as zero. Where the
	// file system cannot, it only grows the size.
	Allocate(offset, length int64) error
	// DataEnd tells where the data ends: every byte from there on, up to Size, reads as zero because it was never
	// written, as in room that Allocate made. It looks from an offset on, and the answer is between that offset and
	// Size, rounded up to whole blocks of the file system. What was written counts, synced or not. Where the file
	// system cannot tell (OS: no FIEMAP), the answer is Size.
	DataEnd(from int64) (int64, error)
	// CheapOverwrite tells whether bytes that were written before are cheaper to write and sync again than room that
	// was only allocated: the sync has no metadata to commit then (ext4, xfs; not where files are copied on write).
	CheapOverwrite() bool
	// Fd is the file descriptor, and false where there is none.
	Fd() (uintptr, bool)
	// Direct tells whether reads pass by the page cache.
	Direct() bool
	// ReadAlign is the alignment in bytes that offsets and lengths of such reads need: a power of two, at most
	// DirectAlign. Where it is smaller, a read that is aligned no better than needed fetches less.
	ReadAlign() int64
}
