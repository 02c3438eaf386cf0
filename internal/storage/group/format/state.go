package format

import (
	"encoding/binary"
	"fmt"
)

// StateRecordBytes is the length of an encoded StateRecord.
const StateRecordBytes = 40

// StateRecord is the data in a KindState frame. A state record is written with each batch that changes one of its
// fields. The last whole record in a log is the current one.
type StateRecord struct {
	Term         uint64
	Vote         uint64
	Commit       uint64
	SyncedOffset int64 // offset in this segment before which everything was synced when the record was written
	SyncedIndex  uint64
}

// Encode returns the data of a KindState frame.
func (s StateRecord) Encode() []byte {
	b := make([]byte, StateRecordBytes)
	le := binary.LittleEndian
	le.PutUint64(b, s.Term)
	le.PutUint64(b[8:], s.Vote)
	le.PutUint64(b[16:], s.Commit)
	le.PutUint64(b[24:], uint64(s.SyncedOffset))
	le.PutUint64(b[32:], s.SyncedIndex)
	return b
}

// NumberMax is the largest index, term or sequence that a file may hold. No log reaches it. Counting up from a larger
// number could overflow. Therefore a larger number is treated as damage even if its checksum is right.
const NumberMax = 1 << 62

// DecodeStateRecord is the inverse of Encode.
func DecodeStateRecord(b []byte) (StateRecord, error) {
	if len(b) != StateRecordBytes {
		return StateRecord{}, fmt.Errorf("state record: %w: %d bytes, not %d", ErrCorrupt, len(b), StateRecordBytes)
	}
	le := binary.LittleEndian
	s := StateRecord{
		Term: le.Uint64(b), Vote: le.Uint64(b[8:]), Commit: le.Uint64(b[16:]),
		SyncedOffset: int64(le.Uint64(b[24:])), SyncedIndex: le.Uint64(b[32:]),
	}
	if s.SyncedOffset < 0 {
		return StateRecord{}, fmt.Errorf("state record: %w: synced offset is negative", ErrCorrupt)
	}
	if n := max(s.Term, s.Commit, s.SyncedIndex); n > NumberMax {
		return StateRecord{}, fmt.Errorf("state record: %w: term or index %d", ErrCorrupt, n)
	}
	return s, nil
}

// MergeHardState combines term, vote and commit with those of another record, which may be older or newer. The result
// has the greater commit, and the greater term with its vote. If the terms are equal, it has the vote of the record
// that has one. Synced offset and index come from other, because they refer to that record's segment.
func (s *StateRecord) MergeHardState(other StateRecord) {
	switch {
	case other.Term > s.Term:
		s.Term, s.Vote = other.Term, other.Vote
	case other.Term == s.Term && other.Vote != 0:
		s.Vote = other.Vote
	}
	s.Commit = max(s.Commit, other.Commit)
	s.SyncedOffset, s.SyncedIndex = other.SyncedOffset, other.SyncedIndex
}
