package vfs_test

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"sheaf.dev/sheaf/internal/storage/vfs"
	"sheaf.dev/sheaf/internal/test/must"
)

// TestAShortageIsDistinguishedFromAFailure checks that a failure to open, create or rename a file may count as a
// temporary shortage, whereas a failed write or sync never does. The test uses a real folder, and the descriptor
// limit of this process.
func TestAShortageIsDistinguishedFromAFailure(t *testing.T) {
	at := func(op string, cause error) error { return &fs.PathError{Op: op, Path: "f", Err: cause} }
	for _, c := range []struct {
		err  error
		lack bool
	}{
		{at("open", syscall.EMFILE), true},
		{fmt.Errorf("append: %w", at("mkdir", syscall.ENOMEM)), true},
		{&os.LinkError{Op: "rename", Old: "a", New: "b", Err: syscall.EINTR}, true},
		{at("syncdir", syscall.ENFILE), true}, // the sync itself did not fail, but opening the folder for it
		{at("write", syscall.EAGAIN), false},
		{at("sync", syscall.ENOMEM), false},
		{at("open", syscall.EIO), false},
		{at("open", syscall.EACCES), false},
		{errors.Join(at("write", syscall.EIO), at("open", syscall.EMFILE)), false},
		{nil, false},
		{errors.New("too many open files"), false},
	} {
		if vfs.IsShortage(c.err) != c.lack {
			t.Errorf("%v: a lack is %v", c.err, !c.lack)
		}
	}

	dir := t.TempDir()
	var before syscall.Rlimit
	must.OK(t, syscall.Getrlimit(syscall.RLIMIT_NOFILE, &before))
	none := before
	none.Cur = 0
	must.OK(t, syscall.Setrlimit(syscall.RLIMIT_NOFILE, &none))
	_, create := vfs.OS{}.Create(filepath.Join(dir, "f"))
	sync := vfs.OS{}.SyncDir(dir)
	_, list := vfs.OS{}.List(dir)
	must.OK(t, syscall.Setrlimit(syscall.RLIMIT_NOFILE, &before))
	for what, err := range map[string]error{"create": create, "sync of a folder": sync, "list": list} {
		if !vfs.IsShortage(err) {
			t.Errorf("%s without a descriptor: %v is no lack", what, err)
		}
	}
}
