package replica

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"
	"go.etcd.io/raft/v3/tracker"
)

// ErrNotTransferred says that another member leads, or nobody yet.
var ErrNotTransferred = errors.New("the lead was not handed over")

// transferTimeMax bounds the wait for the election behind a transfer.
const transferTimeMax = 3 * electionTicks * raftTicks * clockInterval

// announce tells those who wait that the leader, the term or the membership has changed. Called with mu held.
func (r *Replica) announce() {
	if r.changed != nil {
		close(r.changed)
		r.changed = nil
	}
	if r.opts.OnChange != nil {
		r.opts.OnChange()
	}
}

// transferLagMax is how many entries a voter may lack when the lead is handed to it: writes are refused until it has them.
const transferLagMax = 1000

// TransferLeader hands the lead over to a voter and waits until that leads. Where it does not within about an election
// timeout, the error says so, and this replica may lead on. Writes are refused with ErrNoLeader meanwhile, but not while the voter is
// far behind, or has not the membership change that gave it its vote: that is waited for first.
func (r *Replica) TransferLeader(ctx context.Context, to uint64) error {
	ctx, cancel := context.WithTimeoutCause(ctx, transferTimeMax, ErrNotTransferred)
	defer cancel()
	look := time.NewTicker(clockInterval)
	defer look.Stop()
	for begun := false; ; {
		changed, err := r.transferStep(to, &begun)
		if changed == nil {
			return err
		}
		r.schedule()
		select {
		case <-changed:
		case <-look.C:
		case <-r.detached:
			return ErrStopping
		case <-ctx.Done():
			return fmt.Errorf("%w to replica %x: %w", ErrNotTransferred, to, context.Cause(ctx))
		}
	}
}

// transferStep begins a transfer or looks how it stands. Where changed is nil, it has ended with err.
func (r *Replica) transferStep(to uint64, hasBegun *bool) (changed <-chan struct{}, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	begun := *hasBegun
	switch {
	case r.err != nil:
		return nil, fmt.Errorf("%w: %w", ErrFailed, r.err)
	case r.leaderID == to:
		return nil, nil
	case !begun && !r.leader:
		return nil, ErrNoLeader
	case !begun && !slices.Contains(r.conf.GetVoters(), to):
		return nil, fmt.Errorf("%w: replica %x is no voter of the group", ErrInvalid, to)
	case !begun && !r.mayTake(to):
		r.wake() // it is brought up to date meanwhile
	case !begun:
		*hasBegun = true
		r.wake()
		r.node.TransferLeader(to)
		r.observe()
	case r.leader && r.transferee != to:
		return nil, fmt.Errorf("%w: replica %x did not take it within an election timeout", ErrNotTransferred, to)
	case !r.leader && r.leaderID != raft.None:
		return nil, fmt.Errorf("%w: replica %x leads instead of %x", ErrNotTransferred, r.leaderID, to)
	}
	if r.changed == nil {
		r.changed = make(chan struct{})
	}
	return r.changed, nil
}

// mayTake tells whether a voter is near enough to take the lead. Called with mu held, by the leader.
func (r *Replica) mayTake(to uint64) (may bool) {
	last, err := r.log.LastIndex()
	if err != nil {
		return false
	}
	r.node.WithProgress(func(id uint64, _ raft.ProgressType, pr tracker.Progress) {
		if id == to {
			may = id == r.opts.RaftID ||
				!r.down[id] && pr.State == tracker.StateReplicate && pr.Match >= r.confIndex && pr.Match+transferLagMax >= last
		}
	})
	return may
}

// summonsTicksMax is how long a call to lead is kept.
const summonsTicksMax = electionTicks / 2

// summons is a call to lead that came before its time; none where message is nil.
type summons struct {
	message *raftpb.Message
	ticks   int // since it came
}

// keepSummons keeps a call to lead until this replica has applied what it knows to be committed: Raft would ignore it before, and writes
// would be refused for an election timeout. Called with mu held. False: it can be followed now.
func (r *Replica) keepSummons(m *raftpb.Message) bool {
	if r.canCampaign() || m.GetTerm() != r.term || m.GetFrom() != r.leaderID || !r.member || r.barred() {
		return false
	}
	r.wake()
	r.summons = summons{message: m}
	return true
}

// canCampaign is called with mu held.
func (r *Replica) canCampaign() bool {
	status := r.node.BasicStatus()
	return isVoter(r.conf, r.opts.RaftID) && status.Applied >= status.GetCommit()
}

// followSummons follows a call to lead that was kept. Called with mu held, when entries were applied.
func (r *Replica) followSummons() {
	m := r.summons.message
	if m == nil || !r.canCampaign() {
		return
	}
	r.summons = summons{}
	if m.GetTerm() != r.term || m.GetFrom() != r.leaderID || r.barred() {
		return
	}
	if err := r.node.Step(m); err != nil {
		r.logger.Debug("a call to lead was not taken", "error", err)
	}
	r.observe()
}

// tickSummons forgets a call that is too old: its leader has given the transfer up. Called with mu held.
func (r *Replica) tickSummons() {
	if r.summons.message == nil {
		return
	}
	if r.summons.ticks++; r.summons.ticks > summonsTicksMax {
		r.summons = summons{}
	}
}

// yield hands the lead over, to the member that has most: where the log has damage (rule 4), and where the leader is no voter any more. Called with mu
// held, by the clock of a leader that is not alone.
func (r *Replica) yield() {
	if r.yieldTicks--; r.yieldTicks > 0 || r.transferee != raft.None {
		return
	}
	var to, match uint64
	r.node.WithProgress(func(id uint64, kind raft.ProgressType, pr tracker.Progress) {
		if id == r.opts.RaftID || kind != raft.ProgressTypePeer || r.down[id] || !pr.RecentActive || pr.State != tracker.StateReplicate {
			return
		}
		if slices.Contains(r.conf.GetVoters(), id) && (to == 0 || pr.Match > match) {
			to, match = id, pr.Match
		}
	})
	if to == raft.None {
		return
	}
	r.yieldTicks = yieldTicks
	r.logger.Warn("the log is damaged, or this is no voter any more: the lead is handed over", "to", fmt.Sprintf("%x", to))
	r.node.TransferLeader(to)
}

// yieldTicks is the pause between two tries: writes are refused while one is under way.
const yieldTicks = 5 * electionTicks
