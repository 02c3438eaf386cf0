package replica

import (
	"time"

	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"
)

// A leader whose question the majority has answered may answer reads by itself for a while: for leaseTime since it asked. It can,
// because whoever answers hears of a leader, and gives nobody else a vote for an election timeout since then. So no other leader can be
// elected, and nothing be acknowledged elsewhere, while the lease runs. Four rules make that true; each has a test that fails without it.
//
//  1. The lease counts from before the question was sent, and ends by this process's monotonic clock, which goes on while the process is
//     stopped. It is looked at before the log is read, so that what is read afterwards is at least as new.
//  2. leaseTime is far below the election timeout of 10 ticks (of which a late clock may make 9), which followers measure by their own
//     clocks: they may run faster by 80 %.
//     A member that is told that its leader's shard is silent (PeerDown) may vote sooner, but not before it has heard nothing of the leader
//     for an election timeout itself: the word may come late, when the member has answered the leader again.
//  3. A replica that has just started does not know what it has answered: it gives no vote for voteSilence, which is more than leaseTime.
//  4. A member to whom the lead is handed over need not wait for anybody: whoever hands it over has no lease for the rest of its term.
//
// What must hold of the machines: a clock does not stand still while its process, or its whole virtual machine, does and others go on.
const (
	leaseTime   = 500 * time.Millisecond
	voteSilence = 600 * time.Millisecond
)

// leaseClock is the zero of leases: monotonic.
var leaseClock = time.Now()

// leased tells whether the lease runs. Where half of it is over, the majority is asked anew, and nobody waits for that.
func (r *Replica) leased() bool {
	until := r.leaseUntil.Load()
	if until == 0 {
		return false
	}
	left := until - int64(time.Since(leaseClock))
	if left <= 0 && !r.unsafe(UnsafeLease) {
		return false
	}
	if left < int64(leaseTime/2) && r.renew.CompareAndSwap(false, true) {
		r.schedule()
	}
	return true
}

// endLease is called with mu held, or when nothing runs any more.
func (r *Replica) endLease() { r.leaseUntil.Store(0) }

// startLease takes the answer of the majority to the question that was asked at a time. Called with mu held.
func (r *Replica) startLease(q *readRound) {
	handedOver := r.handedOver == r.term && !r.unsafe(UnsafeLeaseTransfer)
	if !r.opts.Lease || !r.leader || !r.serving || q.leaderTerm != r.term || handedOver {
		return
	}
	r.leaseUntil.Store(q.askedAt + int64(leaseTime))
}

// noteTransfer remembers that this leader has asked another member to campaign: that may come late, and also when the transfer was
// given up. Called with mu held.
func (r *Replica) noteTransfer() {
	if r.leader && r.transferee != raft.None {
		r.handedOver = r.term
		if !r.unsafe(UnsafeLeaseTransfer) {
			r.endLease()
		}
	}
}

// mayHavePromised tells that a call for votes comes too soon after the start: before it, this replica may have answered a leader whose
// lease still runs. A candidate that the leader itself has called is one to vote for.
func (r *Replica) mayHavePromised(m *raftpb.Message) bool {
	if t := m.GetType(); t != raftpb.MsgVote && t != raftpb.MsgPreVote {
		return false
	}
	if string(m.GetContext()) == campaignTransfer || r.unsafe(UnsafeLeaseVote) {
		return false
	}
	return time.Since(r.startedAt) < voteSilence
}

// campaignTransfer is the context of calls for votes behind a transfer: Raft does not export it.
const campaignTransfer = "CampaignTransfer"
