// Package group implements the log of one group while it is open: append, sync, apply, read, scan, compact, repair.
// Package format defines the bytes of its files.
package group
