// Package load opens a volume's groups: it loads their logs and starts their nodes, for all groups after a start, and
// for a single group when it is made, installed or adopted.
package load

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
	"sheaf.dev/sheaf/internal/consensus/replica"
	"sheaf.dev/sheaf/internal/placement"
	"sheaf.dev/sheaf/internal/shard/disk"
	"sheaf.dev/sheaf/internal/shard/member"
	"sheaf.dev/sheaf/internal/shard/quota"
	"sheaf.dev/sheaf/internal/shard/replicas"
	"sheaf.dev/sheaf/internal/storage/group"
	"sheaf.dev/sheaf/internal/storage/group/format"
)

// The device is measured only if loading takes long enough. The measurement itself must be short.
const (
	measureShare    = 64 // 1/measureShare of the bytes to load is read for the measurement
	measureBytesMin = 8 << 20
	measureBytesMax = 256 << 20
)

// groupsLoadingMax is the number of groups that are loaded at a time. It is enough to keep an SSD busy.
const groupsLoadingMax = 16

// Options holds everything that a Loader may use.
type Options struct {
	Replicas *replicas.Set
	Disk     *disk.Disk
	Peers    Peers
	Quotas   *quota.Set
	Logger   *slog.Logger

	// Node returns the options that all nodes share. It is not called before the volume is open.
	Node func() replica.Options
	// Health tells the health service whether a group is served.
	Health    func(g *replicas.Replica, serving bool)
	TailFound prometheus.Counter // counts replicas whose load has found a damaged tail
	Stopping  func() bool        // reports whether the shard is stopping
}

// Peers provides the groups' nodes with access to other shards.
type Peers interface {
	Transport(g *replicas.Replica) replica.Transport
	// FetchBlobs fetches the blobs to which entries of another member refer.
	FetchBlobs(ctx context.Context, g *replicas.Replica, log *group.Log, from uint64, refs []format.BlobRef) error
	// Tell informs a group that has begun to serve which of its members are silent.
	Tell(g *replicas.Replica, sv *replicas.Served)
}

// Loader brings the groups of a volume into memory: all of them after a start, later one at a time. It records the
// progress of the first load, and derives the state of the shard from it. It is safe for concurrent use.
type Loader struct {
	Options
	Done chan struct{} // closed when the first load has finished

	mu         sync.Mutex // guards the fields below, which describe the first load
	first      []*replicas.Replica
	needs      map[*replicas.Replica]group.Need // needs of the groups whose load could be planned
	beganAt    time.Time
	endedAt    time.Time
	deviceRate float64 // in bytes per second; 0 means not measured
	need       int64   // memory for all groups, in bytes
	tooSmall   error   // why groups were not loaded for lack of memory; nil if memory was sufficient
}

// New creates a Loader. It loads nothing until Run or Load is called.
func New(opts Options) *Loader {
	return &Loader{Options: opts, Done: make(chan struct{}), needs: map[*replicas.Replica]group.Need{}}
}

// Run loads the groups of this shard that were on the volume at the start.
func (l *Loader) Run(ctx context.Context) {
	defer close(l.Done)
	groups := l.takePending()
	l.plan(groups)
	l.measureDevice()
	durable := l.syncVolume()
	groups = l.fitMemory(groups)

	atOnce := groupsLoadingMax
	if l.Disk.Rotational {
		atOnce = min(atOnce, 2) // while the disk reads one group, the index of another is built
	}
	parallel.Each(slices.Values(groups), atOnce, func(g *replicas.Replica) { l.loadOne(ctx, g, durable) })
	l.mu.Lock()
	l.endedAt = time.Now()
	l.mu.Unlock()
	status := l.Status()
	l.Logger.Info("loaded", "groups", status.GroupsLoaded, "damaged", status.GroupsDamaged, "failed", status.GroupsFailed,
		"bytes", status.BytesDone, "seconds", status.ElapsedSeconds, "bytes_per_second", status.BytesPerSecond)
}

// takePending begins the first load, and returns its groups.
func (l *Loader) takePending() []*replicas.Replica {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.first, l.beganAt = l.Replicas.BeginLoad(), time.Now()
	for _, g := range l.first {
		l.Health(g, false)
	}
	return slices.Clone(l.first)
}

// plan computes each group's needs, before anything is loaded.
func (l *Loader) plan(groups []*replicas.Replica) {
	parallel.Each(slices.Values(groups), 16, func(g *replicas.Replica) {
		options := l.Disk.LogOptions(g.UUID, g.Name)
		options.Plan = g.TakePlan()
		plan, err := group.PlanLoad(options)
		l.mu.Lock()
		defer l.mu.Unlock()
		if err != nil {
			// The load itself will report the error. The plan continues without this group.
			l.Logger.Warn("planning a load", "group", g.Name, "error", err)
			return
		}
		l.needs[g] = plan.Need
		g.NotePlan(plan)
	})
}

// fitMemory sorts the groups into loading order, smallest first, so that as many groups as possible serve soon. It
// leaves out groups that do not fit into the memory limit.
func (l *Loader) fitMemory(groups []*replicas.Replica) []*replicas.Replica {
	l.mu.Lock()
	defer l.mu.Unlock()
	slices.SortFunc(groups, func(a, b *replicas.Replica) int {
		return cmp.Or(cmp.Compare(l.needs[a].LoadBytes, l.needs[b].LoadBytes), cmp.Compare(a.Name, b.Name))
	})
	for _, g := range groups {
		l.need += l.needs[g].MemoryBytes
	}
	limit := l.Disk.MemoryLimitBytes
	if limit == 0 || l.need <= limit {
		return groups
	}
	l.tooSmall = fmt.Errorf(
		"%w: the groups of this shard need %s, the limit is %s: raise the limit, move groups away, "+
			"or take residency Index", group.ErrMemory, units.Bytes(l.need), units.Bytes(limit))
	l.Logger.Error("the memory limit is too small", "need_bytes", l.need, "limit_bytes", limit)
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
func (l *Loader) measureDevice() {
	var total int64
	for _, need := range l.needs {
		total += need.LoadBytes
	}
	sample := min(total/measureShare, measureBytesMax)
	if sample < measureBytesMin {
		return
	}
	rate, err := l.Disk.MeasureReadRate(sample)
	if err != nil {
		l.Logger.Warn("measuring the device", "error", err)
	}
	l.mu.Lock()
	l.deviceRate = rate
	l.beganAt = time.Now() // the measurement does not count as load time
	l.mu.Unlock()
}

// syncVolume returns a function that makes everything on the volume durable. At its first call, when the first group
// needs it, the function syncs the whole file system, because a device takes about as long to sync one file as to
// sync all of them. Only the first load may rely on this sync: it does not cover later writes, and everything that
// this process wrote before the first load is synced already.
func (l *Loader) syncVolume() func() error {
	return sync.OnceValue(func() error {
		err := l.Disk.Log.FS.SyncAll(l.Disk.Dir())
		if err != nil {
			l.Logger.Info("the volume is not synced as a whole: each group syncs its own file", "reason", err)
		}
		return err
	})
}

// loadAgain holds the pauses between two attempts of a load that lacks descriptors, memory or free space.
var loadAgain = backoff.Doubling{First: 200 * time.Millisecond, Most: 5 * time.Second}

// Load loads one group after the first load, and serves it. See loadOne.
func (l *Loader) Load(ctx context.Context, g *replicas.Replica) { l.loadOne(ctx, g, nil) }

// loadOne loads a group and serves it. It stores the result in the group's state. The argument durable becomes
// Options.Durable of the group's log. A load that lacks descriptors, memory or free space is retried until ctx is
// done.
func (l *Loader) loadOne(ctx context.Context, g *replicas.Replica, durable func() error) {
	report, err := l.open(ctx, g, durable)
	for tries := (&backoff.Tries{Doubling: loadAgain}); format.Passes(format.MarkShortage(err)); {
		g.NoteDelay(fmt.Errorf("it cannot be loaded now, and is tried again: %w", format.MarkShortage(err)))
		l.Logger.Warn("group cannot be loaded now: tried again", "group", g.Name, "error", err)
		if !tries.Wait(ctx) {
			break
		}
		report, err = l.open(ctx, g, durable)
	}
	if g.EndLoad(report, err) {
		l.TailFound.Inc()
	}
	switch {
	case err == nil:
		l.Health(g, true)
		for _, d := range report.Damages {
			l.Logger.Error("damage found while loading", "group", g.Name, "damage", d.String())
		}
	case errors.Is(err, context.Canceled):
	default:
		l.Logger.Error("group could not be loaded", "group", g.Name, "error", err)
	}
}

// open loads the group's log and starts its node. If it returns nil, the group is served. The argument durable becomes
// Options.Durable of the group's log.
func (l *Loader) open(
	ctx context.Context, g *replicas.Replica, durable func() error,
) (report group.Report, err error) {
	// A panic in this group must not affect the other groups.
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v", p)
		}
	}()
	options := l.Disk.LogOptions(g.UUID, g.Name)
	plan := g.TakePlan()
	options.Durable, options.Plan, options.Sealed = durable, plan, g.NoteSealed
	log, report, err := group.Load(ctx, options, &g.Progress)
	if err != nil {
		return report, err
	}
	if err := l.serve(g, log, plan); err != nil {
		return report, errors.Join(err, log.Close(false))
	}
	return report, nil
}

// Status sums up the first load.
func (l *Loader) Status() *recordv1.Load {
	l.mu.Lock()
	defer l.mu.Unlock()
	done := !l.endedAt.IsZero()
	st := &recordv1.Load{GroupsTotal: int32(len(l.first)), DeviceBytesPerSecond: l.deviceRate, Done: done}
	l.Replicas.Loads(l.first, func(g *replicas.Replica, phase member.Phase, outcome group.Outcome) {
		bytes := g.Progress.BytesDone.Load()
		st.BytesDone += bytes
		switch {
		case phase.Broken():
			st.GroupsFailed++ // the rest of a failed group will not be read, so it does not count
		case outcome == group.Damaged:
			st.GroupsDamaged++
			fallthrough
		case outcome != 0:
			st.GroupsLoaded++
		default:
			bytes = max(bytes, l.needs[g].LoadBytes, g.Progress.BytesTotal.Load())
		}
		st.BytesTotal += bytes
	})
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

// Memory returns the memory that all groups need. If the memory limit keeps groups from being loaded, tooSmall is the
// corresponding error.
func (l *Loader) Memory() (needBytes int64, tooSmall error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.need, l.tooSmall
}

// ETA returns the estimated time until everything is loaded.
func (l *Loader) ETA() time.Duration {
	return time.Duration(l.Status().GetEtaSeconds() * float64(time.Second))
}

// State returns the state of a shard whose volume is open, and the reason.
func (l *Loader) State() (recordv1.ShardState, string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.tooSmall != nil:
		return recordv1.ShardState_SHARD_STATE_MEMORY_TOO_SMALL, l.tooSmall.Error()
	case l.beganAt.IsZero():
		return recordv1.ShardState_SHARD_STATE_PENDING, "it waits for etcd's first answer"
	case l.endedAt.IsZero():
		return recordv1.ShardState_SHARD_STATE_LOADING, ""
	case l.Replicas.View().States[l.Replicas.Shard] == placement.Draining:
		return recordv1.ShardState_SHARD_STATE_DRAINING, ""
	}
	return recordv1.ShardState_SHARD_STATE_SERVING, ""
}
