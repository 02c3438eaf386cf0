package replica

import (
	"cmp"
	"slices"

	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"
	"go.etcd.io/raft/v3/tracker"
)

// Status is the status of a replica.
type Status struct {
	Leader        bool // whether this replica leads and accepts writes
	LeaderID      uint64
	Term          uint64
	AppliedIndex  uint64
	InFlightBytes int64
	Removed       bool  // whether the membership at AppliedIndex excludes this replica, which therefore never campaigns
	Learner       bool  // whether this replica has no vote
	Damaged       bool  // whether the log has damage, which prevents this replica from leading if there are other voters
	Err           error // why writes fail, either until a restart or only for now (group.ErrNoSpace); nil if writes work
}

// Status returns the current status.
func (r *Replica) Status() Status {
	c := r.state.lock()
	defer c.unlock()
	s := Status{
		Leader:        c.node.serving && c.err == nil,
		LeaderID:      c.node.leaderID,
		Term:          c.node.term,
		AppliedIndex:  c.node.applied,
		InFlightBytes: c.writes.InFlightBytes(),
		Removed:       !c.members.isMember,
		Learner:       c.members.isMember && !c.members.isVoter(),
		Damaged:       c.log.Damaged(),
		Err:           c.err,
	}
	if s.Err == nil {
		s.Err = c.full.err
	}
	return s
}

// Members is a replica's view of its group's membership. It must not be changed.
type Members struct {
	Conf         *raftpb.ConfState // the membership at AppliedIndex
	ConfIndex    uint64            // index of the change that led to Conf, or 0 if the group was created with Conf
	LeaderID     uint64            // 0 if no leader is known
	Term         uint64
	AppliedIndex uint64
	LastIndex    uint64
	Changing     bool     // whether a change is in progress, or a majority may not know yet that it is complete
	Quiet        bool     // whether the group rests, see Options.Quiet
	Progress     []Member // only on the leader: all members, including itself, sorted by id
}

// Member is the progress of a member as its leader sees it.
type Member struct {
	ID           uint64
	Learner      bool
	Match        uint64            // the member's log is known to hold everything up to this index
	State        tracker.StateType // how the leader brings the member's log up to date
	RecentActive bool              // whether a message from the member has arrived within the last election timeout
	Down         bool              // whether PeerDown has reported that the member's shard is silent
}

// These are two of the states in which a leader sees a member. The third state, tracker.StateProbe, means that the
// leader is looking for the last entry that both logs have.
const (
	// StateReplicate means that entries are streamed to the member.
	StateReplicate = tracker.StateReplicate
	// StateSnapshot means that the log no longer has the entries that the member needs, so that the member must be
	// reinstalled.
	StateSnapshot = tracker.StateSnapshot
)

// Members returns the membership. The call is cheap: it does no I/O, and it allocates little memory on the leader.
func (r *Replica) Members() Members {
	last, _ := r.log.LastIndex() // served from memory, so no error is possible
	c := r.state.lock()
	defer c.unlock()
	m := Members{
		Conf: c.members.conf, ConfIndex: c.members.index, LeaderID: c.node.leaderID, Term: c.node.term,
		AppliedIndex: c.node.applied, LastIndex: last,
		Changing: c.members.isChanging(),
		Quiet:    c.idle.resting.Load(),
	}
	if !c.node.leader {
		return m
	}
	c.node.raft.WithProgress(func(id uint64, kind raft.ProgressType, pr tracker.Progress) {
		m.Progress = append(m.Progress, Member{
			ID: id, Learner: kind == raft.ProgressTypeLearner, Match: pr.Match, State: pr.State,
			RecentActive: pr.RecentActive || id == c.node.id, Down: c.silence.down[id],
		})
	})
	slices.SortFunc(m.Progress, func(a, b Member) int { return cmp.Compare(a.ID, b.ID) })
	return m
}
