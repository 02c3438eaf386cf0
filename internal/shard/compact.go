package shard

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	"sheaf.dev/sheaf/internal/group"
	"sheaf.dev/sheaf/internal/replica"
	"sheaf.dev/sheaf/internal/volume"
)

// compactor compacts groups in the background, one at a time. It looks at all groups at an interval, since time alone
// lets things go (request ids run out, retention ends, scans expire, copies catch up); at a group as soon as it has
// filled a segment; and at all of them, without a rate, when a write finds no room.
type compactor struct {
	*Shard
	wake chan struct{} // sealed or short has changed

	mu     sync.Mutex // guards all below
	sealed map[string]struct{}
	short  bool             // a write found no room
	hurry  func()           // ends a compaction that goes at a rate; nil: none does
	failed map[string]error // of the last compaction of a group
	// progress is closed when a compaction has made room, or a pass for room is over.
	progress chan struct{}
	barren   time.Time // when the last pass ended that made none; zero: the last one made some
}

const (
	// appliedAfter is how long after a segment was sealed its group is looked at: what stands at its end is to be
	// applied by then.
	appliedAfter = 100 * time.Millisecond
	// barrenTime is how long nobody waits for room after a pass that made none.
	barrenTime = time.Second
	// roomTries is how often a write waits for room: others may take what was made.
	roomTries = 3
	// shortSegments is the number of segments for which there must be room above the reserve, or room is short; on a
	// small volume a part of it is enough.
	shortSegments = 2
	shortPart     = 16
	// garbagePart of what a group stores must be superseded, or it is left alone when room is short.
	garbagePart = 64
)

func newCompactor(s *Shard) *compactor {
	return &compactor{
		Shard: s, wake: make(chan struct{}, 1), sealed: map[string]struct{}{}, failed: map[string]error{}, progress: make(chan struct{}),
	}
}

// run compacts until ctx ends.
func (c *compactor) run(ctx context.Context) {
	if c.cfg.Compaction.Off {
		return
	}
	tick := time.NewTicker(c.cfg.Compaction.Interval)
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
		case <-c.wake:
			if c.isShort() {
				c.makeRoom(ctx)
			} else if settled == nil {
				settled = time.After(appliedAfter)
			}
			continue
		}
		if ctx.Err() == nil && c.isAlmostFull() {
			c.makeRoom(ctx)
		}
	}
}

func (c *compactor) notify() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// noteSealed is called when a group has filled a segment. It does not wait.
func (c *compactor) noteSealed(name string) {
	c.mu.Lock()
	c.sealed[name] = struct{}{}
	c.mu.Unlock()
	c.notify()
}

// awaitRoom waits until a compaction has made room on the volume, or has tried to; false: there is nothing that can be
// freed now, or ctx has ended.
func (c *compactor) awaitRoom(ctx context.Context) bool {
	c.mu.Lock()
	if c.cfg.Compaction.Off || time.Since(c.barren) < barrenTime {
		c.mu.Unlock()
		return false
	}
	c.short = true
	if c.hurry != nil {
		c.hurry()
	}
	progress := c.progress
	c.mu.Unlock()
	c.notify()
	select {
	case <-progress:
		return true
	case <-ctx.Done():
	case <-c.ctx.Done():
	}
	return false
}

func (c *compactor) isShort() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.short
}

// isAlmostFull tells whether there is so little room above the reserve that a few segments would fill it.
func (c *compactor) isAlmostFull() bool {
	space, reserve, err := c.volume.Space()
	if err != nil {
		return false
	}
	segment := c.cfg.SegmentBytes
	if segment <= 0 {
		segment = group.SegmentBytesDefault
	}
	return space.FreeBytes-reserve < min(shortSegments*segment, space.TotalBytes/shortPart)
}

// servedGroup is a group that is served here.
type servedGroup struct {
	name string
	*served
	stats group.Stats
}

// servedGroups gives those that are served, with their figures.
func (c *compactor) servedGroups(only map[string]struct{}) (out []servedGroup) {
	r := c.routes.Load()
	if r == nil {
		return nil
	}
	for name, g := range r.byName {
		if _, wanted := only[name]; only != nil && !wanted {
			continue
		}
		if sv := g.served.Load(); sv != nil {
			out = append(out, servedGroup{name, sv, sv.log.Stats()})
		}
	}
	return out
}

func (c *compactor) lookAtAll(ctx context.Context) {
	c.mu.Lock()
	clear(c.sealed)
	c.mu.Unlock()
	for _, g := range c.servedGroups(nil) {
		c.limitTombstones(g.served)
		c.lookAt(ctx, &g)
	}
}

func (c *compactor) lookAtSealed(ctx context.Context) {
	c.mu.Lock()
	sealed := c.sealed
	c.sealed = map[string]struct{}{}
	c.mu.Unlock()
	for _, g := range c.servedGroups(sealed) {
		c.lookAt(ctx, &g)
	}
}

func (c *compactor) isDue(stats *group.Stats) bool {
	k := &c.cfg.Compaction
	return stats.Mergeable > 0 || stats.Reclaim.IsDue(k.SupersededShareMin, k.SupersededBytesMin)
}

// lookAt compacts a group where it is due. It ends early where room is short: then all groups are compacted, without a
// rate.
func (c *compactor) lookAt(ctx context.Context, g *servedGroup) {
	if ctx.Err() != nil || !c.isDue(&g.stats) {
		return
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	c.mu.Lock()
	c.hurry = cancel
	c.mu.Unlock()
	c.compact(ctx, g, group.CompactOptions{RateBytesPerSecond: c.rate(&g.stats.Reclaim)})
	c.mu.Lock()
	c.hurry = nil
	c.mu.Unlock()
}

// rate is what was asked for, and more where more is superseded since than that keeps up with.
func (c *compactor) rate(r *group.Reclaim) int64 {
	k := &c.cfg.Compaction
	rate := float64(max(k.RateBytesPerSecond, 0)) // negative: no limit, which Compact calls 0
	needed := float64(r.Sealed-r.Free+r.SegmentMax) * k.SupersededShareMin / max(1-k.SupersededShareMin, 0.01)
	return int64(rate * max(1, float64(r.Free)/needed))
}

// makeRoom frees what can be freed now, the most of it first.
func (c *compactor) makeRoom(ctx context.Context) {
	garbage := func(g servedGroup) int64 { return g.stats.Reclaim.Free + g.stats.Reclaim.Newest }
	groups := slices.DeleteFunc(c.servedGroups(nil), func(g servedGroup) bool {
		return garbage(g) <= 0 || garbage(g) < g.stats.StoredBytes/garbagePart
	})
	slices.SortFunc(groups, func(a, b servedGroup) int { return cmp.Compare(garbage(b), garbage(a)) })
	made := false
	for _, g := range groups {
		if ctx.Err() != nil {
			break
		}
		made = c.compact(ctx, &g, group.CompactOptions{Room: true}) > 0 || made
	}
	c.lookAtVolume()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.short = false
	if c.barren = time.Now(); made {
		c.barren = time.Time{}
	}
	c.wakeWaiters()
}

// lookAtVolume has the volume see room that was made: it admits writes by its last look.
func (c *compactor) lookAtVolume() {
	if _, _, err := c.volume.Space(); err != nil {
		c.logger.Warn("the room of the volume cannot be told", "error", err)
	}
}

// roomMade lets those go on that wait for room.
func (c *compactor) roomMade() {
	c.lookAtVolume()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.barren = time.Time{}
	c.wakeWaiters()
}

// wakeWaiters is called with mu held.
func (c *compactor) wakeWaiters() {
	close(c.progress)
	c.progress = make(chan struct{})
}

// compact compacts a group and tells how many bytes were freed.
func (c *compactor) compact(ctx context.Context, g *servedGroup, opts group.CompactOptions) (freed int64) {
	// A bug here must not take serving along.
	defer func() {
		if p := recover(); p != nil {
			c.problem("compacting group "+g.name, fmt.Errorf("panic: %v\n%s", p, debug.Stack()))
		}
	}()
	began, before := time.Now(), g.log.Stats().StoredBytes
	report, err := c.compactLog(ctx, g.served, opts)
	if ctx.Err() != nil || errors.Is(err, group.ErrClosed) {
		return 0
	}
	c.problem("compacting group "+g.name, err)
	c.mu.Lock()
	delete(c.failed, g.name)
	if err != nil {
		c.failed[g.name] = err
	}
	c.mu.Unlock()
	c.metrics.compacted(report)
	if err == nil && report.SegmentsRewritten > 0 {
		c.logger.Info("compacted", "group", g.name, "segments", report.SegmentsRewritten, "dropped", report.EntriesDropped,
			"bytes_before", report.BytesBefore, "bytes_after", report.BytesAfter, "seconds", time.Since(began).Seconds())
	}
	if freed = before - g.log.Stats().StoredBytes; freed > 0 {
		c.roomMade()
	}
	return freed
}

// failure is why the last compaction of a group ended early; nil: it did not.
func (c *compactor) failure(name string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.failed[name]
}

// compactLog is Compact, where all segments are meant also of the newest one, which has to be sealed for it; groups that wait
// for room learn at once that there is some.
func (s *Shard) compactLog(ctx context.Context, sv *served, opts group.CompactOptions) (group.CompactReport, error) {
	if opts.All && sv.log.Stats().SupersededBytes > 0 {
		if err := sv.log.Seal(); err != nil {
			return group.CompactReport{}, err
		}
	}
	s.limitTombstones(sv)
	report, err := sv.log.Compact(ctx, opts)
	if report.BytesAfter < report.BytesBefore { // also where it ended early
		s.committer.RoomMade()
	}
	return report, err
}

// proposeWithRoom proposes a write, again where compaction makes room for it.
func (s *Shard) proposeWithRoom(ctx context.Context, w *write) *replica.Pending {
	p := w.served.replica.Propose(w.replica)
	for range roomTries {
		err := p.Refused()
		if !errors.Is(err, volume.ErrFull) && !errors.Is(err, group.ErrNoSpace) || !s.compactor.awaitRoom(ctx) {
			break
		}
		p = w.served.replica.Propose(w.replica)
	}
	return p
}

// admitBlob asks for room for a part of a blob, again where compaction makes some.
func (s *Shard) admitBlob(ctx context.Context, bytes int64) error {
	err := s.volume.Admit(bytes, false)
	for range roomTries {
		if !errors.Is(err, volume.ErrFull) || !s.compactor.awaitRoom(ctx) {
			break
		}
		err = s.volume.Admit(bytes, false)
	}
	return err
}

// limitTombstones tells the log up to where every member has everything: the leader knows it, the others have it from etcd, as it
// was a while ago. It only grows: a member that came since took over files, or entries, of one that had them.
func (s *Shard) limitTombstones(sv *served) {
	if m := sv.replica.Members(); m.LeaderID == sv.raftID && len(m.Progress) > 0 {
		sv.log.SetTombstoneLimit(everywhere(sv, m))
		return
	}
	if state, ok := s.stateOf(sv.group); ok {
		sv.log.SetTombstoneLimit(min(state.Everywhere, sv.log.AppliedIndex()))
	}
}

// everywhere is the index up to which every member has everything, as its leader knows.
func everywhere(sv *served, m replica.Members) uint64 {
	index := m.AppliedIndex
	for _, p := range m.Progress {
		if p.ID != sv.raftID {
			index = min(index, p.Match)
		}
	}
	return index
}
