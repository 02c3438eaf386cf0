package replica

import (
	"errors"
	"testing"
	"testing/synctest"

	"go.etcd.io/raft/v3/raftpb"
)

// A heartbeat whose commit index is beyond a follower's log shows that the leader counts on entries that the follower
// acknowledged and no longer has. The follower fails with an error of its own for that, and the others go on.
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
			Term: new(leader.Members().Term), Commit: new(last + 100), // more than can come to the log meanwhile
		})
		if !errors.Is(err, ErrLostEntries) || !errors.Is(follower.Status().Err, ErrLostEntries) {
			t.Fatalf("a heartbeat beyond the log: %v, %v", err, follower.Status().Err)
		}
		leader.must(t, put(2, "b"))
	})
}
