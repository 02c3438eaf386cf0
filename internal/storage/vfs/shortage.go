package vfs

import (
	"errors"
	"io/fs"
	"os"
	"slices"
	"syscall"
)

// lacks lists the errors that the kernel returns if descriptors or memory are scarce, or if a call was interrupted.
var lacks = []syscall.Errno{syscall.EMFILE, syscall.ENFILE, syscall.ENOMEM, syscall.EAGAIN, syscall.EINTR}

// harmless lists the operations that have changed nothing if they fail with an error in lacks. The names are those in
// the errors of package os and of the test file systems.
var harmless = []string{"open", "openat", "create", "mkdir", "rename", "stat", "lstat", "list", "fdopendir"}

// IsShortage reports whether an operation failed before it changed anything, because the system lacked descriptors or
// memory at that moment. Such an operation may be retried. A failed write or sync never counts as a shortage, because
// it may have changed something. If several errors are joined, IsShortage looks only at the first one.
func IsShortage(err error) bool {
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
	// An operation that needs a descriptor begins by opening its file. If there is no free descriptor, it fails before
	// it has changed anything. This is also true of the sync of a folder, which first opens the folder.
	if errno == syscall.EMFILE || errno == syscall.ENFILE {
		return true
	}
	return slices.Contains(lacks, errno) && slices.Contains(harmless, op)
}
