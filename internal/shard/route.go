package shard

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"sheaf.dev/sheaf/internal/consensus/replica"
	"sheaf.dev/sheaf/internal/placement"
	"sheaf.dev/sheaf/internal/shard/answer"
	"sheaf.dev/sheaf/internal/shard/follow"
	"sheaf.dev/sheaf/internal/shard/member"
)

// findGroup returns the group of a valid name.
func (s *Shard) findGroup(ctx context.Context, r *routes, name string, epoch uint64) (*served, error) {
	if g := r.byName[name]; g != nil {
		if sv := g.served.Load(); sv != nil {
			return sv, nil
		}
	}
	return nil, s.notServed(ctx, r, name, epoch)
}

// notServed returns why this shard does not serve a group, and where to go.
func (s *Shard) notServed(ctx context.Context, r *routes, name string, epoch uint64) error {
	if s.stopping.Load() {
		return answer.Stopping()
	}
	if r.byName == nil {
		return answer.Loading(name, 0)
	}
	if g := r.byName[name]; g != nil {
		if address := s.otherMember(r.view, name); address != "" {
			return answer.NotLeader(name, address, r.epoch)
		}
		eta := s.loading.eta()
		s.mu.Lock()
		defer s.mu.Unlock()
		return g.unavailable(s.cfg.Name, eta)
	}
	view := r.view
	if r.held {
		return answer.Loading(name, follow.SafeModeRetry) // etcd may not know its location yet
	}
	behind := epoch > r.epoch // the caller knows a newer view than this shard
	if view.Own && (behind || !follow.IsOwn(view, name, s.cfg.Name)) {
		// This shard does not follow other groups.
		var err error
		if view, err = s.lookups.find(ctx, name, epoch); err != nil {
			return s.notFollowed(ctx, r, name)
		}
		behind = epoch > view.Epoch || follow.IsOwn(view, name, s.cfg.Name) &&
			(view.Groups[name].Revision != r.view.Groups[name].Revision ||
				view.Targets[name].Revision != r.view.Targets[name].Revision)
	}
	state, known := view.Groups[name]
	switch {
	// This shard's view is behind, or the group is about to be created here.
	case behind, slices.Contains(view.Targets[name].Shards, s.cfg.Name) && len(state.Members) == 0:
		return answer.Loading(name, 0)
	case !known && s.meta.Routing.Mode == placement.Named:
		return answer.GroupNotFound(name)
	}
	if err := s.anothersFolder(r, state); err != nil {
		return err
	}
	return answer.WrongShard(name, addressOf(view, state), view.Epoch)
}

// notFollowed makes the error of a call for a group about which etcd does not answer now. Other shards must say where
// the group is, unless it is one of this shard's own.
func (s *Shard) notFollowed(ctx context.Context, r *routes, name string) error {
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case follow.IsOwn(r.view, name, s.cfg.Name):
		return answer.Loading(name, 0)
	}
	return answer.WrongShard(name, "", r.epoch)
}

// anothersFolder returns the error for a group that etcd places here, if the folder of its UUID holds another group's
// files; otherwise nil. The error stays until an operator puts the files back.
func (s *Shard) anothersFolder(r *routes, state placement.Group) error {
	if len(s.watcher.Here(state)) == 0 {
		return nil
	}
	s.mu.Lock()
	g, reason := s.groups[state.UUID], ""
	if g != nil && g.Name != "" && g.Name != state.Name {
		reason = g.Standing.String()
	}
	s.mu.Unlock()
	if reason == "" {
		return nil
	}
	if address := s.otherMember(r.view, state.Name); address != "" {
		return answer.NotLeader(state.Name, address, r.epoch)
	}
	return answer.Failed(state.Name, s.cfg.Name, errors.New(reason))
}

// barrierTime bounds the wait of a read for the majority. A partitioned leader does not know it, and the caller can
// ask other members.
const barrierTime = 2 * time.Second

// Barrier implements serve.Group.
func (sv *served) Barrier(ctx context.Context) error {
	if err := sv.barrier(ctx); err != nil || !sv.replica.Ended() {
		return err
	}
	return sv.Elsewhere(errEnded)
}

// errEnded refuses reads in a group that has ended: a new group of its name may hold records.
var errEnded = fmt.Errorf("%w: %w", replica.ErrNoLeader, replica.ErrEnded)

func (sv *served) barrier(ctx context.Context) error {
	if sv.replica.Readable() {
		return nil
	}
	if st := sv.replica.Status(); st.LeaderID != 0 && st.LeaderID != sv.raftID {
		return sv.Elsewhere(replica.ErrNoLeader)
	}
	short, cancel := context.WithTimeout(ctx, barrierTime)
	defer cancel()
	err := sv.replica.ReadBarrier(short)
	if err != nil && ctx.Err() != nil {
		return err
	}
	return sv.Elsewhere(err)
}

// ReadHere implements serve.Group.
func (sv *served) ReadHere(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, barrierTime)
	defer cancel()
	if err := sv.replica.ReadBarrier(ctx); err != nil || !sv.replica.Ended() {
		return err
	}
	return errEnded
}

// MayWrite implements serve.Group.
func (sv *served) MayWrite() error {
	if sv.replica.Readable() || sv.replica.Status().Leader {
		return nil
	}
	return sv.Elsewhere(replica.ErrNoLeader)
}

// Elsewhere implements serve.Group.
func (sv *served) Elsewhere(err error) error {
	if !errors.Is(err, replica.ErrNoLeader) || errors.Is(err, replica.ErrOutcomeUnknown) {
		return err
	}
	st := sv.replica.Status()
	shard, known := sv.group.Route(st.LeaderID)
	if st.LeaderID == sv.raftID || !known {
		return fmt.Errorf("group %s: %w", sv.group.Name, replica.ErrNoLeader)
	}
	address, _ := sv.shard.watcher.Address(shard)
	return answer.NotLeader(sv.group.Name, address, sv.shard.routes.Load().epoch)
}

// addressOf returns the address of a group's leader, or of a live member. It returns an empty string if there is
// neither.
func addressOf(view placement.View, state placement.Group) string {
	if leader, ok := view.Shards[state.Leader]; ok {
		return leader.Address
	}
	for _, m := range state.Members {
		if shard, ok := view.Shards[m.Shard]; ok {
			return shard.Address
		}
	}
	return ""
}

// otherMember returns the address of a shard that can serve a group while this shard cannot. It returns an empty string
// if there is no such shard.
func (s *Shard) otherMember(view placement.View, name string) string {
	state := view.Groups[name]
	if !member.IsShared(state) || state.Leader == s.cfg.Name {
		return ""
	}
	address, _ := s.watcher.Address(state.Leader)
	return address
}
