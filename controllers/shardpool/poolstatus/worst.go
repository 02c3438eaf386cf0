package poolstatus

import (
	"cmp"
	"slices"

	"sheaf.dev/sheaf/api/v1alpha1"
	"sheaf.dev/sheaf/controllers/fleet"
)

// statesByWorst are all states of shards, the worst first: those that need a person, those that are waited for, those
// in which all is well.
var statesByWorst = []v1alpha1.ShardState{
	v1alpha1.ShardDiskLost, v1alpha1.ShardNodeLost, v1alpha1.ShardForeign, v1alpha1.ShardFormatBlocked,
	v1alpha1.ShardFileSystemMismatch, v1alpha1.ShardMemoryTooSmall,
	v1alpha1.ShardCrashLooping, v1alpha1.ShardUnreachable, v1alpha1.ShardNodeDown, v1alpha1.ShardImagePull,
	v1alpha1.ShardNoStorageClass, v1alpha1.ShardNoVolume, v1alpha1.ShardUnschedulable, v1alpha1.ShardPending,
	v1alpha1.ShardLoading, v1alpha1.ShardDraining,
	v1alpha1.ShardServing, v1alpha1.ShardParked,
}

// severityOf a state: its place among all, and before all where it is of a later version.
func severityOf(state v1alpha1.ShardState) int { return slices.Index(statesByWorst, state) }

// severityOfShard puts a shard with damaged or lost groups among those that need a person.
func severityOfShard(s *v1alpha1.ShardStatus) int {
	if !fleet.NeedsPerson(s.State) && s.DamagedGroups+s.LostGroups > 0 {
		return severityOf(v1alpha1.ShardMemoryTooSmall)
	}
	return severityOf(s.State)
}

// ByNumber are the same shards in the order of their numbers.
func ByNumber(shards []v1alpha1.ShardStatus) []v1alpha1.ShardStatus {
	return slices.SortedFunc(slices.Values(shards), byNumber)
}

func byNumber(a, b v1alpha1.ShardStatus) int { return cmp.Compare(a.Number, b.Number) }

// worstShards are at most ShardStatusesMax of a pool's shards, by number: the worst ones, of equals those with the
// lowest numbers.
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
