package shard

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"time"

	"sheaf.dev/sheaf/internal/group"
	"sheaf.dev/sheaf/internal/replica"
)

// compactAll compacts groups in the background, one at a time, at a byte rate, where enough is superseded or many small
// segments have gathered.
func (s *Shard) compactAll(ctx context.Context) {
	if s.cfg.Compaction.Off {
		return
	}
	tick := time.NewTicker(s.cfg.Compaction.Interval)
	defer tick.Stop()
	// What a compaction left is kept by retention, a scan or a membership change: more must come before the next one.
	left := map[*served]group.Stats{}
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		r := s.routes.Load()
		if r == nil {
			continue
		}
		for name, g := range r.byName {
			if ctx.Err() != nil {
				return
			}
			sv := g.served.Load()
			if sv == nil {
				continue
			}
			stats := sv.log.Stats()
			stats.SupersededBytes -= left[sv].SupersededBytes
			stats.Mergeable -= left[sv].Mergeable
			if s.worthCompacting(stats) {
				s.compact(ctx, name, sv)
				left[sv] = sv.log.Stats()
			}
		}
	}
}

func (s *Shard) worthCompacting(stats group.Stats) bool {
	c := &s.cfg.Compaction
	return stats.Mergeable > 0 || stats.SupersededBytes >= c.SupersededBytesMin &&
		float64(stats.SupersededBytes) >= c.SupersededShareMin*float64(stats.StoredBytes)
}

func (s *Shard) compact(ctx context.Context, name string, sv *served) {
	// A bug here must not take serving along.
	defer func() {
		if p := recover(); p != nil {
			s.problem("compacting group "+name, fmt.Errorf("panic: %v\n%s", p, debug.Stack()))
		}
	}()
	rate := max(s.cfg.Compaction.RateBytesPerSecond, 0) // negative: no limit, which Compact calls 0
	began := time.Now()
	report, err := s.compactLog(ctx, sv, group.CompactOptions{RateBytesPerSecond: rate})
	if ctx.Err() != nil || errors.Is(err, group.ErrClosed) {
		return
	}
	s.problem("compacting group "+name, err)
	if err != nil {
		return
	}
	s.metrics.compacted(report)
	s.logger.Info("compacted", "group", name, "segments", report.SegmentsRewritten, "dropped", report.EntriesDropped,
		"bytes_before", report.BytesBefore, "bytes_after", report.BytesAfter, "seconds", time.Since(began).Seconds())
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
