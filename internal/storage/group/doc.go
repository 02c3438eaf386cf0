// Package group implements the log of one group while it is open. It can append, sync, apply, read, scan, compact and
// repair. Package format defines the bytes in its files.
package group
