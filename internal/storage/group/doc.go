// Package group is the log of one group while it is open: append, sync, apply, read, scan, compact, mend. The bytes of
// its files are package format's.
package group
