package shard

import (
	"context"
	"errors"
	"time"

	"sheaf.dev/sheaf/internal/placement"
)

// What makes a report worth a write to etcd, which every gateway then reads. Small changes wait for reportAge.
const (
	reportShare    = 20 // 1/20 of the bytes known to etcd
	reportBytesMin = 1 << 20
	reportAge      = time.Minute
)

// reportAll tells etcd the figures of groups as they change.
func (s *Shard) reportAll(ctx context.Context) {
	tick := time.NewTicker(s.cfg.ReportInterval)
	defer tick.Stop()
	reported := map[string]time.Time{}
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		s.scans.expire(scanGrace)
		r := s.routes.Load()
		if r == nil || s.isHeld() {
			continue
		}
		var failed error
		for name, g := range r.byName {
			sv := g.served.Load()
			state, ok := r.view.Groups[name]
			if sv == nil || !ok || len(state.Members) == 0 || ctx.Err() != nil {
				continue
			}
			stats, leads := sv.log.Stats(), sv.replica.Status().Leader
			next := state
			next.Bytes, next.Records = stats.StoredBytes, stats.Records
			if len(state.Members) > 1 {
				if !leads {
					continue // its leader tells
				}
				m := sv.replica.Members()
				next.Term, next.ConfIndex, next.Everywhere = m.Term, m.ConfIndex, everywhere(sv, m)
			}
			if leads {
				next.Leader = s.cfg.Name
			} else if state.Leader == s.cfg.Name {
				next.Leader = ""
			}
			if !worthReporting(state, next, time.Since(reported[name])) {
				continue
			}
			if err := s.report(ctx, next); err != nil {
				failed = err
				break // etcd is away: the next tick tries again
			}
			reported[name] = time.Now()
		}
		if ctx.Err() == nil {
			s.problem("reporting to etcd", failed)
		}
	}
}

func (s *Shard) report(ctx context.Context, state placement.Group) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	put := s.cfg.Placement.PutGroup
	if len(state.Members) > 1 {
		put = s.cfg.Placement.PutGroupAsLeader
	}
	_, err := put(ctx, state)
	if errors.Is(err, placement.ErrChanged) || errors.Is(err, placement.ErrStaleLeader) {
		return nil // the next view holds what was changed
	}
	return err
}

// worthReporting: a new leader at once, figures when they moved far or long ago.
func worthReporting(old, state placement.Group, age time.Duration) bool {
	if old.Leader != state.Leader {
		return true
	}
	moved := max(old.Bytes-state.Bytes, state.Bytes-old.Bytes)
	if moved > max(reportBytesMin, old.Bytes/reportShare) {
		return true
	}
	return age > reportAge && (moved > 0 || old.Records != state.Records)
}
