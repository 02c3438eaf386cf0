package group

import (
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"sheaf.dev/sheaf/internal/base/rules"
	"sheaf.dev/sheaf/internal/storage/group/format"
	"sheaf.dev/sheaf/internal/storage/group/segio"
	"sheaf.dev/sheaf/internal/storage/journal"
	"sheaf.dev/sheaf/internal/storage/vfs"
)

// These are the errors of a Log. Callers test for them with errors.Is, and for damage with errors.As and a
// *DamageError.
var (
	ErrNotFound        = errors.New("no such record")
	ErrVersionNotFound = errors.New("no such version: never written, or dropped by retention")
	ErrPoisoned        = errors.New("a sync failed and the log could not be continued in a new segment")
	ErrCursorExpired   = errors.New("the snapshot of this scan is gone")
	ErrMemory          = errors.New("memory budget exceeded")
	ErrNotApplied      = errors.New("the index is above the last applied entry")
	ErrHistoryGone     = errors.New("the history of this index is gone")
	ErrPastTooFar      = errors.New("too many records have changed since")
)

// Residency says which parts of a group are kept in memory.
type Residency int

// These are the values of Residency.
const (
	Index    Residency = iota // the ids and locations of records; their data is read from the files
	Resident                  // in addition, the whole content of each segment
)

// String returns the residency in one word.
func (r Residency) String() string {
	if r == Resident {
		return "Resident"
	}
	return "Index"
}

// Retention says which superseded versions compaction keeps. It keeps a version if at least one of the two rules
// applies.
type Retention struct {
	Versions int           // number of newest versions of each record to keep, at least 1
	MinAge   time.Duration // how long a version is kept after it was superseded
}

// Budget limits the total memory of all groups on a shard. Implementations must be safe for concurrent use.
type Budget interface {
	// Take requests n more bytes, or returns memory if n < 0. It returns ErrMemory if the limit would be exceeded.
	Take(n int64) error
}

// Options are the options of a Log. FS, Dir and Identity are required.
type Options struct {
	FS           vfs.FS
	Dir          string // folder of the group
	Identity     format.Identity
	Residency    Residency
	SegmentBytes int64 // size at which a segment is sealed; 0 means 256 MiB; tests use less
	Retention    Retention
	Budget       Budget // no limit if nil
	// Spare returns how many free bytes the volume has above its reserve. The log does not allocate space from the
	// reserve in advance. If Spare is nil, allocation in advance is not limited.
	Spare   func() int64
	Loader  *segio.Loader    // shared by all logs on the volume; if nil, the log creates a small loader
	Journal *journal.Journal // the volume's journal, which SyncShared uses; nil if there is none
	// Durable syncs the files of all groups on the volume. After that, everything that they contained when this process
	// started is durable. Every Load calls Durable, possibly concurrently. This process must not write to the group's
	// files between the beginning of Durable and the Load. If Durable is nil or fails, Load syncs the group's file
	// instead.
	Durable func() error
	// Plan is a result of PlanLoad. It saves Load from reading the same files again. Nothing may change the folder
	// between PlanLoad and Load. Plan may be nil.
	Plan   *Plan
	Sealed func()           // called when the newest segment was sealed because it was full; must not block; may be nil
	Now    func() time.Time // time.Now if nil
	Logger *slog.Logger     // messages are discarded if nil
	Off    rules.Off        // safety rules that a test has switched off
}

// Progress is a load's progress. It is updated while the load runs, and is safe for concurrent use.
type Progress struct {
	BytesTotal atomic.Int64
	BytesDone  atomic.Int64
}

// Need describes the resources that loading a group requires. It is computed from manifest, headers and hints, without
// reading data.
type Need struct {
	LoadBytes   int64 // number of bytes that the load reads in the requested residency
	MemoryBytes int64 // bytes of memory that index and images take after the load
	Records     int64 // upper bound on the number of records
}

// Outcome is the result of a load.
type Outcome int

// These are the values of Outcome.
const (
	Loaded    Outcome = iota + 1 // every byte is intact
	Truncated                    // a torn tail above the synced mark was truncated
	Damaged                      // there are bad bytes below the synced mark
)

// Report is the result of loading a group.
type Report struct {
	Outcome       Outcome
	Damages       []format.Damage
	TornTailBytes int64 // size of the torn tail that was removed
	// HintedBytes is the number of bytes of the active segment that were not read because its hint covers them.
	HintedBytes int64
}

// Record is one version of a record, as it was read.
type Record struct {
	ID         int64
	Index      uint64 // index of the entry, which identifies the version
	CommitTime int64
	Timestamp  int64
	Attributes []byte // result of format.EncodeAttributes
	Size       int64  // number of bytes of the data
	Data       []byte // nil for a blob, or if the data was not requested
	Deleted    bool
	Blob       *format.BlobRef // nil unless the data is in a blob file
	Location   Location        // for messages
}

// GetOptions are the options of Get.
type GetOptions struct {
	Index        uint64 // the version to read; 0 means the newest one
	MetadataOnly bool
	Buffer       []byte // if the buffer is large enough, data and attributes are copied into it
}

// ScanID identifies an open snapshot of a group. It is unique across restarts.
type ScanID [16]byte

// OpenScan describes an open snapshot, for the code that decides which snapshots to close early.
type OpenScan struct {
	ID     ScanID
	Opened time.Time
	Used   time.Time // time of the last use; the current time while a caller has entered the snapshot
	Read   bool      // a caller has entered the snapshot
	Keeps  bool      // whether the snapshot sees versions that were superseded after it was taken
}

// ScanInfo describes an open snapshot.
type ScanInfo struct {
	Index   uint64 // applied index of the snapshot
	Bytes   int64  // estimated size of the records in bytes
	Records int64  // estimated number of records
}

// CompactOptions are the options of Compact.
type CompactOptions struct {
	All                bool  // if true, segments from which little can be dropped are also rewritten
	RateBytesPerSecond int64 // no limit if 0
	// Through is an index. Segments with entries above it are not rewritten, so that members that do not have these
	// entries yet can receive them one by one. 0 means that all applied entries may be compacted.
	Through uint64
	// SpaceLow means that free space is low. Compact then merges only small segments, seals the newest segment if much
	// of it is superseded, and rewrites each segment from which at least a sixteenth can be dropped.
	SpaceLow bool
	// IgnoreHold means that the hold is ignored, and that the history floor may rise above it. Tombstones above the
	// hold are still kept, unless SpaceLow is also set.
	IgnoreHold bool
	// SealBytes is a number of superseded bytes. If the newest segment has at least this many, and they are at least half
	// of the segment, Compact seals the segment so that it can be rewritten. 0 means that the segment remains active
	// until it is full.
	SealBytes int64
	// LookOnly means that nothing is rewritten. Compact then only updates the values in Stats about data that can be
	// dropped and data that must be kept.
	LookOnly bool
}

// CompactReport is the result of Compact.
type CompactReport struct {
	SegmentsRewritten int
	EntriesDropped    int64
	BytesBefore       int64
	BytesAfter        int64
}

// Stats are a Log's statistics. They are cheap to get.
type Stats struct {
	Records         int64
	StoredBytes     int64
	SupersededBytes int64
	Segments        int
	Mergeable       int // number of small neighbouring or empty segments that Compact would merge into fewer segments
	MemoryBytes     int64
	// HeldBytes is an estimate of the superseded bytes, including blobs, that only the hold keeps (SetHold). It is 0
	// before the first Compact.
	HeldBytes  int64
	Damages    []format.Damage
	Reclaim    Reclaim
	Scans      int // number of open snapshots
	ScansRead  int // number of snapshots that a caller has entered
	ScanPlaces int // number of locations of superseded versions that the snapshots hold in memory
}

// Location says where a record is stored, for use in messages. The text is built only when String is called, so that
// reads do not spend time on it.
type Location struct {
	Segment uint64 // number of the segment's file
	Offset  int64  // offset of the frame in bytes
}

// String returns a string like "segment 3 offset 4096".
func (l Location) String() string { return fmt.Sprintf("segment %d offset %d", l.Segment, l.Offset) }
