package volume

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"sheaf.dev/sheaf/internal/storage/vfs"
)

// The functions below inspect a volume without writing to it. They can be used before the volume is opened and while
// it is in use.

// ErrMount says that the file system of a folder is not the required one.
var ErrMount = errors.New("wrong file system")

// Blank reports whether a new volume may be made in a folder: the folder does not exist, or holds only files that a new
// volume may have next to it. An error says that the folder holds something else (ErrNotEmpty), or cannot be listed.
func Blank(fsys vfs.FS, dir string) (bool, error) {
	v := Volume{fs: fsys, dir: dir}
	names, err := fsys.List(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return true, nil
	}
	if err != nil {
		return false, fmt.Errorf("volume %s: list its folder: %w", dir, err)
	}
	if slices.Contains(names, superblockName) {
		return false, nil
	}
	return true, v.refuseForeign(names)
}

// FreshSuperblock reads the superblock past the page cache, if the file system supports that: it returns what the
// device holds now, not what was read earlier. It returns the same errors as VerifySuperblock.
func FreshSuperblock(fsys vfs.FS, dir string) (Superblock, error) {
	state, err := readCopies(dir, fsys.OpenDirect)
	if err != nil {
		return Superblock{}, fmt.Errorf("read volume %s: %w", dir, err)
	}
	return state.superblock, nil
}

// MountOf does what Volume.Mount does, for a folder that need not hold a volume, or even exist: it then uses the
// nearest existing parent folder. It writes nothing. On a disk that the ext4 driver has mounted, it determines the
// type by the volume's superblock file or, without one, by the folder: folders made by mkfs.ext4 and the driver have
// extents.
func MountOf(fsys vfs.FS, dir string) (Mount, error) {
	if inMemory(fsys) {
		return Mount{FileSystem: "mem", Source: "none"}, nil
	}
	m, err := mountOf(dir)
	if err != nil {
		return Mount{}, fmt.Errorf("mount of volume %s: %w", dir, err)
	}
	return m, nil
}

// inMemory reports whether a file system declares that it is not on a disk, like that of the tests.
func inMemory(fsys vfs.FS) bool {
	for {
		if on, ok := fsys.(interface{ InMemory() bool }); ok {
			return on.InMemory()
		}
		wrapper, ok := fsys.(interface{ Unwrap() vfs.FS })
		if !ok {
			return false
		}
		fsys = wrapper.Unwrap()
	}
}

func mountOf(dir string) (Mount, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return Mount{}, err
	}
	for dir != "/" {
		if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
			break
		}
		dir = path.Dir(dir)
	}
	info, err := findMount(dir)
	if err != nil {
		return Mount{}, err
	}
	m := Mount{FileSystem: info.fsType, Options: info.options, Source: info.source, Rotational: rotational(info)}
	if info.fsType != "ext4" {
		return m, nil
	}
	sample := path.Join(dir, superblockName)
	if _, err := os.Stat(sample); errors.Is(err, fs.ErrNotExist) {
		sample = dir
	}
	m.FileSystem, err = extFamily(info, sample)
	return m, err
}

// unchecked reports whether an option is for mount(8) and not for the kernel, or has no effect.
func unchecked(option string) bool {
	switch option {
	case "", "defaults", "auto", "noauto", "nofail", "_netdev", "user", "nouser", "users", "owner", "group":
		return true
	}
	return strings.HasPrefix(option, "x-")
}

// opposites maps a default option to the opposite word. The kernel shows nothing if the default is in force, and the
// opposite word if it is not.
var opposites = map[string]string{
	"atime": "noatime", "exec": "noexec", "suid": "nosuid", "dev": "nodev", "async": "sync", "diratime": "nodiratime",
	"rw": "ro",
}

// Check returns an error that names the wanted type or options that are not in force, or nil if all are. An empty
// type matches any.
func (m Mount) Check(fileSystem string, options []string) error {
	if fileSystem != "" && !strings.EqualFold(fileSystem, m.FileSystem) {
		return fmt.Errorf(
			"%w: the volume is on %s (%s), wanted is %s: give the shard a disk with %s, or change what is wanted",
			ErrMount, m.FileSystem, m.Source, fileSystem, fileSystem)
	}
	var missing []string
	for _, option := range options {
		if unchecked(option) || slices.Contains(m.Options, option) {
			continue
		}
		if other, ok := opposites[option]; ok && !slices.Contains(m.Options, other) {
			continue
		}
		missing = append(missing, option)
	}
	if len(missing) > 0 {
		return fmt.Errorf("%w: %s (%s) is mounted with %s, wanted is also %s: mount it so, or change what is wanted",
			ErrMount, m.FileSystem, m.Source, strings.Join(m.Options, ","), strings.Join(missing, ","))
	}
	return nil
}

// ReadOnly reports whether the file system refuses writes; the kernel makes it read-only after an error of the disk.
func ReadOnly(fsys vfs.FS, dir string) (bool, error) {
	if inMemory(fsys) {
		return false, nil
	}
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return false, fmt.Errorf("volume %s: %w", dir, err)
	}
	return st.Flags&unix.ST_RDONLY != 0, nil
}
