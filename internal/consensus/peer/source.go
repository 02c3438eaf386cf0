package peer

import (
	"context"
	"io"

	"github.com/google/uuid"
	"go.etcd.io/raft/v3/raftpb"
)

// Source provides the data that peers may fetch from this shard. An error that wraps ErrNotHere means that this shard
// has no serving replica of the group.
type Source interface {
	// Export pins the files of a group's replica.
	Export(ctx context.Context, group uuid.UUID) (Export, error)
	// Entries returns some of the entries from first to last, but at least one if the source has any of them.
	Entries(ctx context.Context, group uuid.UUID, first, last uint64, bytesMax int) (Entries, error)
	// Blob opens a blob, given the reference in an entry.
	Blob(ctx context.Context, group uuid.UUID, ref []byte) (file File, size int64, err error)
}

// Entries is a peer's response to a request for a range of a group's log.
type Entries struct {
	Entries []*raftpb.Entry
	Through uint64 // Entries has all valid entries up to this index
	Applied uint64 // applied index of the peer
}

// Description describes the files of a replica.
type Description struct {
	Manifest    []byte
	Index, Term uint64 // index and term of the last applied entry
	Bytes       int64  // total size of all files
}

// File is a file that is open for reading.
type File interface {
	io.ReaderAt
	io.Closer
}

// Export is a set of pinned files.
type Export interface {
	Describe() Description
	// Open reads a file from offset to its end.
	Open(name string, offset int64) (io.ReadCloser, error)
	Close() error
}

// FileRange is the part of a file from Offset to its end. Bytes is the size of the whole file.
type FileRange struct {
	Name   string
	Offset int64
	Bytes  int64
}

// Sink receives the files of a replica.
type Sink interface {
	Describe(d Description) error
	// Wanted returns the files that the sink wants next. It is called again after these files have been received. If it
	// returns none, the sink has all files.
	Wanted() ([]FileRange, error)
	// Create opens a wanted file for writing at the offset in r. Commit is called when the file has been received
	// completely, perhaps while the next file is being received. Close is always called. If Commit was not called
	// before, the received part is kept for a later attempt.
	Create(r FileRange) (SinkFile, error)
}

// SinkFile is a file that is being received.
type SinkFile interface {
	io.WriteCloser
	Commit() error
}
