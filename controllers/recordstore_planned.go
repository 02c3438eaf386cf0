package controllers

import (
	"context"
	"fmt"
	"slices"

	"sheaf.dev/sheaf/api/v1alpha1"
	"sheaf.dev/sheaf/internal/workload"
)

// plannedPoolsMax bounds the pools in the status; of more than that, the others count as planned for.
const plannedPoolsMax = 256

// plannedFor is what a plan that was made just now was made for.
func plannedFor(store *v1alpha1.RecordStore, pools []v1alpha1.ShardPool) *v1alpha1.Planned {
	out := &v1alpha1.Planned{Generation: store.Generation}
	for n := range pools[:min(len(pools), plannedPoolsMax)] {
		out.Pools = append(out.Pools, v1alpha1.PlannedPool{Name: pools[n].Name, Generation: pools[n].Generation})
	}
	return out
}

// planMisses says what a store's last plan was not made for yet; empty: it was made for this generation of the store and of all its
// pools, so that what it says is the answer to what is asked for now.
func planMisses(store *v1alpha1.RecordStore, pools []v1alpha1.ShardPool) string {
	planned := store.Status.Planned
	if planned == nil || planned.Generation < store.Generation {
		return "RecordStore " + store.Name
	}
	for n := range pools {
		pool := &pools[n]
		i := slices.IndexFunc(planned.Pools, func(p v1alpha1.PlannedPool) bool { return p.Name == pool.Name })
		if i < 0 && len(planned.Pools) < plannedPoolsMax || i >= 0 && planned.Pools[i].Generation < pool.Generation {
			return "ShardPool " + pool.Name
		}
	}
	return ""
}

// shardsToCome are the shards that a store is to have, that take groups, and that are on their way to being registered: groups that have
// nowhere to go may go there.
func shardsToCome(view *PlacementView, pools []v1alpha1.ShardPool, seen seenShards) (names []string) {
	states := seen.byName()
	wanted := shardStates(pools, seen)
	for n := range pools {
		for _, name := range poolShardNames(&pools[n], seen.of(&pools[n])) {
			if !parked(&pools[n], name) {
				names = append(names, name)
			}
		}
	}
	return slices.DeleteFunc(names, func(name string) bool {
		_, registered := view.Shards[name]
		s := states[name].State
		return registered || wanted[name] != v1alpha1.PoolActive || s != "" && s != v1alpha1.ShardPending && s != v1alpha1.ShardLoading
	})
}

// parked says whether spec.parked names a shard of a pool.
func parked(pool *v1alpha1.ShardPool, shard string) bool {
	return slices.ContainsFunc(pool.Spec.Parked, func(n int32) bool { return workload.Shard(pool.Name, n) == shard })
}

// tellPlan says what a plan has changed.
func tellPlan(ctx context.Context, state PlacementState) {
	if !state.Changed {
		return
	}
	logNews(ctx, news{reason: "PlanChanged", action: "Plan", message: fmt.Sprintf("the plan of the placement changed: %d groups are wanted on other shards "+
		"than before, %d groups are new", state.Targets, state.Missing)})
}
