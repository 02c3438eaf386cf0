package vfs

import (
	"errors"
	"io/fs"
	"os"
	"slices"
	"syscall"
)

// lacks are the kernel's errors for a shortage of descriptors or memory, or for an interrupted call.
var lacks = []syscall.Errno{syscall.EMFILE, syscall.ENFILE, syscall.ENOMEM, syscall.EAGAIN, syscall.EINTR}

// harmless has the names of the operations that change nothing if they fail with one of the errors in lacks. These
// names occur in the errors of package os and of the test file systems.
var harmless = []string{"open", "openat", "create", "mkdir", "rename", "stat", "lstat", "list", "fdopendir"}

// IsShortage reports whether an operation failed because the system lacked descriptors or memory at that moment, before
// the operation changed anything. Such an operation may be retried. A failed write or sync never counts as a shortage,
// because it is not known what it has done. If several errors are joined, IsShortage looks only at the first one.
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
	// An operation on an open file needs no descriptor. The sync of a folder does, because it opens the folder.
	if errno == syscall.EMFILE || errno == syscall.ENFILE {
		return true
	}
	return slices.Contains(lacks, errno) && slices.Contains(harmless, op)
}
