package cli

import (
	"errors"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// folder is the descriptor of an open folder. Paths below it are opened component by component, and no component may be
// a symbolic link. Therefore no read or write follows a link, even if a component is renamed or replaced at the same
// time. os.Root is not used, because it follows links that do not lead out of the folder. Paths have slashes and no
// "..". The path "." and the empty path are the folder itself.
type folder int

// linkError reports that a path leads through a symbolic link.
type linkError struct{ link string }

func (e *linkError) Error() string { return displayName(e.link) + " is a symbolic link" }

// openFolder opens a folder by the name that a user gave, which may lead through links.
func openFolder(name string) (folder, error) {
	fd, err := openat(unix.AT_FDCWD, name, unix.O_PATH|unix.O_DIRECTORY)
	if err != nil {
		return -1, &fs.PathError{Op: "open", Path: name, Err: err}
	}
	return folder(fd), nil
}

func (f folder) close() { _ = unix.Close(int(f)) } // no error matters, because nothing was written to the descriptor

// in opens the folder at the path rel below f. Other paths can then be opened below that folder. If create is true,
// it creates missing folders, with mode 0755 minus the umask.
func (f folder) in(rel string, create bool) (folder, error) {
	at := f
	for end := 0; ; end++ {
		begin := end
		for end < len(rel) && rel[end] != '/' {
			end++
		}
		name := rel[begin:end]
		if name == "" {
			name = "."
		}
		const flags = unix.O_PATH | unix.O_DIRECTORY | unix.O_NOFOLLOW
		fd, err := openat(int(at), name, flags)
		if create && errors.Is(err, unix.ENOENT) {
			if err = unix.Mkdirat(int(at), name, 0o755); err == nil || errors.Is(err, unix.EEXIST) {
				fd, err = openat(int(at), name, flags)
			}
		}
		if errors.Is(err, unix.ENOTDIR) && at.isLink(name) {
			err = &linkError{rel[:end]}
		}
		if at != f {
			at.close()
		}
		if err != nil {
			return -1, &fs.PathError{Op: "open", Path: rel[:end], Err: err}
		}
		at = folder(fd)
		if end == len(rel) {
			return at, nil
		}
	}
}

// open opens the path rel below f. The flags are those of open(2). With O_PATH, open opens a link itself.
func (f folder) open(rel string, flags int) (*os.File, error) {
	dir, err := f.in(path.Dir(rel), false)
	if err != nil {
		return nil, err
	}
	defer dir.close()
	fd, err := openat(int(dir), path.Base(rel), flags|unix.O_NOFOLLOW)
	if errors.Is(err, unix.ELOOP) || errors.Is(err, unix.ENOTDIR) && dir.isLink(path.Base(rel)) {
		err = &linkError{rel}
	}
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: rel, Err: err}
	}
	return os.NewFile(uintptr(fd), rel), nil
}

// list returns the entries of the folder at the path rel below f, sorted by name.
func (f folder) list(rel string) ([]fs.DirEntry, error) {
	dir, err := f.open(rel, unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return nil, err
	}
	defer dir.Close() //nolint:errcheck // only read from
	entries, err := dir.ReadDir(-1)
	slices.SortFunc(entries, func(a, b fs.DirEntry) int { return strings.Compare(a.Name(), b.Name()) })
	return entries, err
}

// lstat returns the metadata of the file at the path rel below f. It needs no permission to read the file.
func (f folder) lstat(rel string) (fs.FileInfo, error) {
	file, err := f.open(rel, unix.O_PATH)
	if err != nil {
		return nil, err
	}
	defer file.Close() //nolint:errcheck // only looked at
	return file.Stat()
}

// readlink returns the metadata and the target of a symbolic link.
func (f folder) readlink(rel string) (fs.FileInfo, string, error) {
	file, err := f.open(rel, unix.O_PATH)
	if err != nil {
		return nil, "", err
	}
	defer file.Close() //nolint:errcheck // only looked at
	info, err := file.Stat()
	if err != nil {
		return nil, "", err
	}
	if info.Mode().Type() != fs.ModeSymlink {
		return nil, "", errors.New("it is no symbolic link any more")
	}
	var target [unix.PathMax]byte
	n, err := unix.Readlinkat(int(file.Fd()), "", target[:])
	if err != nil {
		return nil, "", &fs.PathError{Op: "readlink", Path: rel, Err: err}
	}
	return info, string(target[:n]), nil
}

// exists reports whether f has a direct entry with this name.
func (f folder) exists(name string) (bool, error) {
	var st unix.Stat_t
	err := unix.Fstatat(int(f), name, &st, unix.AT_SYMLINK_NOFOLLOW)
	if errors.Is(err, unix.ENOENT) {
		return false, nil
	}
	return err == nil, err
}

func (f folder) isLink(name string) bool {
	var st unix.Stat_t
	err := unix.Fstatat(int(f), name, &st, unix.AT_SYMLINK_NOFOLLOW)
	return err == nil && st.Mode&unix.S_IFMT == unix.S_IFLNK
}

// openat calls openat(2) with O_CLOEXEC, and calls it again if a signal interrupts it, which may happen on FUSE or NFS.
func openat(at int, name string, flags int) (fd int, err error) {
	for {
		fd, err = unix.Openat(at, name, flags|unix.O_CLOEXEC, 0o600)
		if !errors.Is(err, unix.EINTR) {
			return fd, err
		}
	}
}
