package gateway

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/google/uuid"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"sheaf.dev/sheaf/client/recordv1"
	"sheaf.dev/sheaf/internal/placement"
)

// shardStates maps the API's shard states to those of the placement.
var shardStates = map[recordv1.PlacementState]placement.ShardState{
	recordv1.PlacementState_PLACEMENT_STATE_ACTIVE:   placement.Active,
	recordv1.PlacementState_PLACEMENT_STATE_CORDONED: placement.Cordoned,
	recordv1.PlacementState_PLACEMENT_STATE_DRAINING: placement.Draining,
}

// SetShardState implements AdminService.
func (a *adminServer) SetShardState(ctx context.Context, request *recordv1.SetShardStateRequest) (
	*recordv1.SetShardStateResponse, error) {
	state, ok := shardStates[request.GetState()]
	if !ok {
		return nil, invalid("state", "give PLACEMENT_STATE_ACTIVE, PLACEMENT_STATE_CORDONED or PLACEMENT_STATE_DRAINING")
	}
	err := a.order(ctx, request.GetShard(), func(ctx context.Context, store uuid.UUID) error {
		return a.g.cfg.Store.SetShardState(ctx, store, request.GetShard(), state)
	})
	if err != nil {
		return nil, err
	}
	return &recordv1.SetShardStateResponse{}, nil
}

// RemoveShard implements AdminService.
func (a *adminServer) RemoveShard(ctx context.Context, request *recordv1.RemoveShardRequest) (
	*recordv1.RemoveShardResponse, error) {
	err := a.order(ctx, request.GetShard(), func(ctx context.Context, store uuid.UUID) error {
		return a.g.cfg.Store.ForgetShard(ctx, store, request.GetShard())
	})
	if err != nil {
		return nil, err
	}
	return &recordv1.RemoveShardResponse{}, nil
}

// order calls change, which changes the planner's input in etcd. The change concerns one shard, which must be known.
// If the planner runs in another process, order refuses the change. For example, the Kubernetes operator writes the
// states of its pools into etcd, and would immediately revert a state that a gateway sets.
func (a *adminServer) order(ctx context.Context, shard string,
	change func(ctx context.Context, store uuid.UUID) error) error {
	if err := placement.ValidateShardName(shard); err != nil {
		return invalid("shard", "%v", err)
	}
	if a.g.cfg.PlannedElsewhere {
		return status.Errorf(codes.FailedPrecondition, "shard %s: the planner does not run in this gateway "+
			"(--planner=false), so that what plans elsewhere decides about shards: on Kubernetes use kubectl sheaf drain POOL "+
			"--shard NUMBER, or spec.state of the ShardPool; else ask a gateway that plans", shard)
	}
	t, err := a.g.router.wait(ctx)
	if err != nil {
		return err
	}
	if _, ok := t.placedShards()[shard]; !ok {
		return status.Errorf(codes.NotFound, "shard %s is not registered and holds no group: sheaf shards list shows "+
			"those there are", shard)
	}
	ctx, cancel := etcdTime(ctx)
	defer cancel()
	err = change(ctx, t.view.Meta.StoreUUID)
	switch {
	case errors.Is(err, placement.ErrShardHoldsGroups) || errors.Is(err, placement.ErrShardRegistered):
		return status.Error(codes.FailedPrecondition, err.Error())
	case err != nil:
		return etcdFailed(err, true, "the state of shard %s cannot be written", shard)
	}
	return nil
}

// placedShard describes the groups of a shard according to etcd.
type placedShard struct {
	state  recordv1.PlacementState
	groups int    // groups with a copy or a planned copy on the shard
	waits  string // why groups remain on the shard; set only while the shard is being drained
}

// stuck returns the reason why a group cannot be moved even if other shards have space, or an empty string if it can be
// moved. A move needs a majority of the group's copies.
func (t *table) stuck(name string, g *placement.Group) string {
	copies, there := t.voters(g)
	if groupState(copies, there) != groupUnavailable {
		return ""
	}
	return fmt.Sprintf("of group %s no majority of copies is on shards that are registered: bring one of its shards "+
		"back", name)
}

// fill adds p's data to a shard's row. A nil placedShard adds nothing.
func (p *placedShard) fill(row *recordv1.Shard) {
	if p != nil {
		row.PlacementState, row.PlacedGroups, row.PlacementWaits = &p.state, new(int32(p.groups)), &p.waits
	}
}

// placedShards returns all shards that are registered, hold a group, are to receive a group, or have a state other
// than Active.
func (t *table) placedShards() map[string]*placedShard {
	out := map[string]*placedShard{}
	at := func(shard string) *placedShard {
		if out[shard] == nil {
			out[shard] = &placedShard{state: recordv1.PlacementState_PLACEMENT_STATE_ACTIVE}
		}
		return out[shard]
	}
	set := func(shard string, state placement.ShardState) {
		for sent, of := range shardStates {
			if of == cmp.Or(state, placement.Active) {
				at(shard).state = sent
			}
		}
	}
	for name, s := range t.view.Shards {
		set(name, s.State)
	}
	for name, state := range t.view.States {
		if _, registered := t.view.Shards[name]; registered || cmp.Or(state, placement.Active) != placement.Active {
			set(name, state)
		}
	}
	for name, g := range t.view.Groups {
		on := slices.Clone(t.view.Targets[name].Shards)
		for _, m := range g.Members {
			on = append(on, m.Shard)
		}
		slices.Sort(on)
		for _, shard := range slices.Compact(on) {
			if shard == "" { // the shard of this member is unknown
				continue
			}
			s := at(shard)
			s.groups++
			if s.state == recordv1.PlacementState_PLACEMENT_STATE_DRAINING {
				s.waits = cmp.Or(s.waits, t.stuck(name, &g), t.unplaced()[name])
			}
		}
	}
	return out
}
