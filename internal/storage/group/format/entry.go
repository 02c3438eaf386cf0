package format

import (
	"sort"

	"github.com/google/uuid"
)

// Kind is the type of an entry.
type Kind uint8

// These are the kinds of entries. The numbers are part of the format.
const (
	KindPut    Kind = 1 // makes a version of a record
	KindDelete Kind = 2 // makes a delete version
	KindEmpty  Kind = 3 // an internal entry of Raft without content: the first entry of a new leader
	KindConf   Kind = 4 // an internal entry: membership change; Data is the raftpb message (ConfChangeV2)
	KindState  Kind = 5 // not part of the Raft log, and without an index: term, vote, commit and synced mark
	// KindRequest is the entry that compaction keeps in place of a put or delete while a repeated write may still use
	// the request id of that put or delete. It has the id, index, term, commit time and request id of the write, and
	// its data holds the other fields that RequestOf needs. It is not a version of the record. It is never above the
	// compaction floor of a log, so Raft never sees it.
	KindRequest Kind = 6
)

// Codec says how the data of an entry is stored.
type Codec uint8

// These are the codecs. The numbers are part of the format.
const (
	CodecPlain Codec = 0 // the data itself
	CodecBlob  Codec = 1 // the data is a BlobRef; the bytes are in a blob file
)

// These are the limits on the size of an entry's parts, in bytes.
const (
	DataBytesMax       = 1 << 20  // inline data; larger data is in a blob file
	AttributesBytesMax = 64 << 10 // encoded attributes
	BlobChunkBytes     = 1 << 20  // each chunk of a blob has its own checksum
)

// SegmentID is the random identity of a segment. Each frame's CRC covers it, so that a stale or misdirected block
// never passes.
type SegmentID [8]byte

// Entry is one item of a group's log. Attributes and Data may alias a buffer or mapping, which the reader must not
// use after it has released its pin.
type Entry struct {
	Kind  Kind
	Codec Codec
	// Used says that the entry was the newest version when the frame was written. The entry CRC does not cover it.
	Used       bool
	ID         int64
	Index      uint64 // Raft index; the version of the record; 0 only for KindState
	Term       uint64
	CommitTime int64    // Unix ns; set by the leader; never decreases in a group
	Timestamp  int64    // Unix ns; set by the caller
	RequestID  [16]byte // zero if there is none
	Attributes []byte   // encoded by EncodeAttributes
	Data       []byte
}

// Identity names a group and its store. All files of a group carry it.
type Identity struct {
	Store uuid.UUID
	Group uuid.UUID
	Name  string // 1 to 253 bytes; in Hash routing the decimal number
}

// BlobRef refers to the blob that holds the data of an entry. In its encoding of 40 bytes it is the Data of an entry
// with CodecBlob.
type BlobRef struct {
	ID     uuid.UUID // names the file
	Size   int64     // bytes of the record's data
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

// AddTerm appends the term of an entry that directly follows the entries of the runs.
func AddTerm(runs []TermRun, at, term uint64) []TermRun {
	if n := len(runs); n > 0 && runs[n-1].Term >= term {
		return runs
	}
	return append(runs, TermRun{FirstIndex: at, Term: term})
}

// TermAt returns the term of the last entry at or below an index; 0 if there is none.
func TermAt(runs []TermRun, at uint64) uint64 {
	n := sort.Search(len(runs), func(i int) bool { return runs[i].FirstIndex > at })
	if n == 0 {
		return 0
	}
	return runs[n-1].Term
}
