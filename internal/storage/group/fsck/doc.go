// Package fsck checks, shows and repairs the folder of a group that no log has open. An open log uses it, too, to check
// the files that it no longer writes.
package fsck
