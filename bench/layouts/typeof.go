package layouts

import (
	"sheaf.dev/sheaf/internal/storage/vfs"
	"sheaf.dev/sheaf/internal/storage/volume"
)

// typeOf the file system that holds a folder, as the kernel names it.
func typeOf(dir string) string {
	m, err := volume.MountOf(vfs.OS{}, dir)
	if err != nil {
		return "unknown"
	}
	return m.FileSystem
}
