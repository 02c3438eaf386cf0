package archiver

import (
	"context"
	"io"
	"iter"
	"time"

	"github.com/google/uuid"

	"sheaf.dev/sheaf/internal/storage/group/format"
)

// Source is the store whose archive is kept. Its methods are safe for concurrent use. The archiver runs one Round at a
// time, and at most one Copy beside it.
type Source interface {
	// Round yields the news of the groups of the store. positions has each group that is archived, with the index up
	// to which it IS archived durably: the news of a group begin above its position, and the shards keep history above
	// it (the hold). The map is the callee's.
	//
	// The news of a group come as one News or several. All but the last one of a group have More. Those of one group
	// come in the order of the log, and those of other groups may come between them. A group may be missing. A group
	// that changed its leader during the round may come twice from its position on.
	//
	// An error says why a group (News.Group), or a part of the store (if News.Group is zero), is missing from this
	// round. The iteration may continue after it. The next element is asked for only when the archiver has room.
	Round(ctx context.Context, positions map[uuid.UUID]uint64) iter.Seq2[News, error]
	// Copy returns the files of a group as of its applied index, for the first copy of the group. It returns an error
	// that wraps fs.ErrNotExist if the group does not exist any more.
	Copy(ctx context.Context, group uuid.UUID) (GroupCopy, error)
	// Blob returns the file of a blob from its first byte, header and checksums included. It returns an error that
	// wraps fs.ErrNotExist if no replica of the group has the blob any more.
	Blob(ctx context.Context, group uuid.UUID, ref format.BlobRef) (io.ReadCloser, error)
}

// News is what happened in one group, or a part of it.
type News struct {
	Group uuid.UUID
	Name  string
	// Entries are applied entries in the order of their indexes, of at most 1 MiB in total, or one entry. They are the
	// archiver's until it asks for the next element.
	Entries []format.Entry
	// Through is the index up to which this part of the news is complete: an entry that is at or below it, but neither
	// in Entries nor in earlier parts nor at or below the position, does not count any more.
	Through uint64
	// Floor is the history floor of the replica that answered. It may be above Through.
	Floor      uint64
	FloorKnown bool // false: versions that entries up to Through superseded may be missing
	// ReadAt is the time before the read barrier of this answer: each write that was acknowledged before ReadAt is at
	// or below the Through of the last part.
	ReadAt time.Time
	More   bool // further parts of this group's news follow

	Unknown bool // true: the archiver gave no position for this group, and must copy it first; Entries is empty
	Gone    bool // true: the archiver gave a position, but the group was deleted; Entries is empty
}

// GroupCopy is the files of one replica as of an index.
type GroupCopy interface {
	// Description says what the files are.
	Description() CopyDescription
	// Open reads a file from an offset to its end: a segment of the manifest (format.SegmentName), or a blob that an
	// entry of them refers to (format.BlobName).
	Open(ctx context.Context, name string, offset int64) (io.ReadCloser, error)
	// Close lets the replica remove the files.
	Close() error
}

// CopyDescription describes a GroupCopy.
type CopyDescription struct {
	Manifest   []byte // as format.DecodeManifest reads it; all segments are sealed
	Index      uint64 // the applied index that the files stand for
	Floor      uint64 // the history floor of the replica
	FloorKnown bool   // false: history below Index may be incomplete
}
