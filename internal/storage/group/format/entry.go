package format

import (
	"sort"

	"github.com/google/uuid"
)

// Kind is the type of an entry.
type Kind uint8

// These are the kinds of entries. Their numbers are part of the format.
const (
	KindPut    Kind = 1 // a put, which creates a version of a record
	KindDelete Kind = 2 // a delete, which creates a version without data
	KindEmpty  Kind = 3 // an internal Raft entry without content, which a new leader appends first
	KindConf   Kind = 4 // an internal entry for a change of the membership; Data is a raftpb.ConfChangeV2
	KindState  Kind = 5 // term, vote, commit and synced mark; it is not part of the Raft log, and has no index
	// KindRequest is the kind of entry with which compaction replaces a put or delete, if a repeated write may still use
	// its request id. It has the id, index, term, commit time and request id of the write, and its data holds the other
	// fields that RequestOf needs. It is not a version of the record. It is never above the compaction floor of a log,
	// so Raft never sees it.
	KindRequest Kind = 6
)

// Codec says how an entry's data is stored.
type Codec uint8

// These are the codecs. Their numbers are part of the format.
const (
	CodecPlain Codec = 0 // the data itself
	CodecBlob  Codec = 1 // the data is a BlobRef, and the bytes are in a blob file
)

// These are the limits on the size of an entry's parts, in bytes.
const (
	DataBytesMax       = 1 << 20  // data that an entry itself can hold; larger data needs a blob file
	AttributesBytesMax = 64 << 10 // encoded attributes
	BlobChunkBytes     = 1 << 20  // data in one chunk of a blob; each chunk has its own checksum
)

// SegmentID is a segment's random identity. The CRC of each frame covers it, so that a block from another segment never
// passes the check.
type SegmentID [8]byte

// Entry is one item of a group's log. Attributes and Data may alias a buffer or a mapping. A reader that has pinned the
// mapping must not use them after it has released the pin.
type Entry struct {
	Kind  Kind
	Codec Codec
	// Used means that the entry was its record's newest version when the frame was written. The entry CRC does not
	// cover it.
	Used       bool
	ID         int64
	Index      uint64 // Raft index, which is the record's version; 0 only for KindState
	Term       uint64
	CommitTime int64    // Unix time in ns, set by the leader; never decreases within a group
	Timestamp  int64    // Unix time in ns, set by the caller
	RequestID  [16]byte // zero if the caller gave none
	Attributes []byte   // result of EncodeAttributes
	Data       []byte
}

// Identity names a group and its store. All files of a group carry it.
type Identity struct {
	Store uuid.UUID
	Group uuid.UUID
	Name  string // name of the group, 1 to 253 bytes; in Hash routing a decimal number
}

// BlobRef refers to the blob that holds an entry's data. Its 40-byte encoding is the Data of an entry with CodecBlob.
type BlobRef struct {
	ID     uuid.UUID // part of the blob's file name
	Size   int64     // number of bytes of the record's data
	CRC32C uint32    // checksum of the record's whole data
}

// TruncateTerms returns the term runs of the entries below an index.
func TruncateTerms(runs []TermRun, from uint64) []TermRun {
	n := len(runs)
	for n > 0 && runs[n-1].FirstIndex >= from {
		n--
	}
	return runs[:n]
}

// AddTerm adds the term of an entry to term runs. The argument at is the entry's index. The entry must directly follow
// the entries that the runs cover.
func AddTerm(runs []TermRun, at, term uint64) []TermRun {
	if n := len(runs); n > 0 && runs[n-1].Term >= term {
		return runs
	}
	return append(runs, TermRun{FirstIndex: at, Term: term})
}

// TermAt returns the term of the last entry at or below an index. It returns 0 if there is none.
func TermAt(runs []TermRun, at uint64) uint64 {
	n := sort.Search(len(runs), func(i int) bool { return runs[i].FirstIndex > at })
	if n == 0 {
		return 0
	}
	return runs[n-1].Term
}
