package vfs

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// StartWriting asks the kernel to start writing a range of a file to the device, and does not wait for it. A following
// Sync then has less to do. StartWriting guarantees nothing. It ignores errors, because that Sync reports them.
func StartWriting(f File, offset, length int64) {
	if fd, ok := f.Fd(); ok {
		// An error does not matter, because the call is only advice.
		_ = unix.SyncFileRange(int(fd), offset, length, unix.SYNC_FILE_RANGE_WRITE)
	}
}

// AwaitWriting waits until the writes that StartWriting began in a range are done. The bytes are not durable before a
// Sync. An error means the same as an error from Sync. Because the kernel reports an error only once, a following Sync
// may not report it.
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

// StartReading asks the kernel to start reading a range of a file into the page cache, and does not wait for it.
func StartReading(f File, offset, length int64) { advise(f, offset, length, unix.FADV_WILLNEED) }

// ReadAtRandom tells the kernel that the file is read at random offsets, so that the kernel does not read ahead.
func ReadAtRandom(f File) { advise(f, 0, 0, unix.FADV_RANDOM) }

// Forget asks the kernel to drop a range of a file from the page cache, except for bytes that have not been written
// to the device yet.
func Forget(f File, offset, length int64) { advise(f, offset, length, unix.FADV_DONTNEED) }

func advise(f File, offset, length int64, advice int) {
	if fd, ok := f.Fd(); ok {
		// An error of fadvise does not matter, because the call is only advice.
		_ = unix.Fadvise(int(fd), offset, length, advice)
	}
}
