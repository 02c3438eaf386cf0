package group

import (
	"errors"

	"go.etcd.io/raft/v3/raftpb"
)

// MissingBlobs gives the blobs that entries refer to and that are not here, each once. A member fetches them before it
// appends the entries (BlobWriter). Cheap where no entry refers to one.
func (l *Log) MissingBlobs(entries []*raftpb.Entry) ([]BlobRef, error) {
	return nil, errors.ErrUnsupported
}

// BlobWriter receives the data of a blob that an entry of another member refers to. Commit checks size and checksum against
// the reference (ErrCorrupt), and makes it durable; damage of that blob is gone then. Close without Commit removes it.
func (l *Log) BlobWriter(ref BlobRef) (BlobWriter, error) { return nil, errors.ErrUnsupported }
