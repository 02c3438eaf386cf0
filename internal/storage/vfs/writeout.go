package vfs

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// StartWriting tells the kernel to start writing a range of a file to the device, without waiting for it: a following
// Sync then has less to do. It guarantees nothing: that Sync reports errors.
func StartWriting(f File, offset, length int64) {
	if fd, ok := f.Fd(); ok {
		_ = unix.SyncFileRange(int(fd), offset, length, unix.SYNC_FILE_RANGE_WRITE) // an advice
	}
}

// AwaitWriting waits until the writes that StartWriting began in a range are done. It guarantees no durability: a Sync
// is still needed. But its error counts as an error of Sync: the kernel reports an error once, so a following Sync may
// not report it.
func AwaitWriting(f File, offset, length int64) error {
	fd, ok := f.Fd()
	if !ok {
		return nil
	}
	err := unix.SyncFileRange(int(fd), offset, length, unix.SYNC_FILE_RANGE_WAIT_BEFORE)
	if err == nil || errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.EPERM) { // a sandbox may forbid the call
		return nil
	}
	return fmt.Errorf("writing %s: %w", f.Name(), err)
}

// StartReading tells the kernel to start reading a range of a file into the page cache, without waiting for it.
func StartReading(f File, offset, length int64) {
	if fd, ok := f.Fd(); ok {
		_ = unix.Fadvise(int(fd), offset, length, unix.FADV_WILLNEED) // an advice
	}
}

// ReadAtRandom tells the kernel not to read ahead.
func ReadAtRandom(f File) {
	if fd, ok := f.Fd(); ok {
		_ = unix.Fadvise(int(fd), 0, 0, unix.FADV_RANDOM) // an advice
	}
}

// Forget tells the kernel to drop a range of a file from the page cache, as far as it is written.
func Forget(f File, offset, length int64) {
	if fd, ok := f.Fd(); ok {
		_ = unix.Fadvise(int(fd), offset, length, unix.FADV_DONTNEED) // an advice
	}
}
