package replica

import (
	"errors"

	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"

	"sheaf.dev/sheaf/internal/group"
)

// storage is the log as Raft reads it.
type storage struct{ store }

// Entries gives what is damaged as compacted: Raft panics over any other error. A leader then offers the follower a snapshot,
// which is taken from whoever has one, and hands over, because damage bars it from leading. What is not applied yet is in memory.
func (s storage) Entries(lo, hi, maxBytes uint64) ([]*raftpb.Entry, error) {
	entries, err := s.store.Entries(lo, hi, maxBytes)
	var damage *group.DamageError
	if errors.As(err, &damage) {
		return nil, raft.ErrCompacted
	}
	return entries, err
}
