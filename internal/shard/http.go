package shard

import (
	"cmp"
	"slices"

	"sheaf.dev/sheaf/internal/group"
	"sheaf.dev/sheaf/internal/shard/host"
	"sheaf.dev/sheaf/internal/shard/status"
)

// Status tells the present state.
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
		st.Problems = append(st.Problems, "asking for the room of the volume: "+err.Error())
	}
	if mount, err := s.volume.Mount(); err == nil {
		st.FileSystem, st.MountOptions, st.Source, st.Rotational = mount.FileSystem, mount.Options, mount.Source, mount.Rotational
	} else {
		st.Problems = append(st.Problems, "asking for the mount of the volume: "+err.Error())
	}
	st.Problems = append(st.Problems, s.volume.left.problems(s.cfg.Dir)...)
	groups := s.groupStatuses()
	for _, g := range groups {
		st.Groups = append(st.Groups, status.GroupOf(g))
	}
	st.Moves, st.Uncompacted, st.Slow = movesOf(s.copies()), s.compactor.uncompacted(), s.slow.status()
	last, _ := s.cfg.Placement.Heard()
	st.EtcdSilentSeconds = status.SilentSeconds(last)
	s.mu.Lock()
	defer s.mu.Unlock()
	st.Epoch, st.MemoryNeedBytes = s.follower.View.Epoch, s.loading.need
	cut := make(map[string]int64, len(s.groups))
	for _, g := range s.groups {
		cut[g.UUID.String()] = g.report.CutBytes
		if g.Standing.Apart() {
			st.Strays = append(st.Strays, status.Stray{Group: g.Name, UUID: g.UUID.String(), Reason: g.Standing.String()})
		}
	}
	for i := range st.Groups {
		st.Groups[i].CutBytes = cut[st.Groups[i].UUID]
	}
	slices.SortFunc(st.Strays, func(a, b status.Stray) int { return cmp.Compare(a.UUID, b.UUID) })
	if s.loading.tooSmall != nil {
		st.Problems = append(st.Problems, s.loading.tooSmall.Error())
	}
	st.VolumeSilent, st.Problems = s.problems.has(host.VolumeSilent), append(st.Problems, s.problems.words()...)
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
