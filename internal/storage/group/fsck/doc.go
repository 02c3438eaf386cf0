// Package fsck checks, shows and repairs the folder of a group that no log has open. An open log has the files that it
// has finished with checked by it, too.
package fsck
