package fleet

import (
	"slices"

	"sheaf.dev/sheaf/api/v1alpha1"
	"sheaf.dev/sheaf/internal/kube/workload"
)

// PlannedPoolsMax bounds the pools in the status; of more than that, the others count as planned for.
const PlannedPoolsMax = 256

// PlanMisses says what a store's last plan was not made for yet; empty: it was made for this generation of the store
// and of all its pools, so that what it says is the answer to what is asked for now.
func PlanMisses(store *v1alpha1.RecordStore, pools []v1alpha1.ShardPool) string {
	planned := store.Status.Planned
	if planned == nil || planned.Generation < store.Generation {
		return "RecordStore " + store.Name
	}
	for n := range pools {
		pool := &pools[n]
		i := slices.IndexFunc(planned.Pools, func(p v1alpha1.PlannedPool) bool { return p.Name == pool.Name })
		if i < 0 && len(planned.Pools) < PlannedPoolsMax || i >= 0 && planned.Pools[i].Generation < pool.Generation {
			return "ShardPool " + pool.Name
		}
	}
	return ""
}

// ShardsToCome are the shards that a store is to have, that take groups, and that are on their way to being registered:
// groups that have nowhere to go may go there.
func ShardsToCome(view *PlacementView, pools []v1alpha1.ShardPool, seen Seen) (names []string) {
	states := seen.ByName()
	wanted := ShardStates(pools, seen)
	for n := range pools {
		for _, name := range PoolShardNames(&pools[n], seen.Of(&pools[n])) {
			if !parked(&pools[n], name) {
				names = append(names, name)
			}
		}
	}
	return slices.DeleteFunc(names, func(name string) bool {
		_, registered := view.Shards[name]
		s := states[name].State
		return registered || wanted[name] != v1alpha1.PoolActive || s != "" && s != v1alpha1.ShardPending &&
			s != v1alpha1.ShardLoading
	})
}

// parked says whether spec.parked names a shard of a pool.
func parked(pool *v1alpha1.ShardPool, shard string) bool {
	return slices.ContainsFunc(pool.Spec.Parked, func(n int32) bool { return workload.Shard(pool.Name, n) == shard })
}

// ShardStates wanted, by shard.
func ShardStates(pools []v1alpha1.ShardPool, seen Seen) map[string]v1alpha1.PoolState {
	states := map[string]v1alpha1.PoolState{}
	for _, pool := range pools {
		leaving := leavingShards(&pool, seen.Of(&pool))
		for _, shard := range PoolShardNames(&pool, seen.Of(&pool)) {
			states[shard] = pool.Spec.State
			if leaving[shard] || !pool.DeletionTimestamp.IsZero() {
				states[shard] = v1alpha1.PoolDrained
			}
		}
	}
	return states
}

// PoolShardNames are the shards that a pool has or should have, by number.
func PoolShardNames(pool *v1alpha1.ShardPool, seen []v1alpha1.ShardStatus) []string {
	plan := poolNumbers(pool, seen)
	numbers := slices.Concat(plan.Keep, plan.Create, plan.Leave, plan.Remove)
	slices.Sort(numbers)
	names := make([]string, 0, len(numbers))
	for _, n := range numbers {
		names = append(names, workload.Shard(pool.Name, n))
	}
	return names
}

// poolNumbers are the shards that a pool has, or should have, as its own controller numbers them.
func poolNumbers(pool *v1alpha1.ShardPool, seen []v1alpha1.ShardStatus) NumbersPlan {
	in := NumbersInput{Wanted: int(PoolShards(pool)), Remove: pool.Spec.Remove}
	for _, s := range seen {
		in.Exist = append(in.Exist, s.Number)
	}
	return PlanNumbers(in)
}

// PoolShards wanted of a pool.
func PoolShards(pool *v1alpha1.ShardPool) int32 {
	if pool.Spec.Shards == nil {
		return 1
	}
	return *pool.Spec.Shards
}
