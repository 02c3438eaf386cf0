package bucket

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"path"
	"slices"
	"strings"
	"sync"

	"github.com/google/uuid"

	"sheaf.dev/sheaf/internal/storage/vfs"
)

// pending is the folder for objects that are still being written. No object gets a name in this folder. Files that a
// killed process has left in it are garbage.
const pending = ".pending"

// writeBytes is the maximum number of bytes written in one call.
const writeBytes = 1 << 20

// Folder is a Bucket that stores its objects in a folder of a file system. Several processes may use the same folder,
// including over NFS.
type Folder struct {
	fs   vfs.FS
	root string

	// durable holds the folders whose names have been made durable by this Folder. A folder that already exists may
	// not be durable, because the process that created it may have died before it synced the folder's name.
	durable sync.Map
}

var _ Bucket = (*Folder)(nil)

// OpenFolder opens a folder as a bucket. It creates the folder if necessary, but not the parent folder. Otherwise an
// archive could end up in an empty mount point whose file system is not mounted.
func OpenFolder(fsys vfs.FS, root string) (*Folder, error) {
	root = path.Clean(root) // must be clean, because the folders above an object are compared with it
	if _, err := fsys.Stat(path.Dir(root)); err != nil {
		return nil, fmt.Errorf("the folder above the archive's folder %s: %w: make it, or mount its file system", root, err)
	}
	if err := fsys.MkdirAll(path.Join(root, pending)); err != nil {
		return nil, fmt.Errorf("make the archive's folder %s: %w", root, err)
	}
	return &Folder{fs: fsys, root: root}, nil
}

// Create implements Bucket. It writes the object to a temporary file, makes that file durable, and then links it to
// the object's name. The link fails if the name exists.
func (f *Folder) Create(ctx context.Context, name string, size int64, content io.Reader) (err error) {
	if err := CheckName(name); err != nil {
		return err
	}
	target := path.Join(f.root, name)
	if _, err := f.fs.Stat(target); err == nil {
		return f.exists(target)
	}
	aside := path.Join(f.root, pending, uuid.NewString())
	file, err := f.fs.Create(aside)
	if err != nil {
		return err
	}
	defer func() {
		if removed := f.fs.Remove(aside); err == nil && removed != nil && !errors.Is(removed, fs.ErrNotExist) {
			err = fmt.Errorf("%s is created, but its copy aside remains: %w", name, removed)
		}
	}()
	if err := errors.Join(write(ctx, file, size, content), file.Close()); err != nil {
		return fmt.Errorf("create %s: %w", name, err)
	}
	if err := f.fs.MkdirAll(path.Dir(target)); err != nil {
		return err
	}
	switch err := f.fs.Link(aside, target); {
	case errors.Is(err, fs.ErrExist):
		return f.exists(target)
	case err != nil:
		return err
	}
	return f.syncNames(target)
}

// syncNames makes the name of an object durable, and the names of all folders above it.
func (f *Folder) syncNames(target string) error {
	dir := path.Dir(target)
	if err := f.fs.SyncDir(dir); err != nil {
		return err
	}
	var made []string
	for ; dir != f.root; dir = path.Dir(dir) {
		if _, ok := f.durable.Load(dir); ok {
			break
		}
		if err := f.fs.SyncDir(path.Dir(dir)); err != nil {
			return err
		}
		made = append(made, dir)
	}
	for _, dir := range made {
		f.durable.Store(dir, true) // Only now is it certain that the folders above are durable as well.
	}
	return nil
}

// exists makes the name of an existing object durable, and then returns fs.ErrExist. The process that created the
// object may not have made its name durable yet.
func (f *Folder) exists(target string) error {
	if err := f.syncNames(target); err != nil {
		return err
	}
	return &fs.PathError{Op: "create", Path: target, Err: fs.ErrExist}
}

// write writes and syncs an object's content.
func write(ctx context.Context, file vfs.File, size int64, content io.Reader) error {
	buffer := make([]byte, min(size+1, writeBytes))
	var at int64
	for {
		if err := context.Cause(ctx); err != nil {
			return err
		}
		n, err := io.ReadFull(content, buffer)
		if at+int64(n) > size {
			return ErrLength
		}
		if n > 0 {
			if _, err := file.WriteAt(buffer[:n], at); err != nil {
				return err
			}
			at += int64(n)
		}
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			break
		}
		if err != nil {
			return err
		}
	}
	if at != size {
		return ErrLength
	}
	return file.Sync()
}

// Open implements Bucket.
func (f *Folder) Open(_ context.Context, name string, offset, length int64) (io.ReadCloser, error) {
	if err := CheckName(name); err != nil {
		return nil, err
	}
	file, err := f.fs.Open(path.Join(f.root, name))
	if err != nil {
		return nil, err
	}
	size, err := file.Size()
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	rest := max(0, size-offset)
	if length >= 0 {
		rest = min(rest, length)
	}
	return struct {
		io.Reader
		io.Closer
	}{io.NewSectionReader(file, offset, rest), file}, nil
}

// Stat implements Bucket.
func (f *Folder) Stat(_ context.Context, name string) (Info, error) {
	if err := CheckName(name); err != nil {
		return Info{}, err
	}
	info, err := f.fs.Stat(path.Join(f.root, name))
	if err != nil {
		return Info{}, err
	}
	if info.IsDir() {
		return Info{}, &fs.PathError{Op: "stat", Path: name, Err: fs.ErrNotExist}
	}
	return Info{Name: name, Bytes: info.Size(), Created: info.ModTime()}, nil
}

// List implements Bucket.
func (f *Folder) List(ctx context.Context, prefix, after string) iter.Seq2[Info, error] {
	return func(yield func(Info, error) bool) {
		if err := f.list(ctx, "", prefix, after, yield); err != nil && !errors.Is(err, errStopped) {
			yield(Info{}, err)
		}
	}
}

// errStopped ends a listing because the caller wants no more objects.
var errStopped = errors.New("stopped")

// list lists one folder, and the folders in it. While it sorts the entries, it appends a slash to the names of
// folders. The objects are then in the order of their full names: "a-b" comes before "a/b".
func (f *Folder) list(ctx context.Context, dir, prefix, after string, yield func(Info, error) bool) error {
	names, err := f.fs.List(path.Join(f.root, dir))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	infos := make(map[string]fs.FileInfo, len(names))
	names = slices.DeleteFunc(names, func(name string) bool { return dir == "" && name == pending })
	for i, name := range names {
		info, err := f.fs.Stat(path.Join(f.root, dir, name))
		if errors.Is(err, fs.ErrNotExist) {
			names[i] = "" // deleted meanwhile
			continue
		}
		if err != nil {
			return err
		}
		if names[i] = dir + name; info.IsDir() {
			names[i] += "/"
		}
		infos[names[i]] = info
	}
	slices.SortFunc(names, cmp.Compare[string])
	for _, name := range names {
		info := infos[name]
		switch {
		case info == nil:
		case info.IsDir():
			if (strings.HasPrefix(name, prefix) || strings.HasPrefix(prefix, name)) &&
				(name > after || strings.HasPrefix(after, name)) {
				if err := f.list(ctx, name, prefix, after, yield); err != nil {
					return err
				}
			}
		case strings.HasPrefix(name, prefix) && name > after:
			if err := context.Cause(ctx); err != nil {
				return err
			}
			if !yield(Info{Name: name, Bytes: info.Size(), Created: info.ModTime()}, nil) {
				return errStopped
			}
		}
	}
	return nil
}

// Delete implements Bucket.
func (f *Folder) Delete(_ context.Context, name string) error {
	if err := CheckName(name); err != nil {
		return err
	}
	target := path.Join(f.root, name)
	switch err := f.fs.Remove(target); {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	}
	return f.fs.SyncDir(path.Dir(target))
}

// Close implements Bucket.
func (f *Folder) Close() error { return nil }
