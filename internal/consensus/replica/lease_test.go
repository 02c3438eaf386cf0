package replica

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"go.etcd.io/raft/v3/raftpb"

	"sheaf.dev/sheaf/internal/consensus/replica/rounds"
)

// leasing starts a group of three members, in which the leader may answer reads without asking the others.
func leasing(t *testing.T) *network {
	n := makeNetwork(t)
	n.change = func(_ uint64, o *Options) { o.Lease = true }
	n.startAll()
	return n
}

// questions returns the number of messages that the leader sends to answer one read.
func (n *network) questions(t *testing.T, leader *member) int {
	t.Helper()
	sent := func() int {
		n.mu.Lock()
		defer n.mu.Unlock()
		return n.sent[raftpb.MsgHeartbeat]
	}
	synctest.Wait()
	before := sent()
	ok(t, leader.ReadBarrier(timeout(t)))
	synctest.Wait()
	return sent() - before
}

func TestALeaseSparesQuestionsUntilItEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := leasing(t)
		id, leader := n.lead()
		leader.must(t, put(1, "a"))
		if n.questions(t, leader) == 0 {
			t.Fatal("the first read asked nobody")
		}
		if q := n.questions(t, leader); q != 0 || !leader.Readable() {
			t.Fatalf("the second read asked: %d questions", q)
		}
		if leader.Alone() {
			t.Fatal("a leader with a lease takes itself for the only voter")
		}
		// Consecutive reads extend the lease, and none of them waits.
		for range 40 {
			time.Sleep(leaseTime / 5)
			if !leader.Readable() {
				t.Fatal("the lease of a leader that is read has ended")
			}
		}
		// A partitioned leader answers no reads once its lease has ended, even though it still believes that it leads.
		n.isolate(id, true)
		time.Sleep(leaseTime)
		if leader.Readable() || !leader.Status().Leader {
			t.Fatalf("readable %v, leads %v: the lease must end first", leader.Readable(), leader.Status().Leader)
		}
	})
}

func TestHandingOverEndsTheLeaseForTheTerm(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := leasing(t)
		id, leader := n.lead()
		n.questions(t, leader)
		to, _ := n.follower(id)
		n.isolate(to, true) // the transfer fails, because its MsgTimeoutNow does not reach the receiver yet
		if err := leader.TransferLeader(timeout(t), to); !errors.Is(err, ErrNotTransferred) {
			t.Fatal(err)
		}
		until(t, "it leads on", func() bool { return leader.Status().Leader })
		for range 2 {
			if leader.Readable() || n.questions(t, leader) == 0 {
				t.Fatal("it reads by a lease, though the other one may campaign at any time")
			}
		}
	})
}

func TestWhoHasJustStartedGivesNoVote(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := leasing(t)
		id, leader := n.lead()
		leader.must(t, put(1, "a"))
		restarted, _ := n.follower(id)
		n.stop(restarted)
		n.isolate(id, true)
		one := n.start(restarted)
		votes := func() int {
			n.mu.Lock()
			defer n.mu.Unlock()
			return n.sent[raftpb.MsgPreVoteResp]
		}
		call := func() {
			last := one.Members().LastIndex
			m := &raftpb.Message{
				Type: raftpb.MsgPreVote.Enum(), From: new(6 - id - restarted), To: &restarted,
				Term: new(one.Members().Term + 1), Index: &last, LogTerm: new(one.Members().Term),
			}
			ok(t, one.Step(m))
			synctest.Wait()
		}
		synctest.Wait() // late responses from the third member must not be counted as responses to the call below
		before := votes()
		call()
		if votes() != before {
			t.Fatal("it answers a call for votes, though it does not know what it promised before")
		}
		time.Sleep(voteSilence)
		if call(); votes() == before {
			t.Fatal("it does not answer a call for votes when no lease can run any more")
		}
	})
}

// In this test, the leader's shard was silent for an election timeout. One member learns of this late, after it has
// responded to the leader again, so it must not campaign yet. Another member learns of it in time. It receives nothing
// from the leader, and would vote for the first member.
func TestWhoHasAnsweredTheLeaderWaitsThoughItsShardWasSilent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := leasing(t)
		id, leader := n.lead()
		leader.must(t, put(1, "a"))
		b, c := id%3+1, (id+1)%3+1
		if c < b {
			b, c = c, b // b must have the lower id, because the member with the lower id campaigns first
		}
		time.Sleep(time.Second) // long enough for all members to learn that the write is committed
		n.isolate(c, true)
		time.Sleep(silenceMin)
		n.members[c].PeerDown(id)
		n.questions(t, leader)
		if !leader.Readable() {
			t.Fatal("the leader has no lease that another one could break")
		}
		n.isolate(id, true)
		n.isolate(c, false)
		n.members[b].PeerDown(id)
		for leader.Readable() {
			for _, other := range []uint64{b, c} {
				if n.members[other].Status().Leader {
					t.Fatalf("replica %d leads while the lease of replica %d runs", other, id)
				}
			}
			time.Sleep(time.Millisecond)
		}
		begin := time.Now()
		n.leader(t, id)
		// If two members campaign at the same moment, the vote may be split. They then campaign in turn, which takes a
		// little longer.
		if took, want := time.Since(begin), electionTimeout+2*earlyTicks*rounds.Tick; took > want {
			t.Errorf("the election took %v behind the lease, want at most %v", took, want)
		}
	})
}
