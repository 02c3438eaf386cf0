package vfs

import (
	"errors"
	"io/fs"
	"os"
	"slices"
	"syscall"
)

// lacks are the errors of a system that lacks something for a moment.
var lacks = []syscall.Errno{syscall.EMFILE, syscall.ENFILE, syscall.ENOMEM, syscall.EAGAIN, syscall.EINTR}

// harmless are the operations that change nothing if they fail in this way. The names are those of package os and of
// file systems for tests.
var harmless = []string{"open", "openat", "create", "mkdir", "rename", "stat", "lstat", "list", "fdopendir"}

// IsLack reports whether an operation failed because the system lacked descriptors or memory at that moment, before it
// changed anything: it may be tried again. A write or a sync that failed is never a lack, as nobody knows what it did.
// Where several errors are joined, the first one counts.
func IsLack(err error) bool {
	var path *fs.PathError
	var link *os.LinkError
	var call *os.SyscallError
	op, cause := "", error(nil)
	switch {
	case errors.As(err, &path):
		op, cause = path.Op, path.Err
	case errors.As(err, &link):
		op, cause = link.Op, link.Err
	case errors.As(err, &call):
		op, cause = call.Syscall, call.Err
	}
	var errno syscall.Errno
	if !errors.As(cause, &errno) {
		return false
	}
	// No operation on an open file lacks a descriptor: where a folder is synced, it is the open of the folder.
	if errno == syscall.EMFILE || errno == syscall.ENFILE {
		return true
	}
	return slices.Contains(lacks, errno) && slices.Contains(harmless, op)
}
