package replica

import (
	"sync/atomic"
	"time"

	"go.etcd.io/raft/v3/raftpb"

	"sheaf.dev/sheaf/internal/base/rules"
	"sheaf.dev/sheaf/internal/consensus/replica/rounds"
)

// lease records whether this replica may answer reads without asking the other members. Its methods may be called with
// or without the core's mutex.
//
// When a majority has confirmed that a leader leads, the leader may answer reads without asking again for leaseTime,
// counted from the time of its request. This is safe because a member that responds has received a message from a
// leader, and from then on gives its vote to no other member for an election timeout. So while the lease runs, no other
// leader can be elected, and no other member can acknowledge a write. Four rules ensure this, and each rule has a test
// that fails without it.
//
//  1. The lease counts from a time before the question was sent, and ends by this process's monotonic clock, which
//     continues while the process is stopped. It is checked before the log is read, so that the data read afterwards
//     is at least as new.
//  2. leaseTime is far below the election timeout of 10 ticks (9 if a tick comes late). Followers measure this timeout
//     by their own clocks. The rule holds even if these clocks run 80 % faster than the leader's clock.
//     A member that learns that its leader's shard is silent (PeerDown) may vote earlier, but not before the member
//     itself has heard nothing from the leader for an election timeout, because the report may come late, after the
//     member has answered the leader again.
//  3. A replica that has just started has forgotten its earlier answers, so it gives no vote for voteSilence, which
//     is longer than leaseTime.
//  4. A member to which the leadership is transferred need not wait, because the leader that transfers the leadership
//     has no lease for the rest of its term.
//
// The machines must guarantee that a clock does not stop while its process, or its whole virtual machine, is stopped
// and others continue.
type lease struct {
	seat    *rounds.Seat
	rules   rules.Off
	allowed bool // Options.Lease

	// soleVoter means that this node is the sole voter and leader, and has applied an entry of its own term, so that
	// its log holds everything that was ever acknowledged.
	soleVoter atomic.Bool
	until     atomic.Int64 // monotonic time until which the lease runs; 0 if there is no lease
	renew     atomic.Bool  // whether to ask the majority in order to extend the lease, although no read waits
}

const (
	leaseTime   = 500 * time.Millisecond
	voteSilence = 600 * time.Millisecond
)

// isValid reports whether the lease runs. In the second half of the lease, isValid also requests a new confirmation
// from the majority, for which no read has to wait.
func (l *lease) isValid() bool {
	until := l.until.Load()
	if until == 0 {
		return false
	}
	left := until - monotonic()
	if left <= 0 && l.rules.Keeps(rules.Lease) {
		return false
	}
	if left < int64(leaseTime/2) && l.renew.CompareAndSwap(false, true) {
		l.seat.Schedule()
	}
	return true
}

// end ends the lease.
func (l *lease) end() { l.until.Store(0) }

// endAll makes every read ask the majority, even reads on a sole voter.
func (l *lease) endAll() {
	l.soleVoter.Store(false)
	l.end()
}

// start starts a leader's lease. It is called when the majority has confirmed a request that was sent at the time
// askedAt.
func (l *lease) start(askedAt int64) {
	if l.allowed {
		l.until.Store(askedAt + int64(leaseTime))
	}
}

// isTooEarly reports whether a request for a vote comes too soon after the start of this replica. Before the start,
// this replica may have responded to a leader whose lease still runs (rules.LeaseVote). A request from a candidate that
// the leader itself has told to campaign is never too early.
func (c *core) isTooEarly(m *raftpb.Message) bool {
	if !asksForVote(m) || string(m.GetContext()) == campaignTransfer || !c.rules.Keeps(rules.LeaseVote) {
		return false
	}
	return time.Since(c.startedAt) < voteSilence
}

func asksForVote(m *raftpb.Message) bool {
	return m.GetType() == raftpb.MsgVote || m.GetType() == raftpb.MsgPreVote
}

// campaignTransfer is the context of vote requests after a leadership transfer. Raft does not export it.
const campaignTransfer = "CampaignTransfer"
