package format

import (
	"encoding/binary"
	"time"
)

// Request is what a group remembers about a put or delete with a request id. It holds the result, and the fields by
// which a later write is recognized as a repetition.
type Request struct {
	RequestID  [16]byte
	ID         int64
	Index      uint64
	CommitTime int64 // Unix time in ns
	Delete     bool
	CRC32C     uint32 // checksum of the record's whole data, even if a blob holds the data; 0 for a delete
}

// RequestOf returns the Request for an applied put or delete. The argument is the write's entry, or the KindRequest
// entry with which compaction has replaced it.
func RequestOf(e *Entry) Request {
	r := Request{RequestID: e.RequestID, ID: e.ID, Index: e.Index, CommitTime: e.CommitTime, Delete: e.Kind == KindDelete}
	switch {
	case e.Kind == KindRequest:
		r.Delete = Kind(e.Data[0]) == KindDelete
		r.CRC32C = binary.LittleEndian.Uint32(e.Data[4:])
	case e.Codec != CodecBlob:
		r.CRC32C = Checksum(e.Data)
	default:
		if ref, err := DecodeBlobRef(e.Data); err == nil {
			r.CRC32C = ref.CRC32C
		}
	}
	return r
}

// The data of a KindRequest has this layout:
//
//	0      1      4     8
//	├ kind ┼ zero ┼ CRC ┤
//
// The kind is that of the write. The CRC is the checksum of the record's whole data, or 0 for a delete.
const requestDataBytes = 8

// RequestFrameBytes is the length of a KindRequest frame.
const RequestFrameBytes = FrameHeaderBytes + requestDataBytes

// RequestEntry returns the entry with which compaction replaces a put or delete with a request id. All copies of the
// group compute the same entry.
func RequestEntry(e *Entry) Entry {
	r := RequestOf(e)
	data := make([]byte, requestDataBytes)
	data[0] = byte(e.Kind)
	if !r.Delete {
		binary.LittleEndian.PutUint32(data[4:], r.CRC32C)
	}
	return Entry{Kind: KindRequest, ID: e.ID, Index: e.Index, Term: e.Term, CommitTime: e.CommitTime,
		RequestID: e.RequestID, Data: data}
}

// isRequestData reports whether b is valid data for an entry of KindRequest.
func isRequestData(b []byte) bool {
	return len(b) == requestDataBytes && IsZero(b[1:4]) && (Kind(b[0]) == KindPut || Kind(b[0]) == KindDelete &&
		IsZero(b[4:]))
}

// IsSame reports whether a write with the same request id is a repetition of this write.
func (r *Request) IsSame(other *Request) bool {
	return r.ID == other.ID && r.Delete == other.Delete && r.CRC32C == other.CRC32C
}

// RequestWindow says how long the request id of a write is remembered. The id may be forgotten once the write is older
// than Age. It may be forgotten earlier in two cases: if the write is older than AgeMin and at least Writes later
// writes have followed in the group, and if WritesMax later writes have followed. A write's age is counted from the
// time at which this process applied it or, for an older write, from the start of this process. It is measured with
// the monotonic clock, so changes to the machine's clock do not affect it.
type RequestWindow struct {
	Age       time.Duration
	Writes    int
	AgeMin    time.Duration
	WritesMax int
}

// DefaultRequestWindow is the window that api/sheaf/record/v1/record.proto promises. AgeMin is longer than the time
// during which gateways and clients retry a call.
var DefaultRequestWindow = RequestWindow{Age: 10 * time.Minute, Writes: 1 << 16, AgeMin: 2 * time.Minute,
	WritesMax: 1 << 20}
