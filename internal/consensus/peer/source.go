package peer

import (
	"context"
	"io"

	"github.com/google/uuid"
	"go.etcd.io/raft/v3/raftpb"
)

// Source is what this shard lets its peers fetch. An error that wraps ErrNotHere says that the group does not serve
// here.
type Source interface {
	// Export pins the files of a group's replica.
	Export(ctx context.Context, group uuid.UUID) (Export, error)
	// Entries gives a piece of the entries first to last, at least one where it has one.
	Entries(ctx context.Context, group uuid.UUID, first, last uint64, bytesMax int) (Entries, error)
	// Blob opens a blob by the reference that an entry holds.
	Blob(ctx context.Context, group uuid.UUID, ref []byte) (file File, size int64, err error)
}

// Entries is what a peer has of a range of a group's log.
type Entries struct {
	Entries []*raftpb.Entry
	Through uint64 // indexes up to here that are not in Entries hold nothing that counts
	Applied uint64 // of the peer
}

// Description says what a replica consists of.
type Description struct {
	Manifest    []byte
	Index, Term uint64 // applied
	Bytes       int64  // of all files
}

// File is open for reading.
type File interface {
	io.ReaderAt
	io.Closer
}

// Export is what a Source pinned.
type Export interface {
	Describe() Description
	// Open reads a file from an offset on, to its end.
	Open(name string, offset int64) (io.ReadCloser, error)
	Close() error
}

// FileRange is a file of so many bytes, from an offset to its end.
type FileRange struct {
	Name   string
	Offset int64
	Bytes  int64
}

// Sink takes the files of a replica in.
type Sink interface {
	Describe(d Description) error
	// Wanted says which files are wanted now. It is asked again when they have come; none: it has all.
	Wanted() ([]FileRange, error)
	// Create opens a wanted file for writing from its offset on. Commit is called when all of it has come, perhaps
	// while the next file comes; Close always, without Commit what has come is kept for a later attempt.
	Create(r FileRange) (SinkFile, error)
}

// SinkFile is a file that is being received.
type SinkFile interface {
	io.WriteCloser
	Commit() error
}
