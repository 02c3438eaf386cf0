// Package writes holds one group's writes in progress. It keeps their order in the log, the writes on which each one
// depends, the callers that wait for them, and the request ids that were answered. It does not depend on Raft. The
// replica that owns a Queue orders all calls with one mutex. It takes the queued writes, and reports the index of each
// write and which writes are committed or lost.
package writes

import (
	"errors"
	"fmt"
	"time"

	"sheaf.dev/sheaf/internal/storage/group/format"
)

// These are the errors of writes. After an error marked "refused", the write is not applied.
var (
	ErrNoLeader       = errors.New("the group has no leader now")                // refused
	ErrOverloaded     = errors.New("too many writes in flight")                  // refused
	ErrInvalid        = errors.New("the write is not valid")                     // refused
	ErrReused         = errors.New("the request id is that of another write")    // refused: record, data or kind differs
	ErrOutcomeUnknown = errors.New("the write may or may not have been applied") // retry with the same request id
	ErrExists         = errors.New("the record exists")                          // always inside a *ConditionError
	ErrMismatch       = errors.New("the record's version is another")            // always inside a *ConditionError
)

// ErrDiskHangs ends a wait if the leadership is lost while the disk hangs. Waiting longer would be pointless, because
// the round that would answer the write does not finish.
var ErrDiskHangs = errors.New("the leadership was lost, and the disk of this replica does not answer")

// ConditionError is the error of a write that was refused because of its condition. Err is ErrExists or ErrMismatch.
// Current is the newest version's index, or 0 if there is no record. The error is returned only after that version is
// committed.
type ConditionError struct {
	Err     error
	Current uint64
}

func (e *ConditionError) Error() string { return fmt.Sprintf("%v (current %d)", e.Err, e.Current) }
func (e *ConditionError) Unwrap() error { return e.Err }

// Condition makes a write depend on the record's newest version.
type Condition struct {
	IfAbsent  bool
	IfVersion uint64 // 0 if there is no such condition
}

// Write is a put or a delete.
type Write struct {
	Delete     bool
	ID         int64
	Attributes []byte          // encoded by format.EncodeAttributes
	Data       []byte          // at most format.DataBytesMax; not changed by the caller after Propose
	Blob       *format.BlobRef // instead of Data
	Timestamp  int64           // Unix ns; if 0 and HasTime is false, the commit time is used
	HasTime    bool
	RequestID  [16]byte // zero if there is none
	Condition  Condition
	Timed      bool // whether the caller wants Result.Sync
}

// Result is the result of a committed write.
type Result struct {
	Index      uint64 // 0 if there was nothing to delete
	CommitTime int64  // Unix ns
	Repeated   bool   // the request id was known, so nothing was written again
	Existed    bool   // for a delete, whether the record existed
	// Sync says when the leader synced the write. It is nil if these times were not requested or are unknown.
	Sync *SyncTimes
}

// Check returns an error for a write that no group could accept.
func Check(w *Write) error {
	switch {
	case len(w.Data) > format.DataBytesMax:
		return fmt.Errorf("%w: data of %d bytes, at most %d go without a blob", ErrInvalid, len(w.Data), format.DataBytesMax)
	case len(w.Attributes) > format.AttributesBytesMax:
		return fmt.Errorf("%w: attributes of %d bytes, at most %d", ErrInvalid, len(w.Attributes), format.AttributesBytesMax)
	case w.Blob != nil && len(w.Data) > 0:
		return fmt.Errorf("%w: data beside a blob", ErrInvalid)
	case w.Delete && (w.Blob != nil || len(w.Data) > 0 || len(w.Attributes) > 0):
		return fmt.Errorf("%w: a delete with data or attributes", ErrInvalid)
	}
	return nil
}

// requestOf returns the fields that distinguish a write from other writes with the same request id. It returns the zero
// value if the write has no request id.
func requestOf(w *Write) format.Request {
	if w.RequestID == [16]byte{} {
		return format.Request{}
	}
	e := entryOf(w)
	return format.RequestOf(&e)
}

// reused returns the error for a write whose request id belongs to another write.
func reused(first *format.Request) error {
	what := "put"
	if first.Delete {
		what = "delete"
	}
	return fmt.Errorf("%w: a %s of record %d with CRC32C %08x", ErrReused, what, first.ID, first.CRC32C)
}

// payload encodes the entry of an accepted write.
func payload(w *Write, commitTime int64) []byte {
	e := entryOf(w)
	if e.CommitTime = commitTime; !w.HasTime {
		e.Timestamp = commitTime
	}
	return format.EncodePayload(&e)
}

// entryOf returns the entry for a write, without its commit time.
func entryOf(w *Write) format.Entry {
	e := format.Entry{
		Kind: format.KindPut, ID: w.ID, Timestamp: w.Timestamp, RequestID: w.RequestID, Attributes: w.Attributes,
		Data: w.Data,
	}
	if w.Delete {
		e.Kind = format.KindDelete
	}
	if w.Blob != nil {
		e.Codec, e.Data = format.CodecBlob, w.Blob.Encode()
	}
	return e
}

// frameBytes returns the size of a write in the log.
func frameBytes(w *Write) int64 {
	dataBytes := len(w.Data)
	if w.Blob != nil {
		dataBytes = format.BlobRefBytes
	}
	return format.FrameBytes(len(w.Attributes), dataBytes)
}

// SyncTimes holds the start and the end of the sync with which this replica made a write durable. In a group with
// several copies, a write needs the syncs of a majority, but SyncTimes covers only the leader's own sync.
type SyncTimes struct {
	Began, Ended time.Time
	first, last  uint64 // indexes of the entries that the sync made durable
}

// syncsKept is how many syncs a SyncLog keeps. More than one is needed because with several copies a write is committed
// some rounds after its own sync.
const syncsKept = 16

// SyncLog holds the times of one replica's last syncs. It is not safe for concurrent use.
type SyncLog struct {
	syncs [syncsKept]SyncTimes
	next  int
}

// Note records a sync that has just ended, and the indexes of the entries that it made durable.
func (l *SyncLog) Note(began time.Time, first, last uint64) {
	l.syncs[l.next] = SyncTimes{Began: began, Ended: time.Now(), first: first, last: last}
	l.next = (l.next + 1) % syncsKept
}

// Of returns the sync that made an entry durable. It returns nil if the sync was too long ago, or if none was noted for
// the entry.
func (l *SyncLog) Of(index uint64) *SyncTimes {
	for i := range l.syncs {
		if s := l.syncs[i]; s.first <= index && index <= s.last {
			return &s
		}
	}
	return nil
}
