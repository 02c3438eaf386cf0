package controllers

import (
	"cmp"
	"slices"
	"strings"

	"sheaf.dev/sheaf/api/v1alpha1"
)

// troubleBytesMax bounds what is said of one group.
const troubleBytesMax = 300

// States of a group in GroupTrouble, beside those of shards.
const (
	groupDamaged = "Damaged"
	groupFailed  = "Failed"
	groupLost    = "DataLost"
)

// countGroups counts what the shard says of its groups. What it does not say now stays as it was.
func (o *observedShard) countGroups(s *v1alpha1.ShardStatus) {
	last := o.Last
	s.LeadingGroups = 0 // who is silent leads nothing
	s.Groups, s.DamagedGroups, s.LostGroups, s.Records, s.StoredBytes = last.Groups, last.DamagedGroups, last.LostGroups, last.Records, last.StoredBytes
	r := o.Report
	switch {
	case s.State == v1alpha1.ShardDiskLost:
		s.DamagedGroups, s.LostGroups, s.Records, s.StoredBytes = 0, s.Groups, 0, 0
		return
	case r == nil || o.Parked:
		if o.Copies > 1 { // others lead these groups now, and count their records
			s.Records = 0
		}
		return
	case r.State == v1alpha1.ShardMemoryTooSmall:
		s.Groups = int32(len(r.Groups)) //nolint:gosec // at most 65536
		return
	case !serving(r.State): // nothing is open
		return
	}
	s.Groups, s.DamagedGroups, s.LostGroups = int32(len(r.Groups)), 0, 0 //nolint:gosec // at most 65536
	var records, bytes int64
	for _, g := range r.Groups {
		switch troubleOf(g) {
		case groupDamaged:
			s.DamagedGroups++
		case groupLost:
			s.LostGroups++
		}
		if g.serves() {
			s.ServingGroups++
		}
		if g.Leader { // of several copies one counts
			records += g.Records
			s.LeadingGroups++
		}
		bytes += g.StoredBytes
	}
	if s.State == v1alpha1.ShardLoading { // groups that are not loaded yet are not gone
		records, bytes = max(records, last.Records), max(bytes, last.StoredBytes)
	}
	s.Records, s.StoredBytes = records, bytes
}

// troubleOf names what is wrong with a copy of a group; empty: nothing that its shard knows of.
func troubleOf(g GroupReport) string {
	switch {
	case g.Lost:
		return groupLost
	case g.State == groupDamaged, g.State == groupFailed:
		return g.State
	}
	return ""
}

// poolGroups counts the groups of all shards of the pool, and lists the first that are not well.
func (w *poolWork) poolGroups(status *v1alpha1.ShardPoolStatus) {
	before := status.Groups.NotWell
	status.Groups, status.Records, status.StoredBytes = v1alpha1.GroupCounts{}, 0, 0
	for _, s := range w.statuses {
		countShard(&status.Groups, s)
		status.Groups.Total += s.Groups
		status.Records += s.Records
		status.StoredBytes += s.StoredBytes
	}
	settleCounts(&status.Groups)
	var list []v1alpha1.GroupTrouble
	for _, o := range w.shards {
		if o.Report == nil || !serving(o.Report.State) { // it says nothing of groups
			for _, t := range before {
				if t.Shard == o.Name {
					list = append(list, t)
				}
			}
			continue
		}
		for _, g := range o.Report.Groups {
			if state := troubleOf(g); state != "" {
				list = append(list, v1alpha1.GroupTrouble{Group: g.Group, Shard: o.Name, State: state, Message: cut(g.Message, troubleBytesMax)})
			}
		}
	}
	status.Groups.NotWell = firstTroubles(list)
}

// countShard adds the groups of a shard to the counts, but for the total.
func countShard(groups *v1alpha1.GroupCounts, s v1alpha1.ShardStatus) {
	groups.Serving += s.ServingGroups
	groups.Damaged += s.DamagedGroups
	groups.DataLost += s.LostGroups
	if s.State == v1alpha1.ShardLoading {
		groups.Loading += s.Groups - s.ServingGroups - s.LostGroups
	}
}

// settleCounts makes the counts fit the total: what is neither serving, loading nor lost is degraded.
func settleCounts(groups *v1alpha1.GroupCounts) {
	groups.Serving = min(groups.Serving, groups.Total)
	groups.Damaged = min(groups.Damaged, groups.Total)
	groups.DataLost = min(groups.DataLost, groups.Total-groups.Serving)
	groups.Loading = max(0, min(groups.Loading, groups.Total-groups.Serving-groups.DataLost))
	groups.Degraded = groups.Total - groups.Serving - groups.DataLost - groups.Loading
}

// firstTroubles are the first groups of a list, the worst first, each once.
func firstTroubles(list []v1alpha1.GroupTrouble) []v1alpha1.GroupTrouble {
	rank := []string{groupLost, string(v1alpha1.ShardDiskLost), groupFailed, groupDamaged}
	worst := func(state string) int {
		if n := slices.Index(rank, state); n >= 0 {
			return n
		}
		return len(rank)
	}
	slices.SortStableFunc(list, func(a, b v1alpha1.GroupTrouble) int {
		return cmp.Or(cmp.Compare(worst(a.State), worst(b.State)), compareGroups(a.Group, b.Group))
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

// compareGroups orders names of groups as people count: 2 comes before 10.
func compareGroups(a, b string) int {
	return cmp.Or(cmp.Compare(len(a), len(b)), cmp.Compare(a, b))
}

// cut bounds a text.
func cut(text string, bytesMax int) string {
	if len(text) <= bytesMax {
		return text
	}
	return strings.ToValidUTF8(text[:bytesMax-3], "") + "..."
}
