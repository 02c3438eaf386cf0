package shard

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	recordv1 "sheaf.dev/sheaf/api/sheaf/record/v1"
	"sheaf.dev/sheaf/internal/placement"
	"sheaf.dev/sheaf/internal/replica"
)

// find is the group of a key where this shard serves it, else the error that says where to go. What is wrong with the
// key goes into v and makes the group nil.
func (s *Shard) find(key *recordv1.RecordKey, epoch uint64, v *violations, field string) (*groupReplica, *served, error) {
	if key == nil {
		v.add(field, "is required")
		return nil, nil, nil
	}
	r := s.routes.Load()
	if s.meta.Routing.Mode == placement.Hash {
		n := s.meta.Routing.GroupOf(key.GetId())
		if name := key.GetGroup(); name != "" && name != strconv.Itoa(n) {
			v.add(field+".group", "the store is routed by Hash: leave the group empty; id %d is in group %d, not %.40q", key.GetId(), n, name)
			return nil, nil, nil
		}
		if r != nil && n < len(r.byNumber) {
			if g := r.byNumber[n]; g != nil {
				if sv := g.served.Load(); sv != nil {
					return g, sv, nil
				}
			}
		}
		return s.notServed(r, strconv.Itoa(n), epoch)
	}
	if err := placement.ValidateGroupName(key.GetGroup()); err != nil {
		v.add(field+".group", "%v", err)
		return nil, nil, nil
	}
	return s.findGroup(r, key.GetGroup(), epoch)
}

// findGroup is the group of a valid name.
func (s *Shard) findGroup(r *routes, name string, epoch uint64) (*groupReplica, *served, error) {
	if r != nil {
		if g := r.byName[name]; g != nil {
			if sv := g.served.Load(); sv != nil {
				return g, sv, nil
			}
		}
	}
	return s.notServed(r, name, epoch)
}

// notServed says why, and where to go.
func (s *Shard) notServed(r *routes, name string, epoch uint64) (*groupReplica, *served, error) {
	if s.stopping.Load() {
		return nil, nil, stoppingError()
	}
	if r == nil {
		return nil, nil, loadingError(name, 0)
	}
	if g := r.byName[name]; g != nil {
		if address := s.otherMember(r.view, name); address != "" {
			return nil, nil, notLeaderError(name, address, r.epoch)
		}
		eta := s.eta()
		s.mu.Lock()
		defer s.mu.Unlock()
		return nil, nil, g.unavailable(s.cfg.Name, eta)
	}
	state, known := r.view.Groups[name]
	switch {
	case r.held:
		return nil, nil, loadingError(name, thawEvery) // etcd may not know yet where it is
	case s.isTarget(r.view, name) && len(state.Members) == 0, epoch > r.epoch:
		// About to be made here, or the caller has heard more than this shard.
		return nil, nil, loadingError(name, 0)
	case !known && s.meta.Routing.Mode == placement.Named:
		return nil, nil, groupNotFoundError(name)
	}
	if err := s.anothersFolder(r, state); err != nil {
		return nil, nil, err
	}
	return nil, nil, wrongShardError(name, addressOf(r.view, state), r.epoch)
}

// anothersFolder is the error of a group that etcd says is here, where the folder of its UUID holds another group's
// files; else nil. That stays so until somebody puts the files back.
func (s *Shard) anothersFolder(r *routes, state placement.Group) error {
	if len(s.membersHere(state)) == 0 {
		return nil
	}
	s.mu.Lock()
	g, reason := s.groups[state.UUID], ""
	if g != nil && g.name != "" && g.name != state.Name {
		reason = g.stray
	}
	s.mu.Unlock()
	if reason == "" {
		return nil
	}
	if address := s.otherMember(r.view, state.Name); address != "" {
		return notLeaderError(state.Name, address, r.epoch)
	}
	return failedError(state.Name, s.cfg.Name, errors.New(reason))
}

// barrierTime bounds the wait of a read for the majority: a leader that is cut off does not know it, and the caller has
// others to ask.
const barrierTime = 2 * time.Second

// barrier returns when reads see every write acknowledged before. Of a group with several members only the leader reads.
func (s *Shard) barrier(ctx context.Context, sv *served) error {
	if sv.replica.Readable() {
		return nil
	}
	if st := sv.replica.Status(); st.LeaderID != 0 && st.LeaderID != sv.raftID {
		return s.elsewhere(replica.ErrNoLeader, sv)
	}
	short, cancel := context.WithTimeout(ctx, barrierTime)
	defer cancel()
	err := sv.replica.ReadBarrier(short)
	if err != nil && ctx.Err() != nil {
		return err
	}
	return s.elsewhere(err, sv)
}

// readHere is barrier for any member: it asks the leader.
func (sv *served) readHere(ctx context.Context) error {
	if sv.replica.Readable() {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, barrierTime)
	defer cancel()
	return sv.replica.ReadBarrier(ctx)
}

// mayWrite says early where a write must go; nil: here, or that is not known.
func (s *Shard) mayWrite(sv *served) error {
	if sv.replica.Readable() || sv.replica.Status().Leader {
		return nil
	}
	return s.elsewhere(replica.ErrNoLeader, sv)
}

// elsewhere is the error of a call that only the leader of a group can answer, with the leader's address where that is
// known; other errors stay.
func (s *Shard) elsewhere(err error, sv *served) error {
	if !errors.Is(err, replica.ErrNoLeader) || errors.Is(err, replica.ErrOutcomeUnknown) {
		return err
	}
	st := sv.replica.Status()
	shard, known := sv.group.route(st.LeaderID)
	if st.LeaderID == sv.raftID || !known {
		return fmt.Errorf("group %s: %w", sv.group.name, replica.ErrNoLeader)
	}
	address, _ := s.peerAddress(shard)
	return notLeaderError(sv.group.name, address, s.routes.Load().epoch)
}

// addressOf is where a group's leader is, or a member that is alive; empty: none.
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

// otherMember is the address of a shard that can serve a group while this one cannot; empty: there is none.
func (s *Shard) otherMember(view placement.View, name string) string {
	state := view.Groups[name]
	if !isShared(state) || state.Leader == s.cfg.Name {
		return ""
	}
	address, _ := s.peerAddress(state.Leader)
	return address
}

// validGroup checks the name of a group that is asked for by name, in either routing.
func (s *Shard) validGroup(name, field string) error {
	var v violations
	if s.meta.Routing.Mode == placement.Hash {
		n, err := strconv.Atoi(name)
		if err != nil || n < 0 || n >= s.meta.Routing.Groups || strconv.Itoa(n) != name {
			v.add(field, "%.40q is no group: the store is routed by Hash, groups are 0 to %d", name, s.meta.Routing.Groups-1)
		}
		return v.err()
	}
	if err := placement.ValidateGroupName(name); err != nil {
		v.add(field, "%v", err)
	}
	return v.err()
}
