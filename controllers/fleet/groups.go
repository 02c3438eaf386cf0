package fleet

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"sheaf.dev/sheaf/api/v1alpha1"
	"sheaf.dev/sheaf/client/recordv1"
	"sheaf.dev/sheaf/controllers/step"
	"sheaf.dev/sheaf/internal/base/units"
	"sheaf.dev/sheaf/internal/placement"
)

// VersionWords returns a sorted list of the versions that the shards run.
func VersionWords(shards map[string]v1alpha1.ShardStatus) string {
	seen := map[string]bool{}
	for _, s := range shards {
		if s.Version != "" {
			seen[s.Version] = true
		}
	}
	return step.Truncate(strings.Join(slices.Sorted(maps.Keys(seen)), ","), wordsMax)
}

// wordsMax is the maximum length of a text in a column of kubectl output, in bytes.
const wordsMax = 128

// NodeWords returns a sorted list of the shards' nodes, such as "n1, n2 and 3 more".
func NodeWords(shards []v1alpha1.ShardStatus) string {
	seen := map[string]bool{}
	for _, s := range shards {
		if s.Node != "" {
			seen[s.Node] = true
		}
	}
	names := slices.Sorted(maps.Keys(seen))
	most := 3
	if len(names) == most+1 {
		most++ // the name takes no more space than the words "and 1 more"
	}
	return step.Truncate(units.Some(names, most), wordsMax)
}

// troublesMax is the maximum number of unhealthy groups in the list.
const troublesMax = 20

// StateOf returns the state that a shard reports, as v1alpha1 spells it. The result is empty if the shard does not send
// a state, or if this version of Sheaf does not know the state.
func StateOf(r *recordv1.ShardStatus) v1alpha1.ShardState {
	return v1alpha1.ShardState(r.GetShard().GetState().Word())
}

// Serving reports whether a shard in this state answers calls for its groups.
func Serving(state v1alpha1.ShardState) bool {
	return state == v1alpha1.ShardLoading || state == v1alpha1.ShardServing || state == v1alpha1.ShardDraining
}

// TroubleBytesMax is the maximum length of the text about one group, in bytes.
const TroubleBytesMax = 300

// States of a group in GroupTrouble. GroupTrouble also uses the states of shards.
const (
	GroupDamaged  = "Damaged"
	groupFailed   = "Failed"
	GroupLost     = "DataLost"
	GroupDegraded = "Degraded" // the group has fewer copies than wanted
	GroupNoLeader = "NoLeader" // the group accepts no calls
)

// TroubleOf returns the state of a group's copy if the copy has a problem, or "" if the shard reports none.
func TroubleOf(g *recordv1.Group) string {
	switch {
	case g.GetLost():
		return GroupLost
	case g.GetState() == recordv1.GroupState_GROUP_STATE_DAMAGED:
		return GroupDamaged
	case g.GetState() == recordv1.GroupState_GROUP_STATE_FAILED:
		return groupFailed
	}
	return ""
}

// CountShard adds a shard's serving, damaged, lost and loading groups to the counts. It does not change the total.
func CountShard(groups *v1alpha1.GroupCounts, s v1alpha1.ShardStatus) {
	groups.Serving += s.ServingGroups
	groups.Damaged += s.DamagedGroups
	groups.DataLost += s.LostGroups
	if s.State == v1alpha1.ShardLoading {
		groups.Loading += s.Groups - s.ServingGroups - s.LostGroups
	}
}

// CompleteCounts makes the counts add up to the total: groups that are neither serving, loading nor lost count as
// degraded.
func CompleteCounts(groups *v1alpha1.GroupCounts) {
	groups.Serving = min(groups.Serving, groups.Total)
	groups.Damaged = min(groups.Damaged, groups.Total)
	groups.DataLost = min(groups.DataLost, groups.Total-groups.Serving)
	groups.Loading = max(0, min(groups.Loading, groups.Total-groups.Serving-groups.DataLost))
	groups.Degraded = groups.Total - groups.Serving - groups.DataLost - groups.Loading
}

// FirstTroubles sorts a list of unhealthy groups, the worst first, removes duplicates, and returns the first entries.
func FirstTroubles(list []v1alpha1.GroupTrouble) []v1alpha1.GroupTrouble {
	rank := []string{GroupLost, string(v1alpha1.ShardDiskLost), groupFailed, GroupDamaged}
	worst := func(state string) int {
		if n := slices.Index(rank, state); n >= 0 {
			return n
		}
		return len(rank)
	}
	slices.SortStableFunc(list, func(a, b v1alpha1.GroupTrouble) int {
		return cmp.Or(cmp.Compare(worst(a.State), worst(b.State)), placement.CompareGroups(a.Group, b.Group))
	})
	seen := map[string]bool{}
	var out []v1alpha1.GroupTrouble
	for _, t := range list {
		if !seen[t.Group] && len(out) < troublesMax {
			seen[t.Group] = true
			out = append(out, t)
		}
	}
	return out
}
