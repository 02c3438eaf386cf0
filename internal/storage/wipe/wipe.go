// Package wipe clears a disk, so that the kubelet creates a new file system on it and no tool finds the old one.
package wipe

import (
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	kib = 1 << 10
	mib = 1 << 20
	gib = 1 << 30
	// edge is the number of bytes that are zeroed at each end of the disk. The ends hold labels, partition tables and
	// their copies, the first superblocks of xfs and ext, and the superblocks of RAID members.
	edge = 16 * mib
	// around is the number of bytes that are zeroed at each offset in the middle of the disk at which a superblock may
	// be.
	around = 64 * kib
)

// mirrors are the offsets of the copies of the btrfs superblock, in addition to the first one at 64 KiB.
var mirrors = []int64{64 * mib, 256 * gib}

// ErrInUse means that a disk is mounted, or that the kernel uses it in another way.
var ErrInUse = errors.New("it is in use")

// Report describes the result of a wipe.
type Report struct {
	Bytes     int64 `json:"bytes,string"` // size of the disk
	Zeroed    int64 `json:"zeroed,string"`
	Discarded bool  `json:"discarded"` // whether the disk accepted a request to discard all of its bytes
}

// Device wipes a block device. It returns ErrInUse if the kernel uses the device, for example for a file system that is
// mounted in any of the machine's namespaces. During the wipe, nothing can mount the device. If the disk supports it,
// all bytes are discarded. Signatures of file systems, partition tables and RAID are overwritten with zeros. The zeros
// are synced and read back.
//
// A wipe is not a secure erasure, because bytes that are neither overwritten nor discarded can still be read.
func Device(path string) (Report, error) {
	var report Report
	// O_EXCL without O_CREAT opens a block device exclusively, and returns EBUSY if the device is mounted.
	f, err := os.OpenFile(path, os.O_RDWR|unix.O_EXCL, 0)
	if errors.Is(err, unix.EBUSY) {
		return report, fmt.Errorf(
			"%s: %w: a file system on it is mounted, or the kernel holds it for something else; nothing was written: "+
				"stop what uses it first", path, ErrInUse)
	}
	if err != nil {
		return report, fmt.Errorf("open the disk for itself alone: %w", err)
	}
	defer func() { _ = f.Close() }() // Close cannot lose data, because all writes were synced before
	info, err := f.Stat()
	if err != nil {
		return report, err
	}
	if info.Mode()&os.ModeDevice == 0 || info.Mode()&os.ModeCharDevice != 0 {
		return report, fmt.Errorf("%s is no block device: name that of the disk", path)
	}
	if report.Bytes, err = f.Seek(0, io.SeekEnd); err != nil {
		return report, fmt.Errorf("%s: its size: %w", path, err)
	}
	if report.Bytes == 0 {
		return report, fmt.Errorf("%s has no bytes: is the medium there?", path)
	}
	report.Discarded = discard(f, report.Bytes)
	for _, r := range ranges(report.Bytes) {
		if err := zero(f, r); err != nil {
			return report, fmt.Errorf("%s: zero %d bytes at %d: %w", path, r.n, r.at, err)
		}
		report.Zeroed += r.n
	}
	if err := f.Sync(); err != nil {
		return report, fmt.Errorf("%s: sync: %w", path, err)
	}
	// The bytes must be read from the disk, not from the kernel's cache.
	if err := unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED); err != nil {
		return report, fmt.Errorf("%s: forget what was cached: %w", path, err)
	}
	for _, r := range ranges(report.Bytes) {
		if err := verify(f, r); err != nil {
			return report, fmt.Errorf("%s: read back %d bytes at %d: %w", path, r.n, r.at, err)
		}
	}
	return report, nil
}

// span is a range of bytes on a disk.
type span struct{ at, n int64 }

// ranges returns the spans that must be zeroed on a disk of the given size. They do not extend beyond the end of the
// disk.
func ranges(size int64) []span {
	if size <= 2*edge {
		return []span{{0, size}}
	}
	out := []span{{0, edge}}
	for _, at := range mirrors {
		if at >= edge && at+around <= size-edge {
			out = append(out, span{at, around})
		}
	}
	return append(out, span{size - edge, edge})
}

// discard tells the disk that none of its bytes are needed. It returns false if the disk does not support that.
func discard(f *os.File, size int64) bool {
	whole := [2]uint64{0, uint64(size)}
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, f.Fd(), unix.BLKDISCARD, uintptr(unsafe.Pointer(&whole)))
	runtime.KeepAlive(&whole)
	return errno == 0
}

func zero(f *os.File, r span) error {
	zeros := make([]byte, min(r.n, mib))
	for done := int64(0); done < r.n; done += int64(len(zeros)) {
		if _, err := f.WriteAt(zeros[:min(int64(len(zeros)), r.n-done)], r.at+done); err != nil {
			return err
		}
	}
	return nil
}

func verify(f *os.File, r span) error {
	data := make([]byte, min(r.n, mib))
	for done := int64(0); done < r.n; done += int64(len(data)) {
		part := data[:min(int64(len(data)), r.n-done)]
		if _, err := f.ReadAt(part, r.at+done); err != nil {
			return err
		}
		if at := slices.IndexFunc(part, func(b byte) bool { return b != 0 }); at >= 0 {
			return fmt.Errorf(
				"byte %d is not zero after it was overwritten: the disk does not keep what is written, replace it",
				r.at+done+int64(at))
		}
	}
	return nil
}
