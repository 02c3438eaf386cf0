package vfstest

import (
	"errors"
	"io/fs"
	"path"
	"slices"
	"testing"

	"sheaf.dev/sheaf/internal/storage/vfs"
	"sheaf.dev/sheaf/internal/test/must"
)

func remove(t *testing.T, fsys vfs.FS, dir string) {
	name := path.Join(dir, "d/f")
	must.OK(t, fsys.MkdirAll(path.Join(dir, "d")))
	must.OK(t, Write(t, fsys, name, nil).Close())
	if err := fsys.Remove(path.Join(dir, "d")); err == nil {
		t.Error("a folder that is not empty was removed")
	}
	must.OK(t, fsys.Remove(name))
	wantError(t, "second remove", fsys.Remove(name), fs.ErrNotExist)
	must.OK(t, fsys.Remove(path.Join(dir, "d")))
	names, err := fsys.List(dir)
	must.OK(t, err)
	if len(names) != 0 {
		t.Errorf("left over: %q", names)
	}
}

func removedFileStaysOpen(t *testing.T, fsys vfs.FS, dir string) {
	name := path.Join(dir, "f")
	f := Write(t, fsys, name, []byte("old"))
	must.OK(t, fsys.Remove(name))
	must.OK(t, Write(t, fsys, name, []byte("new")).Close())
	buf := make([]byte, 3)
	if _, err := f.ReadAt(buf, 0); err != nil || string(buf) != "old" {
		t.Errorf("the removed file reads %q, error %v", buf, err)
	}
	if got := Read(t, fsys, name); string(got) != "new" {
		t.Errorf("the new file reads %q", got)
	}
}

func rename(t *testing.T, fsys vfs.FS, dir string) {
	a, b := path.Join(dir, "a"), path.Join(dir, "b")
	f := Write(t, fsys, a, []byte("a"))
	Write(t, fsys, b, []byte("b"))
	must.OK(t, fsys.Rename(a, b))
	wantError(t, "rename of nothing", fsys.Rename(a, b), fs.ErrNotExist)
	wantError(t, "rename into no folder", fsys.Rename(b, path.Join(dir, "no/f")), fs.ErrNotExist)
	must.OK(t, fsys.Rename(b, b))
	if got := Read(t, fsys, b); string(got) != "a" {
		t.Errorf("content is %q", got)
	}
	if f.Name() != a {
		t.Errorf("the open file is called %q now", f.Name())
	}
	must.OK(t, fsys.MkdirAll(path.Join(dir, "d")))
	if err := fsys.Rename(b, path.Join(dir, "d")); err == nil {
		t.Error("a file replaced a folder")
	}
	must.OK(t, fsys.Rename(b, path.Join(dir, "d/c")))
	names, err := fsys.List(dir)
	must.OK(t, err)
	if !slices.Equal(names, []string{"d"}) {
		t.Errorf("names are %q", names)
	}
}

func link(t *testing.T, fsys vfs.FS, dir string) {
	a, b := path.Join(dir, "a"), path.Join(dir, "b")
	must.OK(t, Write(t, fsys, a, []byte("a")).Close())
	must.OK(t, fsys.Link(a, b))
	wantError(t, "link to a name that exists", fsys.Link(a, b), fs.ErrExist)
	wantError(t, "link to its own name", fsys.Link(a, a), fs.ErrExist)
	wantError(t, "link of nothing", fsys.Link(path.Join(dir, "no"), path.Join(dir, "c")), fs.ErrNotExist)
	wantError(t, "link into no folder", fsys.Link(a, path.Join(dir, "no/f")), fs.ErrNotExist)
	must.OK(t, fsys.MkdirAll(path.Join(dir, "d")))
	if err := fsys.Link(path.Join(dir, "d"), path.Join(dir, "c")); err == nil {
		t.Error("a folder got a second name")
	}
	must.OK(t, fsys.Remove(a))
	if got := Read(t, fsys, b); string(got) != "a" {
		t.Errorf("content is %q", got)
	}
	must.OK(t, fsys.SyncDir(dir))
}

func renameFolder(t *testing.T, fsys vfs.FS, dir string) {
	must.OK(t, fsys.MkdirAll(path.Join(dir, "a/b")))
	must.OK(t, fsys.MkdirAll(path.Join(dir, "trash")))
	must.OK(t, Write(t, fsys, path.Join(dir, "a/b/f"), []byte("data")).Close())
	if err := fsys.Rename(path.Join(dir, "a"), path.Join(dir, "a/b/c")); err == nil {
		t.Error("a folder was moved into itself")
	}
	must.OK(t, fsys.Rename(path.Join(dir, "a"), path.Join(dir, "trash/a")))
	must.OK(t, fsys.SyncDir(dir))
	must.OK(t, fsys.SyncDir(path.Join(dir, "trash")))
	// SyncAll may return ErrUnsupported, for example while the machine's memory holds much data that other programs have
	// written and that is not on the disks yet.
	if err := fsys.SyncAll(dir); !errors.Is(err, errors.ErrUnsupported) {
		must.OK(t, err)
	}
	if got := Read(t, fsys, path.Join(dir, "trash/a/b/f")); string(got) != "data" {
		t.Errorf("content is %q", got)
	}
	if err := fsys.Rename(path.Join(dir, "trash"), path.Join(dir, "trash/a/b/f")); err == nil {
		t.Error("a folder replaced a file inside it")
	}
}

func mkdirAll(t *testing.T, fsys vfs.FS, dir string) {
	deep := path.Join(dir, "a/b/c")
	must.OK(t, fsys.MkdirAll(deep))
	must.OK(t, fsys.MkdirAll(deep))
	must.OK(t, fsys.MkdirAll(dir))
	info, err := fsys.Stat(deep)
	must.OK(t, err)
	if !info.IsDir() {
		t.Error("it is not a folder")
	}
	must.OK(t, Write(t, fsys, path.Join(dir, "f"), nil).Close())
	if err := fsys.MkdirAll(path.Join(dir, "f")); err == nil {
		t.Error("a folder was made where a file is")
	}
	if err := fsys.MkdirAll(path.Join(dir, "f/d")); err == nil {
		t.Error("a folder was made inside a file")
	}
}

func listIsSorted(t *testing.T, fsys vfs.FS, dir string) {
	want := []string{"B", "a", "b0", "b1", "c"}
	for _, name := range []string{"c", "b1", "a", "B", "b0"} {
		must.OK(t, Write(t, fsys, path.Join(dir, name), nil).Close())
	}
	got, err := fsys.List(dir)
	must.OK(t, err)
	if !slices.Equal(got, want) {
		t.Errorf("list is %q, want %q", got, want)
	}
	_, err = fsys.List(path.Join(dir, "no"))
	wantError(t, "list of nothing", err, fs.ErrNotExist)
	if _, err := fsys.List(path.Join(dir, "a")); err == nil {
		t.Error("list of a file did not fail")
	}
}

func stat(t *testing.T, fsys vfs.FS, dir string) {
	name := path.Join(dir, "f")
	must.OK(t, Write(t, fsys, name, []byte("12345")).Close())
	info, err := fsys.Stat(name)
	must.OK(t, err)
	if info.Name() != "f" || info.Size() != 5 || info.IsDir() || !info.Mode().IsRegular() || info.ModTime().IsZero() {
		t.Errorf("file: %v", info)
	}
	info, err = fsys.Stat(dir)
	must.OK(t, err)
	if !info.IsDir() || !info.Mode().IsDir() {
		t.Errorf("folder: %v", info)
	}
	_, err = fsys.Stat(path.Join(dir, "no"))
	wantError(t, "stat of nothing", err, fs.ErrNotExist)
}

func syncDirOfNothing(t *testing.T, fsys vfs.FS, dir string) {
	wantError(t, "sync of no folder", fsys.SyncDir(path.Join(dir, "no")), fs.ErrNotExist)
	if err := fsys.SyncAll(path.Join(dir, "no")); !errors.Is(err, fs.ErrNotExist) &&
		!errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("sync of all below no folder: error %v", err)
	}
	must.OK(t, Write(t, fsys, path.Join(dir, "f"), nil).Close())
	if err := fsys.SyncDir(path.Join(dir, "f")); err == nil {
		t.Error("a file was synced as a folder")
	}
	must.OK(t, fsys.SyncDir(dir))
}
