package transfer

import (
	"errors"
	"log/slog"
	"time"

	"sheaf.dev/sheaf/internal/storage/group/format"
	"sheaf.dev/sheaf/internal/storage/vfs"
)

// FileKind is what an File holds.
type FileKind int

// The kinds of files that are sent. Hints are not: the receiver reads every frame, and makes them of what it has seen.
const (
	SegmentFile FileKind = iota + 1
	BlobFile
)

// File is one file of an Export.
type File struct {
	Kind  FileKind
	Name  string
	Bytes int64 // in all
	Have  int64 // of these, from the begin on, the receiver has them already; an Export tells 0
}

// ErrNotWanted says that the file is none of what is installed.
var ErrNotWanted = errors.New("it is not wanted")

// Options of NewInstall. FS, Dir and Identity are required.
type Options struct {
	FS       vfs.FS
	Dir      string // the group's folder
	Identity format.Identity
	Now      func() time.Time // nil: time.Now
	Logger   *slog.Logger     // nil: discards
}
