package shardpool

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"sheaf.dev/sheaf/api/v1alpha1"
	"sheaf.dev/sheaf/controllers/fleet"
	"sheaf.dev/sheaf/internal/workload"
)

// describe fills in what is not the state. What the shard said before stays while it does not answer.
func (o *observedShard) describe(s *v1alpha1.ShardStatus) {
	last := o.Last
	s.Node = o.NodeName
	s.MemoryNeedBytes, s.MemoryLimitBytes, s.Version = last.MemoryNeedBytes, last.MemoryLimitBytes, last.Version
	s.LoadBytesPerSecond, s.LoadDevicePercent = last.LoadBytesPerSecond, last.LoadDevicePercent
	s.Updated = o.Pod != nil && o.Pod.DeletionTimestamp == nil && o.Pod.Annotations[workload.AnnotationTemplate] == o.Template
	s.Volume = o.volume()
	o.countGroups(s)
	if o.Report == nil || o.Parked {
		return
	}
	r := o.Report
	s.Version = r.Version
	s.MemoryNeedBytes, s.MemoryLimitBytes = fleet.Steady(last.MemoryNeedBytes, r.Memory.NeedBytes, r.Memory.NeedBytes), r.Memory.LimitBytes
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

func (o *observedShard) progress(s *v1alpha1.ShardStatus) {
	s.LoadPercent, s.Load = loadPercent(o.Report.Load), loadText(o.load())
}

// volume is what the shard says of it, or said last, and the claim as it is.
func (o *observedShard) volume() *v1alpha1.VolumeStatus {
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
		if full(r.FreeBytes, r.ReserveBytes) {
			v.FreeBytes = min(v.FreeBytes, r.ReserveBytes)
		}
		v.CapacityBytes = r.CapacityBytes
		// Only a shard that serves has shown that the volume is its own.
		if v.UUID == "" && fleet.Serving(o.Report.State) && (r.StoreUUID == "" || strings.EqualFold(r.StoreUUID, o.StoreUID)) {
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
func (o *observedShard) diskSilent() bool {
	switch {
	case o.Report != nil || !o.running():
		return false
	case errors.Is(o.ReportErr, fleet.ErrVolumeSilent):
		return true
	}
	return fleet.IsSilent(&o.Last)
}

// fullBytes is what a volume must have free above its reserve not to count as full: as much as one Put may carry.
const fullBytes = 1 << 20

// full says whether a volume refuses puts, small ones perhaps excepted: it has little left but its reserve.
func full(freeBytes, reserveBytes int64) bool {
	return reserveBytes > 0 && freeBytes < reserveBytes+fullBytes
}

func loadPercent(l fleet.LoadReport) int32 {
	if l.BytesTotal <= 0 {
		return 0
	}
	return int32(min(100, max(0, 100*float64(l.BytesDone)/float64(l.BytesTotal))))
}

// loadText is such as "62% 1.9GiB/s (87% of the device) ETA 2m".
func loadText(l fleet.LoadReport) string {
	text := fmt.Sprintf("%d%% %s/s", loadPercent(l), bytesText(int64(l.BytesPerSecond)))
	if percent := devicePercent(l); percent > 0 {
		text += fmt.Sprintf(" (%d%% of the device)", percent)
	}
	if l.ETA > 0 {
		text += " ETA " + roundTime(l.ETA)
	}
	return text
}

func roundTime(d time.Duration) string {
	switch {
	case d < time.Minute:
		return fmt.Sprintf("%ds", int(d.Round(time.Second)/time.Second))
	case d < time.Hour:
		return fmt.Sprintf("%dm", int(d.Round(time.Minute)/time.Minute))
	}
	return fmt.Sprintf("%dh%dm", int(d/time.Hour), int(d%time.Hour/time.Minute))
}

// bytesText is such as "1.9GiB".
func bytesText(n int64) string {
	value, unit := float64(n), "B"
	for _, next := range []string{"KiB", "MiB", "GiB", "TiB", "PiB"} {
		if value < 1024 {
			break
		}
		value, unit = value/1024, next
	}
	if unit == "B" || value >= 100 {
		return fmt.Sprintf("%.0f%s", value, unit)
	}
	return fmt.Sprintf("%.1f%s", value, unit)
}
