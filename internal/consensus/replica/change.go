package replica

import (
	"context"
	"fmt"
	"time"

	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"

	"sheaf.dev/sheaf/internal/consensus/replica/rounds"
)

// ChangeMembers proposes a membership change on the leader, and returns when a majority of the new members knows that
// it is committed; one that goes through a joint membership when that is left, which Raft does by itself. One at a
// time. The leader keeps its vote: hand over the lead first (TransferLeader). ErrNoLeader, ErrChanging, ErrInvalid:
// surely nothing was changed. ErrOutcomeUnknown: see Members of the leader to come.
func (r *Replica) ChangeMembers(ctx context.Context, change *raftpb.ConfChangeV2) error {
	if change.GetTransition() == raftpb.ConfChangeTransitionJointExplicit || len(change.GetChanges()) == 0 {
		return fmt.Errorf("%w: a membership change names members, and leaves a joint membership by itself", ErrInvalid)
	}
	data, err := proto.Marshal(change)
	if err != nil {
		return fmt.Errorf("%w: membership change: %w", ErrInvalid, err)
	}
	c := &memberChange{data: data, done: make(chan struct{})}
	if err := r.beginChange(c, change); err != nil {
		return err
	}
	r.seat.Schedule()
	select {
	case <-c.done:
		return c.err
	case <-ctx.Done():
		return fmt.Errorf("%w: membership change: %w", ErrOutcomeUnknown, context.Cause(ctx))
	}
}

func (r *Replica) beginChange(one *memberChange, change *raftpb.ConfChangeV2) error {
	c := r.state.lock()
	defer c.unlock()
	if err := c.isOpen(); err != nil {
		return err
	}
	switch {
	case !c.node.serving:
		return ErrNoLeader
	case c.members.isChanging():
		return ErrChanging
	}
	if err := c.members.check(change); err != nil {
		return err
	}
	c.quiet.wake()
	c.members.change = one
	return nil
}

// Wake ends the rest of a group in which nothing happens: its clock runs again. Whoever finds damage in the log of a
// leader calls it, as the lead is handed over by the clock (rule 4). Safe for concurrent use.
func (r *Replica) Wake() {
	c := r.state.lock()
	defer c.unlock()
	if c.isOpen() == nil {
		c.quiet.wake()
	}
}

// TransferLeader hands the lead over to a voter and waits until that leads. Where it does not within about an election
// timeout, the error says so, and this replica may lead on. Writes are refused with ErrNoLeader meanwhile, but not
// while the voter is far behind, or has not the membership change that gave it its vote: that is waited for first.
func (r *Replica) TransferLeader(ctx context.Context, to uint64) error {
	ctx, cancel := context.WithTimeoutCause(ctx, transferTimeMax, ErrNotTransferred)
	defer cancel()
	look := time.NewTicker(rounds.Interval)
	defer look.Stop()
	for begun := false; ; {
		changed, err := r.transferStep(to, &begun)
		if changed == nil {
			return err
		}
		r.seat.Schedule()
		select {
		case <-changed:
		case <-look.C:
		case <-r.seat.Detached():
			return ErrStopping
		case <-ctx.Done():
			return fmt.Errorf("%w to replica %x: %w", ErrNotTransferred, to, context.Cause(ctx))
		}
	}
}

// transferStep begins a transfer or looks how it stands. Where changed is nil, it has ended with err.
func (r *Replica) transferStep(to uint64, begun *bool) (changed <-chan struct{}, err error) {
	c := r.state.lock()
	defer c.unlock()
	switch {
	case c.err != nil:
		return nil, fmt.Errorf("%w: %w", ErrFailed, c.err)
	case c.node.leaderID == to:
		return nil, nil
	case !*begun:
		if *begun, err = c.transfer.begin(to); err != nil {
			return nil, err
		}
		c.quiet.wake()
		c.observe()
	default:
		if err := c.transfer.failed(to); err != nil {
			return nil, err
		}
	}
	if c.changed == nil {
		c.changed = make(chan struct{})
	}
	return c.changed, nil
}
