package format

import (
	"errors"
	"fmt"
	"io"
	"path"
	"syscall"

	"sheaf.dev/sheaf/internal/storage/vfs"
)

// ReadAll reads a file of at most maxBytes into memory.
func ReadAll(fs vfs.FS, name string, maxBytes int64) (b []byte, err error) {
	f, err := fs.Open(name)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	size, err := f.Size()
	if err != nil {
		return nil, err
	}
	if size > maxBytes {
		return nil, fmt.Errorf("%s: %w: %d bytes are above the limit of %d", name, ErrCorrupt, size, maxBytes)
	}
	b = make([]byte, size)
	return b, ReadFull(f, b, 0)
}

// ReadFull fills b from offset. It returns an error if the file ends earlier.
func ReadFull(f io.ReaderAt, b []byte, offset int64) error {
	n, err := f.ReadAt(b, offset)
	if n == len(b) {
		return nil
	}
	if err == nil || errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	return fmt.Errorf("read %d bytes at offset %d: %w", len(b), offset, err)
}

// WriteReplace creates or replaces a file: it writes a new file, syncs it, renames it, and syncs the folder.
func WriteReplace(fs vfs.FS, dir, name string, content []byte) error {
	err := vfs.WriteAside(fs, path.Join(dir, name), content)
	if err == nil {
		err = fs.SyncDir(dir)
	}
	return MarkShortage(err)
}

// CheckFreeSpace returns ErrNoSpace if a volume has fewer free bytes than needed.
func CheckFreeSpace(fs vfs.FS, dir string, bytes int64, what string) error {
	space, err := fs.Space(dir)
	if err == nil && space.FreeBytes < bytes {
		err = fmt.Errorf("%w: %s: %s takes up to %d bytes, %d are free; delete other files or grow the volume", ErrNoSpace,
			dir, what, bytes, space.FreeBytes)
	}
	return err
}

// MarkShortage marks the error of a full disk as ErrNoSpace, and the error of a temporary lack of descriptors or memory
// as ErrShortage.
func MarkShortage(err error) error {
	switch {
	case Passes(err):
		return err
	case errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT):
		return fmt.Errorf("%w: %w", ErrNoSpace, err)
	case vfs.IsShortage(err):
		return fmt.Errorf("%w: %w", ErrShortage, err)
	}
	return err
}

// Passes reports whether the cause of an error may go away without a repair, so that the caller can wait and try
// again: ErrNoSpace or ErrShortage. Such an error left the files unchanged.
func Passes(err error) bool { return errors.Is(err, ErrNoSpace) || errors.Is(err, ErrShortage) }
