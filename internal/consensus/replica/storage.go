package replica

import (
	"errors"

	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"

	"sheaf.dev/sheaf/internal/storage/group/format"
)

// storage is the log as Raft reads it.
type storage struct {
	store
	commit uint64 // entries up to this index are committed, even if the log's own state has a lower commit index
}

// InitialState implements raft.Storage.
func (s storage) InitialState() (*raftpb.HardState, *raftpb.ConfState, error) {
	hard, conf, err := s.store.InitialState()
	if err == nil && s.commit > hard.GetCommit() {
		hard.Commit = &s.commit
	}
	return hard, conf, err
}

// committedByChanges returns the index up to which entries are certainly committed although the log's own commit index
// is lower, or 0 if there are no such entries. A leader proposes a membership change only after it has applied the
// previous one, so the previous change and everything before it are committed.
//
// Raft relies on the fact that a member that has stored a change knows that the previous change is committed, because
// one message carries both the entry and the commit index. Both are written to the disk in one write. If a power cut
// interrupts that write, which was never acknowledged, the entries may be on the disk without the commit index. Such a
// member would count votes by a membership that is two changes old. A majority of that membership may know nothing
// about what was committed since then.
func committedByChanges(log store) (uint64, error) {
	first, err := log.FirstIndex()
	if err != nil {
		return 0, err
	}
	last, err := log.LastIndex()
	if err != nil {
		return 0, err
	}
	var before, newest uint64
	for next := max(first, log.AppliedIndex()+1); next <= last; {
		entries, err := log.Entries(next, last+1, changesBytesMax)
		if _, ok := errors.AsType[*format.DamageError](err); ok {
			return before, nil // the damage prevents the replica from leading until it is repaired
		}
		if err != nil {
			return 0, err
		}
		for _, e := range entries {
			if e.GetType() != raftpb.EntryNormal {
				before, newest = newest, e.GetIndex()
			}
		}
		next += uint64(len(entries))
	}
	return before, nil
}

// changesBytesMax is the maximum number of bytes of entries that committedByChanges reads at a time.
const changesBytesMax = 4 << 20

// Entries reports damaged entries as compacted, because Raft panics on any other error. A leader then offers the
// follower a snapshot, which the follower fetches from a member that has one. The leader also transfers the leadership,
// because damage prevents it from leading. Entries that are not applied yet are in memory.
func (s storage) Entries(lo, hi, maxBytes uint64) ([]*raftpb.Entry, error) {
	entries, err := s.store.Entries(lo, hi, maxBytes)
	if _, ok := errors.AsType[*format.DamageError](err); ok {
		return nil, raft.ErrCompacted
	}
	return entries, err
}
