package vfs

import (
	"io/fs"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The ioctl FS_IOC_FIEMAP returns a file's extents. The kernel documents it in Documentation/filesystems/fiemap.rst and
// include/uapi/linux/fiemap.h.
const (
	fsIocFiemap = 0xC020660B // _IOWR('f', 11, struct fiemap)
	// fiemapFlagSync makes the kernel first write the file's dirty pages to the device. Without this flag, an extent
	// may be listed as unwritten although dirty pages hold data for it.
	fiemapFlagSync        = 0x1
	fiemapExtentLast      = 0x1
	fiemapExtentUnwritten = 0x800 // the extent is allocated, and reads as zeros
	fiemapExtents         = 64    // maximum number of extents that one call returns
)

// fiemapExtent is struct fiemap_extent.
type fiemapExtent struct {
	logical, physical, length uint64
	_                         [2]uint64
	flags                     uint32
	_                         [3]uint32
}

// fiemap is struct fiemap with space for its extents.
type fiemap struct {
	start, length                uint64
	flags, mapped, count, unused uint32
	extents                      [fiemapExtents]fiemapExtent
}

// DataEnd implements File. It uses the file's extents, and not SEEK_DATA, because ext4 and xfs would report an
// unwritten extent as data after it was read through the page cache.
func (o *osFile) DataEnd(from int64) (int64, error) {
	size, err := o.Size()
	if err != nil {
		return 0, err
	}
	if from < 0 {
		return 0, &fs.PathError{Op: "fiemap", Path: o.Name(), Err: syscall.EINVAL}
	}
	if from >= size {
		return size, nil
	}
	end := from
	err = control(o.f, func(fd int) error {
		for next, last := from, false; next < size && !last; {
			ask := fiemap{start: uint64(next), length: uint64(size - next), flags: fiemapFlagSync, count: fiemapExtents}
			if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), fsIocFiemap, uintptr(unsafe.Pointer(&ask))); errno != 0 {
				end = size // the kernel reports no extents, so any byte may be data
				break
			}
			before := next
			last = ask.mapped == 0
			for _, e := range ask.extents[:min(ask.mapped, fiemapExtents)] {
				next = max(next, int64(e.logical+e.length))
				last = last || e.flags&fiemapExtentLast != 0
				if e.flags&fiemapExtentUnwritten == 0 {
					end = max(end, min(int64(e.logical+e.length), size))
				}
			}
			if next == before && !last {
				end, last = size, true // the kernel returned an impossible value, so every byte counts as data
			}
		}
		return nil
	})
	return end, err
}
