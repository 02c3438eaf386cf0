package replica

import "go.etcd.io/raft/v3/raftpb"

// tick advances Raft's clock. It returns the messages to send.
func (c *core) tick() []*raftpb.Message {
	if c.err != nil {
		return nil
	}
	if c.full.err != nil {
		if !c.full.tick() {
			return nil
		}
		c.seat.Schedule()
	}
	if c.idle.onlyMember.Load() || c.idle.resting.Load() {
		return nil
	}
	barred := c.barred()
	c.forgetSilentLeader()
	call := c.tickRaft(barred)
	c.observe()
	c.tickLost()
	c.reads.tick()
	c.transfer.tick()
	c.members.tickOffers()
	c.members.tickJoint()
	if len(c.reads.waiting) > 0 || c.node.raft.HasReady() {
		c.seat.Schedule()
	}
	if call != nil {
		return []*raftpb.Message{call}
	}
	if calls := c.quiet.callLeader(barred); calls != nil || barred {
		return calls
	}
	return c.quiet.rest(c.isBusy)
}

// tickRaft advances the clock of Raft's node. It returns a MsgTimeoutNow to send, or nil if there is none. The caller
// must send it after it has observed the leadership.
func (c *core) tickRaft(barred bool) (call *raftpb.Message) {
	switch {
	case !c.node.leader && (barred || c.node.behindFloor()):
		c.node.raft.TickQuiesced() // time must pass for this replica, so that it can vote, but it must never campaign
	case barred || c.node.leader && !c.members.isVoter():
		c.node.raft.Tick()
		return c.transfer.yield(barred)
	default:
		c.node.raft.Tick()
		c.silence.tick()
	}
	c.transfer.barredTicks = 0
	return nil
}

func (c *core) forgetSilentLeader() {
	if c.silence.forgetLeader() {
		c.observe()
	}
}

// lostTicksMax is the number of ticks after a loss of the leadership within which a round must answer the writes in
// progress. After that, the callers stop waiting (see tickLost).
const lostTicksMax = 2

// If a round does not finish after the leadership was lost, tickLost releases the callers that wait for it. Their
// writes remain in progress, and may still be applied.
func (c *core) tickLost() {
	if !c.node.lost {
		c.lostTicks = 0
		return
	}
	if c.lostTicks++; c.lostTicks >= lostTicksMax && c.seat.IsScheduled() {
		c.lostTicks = 0
		close(c.hangs)
		c.hangs = make(chan struct{})
	}
}
