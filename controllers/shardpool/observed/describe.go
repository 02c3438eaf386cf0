package observed

import (
	"errors"
	"strings"

	"sheaf.dev/sheaf/api/v1alpha1"
	"sheaf.dev/sheaf/controllers/fleet"
	"sheaf.dev/sheaf/internal/kube/workload"
)

// describe fills in what is not the state. What the shard said before stays while it does not answer.
func (o *Shard) describe(s *v1alpha1.ShardStatus) {
	last := o.Last
	s.Node = o.NodeName
	s.MemoryNeedBytes, s.MemoryLimitBytes, s.Version = last.MemoryNeedBytes, last.MemoryLimitBytes, last.Version
	s.LoadBytesPerSecond, s.LoadDevicePercent = last.LoadBytesPerSecond, last.LoadDevicePercent
	s.Updated = o.Pod != nil && o.Pod.DeletionTimestamp == nil &&
		o.Pod.Annotations[workload.AnnotationTemplate] == o.Template
	s.Volume = o.volume()
	o.countGroups(s)
	if o.Report == nil || o.Parked {
		return
	}
	r := o.Report
	s.Version = r.Version
	s.MemoryNeedBytes, s.MemoryLimitBytes = fleet.Steady(last.MemoryNeedBytes, r.Memory.NeedBytes, r.Memory.NeedBytes),
		r.Memory.LimitBytes
	if s.State == v1alpha1.ShardMemoryTooSmall || last.State == v1alpha1.ShardMemoryTooSmall {
		s.MemoryNeedBytes = r.Memory.NeedBytes
	}
	if fleet.Serving(r.State) {
		o.loadRate(s)
	}
	if s.State == v1alpha1.ShardLoading {
		o.progress(s)
	}
}

func (o *Shard) progress(s *v1alpha1.ShardStatus) {
	s.LoadPercent, s.Load = loadPercent(o.Report.Load), LoadText(o.Load())
}

// volume is what the shard says of it, or said last, and the claim as it is.
func (o *Shard) volume() *v1alpha1.VolumeStatus {
	v := v1alpha1.VolumeStatus{}
	if o.Last.Volume != nil {
		v = *o.Last.Volume.DeepCopy()
	}
	if o.Claim != nil {
		v.Claim, v.PersistentVolume = o.Claim.Name, o.Claim.Spec.VolumeName
	}
	if r := o.Report; r != nil {
		r := r.Volume
		v.Source, v.FileSystem, v.MountOptions, v.Rotational = r.Source, r.FileSystem, r.MountOptions, r.Rotational
		v.FreeBytes = fleet.Steady(v.FreeBytes, r.FreeBytes, r.CapacityBytes)
		if Full(r.FreeBytes, r.ReserveBytes) {
			v.FreeBytes = min(v.FreeBytes, r.ReserveBytes)
		}
		v.CapacityBytes = r.CapacityBytes
		// Only a shard that serves has shown that the volume is its own.
		if v.UUID == "" && fleet.Serving(o.Report.State) && (r.StoreUUID == "" ||
			strings.EqualFold(r.StoreUUID, o.StoreUID)) {
			v.UUID = r.UUID
		}
	}
	v.Silent = o.diskSilent()
	if v.Claim == "" && v.UUID == "" && v.FileSystem == "" {
		return nil
	}
	return &v
}

// diskSilent says whether the disk of a shard that runs lets it wait. One that answers nothing at all is as it was.
func (o *Shard) diskSilent() bool {
	switch {
	case o.Report != nil || !o.Running():
		return false
	case errors.Is(o.ReportErr, fleet.ErrVolumeSilent):
		return true
	}
	return fleet.IsSilent(&o.Last)
}

// fullBytes is what a volume must have free above its reserve not to count as full: as much as one Put may carry.
const fullBytes = 1 << 20

// Full says whether a volume refuses puts, small ones perhaps excepted: it has little left but its reserve.
func Full(freeBytes, reserveBytes int64) bool {
	return reserveBytes > 0 && freeBytes < reserveBytes+fullBytes
}
