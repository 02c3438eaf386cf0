package poolstatus

import (
	"cmp"
	"slices"

	"sheaf.dev/sheaf/api/v1alpha1"
	"sheaf.dev/sheaf/controllers/fleet"
)

// statesByWorst lists all states of shards, the worst first: states that need an administrator, then states whose end
// the operator waits for, then healthy states.
var statesByWorst = []v1alpha1.ShardState{
	v1alpha1.ShardDiskLost, v1alpha1.ShardNodeLost, v1alpha1.ShardDiskMissing, v1alpha1.ShardForeign,
	v1alpha1.ShardFormatBlocked,
	v1alpha1.ShardFileSystemMismatch, v1alpha1.ShardMemoryTooSmall,
	v1alpha1.ShardCrashLooping, v1alpha1.ShardUnreachable, v1alpha1.ShardNodeDown, v1alpha1.ShardImagePull,
	v1alpha1.ShardNoStorageClass, v1alpha1.ShardNoVolume, v1alpha1.ShardUnschedulable, v1alpha1.ShardPending,
	v1alpha1.ShardLoading, v1alpha1.ShardDraining,
	v1alpha1.ShardServing, v1alpha1.ShardParked,
}

// severityOf returns the index of a state in statesByWorst. A state of a later version gets -1, the worst.
func severityOf(state v1alpha1.ShardState) int { return slices.Index(statesByWorst, state) }

// severityOfShard ranks a shard with damaged or lost groups among those that need an administrator.
func severityOfShard(s *v1alpha1.ShardStatus) int {
	if !fleet.NeedsPerson(s.State) && s.DamagedGroups+s.LostGroups > 0 {
		return severityOf(v1alpha1.ShardMemoryTooSmall)
	}
	return severityOf(s.State)
}

// ByNumber returns the same shards sorted by number.
func ByNumber(shards []v1alpha1.ShardStatus) []v1alpha1.ShardStatus {
	return slices.SortedFunc(slices.Values(shards), byNumber)
}

func byNumber(a, b v1alpha1.ShardStatus) int { return cmp.Compare(a.Number, b.Number) }

// worstShards returns up to ShardStatusesMax of a pool's shards, sorted by number. It takes the worst ones first and,
// among equals, those with the lowest numbers.
func worstShards(all []v1alpha1.ShardStatus) []v1alpha1.ShardStatus {
	list := slices.Clone(all)
	slices.SortFunc(list, func(a, b v1alpha1.ShardStatus) int {
		return cmp.Or(cmp.Compare(severityOfShard(&a), severityOfShard(&b)), byNumber(a, b))
	})
	list = list[:min(v1alpha1.ShardStatusesMax, len(list))]
	slices.SortFunc(list, byNumber)
	return list
}

// countStates counts shards by their state, the worst state first.
func countStates(all []v1alpha1.ShardStatus) (counts []v1alpha1.ShardStateCount) {
	of := map[v1alpha1.ShardState]int32{}
	for _, s := range all {
		of[s.State]++
	}
	for state, n := range of {
		counts = append(counts, v1alpha1.ShardStateCount{State: state, Shards: n})
	}
	slices.SortFunc(counts, func(a, b v1alpha1.ShardStateCount) int {
		return cmp.Or(cmp.Compare(severityOf(a.State), severityOf(b.State)), cmp.Compare(a.State, b.State))
	})
	return counts
}
