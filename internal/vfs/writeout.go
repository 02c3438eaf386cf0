package vfs

import "golang.org/x/sys/unix"

// StartWriting has the kernel begin to write a range of a file to the device, and does not wait for it: a Sync that follows finds less
// to do. It promises nothing: errors are told by that Sync.
func StartWriting(f File, offset, length int64) {
	if fd, ok := f.Fd(); ok {
		_ = unix.SyncFileRange(int(fd), offset, length, unix.SYNC_FILE_RANGE_WRITE) // an advice
	}
}
