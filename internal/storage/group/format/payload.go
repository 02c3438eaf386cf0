package format

import (
	"bytes"
	"encoding/binary"
	"fmt"

	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"
)

// PayloadHeaderBytes is the length of the header of a payload. A payload is the Data of a raftpb.Entry that is a put or
// delete. In a result of ReadRange it may also be a KindRequest. A payload has this layout:
//
//	0      1       2      4                  8    16            24          32            48
//	├ kind ┼ codec ┼ zero ┼ attributes length ┼ id ┼ commit time ┼ timestamp ┼ request id ┼ attributes ┼ data ┤
const PayloadHeaderBytes = 48

// EncodePayload returns the Data of a raftpb.Entry for a put, a delete or a KindRequest. Index and term are not part of
// the result. An empty payload stands for KindEmpty.
func EncodePayload(e *Entry) []byte {
	if e.Kind == KindEmpty {
		return nil
	}
	if e.Kind == KindConf {
		return e.Data
	}
	var b [PayloadHeaderBytes]byte
	le := binary.LittleEndian
	b[0], b[1] = byte(e.Kind), byte(e.Codec)
	le.PutUint32(b[4:], uint32(len(e.Attributes)))
	le.PutUint64(b[8:], uint64(e.ID))
	le.PutUint64(b[16:], uint64(e.CommitTime))
	le.PutUint64(b[24:], uint64(e.Timestamp))
	copy(b[32:], e.RequestID[:])
	// bytes.Join allocates memory once and does not clear it first, as make would do.
	return bytes.Join([][]byte{b[:], e.Attributes, e.Data}, nil)
}

// DecodePayload is the inverse of EncodePayload, and takes index and term from the raftpb.Entry. The result aliases
// Data. It converts a membership change from Raft's first format to the second one, which has the same effect. The
// returned entry passes Check, and its Used is false.
func DecodePayload(r *raftpb.Entry) (Entry, error) {
	e := Entry{Index: r.GetIndex(), Term: r.GetTerm()}
	switch r.GetType() {
	case raftpb.EntryConfChange, raftpb.EntryConfChangeV2:
		data, err := confData(r)
		if err != nil {
			return Entry{}, fmt.Errorf("payload of index %d: %w", r.GetIndex(), err)
		}
		e.Kind, e.Data = KindConf, data
	case raftpb.EntryNormal:
		if len(r.Data) == 0 {
			e.Kind = KindEmpty
		} else if err := e.decodePayload(r.Data); err != nil {
			return Entry{}, fmt.Errorf("payload of index %d: %w", r.GetIndex(), err)
		}
	default:
		return Entry{}, fmt.Errorf("payload of index %d: %w: entry type %d is unknown", r.GetIndex(), ErrCorrupt, r.GetType())
	}
	if err := e.Check(); err != nil {
		return Entry{}, fmt.Errorf("payload: %w: %w", ErrCorrupt, err)
	}
	return e, nil
}

func (e *Entry) decodePayload(b []byte) error {
	if len(b) < PayloadHeaderBytes {
		return fmt.Errorf("%w: %d bytes are too few", ErrCorrupt, len(b))
	}
	le := binary.LittleEndian
	attributesBytes := int64(le.Uint32(b[4:]))
	kind := Kind(b[0])
	switch {
	case !kind.IsVersion() && kind != KindRequest:
		return fmt.Errorf("%w: kind %d is neither put nor delete", ErrCorrupt, b[0])
	case b[2] != 0 || b[3] != 0:
		return fmt.Errorf("%w: reserved bytes are not zero", ErrCorrupt)
	case attributesBytes > int64(len(b)-PayloadHeaderBytes):
		return fmt.Errorf("%w: attributes are longer than the payload", ErrCorrupt)
	}
	e.Kind, e.Codec = kind, Codec(b[1])
	e.ID = int64(le.Uint64(b[8:]))
	e.CommitTime = int64(le.Uint64(b[16:]))
	e.Timestamp = int64(le.Uint64(b[24:]))
	copy(e.RequestID[:], b[32:])
	dataAt := PayloadHeaderBytes + int(attributesBytes)
	if attributesBytes > 0 {
		e.Attributes = b[PayloadHeaderBytes:dataAt:dataAt]
	}
	e.Data = b[dataAt:]
	if kind == KindRequest && !isRequestData(e.Data) {
		return fmt.Errorf("%w: a remembered request that says neither put nor delete", ErrCorrupt)
	}
	return nil
}

func confData(r *raftpb.Entry) ([]byte, error) {
	if r.GetType() == raftpb.EntryConfChangeV2 {
		return r.Data, nil
	}
	var change raftpb.ConfChange
	if err := proto.Unmarshal(r.Data, &change); err != nil {
		return nil, fmt.Errorf("%w: membership change: %w", ErrCorrupt, err)
	}
	data, err := proto.Marshal(change.AsV2())
	if err != nil {
		return nil, fmt.Errorf("membership change: %w", err)
	}
	return data, nil
}

// RaftEntry is the inverse of DecodePayload, and returns the raftpb.Entry for an entry. It returns nil for KindState,
// which is not part of the Raft log. The result aliases the data of a membership change. All other data is copied.
func RaftEntry(e *Entry) *raftpb.Entry {
	index, term, kind := e.Index, e.Term, raftpb.EntryNormal
	switch e.Kind {
	case KindState:
		return nil
	case KindConf:
		kind = raftpb.EntryConfChangeV2
	}
	return &raftpb.Entry{Index: &index, Term: &term, Type: &kind, Data: EncodePayload(e)}
}
