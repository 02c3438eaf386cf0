package replica

import (
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.etcd.io/raft/v3/raftpb"

	"sheaf.dev/sheaf/internal/storage/group"
)

// This test makes a round apply an entry, and pauses the round before its sync. During the pause, the entry is
// compacted away, so the log now begins after the last index that Raft knows to be applied. Then the leader fails. A
// replica that campaigned in this state would make Raft panic.
func TestNobodyCampaignsBeforeRaftKnowsWhatIsApplied(t *testing.T) {
	for range 100 { // one attempt may not be enough, because sometimes a round applies the entry without a sync
		met := false
		synctest.Test(t, func(t *testing.T) { met = campaignsInARound(t) })
		if met {
			return
		}
	}
	t.Fatal("no round applied an entry and synced")
}

// campaignsInARound runs the scenario once. It returns false if the run tested nothing, because the entry was applied
// too early or in a round without a sync.
func campaignsInARound(t *testing.T) bool {
	n := makeNetwork(t)
	var held atomic.Uint64 // id of the member whose round is paused before its sync
	entered, end := make(chan struct{}), make(chan struct{})
	release := sync.OnceFunc(func() { close(end) })
	defer release()
	n.change = func(id uint64, o *Options) {
		o.Probe = &Probe{BeforeSync: func() {
			if held.CompareAndSwap(id, 0) {
				close(entered)
				<-end
			}
		}}
	}
	n.startAll()
	id, leader := n.lead()
	to, one := n.follower(id)
	leader.must(t, put(1, "old"))
	// These messages are lost, because they would tell the paused member that the entry is committed.
	n.lose(func(m *raftpb.Message) bool {
		return m.GetTo() == to && (m.GetType() == raftpb.MsgHeartbeat || m.GetType() == raftpb.MsgApp &&
			len(m.GetEntries()) == 0)
	})
	newest := leader.must(t, put(1, "new")).Index
	until(t, "the follower holds the newest version", func() bool {
		last, err := one.log.LastIndex()
		ok(t, err)
		return last == newest
	})
	if one.log.AppliedIndex() == newest {
		return false // the member knows too early that the entry is committed, so this run tests nothing
	}
	ok(t, one.log.Seal())
	n.lose(nil)
	held.Store(to)
	leader.must(t, put(2, "behind"))
	<-entered
	_, err := one.log.Compact(t.Context(), group.CompactOptions{All: true})
	ok(t, err)
	if first, err := one.log.FirstIndex(); err != nil || first != newest+1 {
		ok(t, err)
		return false
	}

	n.isolate(id, true)
	// The MsgTimeoutNow comes from a leader that this replica does not know yet, so the replica refuses it.
	rejected := one.Step(&raftpb.Message{
		Type: raftpb.MsgTimeoutNow.Enum(), From: new(6 - id - to), To: &to, Term: new(one.Members().Term),
	})
	if rejected == nil {
		t.Error("it took the call to lead")
	}
	time.Sleep(10 * electionTimeout)
	ok(t, one.Status().Err)
	release()
	n.wantData(t, one, 1, "new")
	n.wantData(t, one, 2, "behind")
	_, err = n.write(t, id, put(3, "goes on"))
	ok(t, err)
	return true
}
