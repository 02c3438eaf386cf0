package format

import (
	"slices"

	"go.etcd.io/raft/v3/raftpb"
)

// EndedID is a Raft id that no replica has, because ids of replicas are odd (NewRaftID). A membership with this learner
// means that the group has ended: no leader accepts a write (ADR 53). Such a membership is committed like any other. It
// is stored wherever memberships are stored: in each copy's manifest, and in the files that a new copy receives.
const EndedID uint64 = 0x73686561_665f656e

// IsEnded reports whether a membership means that its group has ended.
func IsEnded(conf *raftpb.ConfState) bool {
	return slices.Contains(conf.GetLearners(), EndedID) || slices.Contains(conf.GetLearnersNext(), EndedID)
}

// LearnersOf returns the replicas without a vote in a membership, including those that lose it with this change.
func LearnersOf(conf *raftpb.ConfState) []uint64 {
	return slices.DeleteFunc(slices.Concat(conf.GetLearners(), conf.GetLearnersNext()), func(id uint64) bool {
		return id == EndedID
	})
}
