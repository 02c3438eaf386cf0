package observed

import (
	"errors"
	"strings"

	"sheaf.dev/sheaf/api/v1alpha1"
	"sheaf.dev/sheaf/client/recordv1"
	"sheaf.dev/sheaf/controllers/fleet"
	"sheaf.dev/sheaf/internal/kube/workload"
)

// describe fills in all fields except the state. While the shard does not answer, the values from its last report
// remain.
func (o *Shard) describe(s *v1alpha1.ShardStatus) {
	last := o.Last
	s.Node = o.NodeName
	s.MemoryNeedBytes, s.MemoryLimitBytes, s.Version = last.MemoryNeedBytes, last.MemoryLimitBytes, last.Version
	s.LoadBytesPerSecond, s.LoadDevicePercent = last.LoadBytesPerSecond, last.LoadDevicePercent
	s.Updated = o.Pod != nil && o.Pod.DeletionTimestamp == nil &&
		o.Pod.Annotations[workload.AnnotationTemplate] == o.Template
	s.PodReady = o.Pod != nil && o.Pod.DeletionTimestamp == nil && workload.PodReady(o.Pod)
	s.Volume = o.volume()
	o.countGroups(s)
	if o.Report == nil || o.Parked {
		return
	}
	r := o.Report.GetShard()
	s.Version, s.MemoryLimitBytes = r.GetVersion(), r.GetMemoryLimitBytes()
	s.MemoryNeedBytes = fleet.Steady(last.MemoryNeedBytes, r.GetMemoryNeedBytes(), r.GetMemoryNeedBytes())
	if s.State == v1alpha1.ShardMemoryTooSmall || last.State == v1alpha1.ShardMemoryTooSmall {
		s.MemoryNeedBytes = r.GetMemoryNeedBytes()
	}
	if r.GetState().Serves() {
		o.loadRate(s)
	}
	if s.State == v1alpha1.ShardLoading {
		s.LoadPercent, s.Load = loadPercent(r.Load), LoadText(o.Load())
	}
}

// volume describes the volume from the shard's current or last report and from the claim.
func (o *Shard) volume() *v1alpha1.VolumeStatus {
	v := v1alpha1.VolumeStatus{}
	if o.Last.Volume != nil {
		v = *o.Last.Volume.DeepCopy()
	}
	if o.Claim != nil {
		v.Claim, v.PersistentVolume = o.Claim.Name, o.Claim.Spec.VolumeName
	}
	if r := o.Report.GetShard(); r != nil {
		v.Source, v.FileSystem, v.MountOptions, v.Rotational = r.GetSource(), r.GetFileSystem(), r.GetMountOptions(),
			r.Rotational
		v.FreeBytes = fleet.Steady(v.FreeBytes, r.GetFreeBytes(), r.GetCapacityBytes())
		if Full(r.GetFreeBytes(), r.GetReserveBytes()) {
			v.FreeBytes = min(v.FreeBytes, r.GetReserveBytes())
		}
		v.CapacityBytes = r.GetCapacityBytes()
		// Only a serving shard has verified that the volume is its own.
		if v.UUID == "" && r.GetState().Serves() && (r.GetStoreUuid() == "" ||
			strings.EqualFold(r.GetStoreUuid(), o.StoreUID)) {
			v.UUID = r.GetVolumeUuid()
		}
	}
	v.Silent = o.diskSilent()
	if v.Claim == "" && v.UUID == "" && v.FileSystem == "" {
		return nil
	}
	return &v
}

// diskSilent reports whether the disk of a running shard hangs. If the shard itself does not answer, the last value
// remains.
func (o *Shard) diskSilent() bool {
	switch {
	case o.Report != nil || !o.Running():
		return false
	case errors.Is(o.ReportErr, fleet.ErrVolumeSilent):
		return true
	}
	return fleet.IsSilent(&o.Last)
}

// fullBytes is the size of the largest possible Put. A volume with less free space above the reserve counts as full.
const fullBytes = 1 << 20

// Full reports whether a volume refuses puts, perhaps except small ones, because little more than its reserve is
// free.
func Full(freeBytes, reserveBytes int64) bool {
	return reserveBytes > 0 && freeBytes < reserveBytes+fullBytes
}

// countGroups counts the groups in the shard's report. Values that are missing in the report do not change.
func (o *Shard) countGroups(s *v1alpha1.ShardStatus) {
	last := o.Last
	s.LeadingGroups = 0 // a shard that does not answer is assumed to lead no groups
	s.Groups, s.DamagedGroups, s.LostGroups, s.Records, s.StoredBytes = last.Groups, last.DamagedGroups, last.LostGroups,
		last.Records, last.StoredBytes
	r := o.Report
	switch {
	case s.State == v1alpha1.ShardDiskLost:
		s.DamagedGroups, s.LostGroups, s.Records, s.StoredBytes = 0, s.Groups, 0, 0
		return
	case r == nil || o.Parked:
		if o.Copies > 1 { // other shards now lead these groups and count their records
			s.Records = 0
		}
		return
	case r.GetShard().GetState() == recordv1.ShardState_SHARD_STATE_MEMORY_TOO_SMALL:
		s.Groups = int32(len(r.GetGroups())) //nolint:gosec // there are at most 100000 groups
		return
	case !r.GetShard().GetState().Serves(): // the shard has opened no groups
		return
	}
	s.Groups, s.DamagedGroups, s.LostGroups = int32(len(r.GetGroups())), 0, 0 //nolint:gosec // at most 100000 groups
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
		if g.GetLeader() { // count the records only on the shard that leads the group
			records += g.GetRecords()
			s.LeadingGroups++
		}
		bytes += g.GetStoredBytes()
	}
	if s.State == v1alpha1.ShardLoading { // groups that are not loaded yet do not count as lost
		records, bytes = max(records, last.Records), max(bytes, last.StoredBytes)
	}
	s.Records, s.StoredBytes = records, bytes
}
