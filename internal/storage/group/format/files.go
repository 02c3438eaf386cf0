package format

import (
	"errors"
	"fmt"
	"io"
	"path"
	"syscall"

	"sheaf.dev/sheaf/internal/storage/vfs"
)

// ReadAll reads a file into memory. It returns ErrCorrupt if the file has more than maxBytes bytes.
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

// ReadFull fills b with the bytes from offset on. It returns io.ErrUnexpectedEOF if the file ends earlier.
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

// WriteReplace durably creates or replaces a file. It writes a new file, syncs and renames it, and syncs the folder.
func WriteReplace(fs vfs.FS, dir, name string, content []byte) error {
	err := vfs.WriteAside(fs, path.Join(dir, name), content)
	if err == nil {
		err = fs.SyncDir(dir)
	}
	return MarkShortage(err)
}

// CheckFreeSpace returns ErrNoSpace if the volume has fewer free bytes than the given number. The argument what names
// the operation in the error.
func CheckFreeSpace(fs vfs.FS, dir string, bytes int64, what string) error {
	space, err := fs.Space(dir)
	if err == nil && space.FreeBytes < bytes {
		err = fmt.Errorf("%w: %s: %s takes up to %d bytes, %d are free; delete other files or grow the volume", ErrNoSpace,
			dir, what, bytes, space.FreeBytes)
	}
	return err
}

// MarkShortage converts the error for a full disk to an ErrNoSpace, and the error for a temporary lack of descriptors
// or memory to an ErrShortage. It returns other errors unchanged.
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

// Passes reports whether an error is an ErrNoSpace or an ErrShortage. The cause of such an error may go away without
// a repair, and the files are unchanged, so the caller can wait and try again.
func Passes(err error) bool { return errors.Is(err, ErrNoSpace) || errors.Is(err, ErrShortage) }
