package replica

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"

	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/confchange"
	"go.etcd.io/raft/v3/raftpb"
	"go.etcd.io/raft/v3/tracker"
	"google.golang.org/protobuf/proto"
)

// ErrChanging says that another membership change is on its way; nothing was changed.
var ErrChanging = errors.New("another membership change is not finished")

// Members is what a replica knows of its group's membership. Nothing in it may be changed.
type Members struct {
	Conf         *raftpb.ConfState // as of AppliedIndex
	ConfIndex    uint64            // of the change that made it; 0: the group was created with it
	LeaderID     uint64            // 0: none known
	Term         uint64
	AppliedIndex uint64
	LastIndex    uint64
	Changing     bool     // a change is proposed here, the membership is joint, or a majority may not know yet that it is the new one
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
	r.mu.Lock()
	defer r.mu.Unlock()
	m := Members{
		Conf: r.conf, ConfIndex: r.confIndex, LeaderID: r.leaderID, Term: r.term,
		AppliedIndex: r.applied, LastIndex: last,
		Changing: r.changeUnderWay(),
		Quiet:    r.quiet.Load(),
	}
	if !r.leader {
		return m
	}
	r.node.WithProgress(func(id uint64, kind raft.ProgressType, pr tracker.Progress) {
		m.Progress = append(m.Progress, Member{
			ID: id, Learner: kind == raft.ProgressTypeLearner, Match: pr.Match, State: MemberState(pr.State),
			RecentActive: pr.RecentActive || id == r.opts.RaftID, Down: r.down[id],
		})
	})
	slices.SortFunc(m.Progress, func(a, b Member) int {
		if a.ID < b.ID {
			return -1
		}
		return 1
	})
	return m
}

// memberChange is a membership change on its way.
type memberChange struct {
	data     []byte // as proposed
	proposed bool   // Raft has it
	index    uint64 // 0: not known yet
	done     chan struct{}
	err      error // set before done is closed
}

// ChangeMembers proposes a membership change on the leader, and returns when a majority of the new members knows that it is committed; one
// that goes through a joint membership when that is left, which Raft does by itself. One at a time. The leader keeps its
// vote: hand over the lead first (TransferLeader). ErrNoLeader, ErrChanging, ErrInvalid: surely nothing was changed. ErrOutcomeUnknown: see Members of the leader to come.
func (r *Replica) ChangeMembers(ctx context.Context, change *raftpb.ConfChangeV2) error {
	if change.GetTransition() == raftpb.ConfChangeTransitionJointExplicit || len(change.GetChanges()) == 0 {
		return fmt.Errorf("%w: a membership change names members, and leaves a joint membership by itself", ErrInvalid)
	}
	data, err := proto.Marshal(change)
	if err != nil {
		return fmt.Errorf("%w: membership change: %w", ErrInvalid, err)
	}
	c := &memberChange{data: data, done: make(chan struct{})}
	if err := r.beginChange(c, change); err != nil {
		return err
	}
	r.schedule()
	select {
	case <-c.done:
		return c.err
	case <-ctx.Done():
		return fmt.Errorf("%w: membership change: %w", ErrOutcomeUnknown, context.Cause(ctx))
	}
}

func (r *Replica) beginChange(c *memberChange, change *raftpb.ConfChangeV2) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.err != nil:
		return fmt.Errorf("%w: %w", ErrFailed, r.err)
	case r.stopping:
		return ErrStopping
	case !r.serving:
		return ErrNoLeader
	case r.changeUnderWay():
		return ErrChanging
	}
	if err := r.checkChange(change); err != nil {
		return err
	}
	r.wake()
	r.change = c
	return nil
}

// checkChange refuses what Raft could not apply: there it would be too late, on every member. It refuses a change that takes this replica's own
// vote, too: it would lead no more when it applies that, and the others, who have not heard yet that it is committed, could still need its vote,
// which it does not give to whom lacks what it wrote last. Called with mu held.
func (r *Replica) checkChange(change *raftpb.ConfChangeV2) error {
	c := confchange.Changer{Tracker: tracker.MakeProgressTracker(1, 0)}
	config, progress, err := confchange.Restore(c, r.conf)
	if err == nil {
		c.Tracker.Config, c.Tracker.Progress = config, progress
		if leave, joint := change.EnterJoint(); joint {
			config, _, err = c.EnterJoint(leave, change.GetChanges()...)
		} else {
			config, _, err = c.Simple(change.GetChanges()...)
		}
	}
	if _, stays := config.Voters[0][r.opts.RaftID]; err == nil && !stays {
		err = fmt.Errorf("replica %x leads: hand over the lead before its vote is taken", r.opts.RaftID)
	}
	if err != nil {
		return fmt.Errorf("%w: membership change %s: %w", ErrInvalid, raft.DescribeConfChange(change), err)
	}
	return nil
}

// changeUnderWay is called with mu held.
func (r *Replica) changeUnderWay() bool {
	return r.change != nil || len(r.conf.GetVotersOutgoing()) > 0 || r.told.pending()
}

// proposeChange gives a membership change to Raft. Called with mu held, and no Ready taken.
func (r *Replica) proposeChange() {
	c := r.change
	if c == nil || c.proposed {
		return
	}
	err := r.node.Step(&raftpb.Message{
		Type: raftpb.MsgProp.Enum(), From: proto.Uint64(r.opts.RaftID),
		Entries: []*raftpb.Entry{{Type: raftpb.EntryConfChangeV2.Enum(), Data: c.data}},
	})
	if err != nil {
		r.endChange(notServing(ErrNoLeader, err.Error()))
		return
	}
	c.proposed = true
}

// tickJoint leaves a joint membership where Raft did not. Raft proposes that when it applies an entry, and drops it while the lead is
// being handed over; where that fails and nobody writes, no entry follows. So it is with what tells of a change. Called with mu held.
func (r *Replica) tickJoint() {
	if r.told.due {
		r.schedule()
	}
	last, err := r.log.LastIndex()
	if !r.leader || r.transferee != raft.None || !r.conf.GetAutoLeave() || err != nil || r.applied != last {
		r.jointTicks = 0
		return
	}
	if r.jointTicks++; r.jointTicks >= electionTicks {
		r.jointTicks, r.leave = 0, true
		r.schedule()
	}
}

// proposeLeave asks Raft to leave a joint membership; where it may not, it puts an empty entry in its place. Called with mu held, and no Ready
// taken.
func (r *Replica) proposeLeave() {
	if !r.leave {
		return
	}
	r.leave = false
	if !r.leader || !r.conf.GetAutoLeave() {
		return
	}
	if err := r.node.ProposeConfChange(&raftpb.ConfChangeV2{}); err != nil {
		r.logger.Info("a joint membership is not left yet", "error", err)
	}
}

// findChange looks for the entry of the change among those that Raft has made of what it was given. Where it is not there,
// Raft has put an empty entry in its place. Called with mu held.
func (r *Replica) findChange(entries []*raftpb.Entry) {
	c := r.change
	if !c.proposed || c.index != 0 {
		return
	}
	for _, e := range entries {
		if e.GetType() == raftpb.EntryConfChangeV2 && e.GetTerm() == r.term && bytes.Equal(e.Data, c.data) {
			c.index = e.GetIndex()
			return
		}
	}
	r.endChange(ErrChanging)
}

// noteConf takes over the membership after an applied change. Called with mu held.
func (r *Replica) noteConf(conf *raftpb.ConfState, at uint64) {
	r.setMembers(conf)
	r.confIndex = at
	r.told = told{}
	if len(conf.GetVotersOutgoing()) == 0 {
		r.tell()
	}
	r.announce()
}

// loseChange ends a change with the leadership. Called with mu held.
func (r *Replica) loseChange(why error) {
	switch c := r.change; {
	case c == nil:
	case c.proposed:
		r.endChange(fmt.Errorf("%w: membership change: %w", ErrOutcomeUnknown, why))
	default:
		r.endChange(fmt.Errorf("%w: membership change: %w", ErrNoLeader, why))
	}
}

// endChange is called with mu held.
func (r *Replica) endChange(err error) {
	r.change.err = err
	close(r.change.done)
	r.change = nil
}
