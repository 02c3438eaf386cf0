package shard

import (
	"errors"
	"io/fs"
	"path"
	"testing"

	"sheaf.dev/sheaf/internal/storage/vfs"
	"sheaf.dev/sheaf/internal/test/vfstest"
)

// The following functions look at and change the files of shards, on any kind of disk.

// filesIn returns the paths of all entries in a folder. If the folder does not exist, it returns none.
func filesIn(t testing.TB, disk vfs.FS, dir string) []string {
	t.Helper()
	names, err := disk.List(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	for i := range names {
		names[i] = path.Join(dir, names[i])
	}
	return names
}

// filesBelow returns the sizes of all files in a folder and its subfolders, by name.
func filesBelow(t testing.TB, disk vfs.FS, dir string) map[string]int64 {
	t.Helper()
	sizes := map[string]int64{}
	for _, name := range filesIn(t, disk, dir) {
		info, err := disk.Stat(name)
		switch {
		case errors.Is(err, fs.ErrNotExist): // the folder was removed in the meantime
		case err != nil:
			t.Fatal(err)
		case info.IsDir():
			for below, size := range filesBelow(t, disk, name) {
				sizes[below] = size
			}
		default:
			sizes[name] = info.Size()
		}
	}
	return sizes
}

// copyFolder copies a folder with everything in it to a new folder.
func copyFolder(t testing.TB, disk vfs.FS, to, from string) {
	t.Helper()
	must(t, disk.MkdirAll(to))
	for _, name := range filesIn(t, disk, from) {
		info, err := disk.Stat(name)
		must(t, err)
		other := path.Join(to, path.Base(name))
		if info.IsDir() {
			copyFolder(t, disk, other, name)
			continue
		}
		must(t, vfstest.Write(t, disk, other, vfstest.Read(t, disk, name)).Close())
	}
}

func removeFolder(t testing.TB, disk vfs.FS, dir string) {
	t.Helper()
	for _, name := range filesIn(t, disk, dir) {
		info, err := disk.Stat(name)
		must(t, err)
		if info.IsDir() {
			removeFolder(t, disk, name)
			continue
		}
		must(t, disk.Remove(name))
	}
	must(t, disk.Remove(dir))
}

func truncate(t testing.TB, disk vfs.FS, name string, size int64) {
	t.Helper()
	file, err := disk.OpenWrite(name)
	must(t, err)
	must(t, errors.Join(file.Truncate(size), file.Sync(), file.Close()))
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
