package shard

import (
	"cmp"
	"slices"
	"time"

	"sheaf.dev/sheaf/client/recordv1"
	"sheaf.dev/sheaf/internal/shard/host"
	"sheaf.dev/sheaf/internal/shard/status"
)

// Status returns the current status.
func (s *Shard) Status() *recordv1.ShardStatus {
	st := &recordv1.ShardStatus{Shard: s.cfg.row()}
	row := st.GetShard()
	s.id.Describe(row, s.volume.Superblock())
	row.MemoryUsedBytes, row.Stopping, row.Load = s.volume.MemoryUsed(), s.stopping.Load(), s.loading.Status()
	row.State, row.Message = s.loading.State()
	if space, reserve, err := s.volume.Space(); err == nil {
		row.CapacityBytes, row.FreeBytes, row.ReserveBytes = space.TotalBytes, space.FreeBytes, reserve
	} else {
		row.Problems = append(row.Problems, "asking for the free space of the volume: "+err.Error())
	}
	if mount, err := s.volume.Mount(); err == nil {
		row.FileSystem, row.MountOptions, row.Source, row.Rotational = mount.FileSystem, mount.Options, mount.Source,
			mount.Rotational
	} else {
		row.Problems = append(row.Problems, "asking for the mount of the volume: "+err.Error())
	}
	row.Problems = append(row.Problems, s.volume.Left.Problems(s.cfg.Dir)...)
	st.Groups, _ = s.groupStatuses("", "", 0)
	row.Groups = int32(len(st.GetGroups()))
	for _, g := range st.GetGroups() {
		if g.GetLeader() {
			row.Leaders++
		}
		for _, d := range g.GetDamages() {
			d.Ids = nil // HTTP callers are not authenticated; AdminService returns the ids to callers who may see them
		}
	}
	st.Moves, st.Uncompacted, st.Slow = s.copies(), s.compactor.Uncompacted(), s.slow.status()
	row.SlowSyncs = newestSlow(st.GetSlow())
	if s.calls != nil {
		row.Traffic = s.calls.Traffic()
	}
	last, _ := s.cfg.Placement.LastAnswer()
	row.EtcdSilentSeconds, row.RoutingEpoch = status.SilentSeconds(last), s.replicas.View().Epoch
	for _, g := range s.replicas.All() {
		if known := g.State(); known.Standing.Apart() {
			st.Strays = append(st.Strays,
				&recordv1.StrayGroup{Group: known.Name, Uuid: g.UUID.String(), Reason: known.Standing.String()})
		}
	}
	slices.SortFunc(st.Strays, func(a, b *recordv1.StrayGroup) int { return cmp.Compare(a.GetUuid(), b.GetUuid()) })
	need, tooSmall := s.loading.Memory()
	if row.MemoryNeedBytes = need; tooSmall != nil {
		row.Problems = append(row.Problems, tooSmall.Error())
	}
	if s.archive != nil {
		if through, known := s.archive.ArchivedThrough(); known {
			row.ArchivedThroughUnixNs = &through
		}
	}
	row.VolumeSilent = s.problems.Of(host.VolumeSilent) != nil
	row.Problems = append(row.Problems, s.problems.Words()...)
	slices.Sort(row.Problems)
	status.Conclude(st)
	return st
}

// newestSlow summarizes the slow syncs for a shard's row, which has no space for a list. It is nil if there are none.
func newestSlow(slow *recordv1.SlowOperations) *recordv1.SlowSyncs {
	if len(slow.GetSyncs()) == 0 {
		return nil
	}
	newest := slow.GetSyncs()[0]
	ended := time.Unix(0, newest.GetBeganUnixNs()+newest.GetDurationNs())
	return &recordv1.SlowSyncs{
		Total: slow.GetSyncsTotal(), NewestSeconds: time.Duration(newest.GetDurationNs()).Seconds(),
		NewestSecondsAgo: max(0, time.Since(ended).Seconds()), NewestFile: newest.GetKind(),
	}
}
