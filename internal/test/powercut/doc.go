// Package powercut cuts the power under real file systems. A shard serves a load on ext4, xfs or btrfs, on a disk
// that records each write and flush (internal/test/faultdisk). For many positions in that record, the package creates
// a disk that a power cut at this moment could have left. The kernel mounts this disk, a shard starts on it, and its
// records are compared with the writes that were acknowledged before that moment.
package powercut
