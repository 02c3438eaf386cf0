package replica

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"go.etcd.io/raft/v3/raftpb"

	"sheaf.dev/sheaf/internal/consensus/replica/rounds"
)

// newQuietNetwork starts three voters that may rest.
func newQuietNetwork(t *testing.T) *network {
	n := makeNetwork(t)
	n.quiet = true
	n.startAll()
	return n
}

// newRestingNetwork starts three voters that rest after one write. It also returns their leader and its id.
func newRestingNetwork(t *testing.T) (n *network, id uint64, leader *member) {
	n = newQuietNetwork(t)
	id, leader = n.lead()
	leader.must(t, put(1, "a"))
	n.rest(3)
	return n, id, leader
}

func (n *network) resting() (count int) {
	for _, one := range n.members {
		if one.Members().Quiet {
			count++
		}
	}
	return count
}

func (n *network) rest(want int) {
	n.t.Helper()
	until(n.t, fmt.Sprintf("%d members rest", want), func() bool { return n.resting() == want })
}

// messages returns the number of messages sent so far.
func (n *network) messages() (count int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, c := range n.sent {
		count += c
	}
	return count
}

// down reports to the other members, as a transport does, that one member's shard fell silent.
func (n *network) down(gone uint64) {
	for id, one := range n.members {
		if id != gone {
			one.PeerDown(gone)
		}
	}
}

func (n *network) up(back uint64) {
	for id, one := range n.members {
		if id != back {
			one.PeerUp(back)
		}
	}
}

func TestGroupWithoutWorkRestsAndAnyWorkWakesIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, first, leader := newRestingNetwork(t)
		before, term := n.messages(), leader.Members().Term
		time.Sleep(time.Hour)
		if after := n.messages(); after != before {
			t.Fatalf("%d messages in an hour of rest", after-before)
		}
		if id, _ := n.lead(); id != first || leader.Members().Term != term {
			t.Fatal("the lead changed in the rest")
		}
		leader.must(t, put(1, "b"))
		n.rest(3)
		_, follower := n.follower(first)
		follower.wantData(t, 1, "b") // a read through a follower asks the leader
		n.rest(3)
		ok(t, leader.ChangeMembers(timeout(t), change(learner(4))))
		time.Sleep(10 * time.Second)
		if n.resting() != 0 {
			t.Fatal("the group rests while a member has nothing")
		}
		n.start(4)
		n.rest(4)
		second, _ := n.follower(first)
		ok(t, leader.TransferLeader(timeout(t), second))
		n.rest(4)
	})
}

func TestRestEndsWhenTheLeadersShardFallsSilent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, first, _ := newRestingNetwork(t)
		n.stop(first)
		n.down(first)
		begin := time.Now()
		_, now := n.lead()
		if took := time.Since(begin); took > 10*time.Second {
			t.Errorf("the election took %v", took)
		}
		now.must(t, put(1, "b"))
		n.rest(2) // only two members run
		again := n.start(first)
		n.up(first)
		until(t, "the one that is back has everything", func() bool {
			return again.Members().AppliedIndex == now.Members().AppliedIndex
		})
		n.rest(3)
	})
}

// awake counts the members whose clock still ticks.
func (n *network) awake() (count int) {
	for _, one := range n.members {
		count += one.machine.committer.Clocked()
	}
	return count
}

// A member whose shard is down costs the others nothing once they rest again. They send no message, and no clock ticks.
func TestAMemberThatIsGoneWakesNobody(t *testing.T) {
	for _, leads := range []bool{true, false} {
		t.Run(fmt.Sprintf("it led %v", leads), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n, gone, _ := newRestingNetwork(t)
				if !leads {
					gone, _ = n.follower(gone)
				}
				n.stop(gone)
				n.down(gone)
				_, now := n.lead()
				n.rest(2)
				until(t, "no clock runs", func() bool { return n.awake() == 0 })
				for range 3 {
					before := n.messages()
					time.Sleep(time.Hour)
					if sent, awake := n.messages()-before, n.awake(); sent != 0 || awake != 0 || n.resting() != 2 {
						t.Fatalf("in an hour of rest %d messages were sent; %d members are awake", sent, awake)
					}
					now.must(t, put(2, "b")) // the write wakes the members, which rest again afterwards
					n.rest(2)
					until(t, "no clock runs", func() bool { return n.awake() == 0 })
				}
			})
		})
	}
}

// The remaining members campaign in turn, so that no two of them compete for votes, even while the group is busy. The
// time is virtual.
func TestAnotherLeadsSoonAfterTheLeadersShardFellSilent(t *testing.T) {
	for _, rests := range []bool{true, false} {
		t.Run(fmt.Sprintf("rests %v", rests), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := makeNetwork(t)
				n.quiet = rests
				n.startAll()
				for i := range int64(20) {
					first, leader := n.lead()
					leader.must(t, put(i, "a"))
					if rests {
						n.rest(3)
					}
					n.stop(first)
					time.Sleep(time.Second) // the leader's shard has been silent for this long
					n.down(first)
					begin := time.Now()
					n.lead()
					if took, want := time.Since(begin), (1+earlyTicks+1)*rounds.Tick; took > want {
						t.Fatalf("%d: after %v, want at most %v", i, took, want)
					}
					n.start(first)
					n.up(first)
				}
			})
		})
	}
}

// A leader that is killed and restarted within the election timeout is silent for such a short time that no member
// notices it.
func TestLeaderBackSoonDoesNotLeaveTheOthersAtRest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, first, _ := newRestingNetwork(t)
		n.stop(first)
		n.start(first)
		_, now := n.lead()
		now.must(t, put(1, "b"))
		n.rest(3)
	})
}

// A learner never campaigns. If it restarts before its shard was reported silent, it must wake the resting leader by
// other means.
func TestLearnerBackSoonFindsTheLeaderAtRest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newQuietNetwork(t)
		_, leader := n.lead()
		ok(t, leader.ChangeMembers(timeout(t), change(learner(4))))
		n.start(4)
		n.rest(4)
		n.stop(4)
		again := n.start(4)
		until(t, "it knows the leader", func() bool { return again.Members().LeaderID != 0 })
		n.rest(4)
	})
}

func TestLostMarkCostsNoMoreThanAnElection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newQuietNetwork(t)
		first, leader := n.lead()
		second, _ := n.follower(first)
		until(t, "it is about to rest", func() bool {
			c := leader.state.lock()
			defer c.unlock()
			return c.quiet.idleTicks == restTicks-1 || c.idle.resting.Load()
		})
		n.isolate(second, true)
		until(t, "the leader rests", func() bool { return leader.Members().Quiet })
		time.Sleep(time.Millisecond)
		n.isolate(second, false)
		n.rest(3)
		_, now := n.lead()
		now.must(t, put(1, "a"))
	})
}

// When a leader announces a rest, a member rests only if it has all entries that the announcement covers, and
// otherwise wakes the leader. An outdated announcement lets no member rest.
func TestMarkThatDoesNotFitIsRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, first, leader := newRestingNetwork(t)
		id, follower := n.follower(first)
		m := follower.Members()
		mark := func(index, term uint64) *raftpb.Message {
			return &raftpb.Message{
				Type: raftpb.MsgHeartbeat.Enum(), From: &first, To: &id, Term: &term, Index: &index, LogTerm: &m.Term,
				Commit: new(m.LastIndex), Context: quietMark,
			}
		}
		ok(t, follower.Step(mark(m.LastIndex+1, m.Term)))
		if follower.Members().Quiet {
			t.Fatal("it rests although it has less than the mark says")
		}
		until(t, "the leader wakes", func() bool { return !leader.Members().Quiet })
		n.rest(3)
		ok(t, follower.Step(mark(m.LastIndex, m.Term-1)))
		if follower.Members().Quiet {
			t.Fatal("the mark of an old term laid it to rest")
		}
		n.rest(3)
	})
}
