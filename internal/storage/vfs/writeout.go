package vfs

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// StartWriting tells the kernel to start writing a range of a file to the device, and does not wait for it. A
// following Sync then has less to do. StartWriting guarantees nothing and ignores errors, because that Sync reports
// them.
func StartWriting(f File, offset, length int64) {
	if fd, ok := f.Fd(); ok {
		_ = unix.SyncFileRange(int(fd), offset, length, unix.SYNC_FILE_RANGE_WRITE) // only advice
	}
}

// AwaitWriting waits until the writes that StartWriting began in a range are done. It does not make them durable: a
// Sync is still needed. Its error counts as an error of Sync, because the kernel reports an error only once, so a
// following Sync may not report it.
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

// StartReading tells the kernel to start reading a range of a file into the page cache, and does not wait for it.
func StartReading(f File, offset, length int64) { advise(f, offset, length, unix.FADV_WILLNEED) }

// ReadAtRandom tells the kernel not to read ahead.
func ReadAtRandom(f File) { advise(f, 0, 0, unix.FADV_RANDOM) }

// Forget tells the kernel to drop a range of a file from the page cache, as far as it is written.
func Forget(f File, offset, length int64) { advise(f, offset, length, unix.FADV_DONTNEED) }

func advise(f File, offset, length int64, advice int) {
	if fd, ok := f.Fd(); ok {
		_ = unix.Fadvise(int(fd), offset, length, advice) // only advice
	}
}
