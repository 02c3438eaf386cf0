package replica

import (
	"sync/atomic"
	"time"

	"go.etcd.io/raft/v3/raftpb"

	"sheaf.dev/sheaf/internal/consensus/replica/rounds"
	"sheaf.dev/sheaf/internal/consensus/replica/rules"
)

// lease says whether this replica may answer reads by itself. Its methods may be called with or without the core's
// mutex.
//
// A leader whose question the majority has answered may answer reads by itself for a while: for leaseTime since it
// asked. It can, because whoever answers hears of a leader, and gives nobody else a vote for an election timeout since
// then. So no other leader can be elected, and nothing be acknowledged elsewhere, while the lease runs. Four rules make
// that true; each has a test that fails without it.
//
//  1. The lease counts from before the question was sent, and ends by this process's monotonic clock, which goes on
//     while the process is stopped. It is looked at before the log is read, so that what is read afterwards is at
//     least as new.
//  2. leaseTime is far below the election timeout of 10 ticks (of which a late clock may make 9), which followers
//     measure by their own clocks: they may run faster by 80 %.
//     A member that is told that its leader's shard is silent (PeerDown) may vote sooner, but not before it has heard
//     nothing of the leader for an election timeout itself: the word may come late, when the member has answered the
//     leader again.
//  3. A replica that has just started does not know what it has answered: it gives no vote for voteSilence, which is
//     more than leaseTime.
//  4. A member to whom the lead is handed over need not wait for anybody: whoever hands it over has no lease for the
//     rest of its term.
//
// What must hold of the machines: a clock does not stand still while its process, or its whole virtual machine, does
// and others go on.
type lease struct {
	seat    *rounds.Seat
	rules   rules.Off
	allowed bool // Options.Lease

	// soleVoter: this node is the sole voter and leader, and an entry of its own term is applied, so that the log
	// holds everything that was ever acknowledged.
	soleVoter atomic.Bool
	until     atomic.Int64 // monotonic; until then this leader may answer reads by itself; 0: it may not
	renew     atomic.Bool  // the majority is to be asked although nobody waits, so that the lease goes on
}

const (
	leaseTime   = 500 * time.Millisecond
	voteSilence = 600 * time.Millisecond
)

// isValid tells whether the lease runs. Where half of it is over, the majority is asked anew, and nobody waits for
// that.
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

// endAll takes from this replica that it may answer reads by itself, also where it is alone.
func (l *lease) endAll() {
	l.soleVoter.Store(false)
	l.end()
}

// start begins the lease of a leader, whose question of a time the majority has answered.
func (l *lease) start(askedAt int64) {
	if l.allowed {
		l.until.Store(askedAt + int64(leaseTime))
	}
}

// isTooEarly tells that a call for votes comes too soon after the start: before it, this replica may have answered a
// leader whose lease still runs (rules.LeaseVote). A candidate that the leader itself has called is one to vote for.
func (c *core) isTooEarly(m *raftpb.Message) bool {
	if !asksForVote(m) || string(m.GetContext()) == campaignTransfer || !c.rules.Keeps(rules.LeaseVote) {
		return false
	}
	return time.Since(c.startedAt) < voteSilence
}

func asksForVote(m *raftpb.Message) bool {
	return m.GetType() == raftpb.MsgVote || m.GetType() == raftpb.MsgPreVote
}

// campaignTransfer is the context of calls for votes behind a transfer: Raft does not export it.
const campaignTransfer = "CampaignTransfer"
