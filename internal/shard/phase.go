package shard

import (
	"sheaf.dev/sheaf/client/recordv1"
	"sheaf.dev/sheaf/internal/shard/member"
)

// state returns the progress of the replica, in the terms of the API. Called with Shard.mu held.
func (g *groupReplica) state() recordv1.GroupState {
	switch {
	case g.Phase.Broken():
		return recordv1.GroupState_GROUP_STATE_FAILED
	case g.Phase == member.Pending:
		return recordv1.GroupState_GROUP_STATE_PENDING
	case g.Phase == member.Serving:
		return recordv1.GroupState_GROUP_STATE_SERVING
	}
	return recordv1.GroupState_GROUP_STATE_LOADING
}

// joining reports whether the replica has a Raft id and nothing else yet. Called with Shard.mu held.
func (g *groupReplica) joining() bool { return g.Phase == member.Joining }
