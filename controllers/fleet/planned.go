package fleet

import (
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/types"

	"sheaf.dev/sheaf/api/v1alpha1"
	"sheaf.dev/sheaf/internal/kube/workload"
)

// PlannedPoolsMax is the maximum number of pools in the status. If a store has more pools, PlanMisses assumes that
// the plan takes the remaining ones into account.
const PlannedPoolsMax = 256

// PlanMisses names the changes that the store's last plan does not take into account yet. The result is empty if the
// plan was made for this generation of the store and of all its pools.
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

// ShardsToCome returns the wanted shards of a store that accept groups and are expected to register soon: they are not
// registered yet, they are not parked, and their state is unknown, Pending or Loading. A group that no present shard
// can take may be placed on one of them.
func ShardsToCome(view *Places, pools []v1alpha1.ShardPool, seen Observed) (names []string) {
	states := seen.ByName()
	wanted := ShardStates(pools, seen)
	for n := range pools {
		for _, name := range PoolShardNames(&pools[n], seen.Of(&pools[n])) {
			parked := slices.ContainsFunc(pools[n].Spec.Parked, func(i int32) bool {
				return workload.Shard(pools[n].Name, i) == name
			})
			if !parked {
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

// ShardStates returns the wanted state of each shard, by name.
func ShardStates(pools []v1alpha1.ShardPool, seen Observed) map[string]v1alpha1.PoolState {
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

// PoolShardNames returns, by number, the names of the shards that a pool has or should have.
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

// poolNumbers returns the shards that a pool has or should have. It chooses the same numbers as the ShardPool
// controller.
func poolNumbers(pool *v1alpha1.ShardPool, seen []v1alpha1.ShardStatus) NumbersPlan {
	in := NumbersInput{Wanted: WantedShards(pool), Remove: pool.Spec.Remove}
	for _, s := range seen {
		in.Exist = append(in.Exist, s.Number)
	}
	return PlanNumbers(in)
}

// WantedShards returns the number of shards that the spec of a pool asks for, which may be invalid.
func WantedShards(pool *v1alpha1.ShardPool) int {
	if pool.Spec.Shards == nil {
		return 1
	}
	return int(*pool.Spec.Shards)
}

// PoolShards returns the number of shards that a pool should have. If the number in the spec is invalid, the pool
// keeps its current shards.
func PoolShards(pool *v1alpha1.ShardPool) int32 {
	if n := WantedShards(pool); ValidShards(n) {
		return int32(n)
	}
	return pool.Status.Shards
}

// AnnotationReplaced is an annotation of a ShardPool. It lists the claims that were given up for spec.replace, as
// NUMBER=UID separated by commas, and thus shows which shards have been replaced already. An entry remains while
// spec.replace lists the shard.
const AnnotationReplaced = "sheaf.dev/replaced-claims"

// ReplacedClaims returns the claims that a pool's annotation lists, by shard number.
func ReplacedClaims(pool *v1alpha1.ShardPool) map[int32]types.UID {
	marks := map[int32]types.UID{}
	for item := range strings.SplitSeq(pool.Annotations[AnnotationReplaced], ",") {
		digits, uid, ok := strings.Cut(strings.TrimSpace(item), "=")
		n, err := strconv.ParseInt(digits, 10, 32)
		if ok && err == nil && n >= 0 && uid != "" {
			marks[int32(n)] = types.UID(uid)
		}
	}
	return marks
}
