package replica

import (
	"context"
	"errors"
	"fmt"

	"go.etcd.io/raft/v3/raftpb"

	"sheaf.dev/sheaf/internal/storage/group/format"
)

var (
	// ErrEnded means that the group accepts no writes, because it is about to be deleted. Write errors wrap it together
	// with ErrNoLeader. Such a write was not applied, and may be repeated.
	ErrEnded = errors.New("the group is being deleted")
	// ErrNotBlank means that the group is not empty, and therefore does not end.
	ErrNotBlank = errors.New("the group is not empty")
)

// End ends the group. It adds the learner format.EndedID to the membership. Every later leader then knows that the
// group has ended, because a leader serves only after it has applied everything that was ever acknowledged. End must
// be called on the leader. When it returns nil, the group is empty, a majority knows that the group has ended, and no
// further write is acknowledged unless Resume is called. The function blank returns nil if the log is empty, and
// otherwise an error that describes what the log still holds. End calls it while no write is in progress and new
// writes are refused. End may be called again. It returns ErrNotBlank and the errors of ChangeMembers. After
// ErrOutcomeUnknown the group may have ended.
func (r *Replica) End(ctx context.Context, blank func() error) error {
	term, err := r.beginEnd(blank)
	if err != nil {
		return err
	}
	// Propose the change even if the group has already ended. The committed entry proves that this replica still leads,
	// and that no other leader has resumed the group since.
	err = r.changeMembers(ctx, term, &raftpb.ConfChangeV2{Changes: []*raftpb.ConfChangeSingle{
		{Type: raftpb.ConfChangeAddLearnerNode.Enum(), NodeId: new(format.EndedID)},
	}})
	c := r.state.lock()
	defer c.unlock()
	c.ending = false
	return err
}

// beginEnd checks that the group is empty, and makes it refuse writes until End returns. It returns the term in which
// it made the check, because in a later term another leader may have accepted writes.
func (r *Replica) beginEnd(blank func() error) (term uint64, err error) {
	c := r.state.lock()
	defer c.unlock()
	if err := c.isOpen(); err != nil {
		return 0, err
	}
	switch {
	case !c.node.serving:
		return 0, ErrNoLeader
	case c.ending, c.members.isChanging():
		return 0, ErrChanging
	case !c.writes.IsEmpty():
		return 0, fmt.Errorf("%w: a write is in progress", ErrNotBlank)
	}
	// Check the group even if it has already ended. An earlier End may have failed, and writes may have been accepted
	// since.
	if err := blank(); err != nil {
		return 0, fmt.Errorf("%w: %w", ErrNotBlank, err)
	}
	c.ending = true
	return c.node.term, nil
}

// Resume lets an ended group accept writes again. It must be called on the leader of the given term, and returns
// ErrNoLeader in any other term. Before the call, the caller must make sure, in that term, that nobody deletes the
// group because of an earlier End. Resume also returns the errors of ChangeMembers.
func (r *Replica) Resume(ctx context.Context, term uint64) error {
	return r.changeMembers(ctx, term, &raftpb.ConfChangeV2{Changes: []*raftpb.ConfChangeSingle{
		{Type: raftpb.ConfChangeRemoveNode.Enum(), NodeId: new(format.EndedID)},
	}})
}

// Ended reports whether this replica knows that the group has ended. The call is cheap.
func (r *Replica) Ended() bool { return r.idle.ended.Load() }

// ends reports whether the only effect of a change is to end or to resume the group.
func ends(change *raftpb.ConfChangeV2) bool {
	changes := change.GetChanges()
	return len(changes) == 1 && changes[0].GetNodeId() == format.EndedID
}
