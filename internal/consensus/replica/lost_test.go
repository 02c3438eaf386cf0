package replica

import (
	"errors"
	"testing"
	"testing/synctest"

	"go.etcd.io/raft/v3/raftpb"
)

// A heartbeat with a commit index beyond a follower's log shows that the leader relies on entries that the follower
// acknowledged and no longer has. The follower fails with ErrLostEntries, and the other members continue.
func TestAFollowerThatLacksWhatItAcknowledgedFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(t)
		first, leader := n.lead()
		leader.must(t, put(1, "a"))
		var follower *member
		for id, one := range n.members {
			if id != first {
				follower = one
			}
		}
		last, err := follower.log.LastIndex()
		ok(t, err)
		err = follower.Step(&raftpb.Message{
			Type: raftpb.MsgHeartbeat.Enum(), From: &first, To: &follower.opts.RaftID,
			// The commit index is so high that the log cannot reach it during the test.
			Term: new(leader.Members().Term), Commit: new(last + 100),
		})
		if !errors.Is(err, ErrLostEntries) || !errors.Is(follower.Status().Err, ErrLostEntries) {
			t.Fatalf("a heartbeat beyond the log: %v, %v", err, follower.Status().Err)
		}
		leader.must(t, put(2, "b"))
	})
}
