package shard

import (
	"cmp"
	"maps"
	"slices"

	"sheaf.dev/sheaf/client/recordv1"
	"sheaf.dev/sheaf/internal/shard/host"
	"sheaf.dev/sheaf/internal/shard/status"
	"sheaf.dev/sheaf/internal/storage/group"
)

// Status returns the present state.
func (s *Shard) Status() status.Shard {
	st := s.cfg.status()
	s.id.Describe(&st, s.volume.Superblock())
	st.MemoryUsedBytes, st.Stopping, st.Load = s.volume.budget.used.Load(), s.stopping.Load(), s.loading.status()
	state, message := s.loading.state()
	st.SetState(state)
	st.Message = message
	if space, reserve, err := s.volume.Space(); err == nil {
		st.CapacityBytes, st.FreeBytes, st.ReserveBytes = space.TotalBytes, space.FreeBytes, reserve
	} else {
		st.Problems = append(st.Problems, "asking for the free space of the volume: "+err.Error())
	}
	if mount, err := s.volume.Mount(); err == nil {
		st.FileSystem, st.MountOptions, st.Source, st.Rotational = mount.FileSystem, mount.Options, mount.Source,
			mount.Rotational
	} else {
		st.Problems = append(st.Problems, "asking for the mount of the volume: "+err.Error())
	}
	st.Problems = append(st.Problems, s.volume.left.problems(s.cfg.Dir)...)
	groups, _ := s.groupStatuses("", "", 0)
	for _, g := range groups {
		st.Groups = append(st.Groups, status.GroupOf(g))
	}
	st.Moves, st.Uncompacted, st.Slow = movesOf(s.copies()), s.compactor.uncompacted(), s.slow.status()
	if s.calls != nil {
		st.Traffic = s.calls.Traffic()
	}
	last, _ := s.cfg.Placement.LastAnswer()
	st.EtcdSilentSeconds = status.SilentSeconds(last)
	st.Epoch = s.replicas.View().Epoch
	cut := map[string]int64{}
	for _, g := range s.replicas.All() {
		known := g.State()
		cut[g.UUID.String()] = known.Report.TornTailBytes
		if known.Standing.Apart() {
			st.Strays = append(st.Strays, status.Stray{Group: g.Name, UUID: g.UUID.String(), Reason: known.Standing.String()})
		}
	}
	for i := range st.Groups {
		st.Groups[i].TruncatedBytes = cut[st.Groups[i].UUID]
	}
	slices.SortFunc(st.Strays, func(a, b status.Stray) int { return cmp.Compare(a.UUID, b.UUID) })
	need, tooSmall := s.loading.memory()
	if st.MemoryNeedBytes = need; tooSmall != nil {
		st.Problems = append(st.Problems, tooSmall.Error())
	}
	st.VolumeSilent, st.Problems = s.problems.of(host.VolumeSilent) != nil, append(st.Problems, s.problems.words()...)
	slices.Sort(st.Problems)
	st.Find(groups)
	st.Summarize()
	return st
}

func residencyName(r group.Residency) string {
	if r == group.Resident {
		return "Resident"
	}
	return "Index"
}

// movesOf converts the copies that are being created here.
func movesOf(copies []*recordv1.Move) (out []status.Move) {
	for _, m := range copies {
		for _, c := range m.GetCopies() {
			out = append(out, status.Move{
				Group: m.GetGroup(), From: c.GetFrom(), To: c.GetShard(), Phase: c.GetPhase().Word(),
				BytesTotal: c.GetBytesTotal(), BytesDone: c.GetBytesDone(), BytesPerSecond: c.GetBytesPerSecond(),
				ETASeconds: c.EtaSeconds,
			})
		}
	}
	return out
}

// uncompacted sums up, by reason, the superseded bytes of all groups that are still stored.
func (c *compactor) uncompacted() []status.Uncompacted {
	type most struct {
		status.Uncompacted
		bytes int64
	}
	byReason := map[string]*most{}
	for _, g := range c.servedGroups(nil) {
		for _, h := range c.holds(g.name, &g.stats) {
			sum := byReason[h.reason]
			if sum == nil {
				sum = &most{Uncompacted: status.Uncompacted{Reason: h.reason}}
				byReason[h.reason] = sum
			}
			sum.Bytes += h.bytes
			sum.Groups++
			// The names break ties, because the groups are in no particular order, and the answer must be stable.
			if h.bytes > sum.bytes || h.bytes == sum.bytes && g.name < sum.Group {
				sum.bytes, sum.Group, sum.Text = h.bytes, g.name, h.text
			}
		}
	}
	out := make([]status.Uncompacted, 0, len(byReason))
	for sum := range maps.Values(byReason) {
		out = append(out, sum.Uncompacted)
	}
	slices.SortFunc(out, func(a, b status.Uncompacted) int {
		return cmp.Or(cmp.Compare(b.Bytes, a.Bytes), cmp.Compare(a.Reason, b.Reason))
	})
	return out
}
