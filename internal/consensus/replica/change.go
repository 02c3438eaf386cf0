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
// the change is committed. A change that goes through a joint membership ends when Raft, by itself, has left the joint
// membership. Only one change runs at a time. The leader keeps its vote: to remove it, hand over the lead first
// (TransferLeader). After ErrNoLeader, ErrChanging or ErrInvalid, certainly nothing was changed. After
// ErrOutcomeUnknown, see Members of the next leader.
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

// Wake ends the rest of an idle group: its clock runs again. Code that finds damage in the log of a leader calls it,
// because the clock hands the lead over (rule 4). Safe for concurrent use.
func (r *Replica) Wake() {
	c := r.state.lock()
	defer c.unlock()
	if c.isOpen() == nil {
		c.quiet.wake()
	}
}

// TransferLeader hands the lead over to a voter and waits until the voter leads. If the voter does not lead within
// about an election timeout, the error says so, and this replica may continue to lead. During the transfer writes are
// refused with ErrNoLeader. If the voter is far behind, or lacks the membership change that gave it its vote,
// TransferLeader first waits for the voter, and writes are not refused meanwhile.
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

// transferStep begins a transfer or checks its state. If changed is nil, the transfer has ended with err.
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
