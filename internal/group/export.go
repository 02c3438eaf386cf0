package group

import (
	"context"
	"errors"
	"io"
)

// FileKind is what an ExportFile holds.
type FileKind int

// The kinds of files that are sent. Hints are not: the receiver reads every frame, and makes them of what it has seen.
const (
	SegmentFile FileKind = iota + 1
	BlobFile
)

// ExportFile is one file of an Export.
type ExportFile struct {
	Kind  FileKind
	Name  string
	Bytes int64 // in all
	Have  int64 // of these, from the begin on, the receiver has them already; an Export tells 0
}

// Export is the state of a log as of one index. It stays readable until Close, whatever the log does meanwhile. Safe for
// concurrent use.
type Export struct {
	Index uint64 // applied
	Term  uint64 // of that index
	Bytes int64  // of all files
}

// Export pins the log as of its applied index, or as of the index before a membership change that SetConf does not know yet.
// Nothing is locked for long. Compaction goes on, but what it removes stays on the disk until Close. A log with damage
// is not exported: *DamageError. ErrNotFound: nothing was ever applied.
func (l *Log) Export(ctx context.Context) (*Export, error) {
	return nil, errors.ErrUnsupported
}

// Manifest is what NewInstall needs: all segments sealed, the commit of the hard state is Index, no vote.
func (e *Export) Manifest() []byte { return nil }

// Files lists what is to be sent, in order.
func (e *Export) Files() []ExportFile { return nil }

// Open reads a file of the export from an offset on, to its end. ErrNotFound: it is none of the export; ErrClosed.
func (e *Export) Open(name string, offset int64) (io.ReadCloser, error) {
	return nil, errors.ErrUnsupported
}

// Close lets go of the files. What is open may be read on.
func (e *Export) Close() error { return nil }
