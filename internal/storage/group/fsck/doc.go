// Package fsck checks, shows and repairs the folder of a group that no log has open. An open log also uses it, to
// check the files that it no longer writes to.
package fsck
