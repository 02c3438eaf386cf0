package sim

import (
	"math/rand/v2"
	"time"

	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"
)

// voteTwice cuts the power of a member right after it has voted, and lets a second candidate of the same term ask it
// for its vote. The two candidates cannot reach each other, and the first one is then disconnected. voteTwice returns
// true if the member has cast the first vote.
func (w *world) voteTwice(_ *operator, r *rand.Rand) bool {
	w.connect()
	leader := w.leader()
	if leader == nil || w.cfg.copies != 3 {
		return false
	}
	voter := leader.machine
	w.pauseWrites(true) // without new writes, both candidates have all entries, so both may get the vote
	defer w.pauseWrites(false)
	if !w.sleep(between(r, 300*time.Millisecond, 500*time.Millisecond)) {
		return false
	}
	voted := make(chan *raftpb.Message, 1)
	w.layTrap(func(from *process, m *raftpb.Message) bool {
		if from.machine != voter || m.GetType() != raftpb.MsgVoteResp || m.GetReject() {
			return false
		}
		w.trap = nil
		w.dropOutbound(w.at[m.GetTo()]) // the vote itself still arrives, because it was already sent
		voted <- proto.Clone(m).(*raftpb.Message)
		return false
	})
	w.connectOnly(func(a, b int) bool { return a == voter.number || b == voter.number })
	voter.cutPower(survival(r)) // causes an election, because the voter is the leader
	voter.start()
	if vote := w.await(voted, 5*time.Second, nil); vote == nil {
		w.connect()
		return false
	}
	w.layTrap(func(from *process, m *raftpb.Message) bool { // prevents the voter from becoming a candidate itself
		return from.machine == voter && m.GetType() == raftpb.MsgPreVote
	})
	defer w.layTrap(nil)
	voter.cutPower(survival(r))
	voter.start()
	w.pauseWrites(false)
	w.sleep(between(r, 2500*time.Millisecond, 3500*time.Millisecond))
	w.connect()
	return true
}
