package fsck

import (
	"errors"
	"fmt"
	"path"

	"github.com/google/uuid"

	"sheaf.dev/sheaf/internal/storage/group/format"
	"sheaf.dev/sheaf/internal/storage/vfs"
)

// Exchanged returns a message if a folder's name is the UUID of one group but the folder holds another group's
// manifest. The message says so, and says what to do. Exchanged returns an empty string if folder and manifest belong
// to the same group, or if this cannot be determined. The files in an exchanged folder are intact, but in the wrong
// place.
func Exchanged(fs vfs.FS, dir string) string {
	m, err := format.ReadManifest(fs, dir)
	if err != nil {
		return ""
	}
	return exchanged(fs, dir, m)
}

func exchanged(fs vfs.FS, dir string, m *format.Manifest) string {
	name := path.Base(dir)
	folder, err := uuid.Parse(name)
	if err != nil || folder.String() != name || folder == m.Identity.Group {
		return ""
	}
	is := fmt.Sprintf("the folder is that of group %s by its name, its manifest is of group %s (%q)", folder,
		m.Identity.Group, m.Identity.Name)
	switch ownerOf(fs, dir, m) {
	case folder:
		return is + ", its other files are of the first: was the manifest exchanged with that of the other folder? Put the " +
			"right one back"
	case m.Identity.Group:
		return is + ", and so are its other files: was the folder exchanged with another, or renamed? Give it the name of " +
			"its group again"
	}
	return is + ": were two folders or their manifests exchanged? Put them back"
}

// ownerOf returns the group to which a folder's other files belong. This is the group that the replica file names, or
// else the group that the first readable segment names.
func ownerOf(fs vfs.FS, dir string, m *format.Manifest) uuid.UUID {
	if f, found, err := format.ReadReplicaFile(fs, dir); err == nil && found {
		return f.Group
	}
	names, err := fs.List(dir)
	if err != nil {
		return uuid.Nil
	}
	for _, name := range names {
		if _, ok := format.ParseSegmentName(name); !ok {
			continue
		}
		if b, err := readHead(fs, path.Join(dir, name), format.SegmentHeaderBytes); err == nil {
			if h, err := format.DecodeSegmentHeader(b); err == nil && h.Store == m.Identity.Store {
				return h.Group
			}
		}
	}
	return uuid.Nil
}

func readHead(fs vfs.FS, name string, n int) ([]byte, error) {
	f, err := fs.Open(name)
	if err != nil {
		return nil, err
	}
	b := make([]byte, n)
	_, err = f.ReadAt(b, 0)
	return b, errors.Join(err, f.Close())
}
