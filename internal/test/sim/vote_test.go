package sim

import (
	"math/rand/v2"
	"time"

	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"
)

// voteTwice lets one member lose power as soon as it has given its vote, and sees to it that another one that stands
// for election in the same term asks it too: these two do not hear each other, and whoever was voted for is not heard
// any more. True where it has voted.
func (w *world) voteTwice(_ *operator, r *rand.Rand) bool {
	w.connect()
	leader := w.leader()
	if leader == nil || w.cfg.copies != 3 {
		return false
	}
	voter := leader.machine
	w.beCalm(true) // whoever has all entries may be voted for
	defer w.beCalm(false)
	if !w.sleep(between(r, 300*time.Millisecond, 500*time.Millisecond)) {
		return false
	}
	voted := make(chan *raftpb.Message, 1)
	w.layTrap(func(from *process, m *raftpb.Message) bool {
		if from.machine != voter || m.GetType() != raftpb.MsgVoteResp || m.GetReject() {
			return false
		}
		w.trap = nil
		w.cutOff(w.at[m.GetTo()]) // but for this message
		voted <- proto.Clone(m).(*raftpb.Message)
		return false
	})
	w.only(func(a, b int) bool { return a == voter.number || b == voter.number })
	voter.cutPower(survival(r)) // so that an election comes
	voter.start()
	if vote := w.await(voted, 5*time.Second, nil); vote == nil {
		w.connect()
		return false
	}
	w.layTrap(func(from *process, m *raftpb.Message) bool { // it does not stand itself
		return from.machine == voter && m.GetType() == raftpb.MsgPreVote
	})
	defer w.layTrap(nil)
	voter.cutPower(survival(r))
	voter.start()
	w.beCalm(false)
	w.sleep(between(r, 2500*time.Millisecond, 3500*time.Millisecond))
	w.connect()
	return true
}
