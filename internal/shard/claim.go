package shard

import (
	"context"
	"fmt"
	"slices"

	"go.etcd.io/raft/v3/raftpb"

	"sheaf.dev/sheaf/internal/placement"
	"sheaf.dev/sheaf/internal/shard/member"
)

// A member that is here may be one of which etcd does not know where it is, because it was rebuilt without this volume,
// or that it does not name at all, because somebody wrote an older membership. Nobody would find it; the leader changes
// nothing before it knows where all members are. So the shard says that it is here. Where it has been removed since,
// the leader says so with a later membership.

// knownIndex is that of the newest membership that the replica knows. Called with Shard.mu held.
func (g *groupReplica) knownIndex() uint64 {
	if sv := g.served.Load(); sv != nil {
		return max(g.confIndex, sv.log.ConfIndex())
	}
	return g.confIndex
}

// role is what the replica is in the newest membership that it knows; false: nothing. Called with Shard.mu held.
func (g *groupReplica) role() (placement.Role, bool) {
	if sv := g.served.Load(); sv != nil {
		return roleIn(sv.replica.Members().Conf, g.raftID)
	}
	return roleIn(g.conf, g.raftID)
}

// roleIn is what a replica is in a membership; false: nothing.
func roleIn(conf *raftpb.ConfState, raftID uint64) (placement.Role, bool) {
	switch {
	case slices.Contains(conf.GetVoters(), raftID), slices.Contains(conf.GetVotersOutgoing(), raftID):
		return placement.Voter, true
	case slices.Contains(learnersOf(conf), raftID):
		return placement.Learner, true
	}
	return "", false
}

// claimOne tells etcd that a member is here.
func (s *Shard) claimOne(ctx context.Context, state placement.Group) error {
	s.mu.Lock()
	g := s.groups[state.UUID]
	if g == nil {
		s.mu.Unlock()
		return nil
	}
	raftID, forgotten := g.raftID, member.Forgotten(state, s.replicaOf(g, state))
	role, _ := g.role()
	s.mu.Unlock()
	state.Members = slices.Clone(state.Members)
	i := slices.IndexFunc(state.Members, func(m placement.Member) bool { return m.RaftID == raftID && m.Shard == "" })
	if i < 0 && forgotten {
		i = len(state.Members)
		state.Members = append(state.Members, placement.Member{RaftID: raftID, Role: role})
	}
	if i < 0 {
		return nil
	}
	state.Members[i].Shard, state.Members[i].VolumeUUID = s.cfg.Name, s.volume.Superblock().Volume
	if _, err := s.cfg.Placement.PutGroup(ctx, state); err != nil {
		return fmt.Errorf("telling etcd that member %x is here: %w", raftID, err)
	}
	s.logger.Warn("etcd did not know where a member is: it is here", "group", state.Name, "raft_id", raftID)
	return nil
}
