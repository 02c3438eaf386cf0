package shard

import (
	recordv1 "sheaf.dev/sheaf/api/sheaf/record/v1"
	"sheaf.dev/sheaf/internal/move"
	"sheaf.dev/sheaf/internal/replica"
)

// roleOf is what a replica is in its group, as it knows.
func roleOf(node replica.Status, raftID uint64) recordv1.MemberRole {
	switch {
	case node.Removed:
		return recordv1.MemberRole_MEMBER_ROLE_REMOVED
	case node.Learner:
		return recordv1.MemberRole_MEMBER_ROLE_LEARNER
	case node.LeaderID == raftID:
		return recordv1.MemberRole_MEMBER_ROLE_LEADER
	default:
		return recordv1.MemberRole_MEMBER_ROLE_VOTER
	}
}

// describeMembers tells what a replica is, and, where it leads, how the members of its group are.
func describeMembers(p *recordv1.Group, sv *served, node replica.Status) {
	p.RaftId, p.Role = sv.raftID, roleOf(node, sv.raftID)
	if !node.Leader {
		return
	}
	m := sv.replica.Members()
	for _, one := range m.Progress {
		member := &recordv1.Member{RaftId: one.ID, MatchIndex: one.Match, Role: recordv1.MemberRole_MEMBER_ROLE_VOTER}
		member.Shard, _ = sv.group.Route(one.ID)
		switch {
		case one.ID == sv.raftID:
			member.Role, member.MatchIndex, member.Shard = recordv1.MemberRole_MEMBER_ROLE_LEADER, m.LastIndex, p.GetShard()
			member.Active, member.CaughtUp = true, true
			lag := uint64(0)
			p.MatchIndex, p.LagEntries = &member.MatchIndex, &lag
		case one.Learner:
			member.Role = recordv1.MemberRole_MEMBER_ROLE_LEARNER
		}
		if one.ID != sv.raftID {
			member.LagEntries = m.LastIndex - min(one.Match, m.LastIndex)
			// RecentActive is taken back once per election timeout, until the next answer.
			member.Active = !one.Down && (one.RecentActive || one.State == replica.StateReplicate)
			member.NeedsFiles = one.State == replica.StateSnapshot
			member.CaughtUp = member.GetActive() && one.State == replica.StateReplicate && member.GetLagEntries() <= move.CaughtUpEntries
		}
		p.Members = append(p.Members, member)
	}
}
