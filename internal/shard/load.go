package shard

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"sheaf.dev/sheaf/internal/group"
	"sheaf.dev/sheaf/internal/group/segio"
	"sheaf.dev/sheaf/internal/shard/member"
	"sheaf.dev/sheaf/internal/shard/status"
)

// Measuring the device before loading is worth it only where loading takes long, and must not.
const (
	measureShare    = 64 // of the bytes to load: a start reads them on top of what is held
	measureBytesMin = 8 << 20
	measureBytesMax = 256 << 20
)

// keepBytes holds one segment of the usual size. Kept memory is in no budget, so there is none where there is a limit.
const keepBytes = 272 << 20

// loadState is the first load after a start. Guarded by Shard.mu.
type loadState struct {
	groups     []*groupReplica
	beganAt    time.Time
	endedAt    time.Time
	deviceRate float64 // bytes per second; 0: not measured
	need       int64   // memory of all groups, bytes
}

func (l *loadState) begun() bool { return !l.beganAt.IsZero() }

// newLoader makes the reader that all groups share. Only a stated HDD is read one segment after another: virtual disks
// often call themselves rotational. In Resident residency the memory of one segment is kept for what compaction writes.
func (s *Shard) newLoader() *segio.Loader {
	// The page cache of a container counts against its limit, which is what the memory limit is taken from.
	opts := segio.LoaderOptions{Rotational: s.cfg.Medium == HDD, CacheBytes: s.cfg.MemoryLimitBytes / 2}
	if s.cfg.Residency == group.Resident && s.cfg.MemoryLimitBytes == 0 {
		opts.KeepBytes = keepBytes
	}
	return segio.NewLoader(opts)
}

// loadFirst loads what the volume holds of this shard's groups.
func (s *Shard) loadFirst(ctx context.Context) {
	defer close(s.loaded)
	groups := s.takePending()
	s.follower.Nudge() // what joins waits for this
	s.planLoad(groups)
	s.measureDevice(groups)
	durable := s.syncVolume()
	groups = s.fitMemory(groups)

	atOnce := s.cfg.Limits.GroupsLoadingMax
	if s.cfg.Medium == HDD {
		atOnce = min(atOnce, 2) // one is read while the index of the other is made
	}
	each(slices.Values(groups), atOnce, func(g *groupReplica) { s.loadOne(ctx, g, durable) })
	s.mu.Lock()
	s.load.endedAt = time.Now()
	status := s.load.status(true)
	s.mu.Unlock()
	s.logger.Info("loaded", "groups", status.GroupsLoaded, "damaged", status.GroupsDamaged, "failed", status.GroupsFailed,
		"bytes", status.BytesDone, "seconds", status.ElapsedSeconds, "bytes_per_second", status.BytesPerSecond)
}

// takePending marks what is to be loaded now; later arrivals are loaded one by one.
func (s *Shard) takePending() []*groupReplica {
	s.mu.Lock()
	defer s.mu.Unlock()
	var groups []*groupReplica
	for _, g := range s.groups {
		if !g.Standing.Apart() && g.Phase == member.Pending {
			g.Happens(member.Begin, s.logger)
			s.setHealth(g, false)
			groups = append(groups, g)
		}
	}
	s.load.groups = groups
	s.load.beganAt = time.Now()
	return slices.Clone(groups)
}

// planLoad computes what each group needs, before anything is loaded.
func (s *Shard) planLoad(groups []*groupReplica) {
	each(slices.Values(groups), 16, func(g *groupReplica) {
		need, err := group.PlanLoad(s.logOptions(g))
		s.mu.Lock()
		defer s.mu.Unlock()
		if err != nil {
			// Loading will say what is wrong; the plan goes on without this group.
			s.logger.Warn("planning a load", "group", g.Name, "error", err)
			return
		}
		g.need = need
	})
}

// fitMemory leaves out the groups that do not fit, the smallest come first: as many as can be serve, and soon.
func (s *Shard) fitMemory(groups []*groupReplica) []*groupReplica {
	s.mu.Lock()
	defer s.mu.Unlock()
	slices.SortFunc(groups, func(a, b *groupReplica) int {
		return cmp.Or(cmp.Compare(a.need.LoadBytes, b.need.LoadBytes), cmp.Compare(a.Name, b.Name))
	})
	for _, g := range groups {
		s.load.need += g.need.MemoryBytes
	}
	limit := s.cfg.MemoryLimitBytes
	if limit == 0 || s.load.need <= limit {
		return groups
	}
	s.memory = fmt.Errorf("%w: the groups of this shard need %d bytes, the limit is %d: raise the limit, move groups away, "+
		"or take residency Index", group.ErrMemory, s.load.need, limit)
	s.logger.Error("the memory limit is too small", "need_bytes", s.load.need, "limit_bytes", limit)
	taken := int64(0)
	return slices.DeleteFunc(groups, func(g *groupReplica) bool {
		if taken+g.need.MemoryBytes <= limit {
			taken += g.need.MemoryBytes
			return false
		}
		g.Happens(member.Failing, s.logger)
		g.Err = fmt.Errorf("it needs %d bytes: %w", g.need.MemoryBytes, s.memory)
		return true
	})
}

// measureDevice reads a sample at the device's own pace, for comparison.
func (s *Shard) measureDevice(groups []*groupReplica) {
	var total int64
	for _, g := range groups {
		total += g.need.LoadBytes
	}
	sample := min(total/measureShare, measureBytesMax)
	if sample < measureBytesMin {
		return
	}
	rate, err := s.volume.MeasureReadRate(sample)
	if err != nil {
		s.logger.Warn("measuring the device", "error", err)
	}
	s.mu.Lock()
	s.load.deviceRate = rate
	s.load.beganAt = time.Now() // the sample is no part of the load
	s.mu.Unlock()
}

// syncVolume makes what the volume holds durable, by one sync of its file system when the first group asks for it: a
// device takes about as long for the sync of one file as for that of all of them. It is for the first load alone,
// before which this process has written nothing but what it has synced.
func (s *Shard) syncVolume() func() error {
	return sync.OnceValue(func() error {
		err := s.cfg.FS.SyncAll(s.volume.Dir())
		if err != nil {
			s.logger.Info("the volume is not synced as a whole: each group syncs its own file", "reason", err)
		}
		return err
	})
}

// loadOne loads a group and serves it. Its state says how it went. durable as in group.Options.
func (s *Shard) loadOne(ctx context.Context, g *groupReplica, durable func() error) {
	report, err := s.open(ctx, g, durable)
	s.mu.Lock()
	g.report = report
	s.loadEnded(g, err)
	s.mu.Unlock()
	switch {
	case err == nil:
		s.setHealth(g, true)
		for _, d := range report.Damages {
			s.logger.Error("damage found while loading", "group", g.Name, "damage", d.String())
		}
	case errors.Is(err, context.Canceled):
	default:
		s.logger.Error("group could not be loaded", "group", g.Name, "error", err)
	}
}

// status sums up. Called with Shard.mu held.
func (l *loadState) status(done bool) status.Load {
	st := status.Load{GroupsTotal: len(l.groups), DeviceBytesPerSecond: l.deviceRate, Done: done}
	for _, g := range l.groups {
		bytes := g.progress.BytesDone.Load()
		st.BytesDone += bytes
		switch {
		case g.Phase.Broken():
			st.GroupsFailed++
			st.BytesTotal += bytes // nothing more comes
			continue
		case g.report.Outcome == group.Damaged:
			st.GroupsDamaged++
			fallthrough
		case g.report.Outcome != 0:
			st.GroupsLoaded++
			st.BytesTotal += bytes
			continue
		}
		st.BytesTotal += max(bytes, g.need.LoadBytes, g.progress.BytesTotal.Load())
	}
	if !l.begun() {
		return st
	}
	end := l.endedAt
	if end.IsZero() {
		end = time.Now()
	}
	st.ElapsedSeconds = end.Sub(l.beganAt).Seconds()
	if st.ElapsedSeconds > 0 {
		st.BytesPerSecond = float64(st.BytesDone) / st.ElapsedSeconds
	}
	if l.deviceRate > 0 {
		st.DevicePercent = 100 * st.BytesPerSecond / l.deviceRate
	}
	if left := st.BytesTotal - st.BytesDone; left > 0 && st.BytesPerSecond > 0 && !done {
		st.ETASeconds = float64(left) / st.BytesPerSecond
	}
	return st
}

// eta is the time until everything is loaded, as far as it can be told.
func (s *Shard) eta() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return time.Duration(s.load.status(!s.load.endedAt.IsZero()).ETASeconds * float64(time.Second))
}

// checkMedium warns where the device contradicts the medium that was stated.
func (s *Shard) checkMedium() {
	mount, err := s.volume.Mount()
	if err != nil {
		s.logger.Warn("asking what the volume is made of", "error", err)
		return
	}
	if s.cfg.Medium != Auto && mount.Rotational != nil && *mount.Rotational != (s.cfg.Medium == HDD) {
		s.logger.Warn("the device contradicts the medium that was stated", "medium", s.cfg.Medium, "source", mount.Source,
			"rotational", *mount.Rotational)
	}
}
