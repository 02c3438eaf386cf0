package vfs_test

import (
	"testing"
	"time"

	"sheaf.dev/sheaf/internal/storage/vfs"
	"sheaf.dev/sheaf/internal/test/must"
	"sheaf.dev/sheaf/internal/test/vfstest"
)

func TestContractOS(t *testing.T) {
	vfstest.Run(t, func(t *testing.T) (vfs.FS, string) { return vfs.OS{}, t.TempDir() })
}

func TestContractMem(t *testing.T) {
	vfstest.Run(t, func(t *testing.T) (vfs.FS, string) {
		m := vfstest.NewMem()
		must.OK(t, m.MkdirAll("/data"))
		return m, "/data"
	})
}

func TestContractFaultyWithoutFaults(t *testing.T) {
	vfstest.Run(t, func(t *testing.T) (vfs.FS, string) { return vfstest.NewFaulty(vfs.OS{}), t.TempDir() })
	f := vfstest.NewFaulty(vfstest.NewMem())
	vfstest.Run(t, func(t *testing.T) (vfs.FS, string) {
		dir := "/" + t.Name()
		must.OK(t, f.MkdirAll(dir))
		return f, dir
	})
	if f.Fired() != 0 {
		t.Errorf("%d faults fired, and there are none", f.Fired())
	}
}

func TestContractTimed(t *testing.T) {
	vfstest.Run(t, func(t *testing.T) (vfs.FS, string) {
		return vfs.NewTimed(vfs.OS{}, func(string, time.Duration, error) {}), t.TempDir()
	})
}
