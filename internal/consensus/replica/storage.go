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
	commit uint64 // entries up to here are committed, whatever the log's own state says
}

// InitialState implements raft.Storage.
func (s storage) InitialState() (*raftpb.HardState, *raftpb.ConfState, error) {
	hard, conf, err := s.store.InitialState()
	if err == nil && s.commit > hard.GetCommit() {
		hard.Commit = &s.commit
	}
	return hard, conf, err
}

// committedByChanges finds what is surely committed of the entries that are not known to be: a leader proposes a
// membership change only when it has applied the one before, so that one, and all before it, are. 0: nothing.
//
// Raft relies on it that whoever has stored a change knows that the one before is committed: a message brings both. On
// the disk they are one write, of which a power cut may leave the entries, which nobody was told of, and not the commit
// index. A member that does not know it counts votes by a membership that is two changes old, of which a majority may
// know nothing of what is committed since.
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
			return before, nil // it bars the replica from leading until it is repaired
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

// changesBytesMax is read at a time.
const changesBytesMax = 4 << 20

// Entries gives what is damaged as compacted: Raft panics over any other error. A leader then offers the follower a
// snapshot, which is taken from whoever has one, and hands over, because damage bars it from leading. What is not
// applied yet is in memory.
func (s storage) Entries(lo, hi, maxBytes uint64) ([]*raftpb.Entry, error) {
	entries, err := s.store.Entries(lo, hi, maxBytes)
	if _, ok := errors.AsType[*format.DamageError](err); ok {
		return nil, raft.ErrCompacted
	}
	return entries, err
}
