// Package faultdisk is a disk in memory that records each write and flush, for tests of what survives a power cut under
// a real file system. FUSE serves it as a file, a loop device makes a block device of that, and the kernel's ext4, xfs
// or btrfs run on it.
//
// What a power cut may leave is made by Cutter from the record: all that was flushed, and of the rest any writes in any
// order, whole or torn at sectors. A Device also answers EIO, stalls, or has bits flipped, on command.
//
// The kernel's loop driver passes a write with FUA on as a write and a flush, so that the record knows no FUA.
package faultdisk
