// Package fsck checks, shows and repairs the folder of a group while no log has it open. An open log also uses it, to
// check the files that the log no longer writes.
package fsck
