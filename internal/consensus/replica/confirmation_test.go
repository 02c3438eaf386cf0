package replica

import (
	"errors"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"go.etcd.io/raft/v3/raftpb"
)

// dropping loses some of the messages that a replica sends.
type dropping struct {
	Transport
	drop func(*raftpb.Message) bool
}

func (d dropping) Send(messages []*raftpb.Message) {
	d.Transport.Send(slices.DeleteFunc(slices.Clone(messages), d.drop))
}

// isNews reports whether a message has no entries but may tell a follower that earlier entries are committed.
func isNews(m *raftpb.Message) bool {
	return m.GetType() == raftpb.MsgApp && len(m.GetEntries()) == 0 || m.GetType() == raftpb.MsgHeartbeat
}

// hasConfirmation reports whether a message has the empty entry that a leader appends after a membership change or
// after its election.
func hasConfirmation(m *raftpb.Message) bool {
	return slices.ContainsFunc(m.GetEntries(), func(e *raftpb.Entry) bool {
		return e.GetType() == raftpb.EntryNormal && len(e.Data) == 0
	})
}

// One member was replaced and will not come back, and the leader dies as soon as ChangeMembers has returned. The two
// remaining members are a majority of the new membership. If one of them still used the old membership, it would not
// find a majority. Messages that only announce the commit are lost, so both must have learned of it in another way.
func TestAChangeIsOverWhenAMajorityKnows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := makeNetwork(t)
		var lossy atomic.Bool
		n.change = func(_ uint64, o *Options) {
			o.Transport = dropping{o.Transport, func(m *raftpb.Message) bool { return lossy.Load() && isNews(m) }}
		}
		n.startAll()
		id, leader := n.lead()
		gone, _ := n.follower(id)
		n.addLearner(leader)
		n.stop(gone)
		lossy.Store(true)
		ok(t, leader.ChangeMembers(timeout(t), change(add(4), remove(gone))))
		if leader.Members().Changing {
			t.Error("the change is not over")
		}
		n.stop(id)
		lossy.Store(false)
		_, leader = n.lead()
		leader.must(t, put(1, "a"))
	})
}

// The membership becomes durable before the commit index. So after a restart, Raft may commit a change that is
// already in force.
func TestMembershipThatIsAheadOfTheCommitIsNotAppliedTwice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := makeNetwork(t)
		// The third member must write the change before it learns that the change is committed, and must receive nothing
		// afterwards. If it received another message, it would make the commit index durable.
		var third, deaf atomic.Uint64
		n.change = func(_ uint64, o *Options) {
			o.Transport = dropping{o.Transport, func(m *raftpb.Message) bool {
				return m.GetTo() == third.Load() && hasConfirmation(m) || m.GetTo() == deaf.Load() && isNews(m)
			}}
		}
		n.startAll()
		first, leader := n.lead()
		n.addLearner(leader)
		gone, _ := n.follower(first)
		third.Store(6 - first - gone)
		deaf.Store(6 - first - gone)
		ok(t, leader.ChangeMembers(timeout(t), change(add(4), remove(gone))))
		synctest.Wait()
		deaf.Store(0)
		until(t, "the third has applied it", func() bool {
			return n.members[third.Load()].Members().ConfIndex == leader.Members().ConfIndex
		})
		n.stop(gone)
		n.isolate(third.Load(), true)
		n.stop(third.Load())
		if m := n.start(third.Load()).Members(); m.ConfIndex <= m.AppliedIndex {
			t.Fatalf("the membership of index %d is not ahead of index %d: the test does not test", m.ConfIndex, m.AppliedIndex)
		}
		n.isolate(third.Swap(0), false)
		for _, id := range []uint64{first, 4} {
			n.stop(id)
			n.start(id)
		}
		_, leader = n.lead()
		leader.must(t, put(1, "a"))
		until(t, "all have applied it", func() bool {
			for _, one := range n.members {
				if m := one.Members(); one.Status().Err != nil || m.AppliedIndex < leader.Members().AppliedIndex || m.Changing {
					return false
				}
			}
			return true
		})
	})
}

// If a leader is deposed in the round in which it applies its membership change, it cannot tell which other members
// know of the change.
func TestChangeOfALeaderThatWasJustSupersededEndsUnknown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(t)
		_, leader := n.lead()
		leader.must(t, put(1, "a"))
		c := leader.state.lock()
		defer c.unlock()
		at := c.node.applied
		one := &memberChange{proposed: true, index: at, done: make(chan struct{})}
		// Set the fields that core.observe sets when a leader is deposed, before the round's entries are applied.
		c.members.change, c.node.leader, c.node.lost = one, false, true
		c.setMembers(c.members.conf, at)
		select {
		case <-one.done:
			t.Errorf("it ended with %v", one.err)
		default:
			c.members.abandon(errLeadLost)
			if !errors.Is(one.err, ErrOutcomeUnknown) {
				t.Errorf("it ended with %v", one.err)
			}
		}
		c.node.leader, c.node.lost = true, false
	})
}
