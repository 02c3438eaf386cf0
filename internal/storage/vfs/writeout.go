package vfs

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// StartWriting has the kernel begin to write a range of a file to the device, and does not wait for it: a Sync that
// follows finds less to do. It promises nothing: errors are told by that Sync.
func StartWriting(f File, offset, length int64) {
	if fd, ok := f.Fd(); ok {
		_ = unix.SyncFileRange(int(fd), offset, length, unix.SYNC_FILE_RANGE_WRITE) // an advice
	}
}

// AwaitWriting waits until what StartWriting began in a range is written. It promises nothing, and no Sync is spared by
// it. But its error is that of a Sync: the kernel tells it once, so a Sync that follows may know nothing of it.
func AwaitWriting(f File, offset, length int64) error {
	fd, ok := f.Fd()
	if !ok {
		return nil
	}
	err := unix.SyncFileRange(int(fd), offset, length, unix.SYNC_FILE_RANGE_WAIT_BEFORE)
	if err == nil || errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.EPERM) { // a sandbox may not let it through
		return nil
	}
	return fmt.Errorf("writing %s: %w", f.Name(), err)
}

// StartReading has the kernel begin to read a range of a file into the page cache, and does not wait for it.
func StartReading(f File, offset, length int64) {
	if fd, ok := f.Fd(); ok {
		_ = unix.Fadvise(int(fd), offset, length, unix.FADV_WILLNEED) // an advice
	}
}

// ReadAtRandom has the kernel not read ahead of what is asked for.
func ReadAtRandom(f File) {
	if fd, ok := f.Fd(); ok {
		_ = unix.Fadvise(int(fd), 0, 0, unix.FADV_RANDOM) // an advice
	}
}

// Forget has the kernel drop a range of a file from the page cache, as far as it is written.
func Forget(f File, offset, length int64) {
	if fd, ok := f.Fd(); ok {
		_ = unix.Fadvise(int(fd), offset, length, unix.FADV_DONTNEED) // an advice
	}
}
