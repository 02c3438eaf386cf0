package group

import (
	"context"
	"errors"

	"go.etcd.io/raft/v3/raftpb"
)

// Errors of RepairRange.
var (
	// ErrRepairLater: try again when more is applied here.
	ErrRepairLater = errors.New("the entries around the damage are not applied here yet")
	// ErrRepairByInstall: what the peer has compacted away may have deleted records that are still stored here: install an
	// export instead.
	ErrRepairByInstall = errors.New("the damage cannot be repaired by entries: install the group from a peer")
	// ErrTailDamaged is the error of Load where entries above the commit are bad, in a group with several voters: they may be
	// what made a quorum, and cannot be given to Raft. Install an export that reaches behind them, or join anew.
	ErrTailDamaged = errors.New("entries above the commit are damaged")
)

// IndexRange is the indexes from First to Last.
type IndexRange struct{ First, Last uint64 }

// Repair is what one damaged file needs.
type Repair struct {
	File   string
	Ranges []IndexRange // a segment: entries to be fetched by Log.ReadRange of a peer; none: no entry was hit
	Blob   *BlobRef     // a blob: to be fetched whole, by Log.BlobWriter
}

// Repairs reads the damaged files and says what each needs. Nil: there is no damage.
func (l *Log) Repairs(ctx context.Context) ([]Repair, error) { return nil, errors.ErrUnsupported }

// RangeAnswer is what a peer has of a range.
type RangeAnswer struct {
	Entries []*raftpb.Entry // those with an index in [First, Through] that it has
	Through uint64          // indexes up to here that are not in Entries hold nothing that counts
	Applied uint64          // of the peer, when it answered
}

// ReadRange is the peer's side of a repair: the committed entries of a range, at most maxBytes of data (one at least). Ask
// again behind Through. An answer that ends before the range, with no entry: the peer has not applied it. *DamageError where
// the peer's own bytes are bad.
func (l *Log) ReadRange(r IndexRange, maxBytes uint64) (RangeAnswer, error) {
	return RangeAnswer{}, errors.ErrUnsupported
}

// RepairRange replaces a damaged segment (r is of Repairs) by one without damage. entries are those of all its ranges that the
// peer has; peerApplied is the greatest RangeAnswer.Applied. They are checked against what is known: index, term, checksum,
// id. The damage is forgotten when the new segment is durable. Errors: ErrRepairLater, ErrRepairByInstall, ErrCorrupt (they are not the
// entries that were here), ErrNoSpace; then nothing has changed.
func (l *Log) RepairRange(ctx context.Context, r Repair, entries []*raftpb.Entry, peerApplied uint64) error {
	return errors.ErrUnsupported
}

// SetTombstoneLimit tells, in a group with several members, up to where every member has applied: a tombstone above it stays.
// Until it is told, all stay. A group with one member has no limit.
func (l *Log) SetTombstoneLimit(through uint64) { l.tombstoneLimit.Store(through) }
