package fleet

import (
	"cmp"
	"slices"

	"sheaf.dev/sheaf/api/v1alpha1"
	"sheaf.dev/sheaf/internal/kube/workload"
)

// ShardsMax is the largest number of shards that a pool may have.
const ShardsMax = 1000

// NumbersInput is the input of PlanNumbers.
type NumbersInput struct {
	Wanted int              // wanted number of shards; if it is outside 0 to ShardsMax, all existing shards remain
	Exist  []int32          // shards that exist, or existed when the status was written
	Remove []int32          // spec.remove
	Holds  map[int32]string // shards that cannot be removed yet, and why
}

// NumbersPlan lists the shards that a pool should have.
type NumbersPlan struct {
	Keep   []int32 // shards that exist and remain
	Create []int32
	Remove []int32 // shards that are removed now
	Leave  []int32 // shards that should be removed, but still hold something
}

// ValidShards reports whether a pool may have n shards. The CRD refuses all other numbers, but a later version of the
// CRD may have allowed them.
func ValidShards(n int) bool { return n >= 0 && n <= ShardsMax }

// PlanNumbers chooses the numbers of a pool's shards. New shards take the lowest free numbers that spec.remove does not
// list. If there are too many shards, those in spec.remove go first, and then the highest numbers. A shard that still
// holds data remains until it is empty, and no other shard is removed instead.
func PlanNumbers(in NumbersInput) NumbersPlan {
	exist := slices.Compact(slices.Sorted(slices.Values(in.Exist)))
	var plan NumbersPlan
	if !ValidShards(in.Wanted) {
		plan.Keep = exist
		return plan
	}
	victims := slices.Clone(exist)
	slices.SortFunc(victims, func(a, b int32) int {
		return cmp.Or(compareTruth(slices.Contains(in.Remove, b), slices.Contains(in.Remove, a)), cmp.Compare(b, a))
	})
	victims = victims[:max(0, len(exist)-in.Wanted)]
	for _, n := range exist {
		switch {
		case !slices.Contains(victims, n):
			plan.Keep = append(plan.Keep, n)
		case in.Holds[n] != "":
			plan.Leave = append(plan.Leave, n)
		default:
			plan.Remove = append(plan.Remove, n)
		}
	}
	for n := int32(0); len(exist)+len(plan.Create) < in.Wanted; n++ {
		if !slices.Contains(exist, n) && !slices.Contains(in.Remove, n) {
			plan.Create = append(plan.Create, n)
		}
	}
	return plan
}

// leavingShards returns the names of the observed shards that a pool is going to remove. The planner has to keep groups
// away from them.
func leavingShards(pool *v1alpha1.ShardPool, seen []v1alpha1.ShardStatus) map[string]bool {
	leaving := map[string]bool{}
	for _, n := range poolNumbers(pool, seen).Remove {
		leaving[workload.Shard(pool.Name, n)] = true
	}
	return leaving
}

// All returns, in order, all shards that exist after this plan is carried out, including those that leave later.
func (p NumbersPlan) All() []int32 {
	all := slices.Concat(p.Keep, p.Create, p.Leave)
	slices.Sort(all)
	return all
}
