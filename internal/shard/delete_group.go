package shard

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"google.golang.org/grpc/codes"

	"sheaf.dev/sheaf/client/call/reason"
	"sheaf.dev/sheaf/internal/consensus/replica"
	"sheaf.dev/sheaf/internal/placement"
	"sheaf.dev/sheaf/internal/shard/answer"
	"sheaf.dev/sheaf/internal/shard/replicas"
)

// A group is deleted in two steps (docs/adr/0053-groups-end-in-the-log.md). First it ends: after an entry of its own
// log, no leader accepts a write. Then the leader records in etcd that the group is deleted, if its key there has not
// changed since before the first step. The members see this record, and move their files to the trash. A leader that
// resumes an ended group first changes the key, so that a deletion that began earlier can no longer succeed.

const deleteTime = 10 * time.Second

// deleteGroup deletes a group that this shard leads and that holds nothing. If want is not the zero UUID, the group
// must have that UUID.
func (s *Shard) deleteGroup(ctx context.Context, sv *replicas.Served, want uuid.UUID) error {
	g := sv.Group
	release, ok := s.steerer.HoldEnded(g)
	if !ok {
		return answer.Fail(codes.Unavailable, reason.NoLeader, "group %s is being deleted by another call", g.Name)
	}
	defer g.AskLook() // the steerer then resumes the group, unless it was deleted
	defer release()
	ctx, cancel := context.WithTimeout(ctx, deleteTime)
	defer cancel()
	// The key is read before the group ends, because a leader that resumes the group after this end changes the key.
	state, err := s.deletable(ctx, g, want)
	if err != nil {
		return err
	}
	err = sv.Replica().End(ctx, sv.Log().Blank)
	if errors.Is(err, replica.ErrNotBlank) {
		return answer.Fail(codes.FailedPrecondition, reason.GroupNotEmpty,
			"group %s is not deleted: %v. sheaf group compact %s --all drops what is superseded, and --why says what is still "+
				"kept", g.Name, err, g.Name)
	}
	if errors.Is(err, replica.ErrChanging) { // the group is being moved
		return notDeleted(g, err)
	}
	if err != nil {
		return fmt.Errorf("ending group %s: %w", g.Name, err)
	}
	if err := s.cfg.Placement.DeleteGroup(ctx, state); err != nil {
		return notDeleted(g, err)
	}
	s.logger.Info("a group is deleted", "group", g.Name, "uuid", g.UUID)
	return nil
}

// deletable returns etcd's state of a group that this shard leads. It fails if no group may be deleted now, if etcd
// does not have this group, or if want is neither zero nor the group's UUID.
func (s *Shard) deletable(ctx context.Context, g *replicas.Replica, want uuid.UUID) (placement.Group, error) {
	if s.meta.Routing.Mode == placement.Hash {
		return placement.Group{}, answer.Fail(codes.FailedPrecondition, reason.HashRouting,
			"group %s: this store routes by hash: its groups are fixed, and none is deleted", g.Name)
	}
	view, err := s.cfg.Placement.Look(ctx, g.Name)
	if err != nil {
		return placement.Group{}, notDeleted(g, err)
	}
	state, ok := view.Groups[g.Name]
	switch held := view.Held(); {
	case held != "":
		return placement.Group{}, notDeleted(g, errors.New(held))
	// If g.UUID is want, etcd may have been rolled back.
	case ok && want != uuid.Nil && state.UUID != want && g.UUID != want:
		return placement.Group{}, answer.Fail(codes.NotFound, reason.GroupNotFound,
			"group %s with the UUID %s does not exist: the group of this name is %s, and remains", g.Name, want, state.UUID)
	case !ok, state.UUID != g.UUID:
		return placement.Group{}, notDeleted(g, fmt.Errorf("etcd does not have it as the group %s", g.UUID))
	}
	return state, nil
}

// notDeleted returns the error for a deletion that has failed, or whose outcome is unknown.
func notDeleted(g *replicas.Replica, err error) error {
	return answer.Fail(codes.Unavailable, reason.NoLeader,
		"group %s may not be deleted yet: try again: %v", g.Name, err)
}
