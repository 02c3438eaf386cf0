// Package care maintains, in the background, the groups that a shard serves. The Compactor drops superseded data. When
// space is short, it also empties the trash and closes scans that keep superseded data. The Repairer reads all data to
// find damage, and repairs the damage from other copies.
package care

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"sync"
	"time"

	"sheaf.dev/sheaf/internal/placement/registry"
	"sheaf.dev/sheaf/internal/shard/disk"
	"sheaf.dev/sheaf/internal/shard/problems"
	"sheaf.dev/sheaf/internal/shard/replicas"
	"sheaf.dev/sheaf/internal/shard/trash"
	"sheaf.dev/sheaf/internal/storage/group"
	"sheaf.dev/sheaf/internal/storage/group/format"
)

// Compaction configures background compaction. A zero field takes its default.
type Compaction struct {
	Off bool
	// SupersededShareMin is the share of a group's sealed segments and blobs that must be superseded before the group is
	// compacted. The default is 0.5. A group therefore takes up at most the size of its current data divided by (1 -
	// SupersededShareMin), plus one segment.
	SupersededShareMin float64
	// SupersededBytesMin is the number of bytes that must also be superseded before the group is compacted. Fewer bytes
	// suffice if they and the newest segment together are as large as a full segment. The default is 64 MiB.
	SupersededBytesMin int64
	// RateBytesPerSecond limits the rate at which groups are compacted. 0 means 64 MiB/s, and a negative number means no
	// limit. The rate is raised if data becomes superseded faster than it can be compacted within the limit, and the
	// limit is lifted when free space is low.
	RateBytesPerSecond int64
	Interval           time.Duration // time between two checks of all groups; default: 30 s
	// HoldBytesMax limits the total number of bytes that archive holds retain in all groups. 0 means 5 % of the volume.
	HoldBytesMax int64
	// ViewsHeldMax limits the total number of bytes that views retain in all groups. 0 means 10 % of the volume.
	ViewsHeldMax int64
}

// Options holds everything that a Compactor may use.
type Options struct {
	Compaction
	Context  context.Context // context of the shard
	Replicas *replicas.Set
	Disk     *disk.Disk
	Etcd     Etcd
	Views    Views
	Problems *problems.List
	Logger   *slog.Logger

	TrashDelay   time.Duration // how long the trash keeps a folder if there is free space
	ScanTTL      time.Duration // how long a scan that nobody reads stays open
	WeightsFresh time.Duration // how long the weights read from etcd are used before they are read again
	Freed        func()        // called after space was freed, so that replicas that wait for space retry
}

// Etcd is the part of *registry.Store that a Compactor needs; its method is documented in package registry.
type Etcd interface {
	Weights(ctx context.Context, shard string) (map[string]registry.Weight, error)
}

// Compactor compacts groups in the background, one at a time. It checks all groups at an interval, because data can
// become free merely because time passes: request ids expire, retention ends, scans expire, copies catch up. It
// checks a single group soon after the group has filled a segment. It frees space (space.go) when a write or a new
// copy finds none, and when free space is low.
type Compactor struct {
	Options
	Trash    *trash.Bin
	History  *Holds
	metrics  metrics
	reported *reportedWeights
	woken    chan struct{} // wakes Run after short was set

	mu    sync.Mutex // guards the fields below
	short bool       // a caller has found no space
	asked int64      // the largest number of bytes above the reserve that a waiting caller needs
	hurry func()     // aborts the compaction in progress if it has a rate limit; nil if there is none
	// progress is closed when a compaction has freed space, or when a pass to free space has finished.
	progress chan struct{}
	passes   uint64 // number of finished passes to free space
	// barren is the time at which the last pass that freed nothing ended. It is reset to zero when a pass frees some
	// space, or when more data can be freed than before.
	barren time.Time
}

const (
	// appliedAfter is how long after the sealing of a segment the Compactor waits before it checks the group. By then,
	// the last entries of the segment have been applied.
	appliedAfter = 100 * time.Millisecond
	// garbagePart is a divisor: when free space is low, a group is compacted only if at least its size divided by
	// garbagePart is superseded.
	garbagePart = 64
	// garbageOfVolume is a divisor. On a small volume, a group is compacted when its superseded bytes reach the volume's
	// size, divided by garbageOfVolume and by the number of groups. This threshold replaces SupersededBytesMin if it is
	// lower, but it is never below garbageMin.
	garbageOfVolume = 8
	garbageMin      = 1 << 20
)

// New creates a Compactor and the volume's trash. It does nothing until Run is called.
func New(opts Options) *Compactor {
	c := &Compactor{
		Options: opts, metrics: newMetrics(), woken: make(chan struct{}, 1),
		reported: newReportedWeights(opts.Etcd, opts.WeightsFresh),
		progress: make(chan struct{}),
	}
	c.History = newHolds(c.reported, opts.Views)
	c.Trash = &trash.Bin{Options: trash.Options{
		FS: opts.Disk.Log.FS, Dir: func() string { return opts.Disk.TrashDir() }, Delay: opts.TrashDelay,
		Held: opts.Replicas.IsHeld, Coming: opts.Replicas.IsExpected, Fuller: c.moreToFree, Freed: opts.Freed,
		Problem: opts.Problems.Note, Logger: opts.Logger,
	}}
	return c
}

// Run compacts and frees space until ctx is done.
func (c *Compactor) Run(ctx context.Context) {
	tick := time.NewTicker(c.Interval)
	defer tick.Stop()
	var settled <-chan time.Time
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			c.lookAtAll(ctx)
		case <-settled:
			settled = nil
			c.lookAtSealed(ctx)
		case <-c.Replicas.Sealed.Woken:
			if settled == nil {
				settled = time.After(appliedAfter)
			}
			continue
		case <-c.woken:
			if c.isShort() {
				c.freeSpace(ctx)
			}
			continue
		}
		if ctx.Err() == nil && !c.hasSpace(0) {
			c.freeSpace(ctx)
		}
	}
}

// servedGroup is a served group with its sizes.
type servedGroup struct {
	*replicas.Served
	stats group.Stats
}

// servedGroups returns the served groups with their sizes. If only is not nil, it returns only the groups in it.
func (c *Compactor) servedGroups(only map[*replicas.Replica]struct{}) (out []servedGroup) {
	for _, g := range c.Replicas.Routes().ByName {
		if _, wanted := only[g]; only != nil && !wanted {
			continue
		}
		if sv := g.Served(); sv != nil {
			out = append(out, servedGroup{sv, sv.Log().Stats()})
		}
	}
	return out
}

func (c *Compactor) lookAtAll(ctx context.Context) {
	c.Replicas.Sealed.Take()
	if c.Off {
		return
	}
	c.limitScans()
	c.History.forget(c.Replicas.Routes())
	c.limitHistory(ctx)
	c.limitViews(ctx)
	for _, g := range c.servedGroups(nil) {
		if g.stats.Reclaim.Tombstones > 0 { // some tombstones may be dropped only when the other members have them
			c.limitTombstones(g.Served)
		}
		c.lookAt(ctx, &g)
	}
}

func (c *Compactor) lookAtSealed(ctx context.Context) {
	sealed := c.Replicas.Sealed.Take()
	if c.Off {
		return
	}
	for _, g := range c.servedGroups(sealed) {
		c.lookAt(ctx, &g)
	}
}

func (c *Compactor) isDue(stats *group.Stats) bool {
	share, least := c.SupersededShareMin, c.supersededMin()
	return stats.Mergeable > 0 || stats.Reclaim.IsDue(share, least) || c.isNewestDue(&stats.Reclaim, least)
}

// isNewestDue reports whether the newest segment must be compacted before it is full. This is needed on volumes so
// small that the segment may never fill up.
func (c *Compactor) isNewestDue(r *group.Reclaim, least int64) bool {
	return least < c.SupersededBytesMin && r.Newest >= least && 2*r.Newest >= r.NewestEnd
}

// supersededMin is how many bytes of a group must be superseded on this volume before the group is compacted.
func (c *Compactor) supersededMin() int64 {
	return supersededMin(c.SupersededBytesMin, c.Disk.TotalBytes(), len(c.Replicas.Routes().ByName))
}

// supersededMin returns the configured minimum or, if that is less, an eighth of the volume divided by the number of
// groups. Without this reduction, the superseded bytes of all groups could fill a small volume. If volumeBytes is 0,
// the volume's size is unknown.
func supersededMin(wanted, volumeBytes int64, groups int) int64 {
	if volumeBytes <= 0 || groups == 0 {
		return wanted
	}
	return min(wanted, max(garbageMin, volumeBytes/garbageOfVolume/int64(groups)))
}

// lookAt compacts a group if that is due. When free space becomes low, it returns early, because all groups are then
// compacted without a rate limit.
func (c *Compactor) lookAt(ctx context.Context, g *servedGroup) {
	if ctx.Err() != nil {
		return
	}
	if !c.isDue(&g.stats) {
		// The group is not due, so an earlier failed compaction is no longer a problem. The problem must be removed here,
		// because no compaction follows that would do it.
		c.Problems.Note(problems.Compacting+g.Name(), nil)
		return
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	c.mu.Lock()
	c.hurry = cancel
	c.mu.Unlock()
	opts := group.CompactOptions{RateBytesPerSecond: c.rate(&g.stats.Reclaim)}
	if least := c.supersededMin(); c.isNewestDue(&g.stats.Reclaim, least) {
		opts.SealBytes = least
	}
	c.compact(ctx, g, opts)
	c.mu.Lock()
	c.hurry = nil
	c.mu.Unlock()
}

// rate returns the configured rate, or a higher one if more data becomes superseded than the configured rate can
// compact.
func (c *Compactor) rate(r *group.Reclaim) int64 {
	k := &c.Compaction
	rate := float64(max(k.RateBytesPerSecond, 0)) // a negative rate means no limit, for which Compact expects 0
	needed := float64(r.Sealed-r.Free+r.SegmentMax) * k.SupersededShareMin / max(1-k.SupersededShareMin, 0.01)
	return int64(rate * max(1, float64(r.Free)/needed))
}

// compact compacts a group and returns how many bytes were freed.
func (c *Compactor) compact(ctx context.Context, g *servedGroup, opts group.CompactOptions) (freed int64) {
	// A panic in a compaction must not stop the shard from serving.
	defer func() {
		if p := recover(); p != nil {
			c.Problems.Note(problems.Compacting+g.Name(), fmt.Errorf("panic: %v\n%s", p, debug.Stack()))
		}
	}()
	began, before := time.Now(), g.Log().Stats().StoredBytes
	report, err := c.CompactLog(ctx, g.Served, opts)
	if ctx.Err() != nil || errors.Is(err, format.ErrClosed) {
		return 0
	}
	c.Problems.Note(problems.Compacting+g.Name(), err)
	c.metrics.compacted(report)
	if err == nil && report.SegmentsRewritten > 0 {
		c.Logger.Info("compacted", "group", g.Name(), "segments", report.SegmentsRewritten, "dropped", report.EntriesDropped,
			"bytes_before", report.BytesBefore, "bytes_after", report.BytesAfter, "seconds", time.Since(began).Seconds())
	}
	if freed = before - g.Log().Stats().StoredBytes; freed > 0 {
		c.spaceFreed()
	}
	return freed
}

// CompactLog calls Compact for a group's log. If opts.All is set, it first seals the newest segment, so that the
// compaction includes it. If the compaction frees space, groups that wait for space retry immediately.
func (c *Compactor) CompactLog(
	ctx context.Context, sv *replicas.Served, opts group.CompactOptions,
) (group.CompactReport, error) {
	if opts.All && sv.Log().Stats().SupersededBytes > 0 {
		if err := sv.Log().Seal(); err != nil {
			return group.CompactReport{}, err
		}
	}
	c.limitTombstones(sv)
	c.hold(sv)
	report, err := sv.Log().Compact(ctx, opts)
	if report.BytesAfter < report.BytesBefore { // a compaction that was aborted early may have freed space, too
		c.Freed()
	}
	return report, err
}

// limitTombstones tells the log up to which index every member has all entries, because the log may drop only
// tombstones up to that index. The leader knows the index and reports it to etcd. The other members read it there, so
// they learn of it with some delay. The index never decreases, because a member that was added later received its
// files or entries from a member that had them.
func (c *Compactor) limitTombstones(sv *replicas.Served) {
	if m := sv.Replica().Members(); m.LeaderID == sv.RaftID && len(m.Progress) > 0 {
		sv.Log().SetTombstoneLimit(sv.Everywhere(m))
		return
	}
	if state, ok := c.Replicas.GroupOf(sv.Group); ok {
		told := c.reported.weightOf(c.Context, state.Group)
		sv.Log().SetTombstoneLimit(min(max(state.Everywhere, told.Everywhere), sv.Log().AppliedIndex()))
	}
}
