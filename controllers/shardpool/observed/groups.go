package observed

import (
	"sheaf.dev/sheaf/api/v1alpha1"
	"sheaf.dev/sheaf/client/recordv1"
	"sheaf.dev/sheaf/controllers/fleet"
)

// countGroups counts the groups in the shard's report. Values that are missing from the report remain unchanged.
func (o *Shard) countGroups(s *v1alpha1.ShardStatus) {
	last := o.Last
	s.LeadingGroups = 0 // a shard that does not answer leads no group
	s.Groups, s.DamagedGroups, s.LostGroups, s.Records, s.StoredBytes = last.Groups, last.DamagedGroups, last.LostGroups,
		last.Records, last.StoredBytes
	r := o.Report
	switch {
	case s.State == v1alpha1.ShardDiskLost:
		s.DamagedGroups, s.LostGroups, s.Records, s.StoredBytes = 0, s.Groups, 0, 0
		return
	case r == nil || o.Parked:
		if o.Copies > 1 { // other shards lead these groups now, and count their records
			s.Records = 0
		}
		return
	case r.GetShard().GetState() == recordv1.ShardState_SHARD_STATE_MEMORY_TOO_SMALL:
		s.Groups = int32(len(r.GetGroups())) //nolint:gosec // at most 65536
		return
	case !r.GetShard().GetState().Serves(): // no group is open
		return
	}
	s.Groups, s.DamagedGroups, s.LostGroups = int32(len(r.GetGroups())), 0, 0 //nolint:gosec // at most 65536
	var records, bytes int64
	for _, g := range r.GetGroups() {
		switch fleet.TroubleOf(g) {
		case fleet.GroupDamaged:
			s.DamagedGroups++
		case fleet.GroupLost:
			s.LostGroups++
		}
		if g.GetState().Serves() {
			s.ServingGroups++
		}
		if g.GetLeader() { // of several copies, only the leader's counts
			records += g.GetRecords()
			s.LeadingGroups++
		}
		bytes += g.GetStoredBytes()
	}
	if s.State == v1alpha1.ShardLoading { // groups that are not loaded yet are not lost
		records, bytes = max(records, last.Records), max(bytes, last.StoredBytes)
	}
	s.Records, s.StoredBytes = records, bytes
}
