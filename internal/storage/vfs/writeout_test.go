package vfs_test

import (
	"bytes"
	"path/filepath"
	"testing"

	"sheaf.dev/sheaf/internal/storage/vfs"
	"sheaf.dev/sheaf/internal/test/must"
	"sheaf.dev/sheaf/internal/test/vfstest"
)

func TestAdviceAboutTheCacheChangesNothing(t *testing.T) {
	mem := vfstest.NewMem()
	must.OK(t, mem.MkdirAll("/data"))
	for dir, fs := range map[string]vfs.FS{t.TempDir(): vfs.OS{}, "/data": mem} {
		content := bytes.Repeat([]byte{1}, 600*512)
		f := vfstest.Write(t, fs, filepath.Join(dir, "f"), content)
		for offset := int64(0); offset < int64(len(content)); offset += 100_000 {
			vfs.StartWriting(f, offset, 100_000)
			must.OK(t, vfs.AwaitWriting(f, offset, 100_000))
			vfs.Forget(f, offset, 100_000)
			vfs.StartReading(f, 0, offset)
		}
		if got := vfstest.Read(t, fs, f.Name()); !bytes.Equal(got, content) {
			t.Errorf("%T: the content has changed", fs)
		}
		must.OK(t, f.Close())
		if _, ok := fs.(vfs.OS); !ok {
			continue
		}
		if vfs.AwaitWriting(f, 0, 1) == nil {
			t.Error("what cannot be waited for was taken for written")
		}
	}
}
