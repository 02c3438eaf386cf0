// Package faultdisk is a disk in memory that records each write and flush, for tests of what survives a power cut under
// a real file system. FUSE serves the disk as a file, a loop device makes a block device of that file, and the kernel's
// ext4, xfs or btrfs run on it.
//
// A Cutter makes from the record what a power cut may leave: everything that was flushed, and any of the other writes
// in any order, whole or torn at sectors. A Device can also answer EIO, stall, or have bits flipped, on command.
//
// The kernel's loop driver passes on a write with FUA as a write and a flush, so the record has no FUA.
package faultdisk
