package group

import (
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"sheaf.dev/sheaf/internal/storage/group/format"
	"sheaf.dev/sheaf/internal/storage/group/segio"
	"sheaf.dev/sheaf/internal/storage/journal"
	"sheaf.dev/sheaf/internal/storage/vfs"
)

// Errors of a Log. Test with errors.Is; damage with errors.As on *DamageError.
var (
	ErrNotFound        = errors.New("no such record")
	ErrVersionNotFound = errors.New("no such version: never written, or dropped by retention")
	ErrPoisoned        = errors.New("a sync failed and the log could not be continued in a new segment")
	ErrCursorExpired   = errors.New("the snapshot of this scan is gone")
	ErrMemory          = errors.New("memory budget exceeded")
)

// Residency says what is kept in memory.
type Residency int

// The residencies.
const (
	Index    Residency = iota // ids and places; data through the page cache
	Resident                  // the image of every segment
)

// String is the residency in one word.
func (r Residency) String() string {
	if r == Resident {
		return "Resident"
	}
	return "Index"
}

// Retention says which superseded versions compaction keeps: a version is kept if either rule keeps it.
type Retention struct {
	Versions int           // number of newest versions kept, at least 1
	MinAge   time.Duration // superseded versions younger than this are kept
}

// Budget gates memory; shared by all groups of a shard. Implementations are safe for concurrent use.
type Budget interface {
	// Take asks for n more bytes (gives back where n < 0); ErrMemory where the limit would be passed.
	Take(n int64) error
}

// Options of a Log. FS, Dir and Identity are required.
type Options struct {
	FS           vfs.FS
	Dir          string // the group's folder
	Identity     format.Identity
	Residency    Residency
	SegmentBytes int64 // size at which a segment is sealed; 0: 256 MiB; tests use less
	Retention    Retention
	Budget       Budget           // nil: no limit
	Spare        func() int64     // bytes that the volume has above its reserve, which is not allocated ahead; nil: enough
	Loader       *segio.Loader    // shared reader of the volume; nil: a small one of its own
	Journal      *journal.Journal // of the volume, for SyncShared; nil: none
	// Durable makes durable, for all groups of the volume at once, what their files held when this process began; Load
	// waits for it in place of a sync of its own file, which it does where Durable fails. Nothing of this process may
	// have been written to the group's files after Durable has begun. Called by each Load, at the same time. nil: each
	// Load syncs its own file.
	Durable func() error
	Sealed  func()           // called when the newest segment was sealed because it was full; must not wait; nil: nothing
	Now     func() time.Time // nil: time.Now
	Logger  *slog.Logger     // nil: discards
	// UnsafeScan is for simulations, which prove that they would notice: a scan gives what damage may have superseded.
	UnsafeScan bool
}

// Progress of loading, filled in while it runs. Safe for concurrent use.
type Progress struct {
	BytesTotal atomic.Int64
	BytesDone  atomic.Int64
}

// Need is what loading a group will take, computed from manifest, headers and hints without reading data.
type Need struct {
	StoredBytes int64 // of segments, hints and blobs
	LoadBytes   int64 // that loading will read in the residency asked for
	MemoryBytes int64 // index and images when loaded
	Records     int64 // upper bound
}

// Outcome is what loading found.
type Outcome int

// The outcomes.
const (
	Loaded    Outcome = iota + 1 // every byte as written
	Truncated                    // a torn tail above the synced mark was cut
	Damaged                      // bad bytes below the synced mark
)

// Report is the result of loading.
type Report struct {
	Outcome  Outcome
	Damages  []format.Damage
	CutBytes int64 // torn tail removed
	// HintedBytes of the active segment were not read, as its hint tells them.
	HintedBytes int64
}

// Record is one version of a record as read.
type Record struct {
	ID         int64
	Index      uint64 // the version
	CommitTime int64
	Timestamp  int64
	Attributes []byte // encoded
	Size       int64  // of the data, bytes
	Data       []byte // nil for a blob and where it was not asked for
	Deleted    bool
	Blob       *format.BlobRef // nil unless the data is in a blob file
	Location   Location        // for messages
}

// GetOptions of Get.
type GetOptions struct {
	Index        uint64 // this version; 0: the newest
	MetadataOnly bool
	Buffer       []byte // data and attributes are copied into it where it has room
}

// ScanID names an open snapshot of a group, unique also over restarts.
type ScanID [16]byte

// OpenScan is an open snapshot, as who decides which to give up needs it.
type OpenScan struct {
	ID     ScanID
	Opened time.Time
	Used   time.Time // last; now, where it is read
	Read   bool      // somebody has entered it
	Keeps  bool      // it sees what was superseded since
}

// ScanInfo describes an open snapshot.
type ScanInfo struct {
	Index   uint64 // applied index of the snapshot
	Bytes   int64  // estimate
	Records int64  // estimate
}

// CompactOptions of Compact.
type CompactOptions struct {
	All                bool  // also segments with little to drop
	RateBytesPerSecond int64 // 0: no limit
	// Through: segments with entries above it stay as they are, so that members that have not got them yet can be given
	// them one by one. 0: all that is applied.
	Through uint64
	// Room: room is short. Only little is merged; the newest segment is sealed where much of it is superseded; every
	// segment is rewritten of which a 16th can go.
	Room bool
	// SealBytes: the newest segment is sealed, so that it can be rewritten, where at least so many bytes of it, and
	// half of it, are superseded. 0: it is left until it is full.
	SealBytes int64
	// LookOnly: nothing is rewritten, but Stats knows then exactly what may go and what must stay.
	LookOnly bool
	// Unsafe is for simulations, which prove that they would notice: request ids keep nothing.
	Unsafe bool
}

// CompactReport of Compact.
type CompactReport struct {
	SegmentsRewritten int
	EntriesDropped    int64
	BytesBefore       int64
	BytesAfter        int64
}

// Stats of a Log; cheap.
type Stats struct {
	Records         int64
	StoredBytes     int64
	SupersededBytes int64
	Segments        int
	Mergeable       int // of these: small neighbours to be merged, and empty ones, that Compact would replace by fewer
	MemoryBytes     int64
	Damages         []format.Damage
	Reclaim         Reclaim
	Scans           int // open snapshots
	ScansRead       int // of these: somebody has entered them
}

// Location is where a record stands, for messages. It is text only where it is asked for: reading builds no strings.
type Location struct {
	Segment uint64 // number of the segment file
	Offset  int64  // bytes
}

// String is "segment 3 offset 4096".
func (l Location) String() string { return fmt.Sprintf("segment %d offset %d", l.Segment, l.Offset) }
