package transfer

import (
	"errors"
	"log/slog"
	"time"

	"sheaf.dev/sheaf/internal/storage/group/format"
	"sheaf.dev/sheaf/internal/storage/vfs"
)

// FileKind is the type of a File's content.
type FileKind int

// These are the kinds of files that are sent. Hints are not sent: the receiver reads every frame, and makes the hints
// itself.
const (
	SegmentFile FileKind = iota + 1
	BlobFile
)

// File is one file of an Export.
type File struct {
	Kind  FileKind
	Name  string
	Bytes int64 // total size
	Have  int64 // the number of bytes, from the beginning on, that the receiver already has; 0 in an Export
}

// ErrNotWanted says that the file is not part of the install.
var ErrNotWanted = errors.New("it is not wanted")

// Options holds the options of NewInstall. FS, Dir and Identity are required.
type Options struct {
	FS       vfs.FS
	Dir      string // the group's folder
	Identity format.Identity
	Now      func() time.Time // nil means time.Now
	Logger   *slog.Logger     // nil: messages are discarded
}
