package replica

import (
	"context"
	"fmt"
	"time"

	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"

	"sheaf.dev/sheaf/internal/consensus/replica/rounds"
)

// ChangeMembers proposes a membership change on the leader. It returns when a majority of the new members knows that
// the change is committed. If the change goes through a joint membership, Raft leaves that membership by itself, and
// ChangeMembers waits until it has. Only one change runs at a time. The change must not take the leader's own vote. To
// remove the leader, transfer the leadership first (TransferLeader). After ErrNoLeader, ErrChanging or ErrInvalid,
// nothing was changed. After ErrOutcomeUnknown, call Members on the next leader to find out whether the change was
// made.
func (r *Replica) ChangeMembers(ctx context.Context, change *raftpb.ConfChangeV2) error {
	return r.changeMembers(ctx, anyTerm, change)
}

// anyTerm allows a membership change to be proposed in any term.
const anyTerm = 0

// changeMembers is like ChangeMembers, but proposes the change only in the given term. In any other term it returns
// ErrNoLeader.
func (r *Replica) changeMembers(ctx context.Context, term uint64, change *raftpb.ConfChangeV2) error {
	if change.GetTransition() == raftpb.ConfChangeTransitionJointExplicit || len(change.GetChanges()) == 0 {
		return fmt.Errorf("%w: a membership change names members, and leaves a joint membership by itself", ErrInvalid)
	}
	data, err := proto.Marshal(change)
	if err != nil {
		return fmt.Errorf("%w: membership change: %w", ErrInvalid, err)
	}
	c := &memberChange{data: data, term: term, done: make(chan struct{})}
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
	case !c.node.serving, !one.mayBegin(c.node.term):
		return ErrNoLeader
	case c.members.isChanging():
		return ErrChanging
	case c.idle.ended.Load() && !ends(change):
		return fmt.Errorf("%w: %w", ErrChanging, ErrEnded)
	}
	if err := c.members.check(change); err != nil {
		return err
	}
	c.quiet.wake()
	c.members.change = one
	return nil
}

// Wake wakes a resting group, so that its clock runs again. Code that finds damage in a leader's log must call Wake,
// because it is the clock that makes a damaged leader transfer the leadership (rule 4). It is safe for concurrent
// use.
func (r *Replica) Wake() {
	c := r.state.lock()
	defer c.unlock()
	if c.isOpen() == nil {
		c.quiet.wake()
	}
}

// TransferLeader transfers the leadership to a voter, and waits until that voter leads. If this takes longer than
// about an election timeout, TransferLeader returns an error, and this replica may continue to lead. During the
// transfer, writes are refused with ErrNoLeader. A voter that is far behind, or that has not yet received the
// membership change which gave it its vote, is first given time to catch up. Writes are still accepted during that
// time.
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

// transferStep begins a transfer, or checks how far it has got. If it returns a channel, the caller must call it
// again when that channel is closed. If it returns nil, the transfer has ended with err.
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
