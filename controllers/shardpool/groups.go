package shardpool

import (
	"sheaf.dev/sheaf/api/v1alpha1"
	"sheaf.dev/sheaf/controllers/fleet"
	"sheaf.dev/sheaf/controllers/step"
)

// States of a group in GroupTrouble, beside those of shards.
const ()

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
	case !fleet.Serving(r.State): // nothing is open
		return
	}
	s.Groups, s.DamagedGroups, s.LostGroups = int32(len(r.Groups)), 0, 0 //nolint:gosec // at most 65536
	var records, bytes int64
	for _, g := range r.Groups {
		switch fleet.TroubleOf(g) {
		case fleet.GroupDamaged:
			s.DamagedGroups++
		case fleet.GroupLost:
			s.LostGroups++
		}
		if g.Serves() {
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

// poolGroups counts the groups of all shards of the pool, and lists the first that are not well.
func (w *poolWork) poolGroups(status *v1alpha1.ShardPoolStatus) {
	before := status.Groups.NotWell
	status.Groups, status.Records, status.StoredBytes = v1alpha1.GroupCounts{}, 0, 0
	for _, s := range w.statuses {
		fleet.CountShard(&status.Groups, s)
		status.Groups.Total += s.Groups
		status.Records += s.Records
		status.StoredBytes += s.StoredBytes
	}
	fleet.SettleCounts(&status.Groups)
	var list []v1alpha1.GroupTrouble
	for _, o := range w.shards {
		if o.Report == nil || !fleet.Serving(o.Report.State) { // it says nothing of groups
			for _, t := range before {
				if t.Shard == o.Name {
					list = append(list, t)
				}
			}
			continue
		}
		for _, g := range o.Report.Groups {
			if state := fleet.TroubleOf(g); state != "" {
				list = append(list, v1alpha1.GroupTrouble{Group: g.Group, Shard: o.Name, State: state, Message: step.Cut(g.Message, fleet.TroubleBytesMax)})
			}
		}
	}
	status.Groups.NotWell = fleet.FirstTroubles(list)
}
