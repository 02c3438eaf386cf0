package replica

import (
	"context"
	"errors"
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

// The tests in this file check additions to Raft that docs/raft.md lists. If one of these additions were missing, all
// other tests would still pass.

// slow delays messages of the given kind.
type slow struct {
	Transport
	kind raftpb.MessageType
	by   time.Duration
}

func (s slow) Send(messages []*raftpb.Message) {
	for _, m := range messages {
		if m.GetType() != s.kind {
			s.Transport.Send([]*raftpb.Message{m})
			continue
		}
		time.AfterFunc(s.by, func() { s.Transport.Send([]*raftpb.Message{m}) })
	}
}

// A leader must count a lease from a time before it sends the request for it, and not from the arrival of the
// responses. A member's response promises nothing about the time after it.
func TestALeaseCountsFromBeforeTheQuestion(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const delay = leaseTime / 2
		n := makeNetwork(t)
		n.change = func(_ uint64, o *Options) {
			o.Lease = true
			o.Transport = slow{o.Transport, raftpb.MsgHeartbeatResp, delay}
		}
		n.startAll()
		_, leader := n.lead()
		leader.must(t, put(1, "a"))
		ok(t, leader.ReadBarrier(timeout(t)))
		if left := time.Duration(leader.lease.until.Load() - monotonic()); left <= 0 || left > leaseTime-delay {
			t.Errorf("a lease of %v, %v after the question", left, delay)
		}
	})
}

// Suppose that a change proposed by another member takes a leader's vote away. The leader then transfers the
// leadership, because it can no longer propose anything.
func TestALeaderThatIsNoVoterHandsTheLeadOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(t)
		first, leader := n.lead()
		leader.must(t, put(1, "a"))
		c := leader.state.lock()
		// Propose the change directly, because ChangeMembers would refuse it.
		ok(t, c.node.raft.ProposeConfChange(change(remove(first))))
		c.unlock()
		leader.seat.Schedule()
		until(t, "it is no voter", func() bool { return leader.Status().Removed })
		_, next := n.leader(t, first)
		next.must(t, put(1, "b"))
	})
}

// The leadership must not be transferred to a member that has not yet received the change that made it a voter. Such
// a member would still use its previous membership, and would request votes from too few or from the wrong members.
func TestAVoterIsReadyWhenItHasItsMembership(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(t)
		first, leader := n.lead()
		leader.must(t, put(1, "a"))
		to, _ := n.follower(first)
		synctest.Wait()
		c := leader.state.lock()
		defer c.unlock()
		if !c.transfer.isReady(to) {
			t.Fatal("a follower that has everything is not ready: the test does not test")
		}
		last, _ := c.node.hasAll()
		index := c.members.index
		c.members.index = last + 1
		if c.transfer.isReady(to) {
			t.Error("it lacks the membership change")
		}
		c.members.index = index
	})
}

// A member may keep a MsgTimeoutNow that it cannot act on yet. After some time it must forget the message, because
// the sender may have decided to continue as the leader.
func TestAKeptTimeoutNowIsForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(t)
		first, leader := n.lead()
		leader.must(t, put(1, "a"))
		_, one := n.follower(first)
		synctest.Wait()
		c := one.state.lock()
		defer c.unlock()
		call := &raftpb.Message{From: new(first), Term: new(c.node.term)}
		for _, ticks := range []int{timeoutNowTicksMax, timeoutNowTicksMax + 1} {
			c.transfer.timeoutNow, c.transfer.keptTicks = call, 0
			for range ticks {
				c.transfer.tick()
			}
			if kept := c.transfer.due() != nil; kept != (ticks == timeoutNowTicksMax) {
				t.Errorf("kept for %d ticks: %v", ticks, kept)
			}
		}
	})
}

// A leader that requests votes in a new term has given up its leadership. So a member must not refuse its vote
// because it has just received messages from that leader.
func TestWhoAsksForVotesIsTakenForNoLeader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(t)
		first, leader := n.lead()
		leader.must(t, put(1, "a"))
		id, one := n.follower(first)
		time.Sleep(voteSilence)
		n.isolate(first, true)
		m := one.Members()
		if m.LeaderID != first {
			t.Fatal("the follower knows no leader: the test does not test")
		}
		ok(t, one.Step(&raftpb.Message{
			Type: raftpb.MsgPreVote.Enum(), From: &first, To: &id, Term: new(m.Term + 1),
			Index: new(m.LastIndex), LogTerm: new(m.Term),
		}))
		if leader := one.Members().LeaderID; leader != 0 {
			t.Errorf("it still takes %d for the leader", leader)
		}
	})
}

// The offer of a snapshot is repeated, because the offer, or the report that the snapshot was installed, may be lost.
func TestASnapshotIsOfferedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := makeNetwork(t)
		var offers atomic.Int32
		n.change = func(_ uint64, o *Options) {
			o.OnSnapshot = func(_, _, _ uint64) { offers.Add(1) }
		}
		n.startAll()
		first, leader := n.lead()
		behind, _ := n.follower(first)
		n.isolate(behind, true)
		for range 10 {
			leader.must(t, put(1, "newer"))
		}
		ok(t, leader.log.Seal())
		leader.must(t, put(2, "in another segment"))
		until(t, "the entries are gone that the follower needs", func() bool {
			_, err := leader.log.Compact(t.Context(), group.CompactOptions{All: true})
			ok(t, err)
			floor, err := leader.log.FirstIndex()
			ok(t, err)
			return floor > n.members[behind].Members().LastIndex+1
		})
		n.isolate(behind, false)
		until(t, "it is offered again", func() bool { return offers.Load() >= 3 })
	})
}

// If the disk is full when a membership must be recorded, the change must still be applied to Raft only once. Raft
// would panic if a joint change were applied twice.
func TestAJointMembershipIsAppliedOnceOnAFullDisk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(t)
		first, leader := n.lead()
		full, one := n.follower(first)
		n.addLearner(leader)
		fault := n.faulty[full].Add(&vfstest.Fault{Match: func(op vfstest.Op) bool {
			return op.Kind == vfstest.OpCreate
		}, Err: errNoSpace})
		ok(t, leader.ChangeMembers(timeout(t), change(add(4), remove(6-first-full))))
		until(t, "the disk has refused the membership twice", func() bool {
			return fault.Fired() > 1 && errors.Is(one.Status().Err, format.ErrNoSpace)
		})
		fault.Remove()
		until(t, "it has the membership", func() bool { return one.Members().ConfIndex == leader.Members().ConfIndex })
		ok(t, one.Status().Err)
	})
}

// The leader of a resting group wakes when a member's shard falls silent or returns. The member may have missed the
// heartbeat that lets the group rest, or any other message.
func TestALeaderAtRestWakesWhenAShardFallsSilentOrComesBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newQuietNetwork(t)
		first, leader := n.lead()
		other, _ := n.follower(first)
		leader.must(t, put(1, "a"))
		for _, tell := range []func(uint64){leader.PeerDown, leader.PeerUp} {
			until(t, "it rests", func() bool { return leader.Members().Quiet })
			if tell(other); leader.Members().Quiet {
				t.Error("it rests on")
			}
		}
	})
}

// A member that cannot rest reports this to its leader, which then wakes.
func TestAMemberThatCannotRestWakesItsLeader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, first, leader := newRestingNetwork(t)
		id, one := n.follower(first)
		m := one.Members()
		c := one.state.lock()
		answer, err := c.step(&raftpb.Message{
			Type: raftpb.MsgHeartbeat.Enum(), From: &first, To: &id, Term: &m.Term, Context: quietMark,
			Index: new(m.LastIndex - 1), LogTerm: &m.Term, Commit: new(m.LastIndex - 1),
		})
		c.unlock()
		if ok(t, err); answer == nil {
			t.Fatal("it says nothing of a mark that does not fit")
		}
		if ok(t, leader.Step(answer)); leader.Members().Quiet {
			t.Error("the leader rests on")
		}
	})
}

// A blob fetch from a hanging member never ends on its own. Until it ends, the replica accepts none of the affected
// entries from another leader. Therefore the fetch must be aborted when another member leads.
func TestAFetchOfBlobsEndsWithItsLeader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := makeNetwork(t)
		type end struct {
			id    uint64
			cause error
		}
		begun, ends := make(chan uint64, 8), make(chan end, 8)
		n.change = func(id uint64, o *Options) {
			o.FetchBlobs = func(ctx context.Context, _ uint64, _ []format.BlobRef) error {
				begun <- id
				<-ctx.Done()
				ends <- end{id, context.Cause(ctx)}
				return ctx.Err()
			}
		}
		n.startAll()
		first, leader := n.lead()
		second, third := first%3+1, 6-first-(first%3+1)
		ref := leader.blob(t, "large")
		leader.Propose(write{Write{ID: 1, Blob: &ref}})
		<-begun
		<-begun
		n.members[second].PeerDown(first)
		ended := func() (got end) {
			select {
			case got = <-ends:
			case <-time.After(time.Minute):
			}
			return got
		}
		if got := ended(); got != (end{second, errMemberQuiet}) {
			t.Errorf("the leader's shard is silent: %+v", got)
		}
		heartbeat := &raftpb.Message{
			Type: raftpb.MsgHeartbeat.Enum(), From: &second, To: &third, Term: new(leader.Members().Term + 1),
			Commit: proto.Uint64(0),
		}
		ok(t, n.members[third].Step(heartbeat))
		if got := ended(); got != (end{third, errLeaderGone}) {
			t.Errorf("another one leads: %+v", got)
		}
	})
}

// If a follower's read request is lost on the way to the leader, the follower sends it again.
func TestALostQuestionIsAskedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := makeNetwork(t)
		var lost atomic.Bool
		n.change = func(_ uint64, o *Options) {
			o.Transport = dropping{o.Transport, func(m *raftpb.Message) bool {
				return m.GetType() == raftpb.MsgReadIndex && lost.CompareAndSwap(false, true)
			}}
		}
		n.startAll()
		first, leader := n.lead()
		leader.must(t, put(1, "a"))
		_, one := n.follower(first)
		ctx, cancel := context.WithTimeout(t.Context(), 5*electionTimeout)
		defer cancel()
		if ok(t, one.ReadBarrier(ctx)); !lost.Load() {
			t.Error("no question was lost: the test does not test")
		}
	})
}
