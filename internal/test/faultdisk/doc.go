// Package faultdisk provides a disk in memory that records each write and flush. Tests use it to check what survives a
// power cut under a real file system. FUSE serves the disk as a file, a loop device turns that file into a block
// device, and the kernel's ext4, xfs or btrfs runs on it.
//
// From the record, a Cutter creates disks that a power cut may leave. These disks have everything that was flushed, and
// any subset of the other writes in any order, complete or torn at sector boundaries. On command, a Device can also
// return EIO, stall, or flip bits.
//
// The kernel's loop driver turns a write with FUA into a write and a flush, so the record has no FUA.
package faultdisk
