package replica

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"go.etcd.io/raft/v3"
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

// TransferLeader hands the lead over to a voter and waits until that leads. Where it does not within about an election
// timeout, the error says so, and this replica may lead on. Writes are refused with ErrNoLeader meanwhile.
func (r *Replica) TransferLeader(ctx context.Context, to uint64) error {
	ctx, cancel := context.WithTimeoutCause(ctx, transferTimeMax, ErrNotTransferred)
	defer cancel()
	for begun := false; ; begun = true {
		changed, err := r.transferStep(to, begun)
		if changed == nil {
			return err
		}
		r.schedule()
		select {
		case <-changed:
		case <-r.detached:
			return ErrStopping
		case <-ctx.Done():
			return fmt.Errorf("%w to replica %x: %w", ErrNotTransferred, to, context.Cause(ctx))
		}
	}
}

// transferStep begins a transfer or looks how it stands. Where changed is nil, it has ended with err.
func (r *Replica) transferStep(to uint64, begun bool) (changed <-chan struct{}, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.err != nil:
		return nil, fmt.Errorf("%w: %w", ErrFailed, r.err)
	case r.leaderID == to:
		return nil, nil
	case !begun && !r.leader:
		return nil, ErrNoLeader
	case !begun && !slices.Contains(r.conf.GetVoters(), to):
		return nil, fmt.Errorf("%w: replica %x is no voter of the group", ErrInvalid, to)
	case !begun:
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

// yield hands the lead over where the log has damage (rule 4), to the member that has most. Called with mu held, by the
// clock of a leader that is not alone.
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
	r.logger.Warn("the log is damaged: the lead is handed over", "to", fmt.Sprintf("%x", to))
	r.node.TransferLeader(to)
}

// yieldTicks is the pause between two tries: writes are refused while one is under way.
const yieldTicks = 5 * electionTicks
