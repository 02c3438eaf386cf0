// Package fsck checks, shows and repairs the folder of a group that no log has open. An open log also uses it to check
// those of its files that it no longer writes.
package fsck
