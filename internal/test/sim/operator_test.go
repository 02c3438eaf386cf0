package sim

import (
	"context"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"go.etcd.io/raft/v3/raftpb"

	"sheaf.dev/sheaf/internal/consensus/replica"
)

// operator changes the membership until the members are on the wanted machines, as the leader of a real group does if
// etcd has a new target for the group. It adds a new member as a learner. A second change then gives the learner its
// vote, and removes the member that it replaces.
type operator struct {
	world  *world
	random *rand.Rand

	mu       sync.Mutex // guards the fields below; also held while the members must not change
	target   []int      // numbers of the machines that should hold a copy
	changing bool       // whether a membership change may be in progress
}

func newOperator(w *world) *operator {
	o := &operator{world: w, random: rand.New(rand.NewPCG(w.seed, 3))}
	for i := range w.cfg.copies {
		o.target = append(o.target, i)
	}
	return o
}

func (o *operator) work() {
	for o.world.sleep(between(o.random, 100*time.Millisecond, 400*time.Millisecond)) {
		if leader := o.world.leader(); leader != nil {
			o.step(leader)
		}
	}
}

// state is the operator's view of the group.
type state struct {
	members  replica.Members
	voters   []uint64
	learners []uint64
	target   []int
}

// step makes the next change to the membership that is due.
func (o *operator) step(leader *process) {
	w := o.world
	o.mu.Lock()
	s := state{members: leader.replica.Members(), target: slices.Clone(o.target)}
	s.voters, s.learners = s.members.Conf.GetVoters(), s.members.Conf.GetLearners()
	// A former leader has an outdated membership. In a real store, the operator uses the newer one in etcd.
	if s.members.Changing || s.members.LeaderID != leader.raftID || s.members.ConfIndex != w.ledger.newestConf() {
		o.mu.Unlock()
		return
	}
	change, to := o.decide(s)
	o.changing = change != nil
	o.mu.Unlock()
	switch {
	case change != nil:
		ctx, cancel := context.WithTimeout(w.ctx, 5*time.Second)
		err := leader.replica.ChangeMembers(ctx, change)
		cancel()
		if err == nil {
			w.fire("membership changed")
		}
		o.mu.Lock()
		o.changing = false
		o.mu.Unlock()
	case to != 0:
		_ = leader.replica.TransferLeader(w.ctx, to)
	default:
		o.startJoins(s)
	}
}

func single(what raftpb.ConfChangeType, id uint64) *raftpb.ConfChangeSingle {
	return &raftpb.ConfChangeSingle{Type: &what, NodeId: &id}
}

// decide returns the next change to make. If another member must become the leader before that, decide returns this
// member instead.
func (o *operator) decide(s state) (change *raftpb.ConfChangeV2, to uint64) {
	w := o.world
	w.mu.Lock()
	defer w.mu.Unlock()
	wanted := func(id uint64) bool {
		m := w.at[id]
		return m != nil && !w.lost[id] && m.raftID == id && slices.Contains(s.target, m.number)
	}
	for _, id := range s.learners {
		switch {
		case !wanted(id):
			return &raftpb.ConfChangeV2{Changes: []*raftpb.ConfChangeSingle{single(raftpb.ConfChangeRemoveNode, id)}}, 0
		case s.caughtUp(id):
			return o.promote(s, id, wanted)
		}
	}
	for _, number := range s.target {
		m := w.machines[number]
		if m.raftID == 0 {
			m.raftID = w.random.Uint64() | 1
			w.at[m.raftID] = m
		}
		if !slices.Contains(s.voters, m.raftID) && !slices.Contains(s.learners, m.raftID) && len(s.learners) == 0 {
			if w.ledger.wasMember(m.raftID) {
				m.raftID = w.random.Uint64() | 1 // a former member returns as a new incarnation
				w.at[m.raftID] = m
			}
			return &raftpb.ConfChangeV2{Changes: []*raftpb.ConfChangeSingle{single(raftpb.ConfChangeAddLearnerNode, m.raftID)}},
				0
		}
	}
	if len(s.voters) > w.cfg.copies {
		for _, id := range s.voters {
			if !wanted(id) && id != s.members.LeaderID {
				return &raftpb.ConfChangeV2{Changes: []*raftpb.ConfChangeSingle{single(raftpb.ConfChangeRemoveNode, id)}}, 0
			}
		}
	}
	if !wanted(s.members.LeaderID) && o.random.IntN(3) > 0 {
		return nil, s.transferTarget(wanted)
	}
	return nil, 0
}

// transferTarget returns a voter that may take over the leadership from a leader that should leave the group. It
// returns 0 if there is none.
func (s state) transferTarget(wanted func(uint64) bool) uint64 {
	for _, id := range s.voters {
		if id != s.members.LeaderID && wanted(id) {
			return id
		}
	}
	return 0
}

func (s state) caughtUp(id uint64) bool {
	for _, p := range s.members.Progress {
		if p.ID == id {
			return p.State == replica.StateReplicate && p.RecentActive && p.Match+5 >= s.members.LastIndex
		}
	}
	return false
}

// promote gives a learner its vote, and removes a voter that is not wanted. If that voter is the leader, promote
// instead returns the voter that should become the leader first.
func (o *operator) promote(s state, id uint64, wanted func(uint64) bool) (change *raftpb.ConfChangeV2, to uint64) {
	c := &raftpb.ConfChangeV2{Changes: []*raftpb.ConfChangeSingle{single(raftpb.ConfChangeAddNode, id)}}
	for _, old := range s.voters {
		if wanted(old) || len(s.voters) < o.world.cfg.copies {
			continue
		}
		if transferTarget := s.transferTarget(wanted); old == s.members.LeaderID && transferTarget != 0 {
			return nil, transferTarget
		} else if old != s.members.LeaderID {
			c.Changes = append(c.Changes, single(raftpb.ConfChangeRemoveNode, old))
			break
		}
	}
	return c, 0
}

// startJoins looks for machines that should run a member of the group and do not run it yet. It makes each of them
// fetch the member's replica from the other members.
func (o *operator) startJoins(s state) {
	w := o.world
	for _, id := range append(slices.Clone(s.learners), s.voters...) {
		w.mu.Lock()
		m := w.at[id]
		due := m != nil && m.raftID == id && !w.lost[id] && (m.process == nil || m.process.raftID != id)
		w.mu.Unlock()
		if due {
			w.wait.Go(func() { m.bringUp(id) })
		}
	}
}
