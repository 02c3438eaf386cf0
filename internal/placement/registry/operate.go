package registry

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/google/uuid"
	clientv3 "go.etcd.io/etcd/client/v3"

	"sheaf.dev/sheaf/internal/placement"
)

// The operator uses the following functions to set the targets of an existing store from the outside. Several
// operators may call them concurrently, because every write is conditional on the state on which the decision was
// based.

// MetaOf is like Meta, but for a store that is known to exist. It returns ErrPlacementLost if etcd is empty, and
// ErrOtherStore if etcd holds another store.
func (s *Store) MetaOf(ctx context.Context, store uuid.UUID) (placement.Meta, error) {
	meta, err := s.Meta(ctx)
	return meta, s.known(store, meta.StoreUUID, err)
}

// ViewOf is like View, but for a store that is known to exist. It returns ErrPlacementLost if etcd is empty,
// ErrOtherStore if etcd holds another store, and ErrFrozen if etcd was rolled back.
func (s *Store) ViewOf(ctx context.Context, store uuid.UUID) (placement.View, error) {
	_, view, err := s.listOf(ctx, store)
	return view, err
}

// listOf is like ViewOf, and also returns the state that the view was built from.
func (s *Store) listOf(ctx context.Context, store uuid.UUID) (*state, placement.View, error) {
	st, err := s.existing(ctx)
	if err != nil {
		return nil, placement.View{}, s.known(store, uuid.Nil, err)
	}
	view := s.withDomains(st.publish())
	if err := s.known(store, view.Meta.StoreUUID, nil); err != nil {
		return nil, view, err
	}
	return st, view, s.frozen(ctx, st, whoPlans)
}

// whoPlans is the name that a freeze records if the process that noticed the rollback is not a shard.
const whoPlans = "the planner or operator"

// known returns an error unless etcd holds the expected store. The argument err is the error from reading the store's
// metadata, or nil.
func (s *Store) known(want, have uuid.UUID, err error) error {
	switch {
	case errors.Is(err, placement.ErrNoMeta):
		return fmt.Errorf("%w: store %s, %w: rebuild it with sheaf recover placement; it is never made afresh",
			placement.ErrPlacementLost, want, err)
	case err != nil:
		return err
	case have != want:
		return fmt.Errorf("%w: %s holds store %s, wanted is store %s: see that endpoints, prefix and name are right",
			placement.ErrOtherStore, s.prefix, have, want)
	}
	return nil
}

// PlanOnce performs a single step of RunPlanner, for callers that choose the time of each step themselves. If groups
// of Hash routing are missing, it creates them. Otherwise it writes the targets that Plan changes. Each write is
// conditional on the state on which the decision was based. If PlanOnce returns ErrChanged, the caller may call it
// again. PlanOnce never creates Meta. It returns the same errors as ViewOf.
func (s *Store) PlanOnce(ctx context.Context, store uuid.UUID, policy placement.Policy) (placement.Planned, error) {
	if err := policy.Validate(); err != nil {
		return placement.Planned{}, err
	}
	st, view, err := s.listOf(ctx, store)
	out := placement.Planned{View: view}
	if err != nil {
		return out, err
	}
	meta := s.at(metaKey, st.metaRevision)
	if missing := missingGroups(view); len(missing) > 0 {
		if err := s.createGroups(ctx, view, missing, meta, s.notFrozen()); err != nil {
			return out, changed(err)
		}
		out.GroupsCreated = len(missing)
		return out, nil
	}
	targets, unplaced := placement.Plan(view, policy)
	out.Unplaced = unplaced
	late, err := s.setTargets(ctx, targets, pairsOf(view), meta, s.notFrozen())
	out.TargetsWritten = len(targets) - len(late)
	if err != nil {
		return out, changed(err)
	}
	if len(late) > 0 {
		return out, fmt.Errorf("planning: %w: group %s and %d more", placement.ErrChanged, late[0].Group, len(late)-1)
	}
	return out, nil
}

// pairsOf returns a function that looks up a group and its target in the view.
func pairsOf(view placement.View) func(name string) pair {
	return func(name string) pair { return pair{view.Groups[name], view.Targets[name]} }
}

// changed replaces the error for a failed condition with ErrChanged. It returns other errors unchanged.
func changed(err error) error {
	if errors.Is(err, errNotElected) {
		return fmt.Errorf("planning: %w", placement.ErrChanged)
	}
	return err
}

// wish is the JSON value of a key states/NAME: the desired state of a shard.
type wish struct {
	Shard string               `json:"shard"`
	State placement.ShardState `json:"state"`
}

// SetShardState sets the desired state of a shard, whether or not the shard is running. The state stays in force
// until another one is set. The default is Active. If the state is already set, SetShardState writes nothing.
func (s *Store) SetShardState(ctx context.Context, store uuid.UUID, shard string, state placement.ShardState) error {
	if err := placement.ValidateShardName(shard); err != nil {
		return err
	}
	if err := state.Validate(); err != nil {
		return fmt.Errorf("shard %s: %w", shard, err)
	}
	if state == "" {
		state = placement.Active
	}
	if _, err := s.MetaOf(ctx, store); err != nil {
		return err
	}
	there, err := s.get(ctx, statesKey+shard)
	if err != nil {
		return err
	}
	now, unusable := wish{State: placement.Active}, error(nil)
	if there.ModRevision > 0 {
		now, unusable = decodeWish(shard, there.Value) // a value that is invalid is replaced
	}
	if unusable == nil && now.State == state {
		return nil
	}
	if _, err := s.client.Do(ctx, s.opPut(statesKey+shard, wish{Shard: shard, State: state})); err != nil {
		return fmt.Errorf("write %s to etcd: %w", s.prefix+statesKey+shard, err)
	}
	return nil
}

// ForgetShard deletes the state that SetShardState has set, for a shard that will not return. It returns
// ErrShardRegistered while the shard is registered, and ErrShardHoldsGroups while any group has a copy on the shard
// or names it in its target.
func (s *Store) ForgetShard(ctx context.Context, store uuid.UUID, shard string) error {
	view, err := s.ViewOf(ctx, store)
	if err != nil {
		return err
	}
	if _, alive := view.Shards[shard]; alive {
		return fmt.Errorf("%w: %s: stop it first", placement.ErrShardRegistered, shard)
	}
	if err := view.AllKnown(); err != nil {
		return err
	}
	for name, g := range view.Groups {
		if slices.ContainsFunc(g.Members, func(m placement.Member) bool { return m.Shard == shard }) {
			return fmt.Errorf("%w: group %s is on shard %s: drain it first", placement.ErrShardHoldsGroups, name, shard)
		}
	}
	for name, t := range view.Targets {
		if slices.Contains(t.Shards, shard) {
			return fmt.Errorf("%w: group %s is wanted on shard %s: drain it first", placement.ErrShardHoldsGroups, name, shard)
		}
	}
	if err := s.write(ctx, []clientv3.Op{
		clientv3.OpDelete(s.prefix + statesKey + shard), clientv3.OpDelete(s.prefix+weightsKey+shard+"/",
			clientv3.WithPrefix()),
	}); err != nil {
		return fmt.Errorf("forget shard %s: %w", shard, err)
	}
	return nil
}
