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

// A group is deleted in two steps (docs/adr/0053-groups-end-in-the-log.md). First, the leader ends the group with an
// entry in the group's own log. After that entry, no leader accepts a write. Then the leader records in etcd that the
// group is deleted, provided that the group's key in etcd has not changed since before the first step. When the members
// see this, they move their files to the trash. If a leader resumes a group that has ended, it first changes the key,
// so that a deletion that began earlier can no longer succeed.

const deleteTime = 10 * time.Second

// deleteGroup deletes an empty group that this shard leads. If want is not the zero UUID, it must be the UUID of the
// group.
func (s *Shard) deleteGroup(ctx context.Context, sv *replicas.Served, want uuid.UUID) error {
	g := sv.Group
	release, ok := s.steerer.HoldEnded(g)
	if !ok {
		return answer.Fail(codes.Unavailable, reason.NoLeader, "group %s is being deleted by another call", g.Name)
	}
	defer g.AskLook() // Unless the group was deleted, the steerer then resumes it
	defer release()
	ctx, cancel := context.WithTimeout(ctx, deleteTime)
	defer cancel()
	// The key must be read before the group is ended. A leader that resumes the group after that changes the key, so the
	// deletion then fails.
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
	if errors.Is(err, replica.ErrChanging) { // the members of the group are being changed
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

// deletable returns the state that etcd holds for a group that this shard leads. It returns an error if no group may
// be deleted at present, if etcd does not have this group, or if want is neither zero nor the UUID of the group.
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
	// If the group on this shard has the UUID want, and only the group in etcd has a different one, etcd may have been
	// rolled back. In that case the error must not say that the group does not exist.
	case ok && want != uuid.Nil && state.UUID != want && g.UUID != want:
		return placement.Group{}, answer.Fail(codes.NotFound, reason.GroupNotFound,
			"group %s with the UUID %s does not exist: the group of this name is %s, and remains", g.Name, want, state.UUID)
	case !ok, state.UUID != g.UUID:
		return placement.Group{}, notDeleted(g, fmt.Errorf("etcd does not have it as the group %s", g.UUID))
	}
	return state, nil
}

// notDeleted returns the error for a deletion that has failed or may have failed.
func notDeleted(g *replicas.Replica, err error) error {
	return answer.Fail(codes.Unavailable, reason.NoLeader,
		"group %s may not be deleted yet: try again: %v", g.Name, err)
}
