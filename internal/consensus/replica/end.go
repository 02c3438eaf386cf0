package replica

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"go.etcd.io/raft/v3/raftpb"
)

// EndedID is the Raft id of no replica: ids of replicas are odd (format.NewRaftID). A membership that has it as a
// learner says that the group is ended: no leader accepts a write. The membership is committed like any other, and is
// kept wherever a membership is kept: in each copy's manifest, and in the files that a new copy takes in. A leader
// serves only after it has applied everything that was ever acknowledged, so no leader misses it.
const EndedID uint64 = 0x73686561_665f656e

var (
	// ErrEnded: the group accepts no writes, because it is about to be deleted. Such errors are ErrNoLeader, too: nothing
	// was written, and the write may be repeated.
	ErrEnded = errors.New("the group is being deleted")
	// ErrNotBlank: the group holds something, so that it is not ended.
	ErrNotBlank = errors.New("the group is not empty")
)

// End ends the group, on its leader: when End returns nil, the group holds nothing, a majority knows that it is ended,
// and no write was acknowledged or ever will be, unless Resume is called. blank returns an error that says what the log
// holds; it is called while no write is in progress and none is accepted. End may be called again. Errors are
// ErrNotBlank, and those of ChangeMembers. After ErrOutcomeUnknown the group may be ended.
func (r *Replica) End(ctx context.Context, blank func() error) error {
	done, err := r.beginEnd(blank)
	if err != nil || done {
		return err
	}
	err = r.ChangeMembers(ctx, &raftpb.ConfChangeV2{Changes: []*raftpb.ConfChangeSingle{
		{Type: raftpb.ConfChangeAddLearnerNode.Enum(), NodeId: new(EndedID)},
	}})
	c := r.state.lock()
	defer c.unlock()
	c.ending = false
	return err
}

// beginEnd makes sure that the group holds nothing, and stops writes until End is over. done: the group is ended.
func (r *Replica) beginEnd(blank func() error) (done bool, err error) {
	c := r.state.lock()
	defer c.unlock()
	if err := c.isOpen(); err != nil {
		return false, err
	}
	switch {
	case !c.node.serving:
		return false, ErrNoLeader
	case c.ending, c.members.isChanging():
		return false, ErrChanging
	case !c.writes.IsEmpty():
		return false, fmt.Errorf("%w: a write is in progress", ErrNotBlank)
	}
	// Also of a group that is ended: what was accepted while the change was in progress counts.
	if err := blank(); err != nil {
		return false, fmt.Errorf("%w: %w", ErrNotBlank, err)
	}
	c.ending = !c.members.ended
	return c.members.ended, nil
}

// Resume lets an ended group accept writes again, on its leader. Before, nobody may be left who deletes the group
// because End has returned nil. Errors are those of ChangeMembers.
func (r *Replica) Resume(ctx context.Context) error {
	return r.ChangeMembers(ctx, &raftpb.ConfChangeV2{Changes: []*raftpb.ConfChangeSingle{
		{Type: raftpb.ConfChangeRemoveNode.Enum(), NodeId: new(EndedID)},
	}})
}

// Ended reports whether this replica knows that the group is ended.
func (r *Replica) Ended() bool {
	c := r.state.lock()
	defer c.unlock()
	return c.members.ended
}

// isEnded reports whether a membership says that its group is ended.
func isEnded(conf *raftpb.ConfState) bool {
	return slices.Contains(conf.GetLearners(), EndedID) || slices.Contains(conf.GetLearnersNext(), EndedID)
}

// ends reports whether a change only says that the group is ended, or is not any more.
func ends(change *raftpb.ConfChangeV2) bool {
	changes := change.GetChanges()
	return len(changes) == 1 && changes[0].GetNodeId() == EndedID
}
