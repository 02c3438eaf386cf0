package shard

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"sheaf.dev/sheaf/client/call/backoff"
	"sheaf.dev/sheaf/client/recordv1"
	"sheaf.dev/sheaf/internal/base/parallel"
	"sheaf.dev/sheaf/internal/base/units"
	"sheaf.dev/sheaf/internal/placement"
	"sheaf.dev/sheaf/internal/shard/disk"
	"sheaf.dev/sheaf/internal/shard/replicas"
	"sheaf.dev/sheaf/internal/storage/group"
	"sheaf.dev/sheaf/internal/storage/group/format"
)

// The device is measured before loading only if loading takes long; the measurement itself must be short.
const (
	measureShare    = 64 // one in measureShare of the bytes to load is read, on top of the load itself
	measureBytesMin = 8 << 20
	measureBytesMax = 256 << 20
)

// loading brings the groups of a volume into memory: all of them after a start, later one at a time. It knows the
// progress, and therefore the state of the shard. Safe for concurrent use.
type loading struct {
	cfg      *Config
	replicas *replicas.Set
	volume   *disk.Disk
	serve    func(g *replicas.Replica, log *group.Log) error // serves a loaded group
	health   func(g *replicas.Replica, serving bool)
	tails    *prometheus.CounterVec
	logger   *slog.Logger

	done chan struct{} // closed when the first load is over

	mu         sync.Mutex // guards what follows, all of the first load
	first      []*replicas.Replica
	needs      map[*replicas.Replica]group.Need // without those whose load could not be planned
	beganAt    time.Time
	endedAt    time.Time
	deviceRate float64 // bytes per second; 0: not measured
	need       int64   // memory of all groups, bytes
	tooSmall   error   // the memory limit, which kept groups from being loaded; nil: it kept none
}

func newLoading(s *Shard) *loading {
	return &loading{
		cfg: &s.cfg, replicas: s.replicas, volume: s.volume, serve: s.serve,
		health: s.setHealth, tails: s.metrics.tails, logger: s.logger, done: make(chan struct{}),
		needs: map[*replicas.Replica]group.Need{},
	}
}

// loadFirst loads this shard's groups on the volume.
func (l *loading) loadFirst(ctx context.Context) {
	defer close(l.done)
	groups := l.takePending()
	l.plan(groups)
	l.measureDevice()
	durable := l.syncVolume()
	groups = l.fitMemory(groups)

	atOnce := groupsLoadingMax
	if l.cfg.Medium == HDD {
		atOnce = min(atOnce, 2) // one is read while the index of the other is built
	}
	parallel.Each(slices.Values(groups), atOnce, func(g *replicas.Replica) { l.loadOne(ctx, g, durable) })
	l.mu.Lock()
	l.endedAt = time.Now()
	l.mu.Unlock()
	status := l.status()
	l.logger.Info("loaded", "groups", status.GroupsLoaded, "damaged", status.GroupsDamaged, "failed", status.GroupsFailed,
		"bytes", status.BytesDone, "seconds", status.ElapsedSeconds, "bytes_per_second", status.BytesPerSecond)
}

// takePending begins the first load, and returns its groups.
func (l *loading) takePending() []*replicas.Replica {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.first, l.beganAt = l.replicas.BeginLoad(), time.Now()
	for _, g := range l.first {
		l.health(g, false)
	}
	return slices.Clone(l.first)
}

// plan computes what each group needs, before anything is loaded.
func (l *loading) plan(groups []*replicas.Replica) {
	parallel.Each(slices.Values(groups), 16, func(g *replicas.Replica) {
		options := l.volume.LogOptions(g.UUID, g.Name)
		options.Plan = g.TakePlan()
		plan, err := group.PlanLoad(options)
		l.mu.Lock()
		defer l.mu.Unlock()
		if err != nil {
			// The load will report the error; the plan continues without this group.
			l.logger.Warn("planning a load", "group", g.Name, "error", err)
			return
		}
		l.needs[g] = plan.Need
		g.NotePlan(plan)
	})
}

// fitMemory sorts the groups into loading order, smallest first, so that as many as possible serve soon. It leaves out
// groups for which there is no memory.
func (l *loading) fitMemory(groups []*replicas.Replica) []*replicas.Replica {
	l.mu.Lock()
	defer l.mu.Unlock()
	slices.SortFunc(groups, func(a, b *replicas.Replica) int {
		return cmp.Or(cmp.Compare(l.needs[a].LoadBytes, l.needs[b].LoadBytes), cmp.Compare(a.Name, b.Name))
	})
	for _, g := range groups {
		l.need += l.needs[g].MemoryBytes
	}
	limit := l.cfg.MemoryLimitBytes
	if limit == 0 || l.need <= limit {
		return groups
	}
	l.tooSmall = fmt.Errorf(
		"%w: the groups of this shard need %s, the limit is %s: raise the limit, move groups away, "+
			"or take residency Index", group.ErrMemory, units.Bytes(l.need), units.Bytes(limit))
	l.logger.Error("the memory limit is too small", "need_bytes", l.need, "limit_bytes", limit)
	taken := int64(0)
	return slices.DeleteFunc(groups, func(g *replicas.Replica) bool {
		need := l.needs[g].MemoryBytes
		if taken+need <= limit {
			taken += need
			return false
		}
		g.Fail(fmt.Errorf("it needs %s: %w", units.Bytes(need), l.tooSmall))
		return true
	})
}

// measureDevice reads a sample as fast as the device can, so that the rate of the load can be compared with it.
func (l *loading) measureDevice() {
	var total int64
	for _, need := range l.needs {
		total += need.LoadBytes
	}
	sample := min(total/measureShare, measureBytesMax)
	if sample < measureBytesMin {
		return
	}
	rate, err := l.volume.MeasureReadRate(sample)
	if err != nil {
		l.logger.Warn("measuring the device", "error", err)
	}
	l.mu.Lock()
	l.deviceRate = rate
	l.beganAt = time.Now() // the sample does not count as load time
	l.mu.Unlock()
}

// syncVolume makes everything on the volume durable, by one sync of its file system when the first group asks for it.
// For a device, the sync of one file takes about as long as that of all files. syncVolume is only for the first load:
// before that, this process has written nothing that it has not synced.
func (l *loading) syncVolume() func() error {
	return sync.OnceValue(func() error {
		err := l.cfg.FS.SyncAll(l.volume.Dir())
		if err != nil {
			l.logger.Info("the volume is not synced as a whole: each group syncs its own file", "reason", err)
		}
		return err
	})
}

// loadAgain are the pauses of a load that lacks descriptors, memory or free space.
var loadAgain = backoff.Doubling{First: 200 * time.Millisecond, Most: 5 * time.Second}

// loadOne loads a group and serves it. The result is in the group's state. The argument durable becomes Options.Durable
// of the group's log. A load that lacks descriptors, memory or free space is tried again until ctx ends.
func (l *loading) loadOne(ctx context.Context, g *replicas.Replica, durable func() error) {
	report, err := l.open(ctx, g, durable)
	for tries := (&backoff.Tries{Doubling: loadAgain}); format.Passes(format.MarkShortage(err)); {
		g.NoteDelay(fmt.Errorf("it cannot be loaded now, and is tried again: %w", format.MarkShortage(err)))
		l.logger.Warn("group cannot be loaded now: tried again", "group", g.Name, "error", err)
		if !tries.Wait(ctx) {
			break
		}
		report, err = l.open(ctx, g, durable)
	}
	if g.EndLoad(report, err) {
		l.tails.WithLabelValues(tailFound).Inc()
	}
	switch {
	case err == nil:
		l.health(g, true)
		for _, d := range report.Damages {
			l.logger.Error("damage found while loading", "group", g.Name, "damage", d.String())
		}
	case errors.Is(err, context.Canceled):
	default:
		l.logger.Error("group could not be loaded", "group", g.Name, "error", err)
	}
}

// open loads the group's log and starts its node. It returns with the group served, or an error. The argument durable
// becomes Options.Durable of the group's log.
func (l *loading) open(
	ctx context.Context, g *replicas.Replica, durable func() error,
) (report group.Report, err error) {
	// A group that cannot be loaded must not affect the other groups.
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v", p)
		}
	}()
	options := l.volume.LogOptions(g.UUID, g.Name)
	options.Durable, options.Plan, options.Sealed = durable, g.TakePlan(), g.NoteSealed
	log, report, err := group.Load(ctx, options, &g.Progress)
	if err != nil {
		return report, err
	}
	if err := l.serve(g, log); err != nil {
		return report, errors.Join(err, log.Close(false))
	}
	return report, nil
}

// status sums up the first load.
func (l *loading) status() *recordv1.Load {
	l.mu.Lock()
	defer l.mu.Unlock()
	done := !l.endedAt.IsZero()
	st := &recordv1.Load{GroupsTotal: int32(len(l.first)), DeviceBytesPerSecond: l.deviceRate, Done: done}
	for _, g := range l.first {
		bytes, known := g.Progress.BytesDone.Load(), g.State()
		st.BytesDone += bytes
		switch {
		case known.Phase.Broken():
			st.GroupsFailed++
			st.BytesTotal += bytes // no more bytes are read
			continue
		case known.Report.Outcome == group.Damaged:
			st.GroupsDamaged++
			fallthrough
		case known.Report.Outcome != 0:
			st.GroupsLoaded++
			st.BytesTotal += bytes
			continue
		}
		st.BytesTotal += max(bytes, l.needs[g].LoadBytes, g.Progress.BytesTotal.Load())
	}
	if l.beganAt.IsZero() {
		return st
	}
	end := l.endedAt
	if !done {
		end = time.Now()
	}
	st.ElapsedSeconds = end.Sub(l.beganAt).Seconds()
	if st.ElapsedSeconds > 0 {
		st.BytesPerSecond = float64(st.BytesDone) / st.ElapsedSeconds
	}
	st.DevicePercent = st.PercentOfDevice()
	if left := st.BytesTotal - st.BytesDone; left > 0 && st.BytesPerSecond > 0 && !done {
		st.EtaSeconds = float64(left) / st.BytesPerSecond
	}
	return st
}

// memory returns the memory that all groups need, and the limit that kept groups from being loaded, if there is one.
func (l *loading) memory() (needBytes int64, tooSmall error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.need, l.tooSmall
}

// eta returns the estimated time until everything is loaded.
func (l *loading) eta() time.Duration {
	return time.Duration(l.status().GetEtaSeconds() * float64(time.Second))
}

// state returns the state of a shard whose volume is open, and the reason.
func (l *loading) state() (recordv1.ShardState, string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.tooSmall != nil:
		return recordv1.ShardState_SHARD_STATE_MEMORY_TOO_SMALL, l.tooSmall.Error()
	case l.beganAt.IsZero():
		return recordv1.ShardState_SHARD_STATE_PENDING, "it waits for etcd's first answer"
	case l.endedAt.IsZero():
		return recordv1.ShardState_SHARD_STATE_LOADING, ""
	case l.replicas.View().States[l.cfg.Name] == placement.Draining:
		return recordv1.ShardState_SHARD_STATE_DRAINING, ""
	}
	return recordv1.ShardState_SHARD_STATE_SERVING, ""
}
