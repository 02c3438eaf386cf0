package replica

import (
	"context"

	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"

	"sheaf.dev/sheaf/internal/group"
)

// Probe is for simulations, which look into a replica and prove that they would notice if a rule of safety were not kept.
type Probe struct {
	BeforeSync func()             // between the write and the sync of a round; no lock is held
	Applied    func(*group.Entry) // each entry that becomes visible, in order; it must not be kept
	Unsafe     Unsafe             // rules switched off
	Shared     bool               // one group alone shares syncs too, where there is a journal
}

// Unsafe switches rules of safety off.
type Unsafe uint32

// The rules that can be switched off. Each of these must make a simulation fail.
const (
	UnsafeSync          Unsafe = 1 << iota // what was appended counts as synced
	UnsafePromise                          // answers to the leader and votes do not wait for the sync
	UnsafeVote                             // a vote is not remembered over a restart
	UnsafeRead                             // a read asks nobody whether this replica still leads
	UnsafeDecline                          // a refusal does not ask either
	UnsafeQuestion                         // the answer to any question passes for the answer to this one
	UnsafeRequests                         // only the requests that this replica itself led are remembered
	UnsafeApply                            // entries become visible before they are committed
	UnsafeServe                            // a leader serves before it has applied what its predecessors committed
	UnsafeLease                            // a lease does not end by the clock
	UnsafeLeaseVote                        // a replica gives votes as soon as it has started
	UnsafeLeaseTransfer                    // a lease goes on when the lead is handed over
	UnsafeDamage                           // damage bars nobody from leading
	UnsafeClock                            // request ids are forgotten by the machine's clock
	UnsafeForget                           // a write that made no entry is not remembered
	UnsafeReuse                            // a request id answers for another write than its own
	UnsafeSilence                          // a leader that was just answered is forgotten when its shard is told to be silent
)

func (r *Replica) unsafe(rule Unsafe) bool {
	return r.opts.Probe != nil && r.opts.Probe.Unsafe&rule != 0
}

// probeState is the hard state to write.
func (r *Replica) probeState(state *raftpb.HardState) *raftpb.HardState {
	if state == nil || !r.unsafe(UnsafeVote) {
		return state
	}
	return &raftpb.HardState{Term: state.Term, Vote: proto.Uint64(0), Commit: state.Commit}
}

// probeSync is the sync of a round.
func (r *Replica) probeSync() error {
	if r.opts.Probe != nil && r.opts.Probe.BeforeSync != nil {
		r.opts.Probe.BeforeSync()
	}
	if r.unsafe(UnsafeSync) {
		return nil
	}
	return r.committer.sync(r.log, r.opts.Probe != nil && r.opts.Probe.Shared)
}

// probeApply makes entries visible that may not be committed.
func (r *Replica) probeApply(entries []*raftpb.Entry) error {
	if !r.unsafe(UnsafeApply) || len(entries) == 0 {
		return nil
	}
	return r.log.Apply(entries[len(entries)-1].GetIndex(), r.opts.Probe.Applied)
}

func (r *Replica) probeBarrier(ctx context.Context) (done bool) {
	return r.unsafe(UnsafeRead) && ctx.Err() == nil
}

// leads tells whether an entry was written by this replica as the leader it is now.
func (r *Replica) leads(e *group.Entry) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.leader && e.Term == r.term
}
