package replica

import (
	"cmp"
	"slices"

	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"
	"go.etcd.io/raft/v3/tracker"
)

// Status of a replica.
type Status struct {
	Leader        bool // and writes are accepted
	LeaderID      uint64
	Term          uint64
	AppliedIndex  uint64
	InFlightBytes int64
	Removed       bool  // the membership as of AppliedIndex does not name it: it never campaigns
	Learner       bool  // it has no vote
	Damaged       bool  // the log has damage, which bars it from leading where there are other voters
	Err           error // why it cannot write any more, or not now (group.ErrNoSpace); nil while it can
}

// Status tells the present state.
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

// Members is what a replica knows of its group's membership. Nothing in it may be changed.
type Members struct {
	Conf         *raftpb.ConfState // as of AppliedIndex
	ConfIndex    uint64            // of the change that made it; 0: the group was created with it
	LeaderID     uint64            // 0: none known
	Term         uint64
	AppliedIndex uint64
	LastIndex    uint64
	Changing     bool     // a change is on its way, or a majority may not know yet that it is over
	Quiet        bool     // the group rests: see Options.Quiet
	Progress     []Member // on the leader only: of all members, itself too, in the order of their ids
}

// Member is the progress of a member as its leader sees it.
type Member struct {
	ID           uint64
	Learner      bool
	Match        uint64 // its log is known to hold everything up to this index
	State        MemberState
	RecentActive bool // it was heard within an election timeout
	Down         bool // its shard is silent, as PeerDown says
}

// MemberState says how a leader brings a member's log up to date.
type MemberState uint8

// The member states.
const (
	StateProbe     MemberState = iota // it looks for the last entry that both have
	StateReplicate                    // entries are streamed
	StateSnapshot                     // the entries that it needs are compacted away: it must be installed anew
)

func (s MemberState) String() string {
	return [...]string{"probe", "replicate", "snapshot"}[min(s, StateSnapshot)]
}

// Members tells the membership. It is cheap: no I/O, a few allocations on the leader.
func (r *Replica) Members() Members {
	last, _ := r.log.LastIndex() // of memory: it has no error
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
			ID: id, Learner: kind == raft.ProgressTypeLearner, Match: pr.Match, State: MemberState(pr.State),
			RecentActive: pr.RecentActive || id == c.node.id, Down: c.silence.isDown(id),
		})
	})
	slices.SortFunc(m.Progress, func(a, b Member) int { return cmp.Compare(a.ID, b.ID) })
	return m
}
