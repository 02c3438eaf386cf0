package shard

import (
	"strconv"

	recordv1 "sheaf.dev/sheaf/api/record/v1"
	"sheaf.dev/sheaf/internal/placement"
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
		eta := s.eta()
		s.mu.Lock()
		defer s.mu.Unlock()
		return nil, nil, g.unavailable(eta)
	}
	state, known := r.view.Groups[name]
	switch {
	case s.isTarget(r.view, name) && len(state.Members) == 0, epoch > r.epoch:
		// About to be made here, or the caller has heard more than this shard.
		return nil, nil, loadingError(name, 0)
	case !known && s.meta.Routing.Mode == placement.Named:
		return nil, nil, groupNotFoundError(name)
	}
	return nil, nil, wrongShardError(name, addressOf(r.view, state), r.epoch)
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
