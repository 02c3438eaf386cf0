package archiver

import (
	"context"
	"io"
	"iter"
	"time"

	"github.com/google/uuid"

	"sheaf.dev/sheaf/internal/storage/group/format"
)

// Source is the store that is archived. Its methods are safe for concurrent use. An archiver runs one Round at a
// time, and at most one Copy at the same time.
type Source interface {
	// Round yields the new entries of the store's groups. The argument positions maps each archived group to the index
	// up to which it is already durably archived. A group's new entries begin after its position, and the shards must
	// keep the history after it (the hold). Round may keep and change the map.
	//
	// A group's new entries come in one News or in several, in log order. All of them except the last one have More set.
	// News of other groups may come in between. A round may leave out groups. If a group's leader changes during the
	// round, its new entries may come twice, each time from the group's position on.
	//
	// An error says why a group (News.Group) is missing from this round, or, if News.Group is zero, why a part of the
	// store is missing. The iteration may continue after an error. The archiver asks for the next element only when it
	// has room for it.
	Round(ctx context.Context, positions map[uuid.UUID]uint64) iter.Seq2[News, error]
	// Copy returns the files of a group as of its applied index, for the group's first copy. It returns an error that
	// wraps fs.ErrNotExist if the group no longer exists.
	Copy(ctx context.Context, group uuid.UUID) (GroupCopy, error)
	// Blob returns the whole file of a blob, including its header and checksums. It returns an error that wraps
	// fs.ErrNotExist if no replica of the group has the blob anymore.
	Blob(ctx context.Context, group uuid.UUID, ref format.BlobRef) (io.ReadCloser, error)
}

// News holds new entries of one group, or other facts about it.
type News struct {
	Group uuid.UUID
	Name  string
	// Entries are applied entries, ordered by index. They have at most 1 MiB in total, unless there is only one. They
	// belong to the archiver until it asks for the next element.
	Entries []format.Entry
	// Through is the index up to which the new entries are complete. An entry above the position and up to Through
	// that is neither in Entries nor in an earlier part no longer has any effect.
	Through uint64
	// Floor is the history floor of the replica that sent this part. It may be above Through.
	Floor      uint64
	FloorKnown bool // if false, versions that were superseded by entries up to Through may be missing
	// ReadAt is a time before the read barrier that precedes this response. The index of every write that was
	// acknowledged before ReadAt is at most Through of the last part.
	ReadAt time.Time
	More   bool // more parts follow for this group

	Unknown bool // the archiver gave no position for this group, and must copy it first; Entries is empty
	Gone    bool // the archiver gave a position, but the group has been deleted; Entries is empty
	// CopyAgain is true if deletes above the position may be missing, so that the archiver must compare its archive with a
	// new copy of the group. Entries is empty, and earlier parts are complete.
	CopyAgain bool
}

// GroupCopy provides the files of one replica, as of an index.
type GroupCopy interface {
	// Description describes the files.
	Description() CopyDescription
	// Open reads a file from an offset to its end. The file is either a segment of the manifest (format.SegmentName), or
	// a blob to which an entry in a segment refers (format.BlobName).
	Open(ctx context.Context, name string, offset int64) (io.ReadCloser, error)
	// Close allows the replica to delete the files.
	Close() error
}

// CopyDescription describes a GroupCopy.
type CopyDescription struct {
	Manifest   []byte // in the encoding that format.DecodeManifest reads; all segments are sealed
	Index      uint64 // the applied index of the replica to which the files correspond
	Floor      uint64 // history floor of the replica
	FloorKnown bool   // if false, the history up to Index may be incomplete
}
