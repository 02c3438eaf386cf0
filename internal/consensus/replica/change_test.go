package replica

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"

	"sheaf.dev/sheaf/internal/storage/group"
	"sheaf.dev/sheaf/internal/storage/group/format"
	"sheaf.dev/sheaf/internal/test/vfstest"
)

func add(id uint64) *raftpb.ConfChangeSingle {
	return &raftpb.ConfChangeSingle{Type: raftpb.ConfChangeAddNode.Enum(), NodeId: &id}
}

func learner(id uint64) *raftpb.ConfChangeSingle {
	return &raftpb.ConfChangeSingle{Type: raftpb.ConfChangeAddLearnerNode.Enum(), NodeId: &id}
}

func remove(id uint64) *raftpb.ConfChangeSingle {
	return &raftpb.ConfChangeSingle{Type: raftpb.ConfChangeRemoveNode.Enum(), NodeId: &id}
}

func change(changes ...*raftpb.ConfChangeSingle) *raftpb.ConfChangeV2 {
	return &raftpb.ConfChangeV2{Changes: changes}
}

// until polls a condition in virtual time, which advances only while all goroutines of the bubble are blocked.
func until(t *testing.T, what string, is func() bool) {
	t.Helper()
	for range 60_000 {
		if is() {
			return
		}
		time.Sleep(time.Millisecond)
	}
	t.Fatalf("not within a minute: %s", what)
}

// lead waits for a leader that accepts writes.
func (n *network) lead() (uint64, *member) {
	n.t.Helper()
	var id uint64
	until(n.t, "a leader", func() bool {
		for id = range n.members {
			if n.members[id].Status().Leader {
				return true
			}
		}
		return false
	})
	return id, n.members[id]
}

func (n *network) follower(leader uint64) (uint64, *member) {
	id := leader%3 + 1
	return id, n.members[id]
}

func TestLearnerCatchesUpReplacesAVoterInOneChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(t)
		_, leader := n.lead()
		for i := range int64(20) {
			leader.must(t, put(i, fmt.Sprint(i)))
		}
		ok(t, leader.ChangeMembers(timeout(t), change(learner(4))))
		if m := leader.Members(); !slices.Equal(m.Conf.GetLearners(), []uint64{4}) || m.Changing || m.ConfIndex == 0 ||
			m.LastIndex < 21 {
			t.Fatalf("after the learner was added: %+v", m)
		}
		fourth := n.start(4)
		until(t, "the learner has everything", func() bool {
			m := leader.Members()
			p := m.Progress[3]
			return p.ID == 4 && p.Learner && p.Match == m.LastIndex && p.State == StateReplicate && p.RecentActive
		})
		until(t, "it knows what it is", func() bool {
			s := fourth.Status()
			return s.Learner && !s.Removed && s.AppliedIndex >= 22
		})

		first, leader := n.lead()
		gone, _ := n.follower(first)
		ok(t, leader.ChangeMembers(timeout(t), change(add(4), remove(gone))))
		conf := leader.Members().Conf
		if slices.Contains(conf.GetVoters(), gone) || !slices.Contains(conf.GetVoters(), 4) || len(conf.GetVoters()) != 3 ||
			len(conf.GetVotersOutgoing())+len(conf.GetLearners()) > 0 {
			t.Fatalf("after the replacement: %v", conf)
		}
		// Check that the new voter's vote counts. While one of the three voters is isolated, the leader and the new voter
		// are a majority. When the new voter is isolated, too, the leader alone is not a majority.
		n.stop(gone)
		third := 6 - first - gone
		n.isolate(third, true)
		leader.must(t, put(100, "by two"))
		until(t, "the new voter applied it", func() bool {
			return fourth.Members().AppliedIndex == leader.Members().AppliedIndex
		})
		n.isolate(4, true)
		p := leader.Propose(put(101, "by one"))
		short, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		if _, err := p.Wait(short); !errors.Is(err, ErrOutcomeUnknown) {
			t.Fatalf("a write without a majority: %v", err)
		}
	})
}

func TestLeaderHandsOverBeforeItIsRemoved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(t)
		first, leader := n.lead()
		leader.must(t, put(1, "a"))
		n.addLearner(leader)
		before := leader.Members()
		for what, c := range map[string]*raftpb.ConfChangeV2{
			"removed": change(remove(first)), "demoted": change(learner(first)), "replaced": change(add(4), remove(first)),
		} {
			if err := leader.ChangeMembers(timeout(t), c); !errors.Is(err, ErrInvalid) {
				t.Errorf("the leader is %s: %v", what, err)
			}
		}
		if m := leader.Members(); m.ConfIndex != before.ConfIndex || m.Changing || !leader.Status().Leader {
			t.Fatalf("after refused changes: %+v", m)
		}

		transferTarget, _ := n.follower(first)
		ok(t, leader.TransferLeader(timeout(t), transferTarget))
		until(t, "the heir serves", func() bool { return n.members[transferTarget].Status().Leader })
		ok(t, n.members[transferTarget].ChangeMembers(timeout(t), change(add(4), remove(first))))
		// The removed replica usually learns that it was removed. It does not if the last message to it was still in flight
		// when the new leader applied the change. In that case placement tells it later. Either way, it must not disturb
		// the other members.
		term := leader.Members().Term
		time.Sleep(time.Minute)
		if !n.members[transferTarget].Status().Leader {
			t.Error("the heir does not lead any more")
		}
		if m := leader.Members(); m.Term != term {
			t.Fatalf("the removed replica's term rose from %d to %d", term, m.Term)
		}
		if err := leader.ChangeMembers(t.Context(), change(learner(9))); !errors.Is(err, ErrNoLeader) {
			t.Fatalf("membership change by a removed replica: %v", err)
		}
	})
}

func TestMembershipChangesThatAreNotPossibleAreRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(t)
		first, leader := n.lead()
		_, follower := n.follower(first)
		explicit := change(add(4), add(5))
		explicit.Transition = raftpb.ConfChangeTransitionJointExplicit.Enum()
		for what, c := range map[string]*raftpb.ConfChangeV2{
			"nothing": change(), "everybody removed": change(remove(1), remove(2), remove(3)), "left by hand": explicit,
		} {
			if err := leader.ChangeMembers(t.Context(), c); !errors.Is(err, ErrInvalid) {
				t.Errorf("%s: %v", what, err)
			}
		}
		if err := follower.ChangeMembers(t.Context(), change(learner(4))); !errors.Is(err, ErrNoLeader) {
			t.Errorf("on a follower: %v", err)
		}
		for id := range n.members {
			n.isolate(id, true) // without its followers, the leader cannot complete the first change
		}
		unknown := make(chan error, 1)
		go func() { unknown <- leader.ChangeMembers(t.Context(), change(learner(4))) }()
		until(t, "the change is under way", func() bool { return leader.Members().Changing })
		if err := leader.ChangeMembers(t.Context(), change(learner(5))); !errors.Is(err, ErrChanging) {
			t.Errorf("two at once: %v", err)
		}
		if err := <-unknown; !errors.Is(err, ErrOutcomeUnknown) {
			t.Errorf("without a majority: %v", err)
		}
	})
}

// Raft accepts only one membership change at a time, and counts changes of earlier leaders as well. It replaces a
// second change with an empty entry. A change that was replaced must not be reported as done.
func TestMembershipChangeThatRaftPassesOverIsNotDone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(t)
		_, leader := n.lead()
		c := leader.state.lock()
		// This change is proposed to Raft directly, and is not applied yet when the next one is proposed.
		ok(t, c.node.raft.ProposeConfChange(change(learner(8))))
		second := &memberChange{data: []byte{}, done: make(chan struct{})}
		c.members.change = second
		c.unlock()
		leader.seat.Schedule()
		<-second.done
		if !errors.Is(second.err, ErrChanging) {
			t.Fatal(second.err)
		}
	})
}

// Raft leaves a joint membership by itself when it applies an entry, but not during a leadership transfer. If the
// transfer fails and no further write follows, the joint membership must still be left.
func TestAJointMembershipIsLeftAfterATransferThatFailed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(t)
		id, leader := n.lead()
		away, _ := n.follower(id)
		n.addLearner(leader)
		n.isolate(away, true)
		c := leader.state.lock()
		ok(t, c.node.raft.ProposeConfChange(change(add(4), remove(away))))
		c.node.raft.TransferLeader(away) // the member never receives the request to campaign
		c.observe()
		c.unlock()
		leader.seat.Schedule()
		until(t, "the membership is joint", func() bool { return len(leader.Members().Conf.GetVotersOutgoing()) > 0 })
		c = leader.state.lock()
		if c.node.transferee != away {
			t.Error("the lead is not handed over any more: the test does not test")
		}
		c.unlock()
		until(t, "it is left", func() bool { return len(leader.Members().Conf.GetVotersOutgoing()) == 0 })
	})
}

// A follower that was unreachable receives a membership change together with the information that the change is
// committed. Because its disk is full, it cannot record the new membership. It must not confuse that membership with
// the one of the next change.
func TestAFullDiskDoesNotMixUpMemberships(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(t)
		first, leader := n.lead()
		behind, follower := n.follower(first)
		n.isolate(behind, true)
		ok(t, leader.ChangeMembers(timeout(t), change(learner(4))))
		leader.must(t, put(1, "behind the change"))
		full := n.faulty[behind].Add(&vfstest.Fault{Match: func(op vfstest.Op) bool {
			return op.Kind == vfstest.OpCreate
		}, Err: errNoSpace})
		n.isolate(behind, false)
		until(t, "the disk has refused the membership", func() bool {
			return full.Fired() > 0 && errors.Is(follower.Status().Err, format.ErrNoSpace)
		})
		full.Remove()
		ok(t, leader.ChangeMembers(timeout(t), change(learner(5), remove(4))))
		until(t, "the follower has both changes", func() bool {
			return follower.Members().ConfIndex == leader.Members().ConfIndex
		})
		if want, got := leader.Members().Conf, follower.Members().Conf; !proto.Equal(want, got) {
			t.Errorf("the follower has the membership %v, the leader %v", got, want)
		}
		_, conf, err := follower.log.InitialState()
		if ok(t, err); !proto.Equal(conf, leader.Members().Conf) {
			t.Errorf("the follower's log has the membership %v, the leader %v", conf, leader.Members().Conf)
		}
		n.stop(behind)
		again := n.start(behind)
		until(t, "it is back after a restart", func() bool {
			return again.Members().AppliedIndex == leader.Members().AppliedIndex
		})
		ok(t, again.Status().Err)
	})
}

// If the leader dies right after a membership change, the remaining members must know the change. Suppose that they
// knew only the previous membership, which had two voters. Then the one remaining voter would not be a majority.
func TestMembersLearnOfAMembershipChangeAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(t)
		id, leader := n.lead()
		gone, _ := n.follower(id)
		ok(t, leader.ChangeMembers(timeout(t), change(remove(gone))))
		n.stop(gone)
		ok(t, leader.ChangeMembers(timeout(t), change(learner(4))))
		n.start(4)
		until(t, "the learner has everything", func() bool {
			m := leader.Members()
			return m.Progress[2].Match == m.LastIndex
		})
		ok(t, leader.ChangeMembers(timeout(t), change(add(4))))
		synctest.Wait() // deliver the messages in flight, but let no clock advance
		n.stop(id)
		_, leader = n.lead()
		leader.must(t, put(1, "a"))
	})
}

// A membership change that Raft cannot apply fails the replica, but must not leave it locked.
func TestPanicOfRaftFailsTheReplica(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		one := newMachine(t, vfstest.NewMem(), "/v").open("7", nil)
		c := one.state.lock()
		ok(t, c.node.raft.ProposeConfChange(change(remove(raftID))))
		c.unlock()
		one.seat.Schedule()
		until(t, "it has failed", func() bool { return one.Status().Err != nil })
	})
}

// A member that sends an impossible message, as after an unnoticed rollback of its disk, makes the replica fail. The
// replica must answer its pending writes.
func TestPanicOverAMessageAnswersWhatWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(t)
		id, leader, p := n.isolateAndWrite(t, put(1, "a"))
		synctest.Wait() // wait until Raft has accepted the write
		from, term, commit := id%3+1, leader.Members().Term+1, uint64(1_000_000)
		err := leader.Step(&raftpb.Message{
			Type: raftpb.MsgHeartbeat.Enum(), From: &from, To: &id, Term: &term, Commit: &commit,
		})
		if err == nil {
			t.Fatal("the message was taken")
		}
		begin := time.Now()
		if _, err := p.Wait(timeout(t)); !errors.Is(err, ErrOutcomeUnknown) || time.Since(begin) > time.Second {
			t.Fatalf("the write that waits, after %v: %v", time.Since(begin), err)
		}
		if _, err := leader.do(t, put(2, "b")); !errors.Is(err, ErrFailed) {
			t.Fatalf("a write after that: %v", err)
		}
		if err := leader.ReadBarrier(timeout(t)); !errors.Is(err, ErrFailed) {
			t.Fatalf("a read after that: %v", err)
		}
	})
}

func TestLeadIsHandedOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(t)
		first, leader := n.lead()
		second, follower := n.follower(first)
		leader.must(t, put(1, "a"))
		begin := time.Now()
		ok(t, leader.TransferLeader(timeout(t), second))
		if took := time.Since(begin); took > time.Second {
			t.Fatalf("it took %v: that was an election by a timeout", took)
		}
		until(t, "the new leader serves", func() bool { return follower.Status().Leader })
		follower.must(t, put(1, "b"))
		ok(t, leader.TransferLeader(timeout(t), second)) // that member leads already
		if err := leader.TransferLeader(timeout(t), first); !errors.Is(err, ErrNoLeader) {
			t.Errorf("by a follower: %v", err)
		}
		if err := follower.TransferLeader(timeout(t), 9); !errors.Is(err, ErrInvalid) {
			t.Errorf("to no voter: %v", err)
		}
		n.isolate(first, true)
		if err := follower.TransferLeader(timeout(t), first); !errors.Is(err, ErrNotTransferred) {
			t.Errorf("to one that is cut off: %v", err)
		}
		until(t, "it leads on", func() bool { return follower.Status().Leader })
		follower.must(t, put(1, "c"))
	})
}

// A voter that was promoted only a moment ago may not know yet that it may lead. It must keep the request to campaign
// until it has applied the change.
func TestLeadGoesToAVoterOfJustNow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := makeNetwork(t)
		// No other member may receive the entries that this leader appends after the change. Otherwise that member might
		// have an entry that the new voter lacks, and would not vote for the new voter.
		var alone atomic.Uint64
		n.change = func(id uint64, o *Options) {
			o.Transport = dropping{o.Transport, func(m *raftpb.Message) bool { return id == alone.Load() && hasConfirmation(m) }}
		}
		n.startAll()
		_, leader := n.lead()
		ok(t, leader.ChangeMembers(timeout(t), change(learner(4))))
		fourth := n.start(4)
		until(t, "the learner has everything", func() bool {
			m := leader.Members()
			return m.Progress[3].Match == m.LastIndex && m.Progress[3].State == StateReplicate
		})
		// The new voter receives the request to campaign before it receives the entry that makes it a voter.
		id, term := leader.Members().LeaderID, leader.Members().Term
		ok(t, fourth.Step(&raftpb.Message{Type: raftpb.MsgTimeoutNow.Enum(), From: &id, To: new(uint64(4)), Term: &term}))
		alone.Store(id)
		begin := time.Now()
		if err := leader.ChangeMembers(timeout(t), change(add(4))); !errors.Is(err, ErrOutcomeUnknown) {
			t.Fatalf("the leader is deposed before it knows that all know: %v", err)
		}
		until(t, "the new voter serves", func() bool { return fourth.Status().Leader })
		if took := time.Since(begin); took >= time.Second {
			t.Fatalf("it took %v: that was an election by a timeout", took)
		}
		fourth.must(t, put(1, "a"))
		// A request to campaign that has been kept for too long is ignored.
		id, term = fourth.Members().LeaderID, fourth.Members().Term
		ok(t, fourth.ChangeMembers(timeout(t), change(learner(5))))
		fifth := n.start(5)
		until(t, "the next learner has everything", func() bool {
			m := fourth.Members()
			return m.Progress[4].Match == m.LastIndex && m.Progress[4].State == StateReplicate
		})
		until(t, "it knows its leader", func() bool { return slices.Contains(fifth.Members().Conf.GetVoters(), 4) })
		ok(t, fifth.Step(&raftpb.Message{Type: raftpb.MsgTimeoutNow.Enum(), From: &id, To: new(uint64(5)), Term: &term}))
		time.Sleep(2 * timeoutNowTicksMax * electionTimeout / electionTicks)
		ok(t, fourth.ChangeMembers(timeout(t), change(add(5))))
		time.Sleep(time.Second)
		if fifth.Status().Leader {
			t.Fatal("a call to lead was kept for ever")
		}
	})
}

// Writes continue while the future leader is far behind.
func TestLeadIsHandedOverWhenTheOtherIsNear(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(t)
		first, leader := n.lead()
		second, _ := n.follower(first)
		n.isolate(second, true)
		for i := range int64(transferLagMax + 200) {
			leader.must(t, put(i%7, fmt.Sprint(i)))
		}
		handed := make(chan error, 1)
		go func() { handed <- leader.TransferLeader(timeout(t), second) }()
		synctest.Wait()
		leader.must(t, put(1, "meanwhile")) // fails with ErrNoLeader if the transfer has already begun
		n.isolate(second, false)
		ok(t, <-handed)
	})
}

// damage corrupts the stored bytes of a member's record.
func (n *network) damage(id uint64, record int64, needle string) {
	flip(n.t, n.disks[id], "/v/7", needle)
	if _, err := n.members[id].log.Get(record, group.GetOptions{}); err == nil {
		n.t.Fatal("the damage is not noticed: the test does not test")
	}
}

func TestDamageBarsFromLeading(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(t)
		first, leader := n.lead()
		leader.must(t, put(1, "needle"))
		last := leader.must(t, put(2, "b")).Index
		// Wait until every member has all entries. Otherwise the leader would read the damaged entries in order to send
		// them to lagging members.
		until(t, "all have everything", func() bool {
			for _, m := range n.members {
				if m.Status().AppliedIndex < last {
					return false
				}
			}
			return true
		})
		n.damage(first, 1, "needle")
		until(t, "another leads", func() bool {
			id, _ := n.lead()
			return id != first && !leader.Status().Leader
		})
		if !leader.Status().Damaged {
			t.Fatal("the status does not tell the damage")
		}
		second, now := n.lead()
		if err := now.TransferLeader(timeout(t), first); !errors.Is(err, ErrNotTransferred) {
			t.Fatalf("hand-over to the damaged replica: %v", err)
		}
		until(t, "it leads on", func() bool { return now.Status().Leader })
		// The damaged member votes and accepts entries, but never campaigns.
		third := 6 - first - second
		n.isolate(third, true)
		now.must(t, put(3, "held by the damaged one"))
		n.isolate(second, true)
		term := leader.Members().Term
		time.Sleep(time.Minute)
		if m := leader.Members(); m.Term != term || m.LeaderID == first {
			t.Fatalf("the damaged replica campaigned: %+v", m)
		}
		n.isolate(third, false)
		n.isolate(second, false)
		until(t, "the third has everything", func() bool {
			return n.members[third].Members().LastIndex == leader.Members().LastIndex && leader.Members().LeaderID != 0
		})
		id, _ := n.lead()
		n.isolate(id, true)
		until(t, "its vote makes the other lead", func() bool { return n.members[6-first-id].Status().Leader })
	})
}

func TestDamageDoesNotBarTheOnlyVoter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := vfstest.NewMem()
		one := newMachine(t, mem, "/v").open("7", nil)
		one.must(t, put(1, "needle"))
		flip(t, mem, "/v/7", "needle")
		if _, err := one.log.Get(1, group.GetOptions{}); err == nil {
			t.Fatal("the damage is not noticed: the test does not test")
		}
		ok(t, one.ChangeMembers(timeout(t), change(learner(2))))
		time.Sleep(time.Minute)
		one.must(t, put(2, "b"))
	})
}

func TestSnapshotIsOfferedAndWhatIsThereAnswered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := makeNetwork(t)
		offers := make(chan [3]uint64, 8)
		n.change = func(id uint64, o *Options) {
			o.OnSnapshot = func(index, term, from uint64) { offers <- [3]uint64{id, index, term} }
		}
		n.startAll()
		first, leader := n.lead()
		for i := range int64(10) {
			leader.must(t, put(i, "x"))
		}
		id, second := n.follower(first)
		until(t, "applied", func() bool { return second.Members().AppliedIndex == leader.Members().AppliedIndex })
		before := second.Members()
		snap := func(index uint64) *raftpb.Message {
			from, to := first, id
			return &raftpb.Message{
				Type: raftpb.MsgSnap.Enum(), From: &from, To: &to, Term: &before.Term,
				Snapshot: &raftpb.Snapshot{Metadata: &raftpb.SnapshotMetadata{Index: &index, Term: &before.Term,
					ConfState: before.Conf}},
			}
		}
		ok(t, second.Step(snap(before.LastIndex+100)))
		if got := <-offers; got != [3]uint64{id, before.LastIndex + 100, before.Term} {
			t.Fatalf("offered: %v", got)
		}
		ok(t, second.Step(snap(3)))
		if len(offers) != 0 || second.Members().AppliedIndex != before.AppliedIndex {
			t.Fatal("a snapshot of what is there was taken")
		}
	})
}

func TestFormingGroupTakesNoWrites(t *testing.T) {
	mem := vfstest.NewMem()
	asked := 0
	forming := func(_ *group.Options, o *Options) {
		o.Forming = func(conf *raftpb.ConfState) bool { asked++; return len(conf.GetVoters()) < 3 && asked < 3 }
	}
	m := newMachine(t, mem, "/v")
	one := m.open("7", forming)
	for range 2 {
		if _, err := one.do(t, put(1, "a")); !errors.Is(err, ErrNoLeader) {
			t.Fatalf("a write while it forms: %v", err)
		}
	}
	one.must(t, put(1, "a"))
	one.must(t, put(2, "a"))
	if asked != 3 {
		t.Fatalf("asked %d times", asked)
	}
	m.halt()
	asked = 0
	again := newMachine(t, mem, "/v").open("7", forming)
	again.must(t, put(3, "a")) // even after a restart, a group that has held a write does not wait for voters
}

func TestMessagesThatCannotBeForItAreRefused(t *testing.T) {
	one := newMachine(t, vfstest.NewMem(), "/v").open("7", nil)
	message := func(from, to, term uint64, what raftpb.MessageType) *raftpb.Message {
		return &raftpb.Message{Type: &what, From: &from, To: &to, Term: &term}
	}
	for what, m := range map[string]*raftpb.Message{
		"another incarnation": message(2, 99, 5, raftpb.MsgHeartbeat),
		"from nobody":         message(0, raftID, 5, raftpb.MsgHeartbeat),
		"from a thread":       message(1<<64-1, raftID, 0, raftpb.MsgBeat),
		"a campaign":          message(2, raftID, 0, raftpb.MsgHup),
	} {
		if err := one.Step(m); err == nil {
			t.Errorf("%s: taken", what)
		}
	}
	one.must(t, put(1, "a"))
}
