package format

import "errors"

// These are the errors of files. Test for them with errors.Is, and for damage with errors.As on *DamageError. The
// errors of decoding are defined next to the codec.
var (
	ErrNoSpace = errors.New("no free space on the volume")
	// ErrShortage says that the system lacked file descriptors or memory, so that a file was not opened, created or
	// renamed. Nothing was written.
	ErrShortage      = errors.New("the system lacks file descriptors or memory for now")
	ErrFormatVersion = errors.New("format version is newer than this program")
	ErrForeign       = errors.New("file belongs to another store or group")
	// ErrClosed says that a log, or the reader or writer of a blob, is closed.
	ErrClosed = errors.New("log is closed")
)
