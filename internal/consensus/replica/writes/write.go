// Package writes holds the writes of one group that are on their way: what each depends on, in which order they go into
// the log, who waits for them, and which request ids were answered. It knows nothing of Raft: its caller, which orders
// all calls by one mutex, takes what is queued, says which index each write got, and what is committed or lost.
package writes

import (
	"errors"
	"fmt"

	"sheaf.dev/sheaf/internal/storage/group/format"
)

// Errors of writes. Those marked "refused" are surely not applied.
var (
	ErrNoLeader       = errors.New("the group has no leader now")                // refused
	ErrOverloaded     = errors.New("too many writes in flight")                  // refused
	ErrInvalid        = errors.New("the write is not valid")                     // refused
	ErrReused         = errors.New("the request id is that of another write")    // refused: record, data or kind differ
	ErrOutcomeUnknown = errors.New("the write may or may not have been applied") // repeat it with its request id
	ErrExists         = errors.New("the record exists")                          // always inside a *ConditionError
	ErrMismatch       = errors.New("the record's version is another")            // always inside a *ConditionError
)

// ErrDiskHangs is why a wait ends when the lead is lost and no round ends that would answer.
var ErrDiskHangs = errors.New("the leadership was lost, and the disk of this replica does not answer")

// ConditionError is a refusal by a condition. Err is ErrExists or ErrMismatch; Current is the newest version's index,
// 0 where there is no record. It is given only once the version it names is committed.
type ConditionError struct {
	Err     error
	Current uint64
}

func (e *ConditionError) Error() string { return fmt.Sprintf("%v (current %d)", e.Err, e.Current) }
func (e *ConditionError) Unwrap() error { return e.Err }

// Condition makes a write depend on the newest version.
type Condition struct {
	IfAbsent  bool
	IfVersion uint64 // 0: no condition
}

// Write is a put or a delete.
type Write struct {
	Delete     bool
	ID         int64
	Attributes []byte          // encoded by format.EncodeAttributes
	Data       []byte          // at most format.DataBytesMax; not changed by the caller after Propose
	Blob       *format.BlobRef // instead of Data
	Timestamp  int64           // Unix ns; 0 with HasTime false: the commit time
	HasTime    bool
	RequestID  [16]byte // zero: none
	Condition  Condition
	Timed      bool // Result.Sync is wanted
}

// Result of a write that is committed.
type Result struct {
	Index      uint64 // 0 for a delete of nothing
	CommitTime int64  // Unix ns
	Repeated   bool   // the request id was known; nothing was written again
	Existed    bool   // delete: there was a record
	// Sync is when the write became durable here; nil: it was not asked for, or is not known.
	Sync *SyncTimes
}

// Check refuses a write that no group could take.
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

// requestOf gives what tells a write from another one with its request id; nothing, where it has none.
func requestOf(w *Write) format.Request {
	e := format.Entry{Kind: format.KindPut, ID: w.ID, RequestID: w.RequestID, Data: w.Data}
	switch {
	case w.RequestID == [16]byte{}:
		return format.Request{}
	case w.Delete:
		e.Kind = format.KindDelete
	case w.Blob != nil:
		e.Codec, e.Data = format.CodecBlob, w.Blob.Encode()
	}
	return format.RequestOf(&e)
}

// reused refuses a write whose request id is that of another one.
func reused(first *format.Request) error {
	what := "put"
	if first.Delete {
		what = "delete"
	}
	return fmt.Errorf("%w: a %s of record %d with CRC32C %08x", ErrReused, what, first.ID, first.CRC32C)
}

// payload encodes the entry of an accepted write.
func payload(w *Write, commitTime int64) []byte {
	entry := format.Entry{
		Kind: format.KindPut, ID: w.ID, CommitTime: commitTime, Timestamp: w.Timestamp, RequestID: w.RequestID,
		Attributes: w.Attributes, Data: w.Data,
	}
	if w.Delete {
		entry.Kind = format.KindDelete
	}
	if w.Blob != nil {
		entry.Codec, entry.Data = format.CodecBlob, w.Blob.Encode()
	}
	if !w.HasTime {
		entry.Timestamp = commitTime
	}
	return format.EncodePayload(&entry)
}

// frameBytes is what a write takes in the log.
func frameBytes(w *Write) int64 {
	dataBytes := len(w.Data)
	if w.Blob != nil {
		dataBytes = blobRefBytes
	}
	return format.FrameBytes(len(w.Attributes), dataBytes)
}

const blobRefBytes = 40
