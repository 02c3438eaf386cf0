package shard

import (
	"context"
	"errors"
	"time"

	"sheaf.dev/sheaf/client/call/backoff"
	"sheaf.dev/sheaf/internal/placement"
	"sheaf.dev/sheaf/internal/placement/registry"
	"sheaf.dev/sheaf/internal/shard/care"
	"sheaf.dev/sheaf/internal/shard/problems"
	"sheaf.dev/sheaf/internal/shard/replicas"
	"sheaf.dev/sheaf/internal/shard/serve"
)

// These thresholds decide when the changed size of a group is reported to etcd, where gateways and planners read it.
// A small change is reported after reportAge, and a large one after reportIntervals intervals.
const (
	reportShare     = 20 // a change is large if it exceeds 1/20 of the bytes reported last
	reportBytesMin  = 1 << 20
	reportAge       = time.Minute
	reportIntervals = 3
	etcdTime        = 5 * time.Second // time limit of one request
)

// reporter reports the sizes of the groups that this shard leads: it writes sizes that have changed to etcd. At each
// interval, it also closes the snapshots of scans that nobody has read for a long time.
type reporter struct {
	cfg         *Config
	routes      func() *replicas.Routes
	isHeld      func() bool // reports whether etcd was rolled back
	expireScans func(grace time.Duration)
	problems    *problems.List
	holds       *care.Holds

	reported map[string]registry.Weight
	last     map[string]registry.Weight // what etcd has of this shard; nil if that is not known yet
	at       time.Time
	base     uint64 // EpochBase of the etcd to which the last report was written
}

// run reports until ctx is done.
func (p *reporter) run(ctx context.Context) {
	for backoff.Sleep(ctx, p.cfg.ReportInterval) {
		p.expireScans(serve.ScanGrace)
		r := p.routes()
		if r.ByName == nil || p.isHeld() {
			continue
		}
		weights, err := p.leaders(ctx, r)
		if err == nil {
			err = p.weigh(ctx, r, weights)
		}
		if ctx.Err() == nil {
			p.problems.Note("reporting to etcd", err) // a later round tries again
		}
	}
}

// leaders corrects the group keys in etcd that do not name this shard as the leader although it leads the group, or
// that name it although it does not. It returns the weights of the groups that this shard must report: the groups
// that it leads, the groups whose only copy is on this shard, and those whose last report must remain
// (care.Holds.Remains).
func (p *reporter) leaders(ctx context.Context, r *replicas.Routes) (weights map[string]registry.Weight, err error) {
	weights = map[string]registry.Weight{}
	if err := p.learnLast(ctx); err != nil {
		return nil, err
	}
	for _, g := range r.ByName {
		if sv := g.Served(); sv != nil {
			p.holds.Led(sv)
		}
	}
	for name, g := range r.ByName {
		sv := g.Served()
		state, ok := r.View.Groups[name]
		if sv == nil || !ok || len(state.Members) == 0 || ctx.Err() != nil {
			if last := p.last[name]; last.UUID == g.UUID && last.Term > 0 {
				weights[name] = last // the group is still being loaded
			}
			continue
		}
		leads := sv.Replica().Status().Leader
		if len(state.Members) > 1 && !leads { // the leader reports the group
			if last := p.last[name]; p.holds.Remains(ctx, sv, state, last) {
				weights[name] = last
			}
			continue
		}
		stats, next := sv.Log().Stats(), state
		weight := registry.Weight{UUID: g.UUID, Bytes: stats.StoredBytes, Records: stats.Records}
		if len(state.Members) > 1 {
			m := sv.Replica().Members()
			weight.Everywhere = sv.Everywhere(m)
			next.Term, next.ConfIndex, next.Everywhere = m.Term, m.ConfIndex, weight.Everywhere
		}
		weight.Hold, weight.Holds, weight.Term = p.holds.Report(ctx, sv, state, p.last[name])
		weights[name] = weight
		if leads {
			next.Leader = p.cfg.Name
		} else if state.Leader == p.cfg.Name {
			next.Leader = ""
		}
		if next.Leader == state.Leader {
			continue
		}
		next.Bytes, next.Records = stats.StoredBytes, stats.Records
		if err := p.report(ctx, next); err != nil {
			return nil, err // etcd does not respond
		}
	}
	return weights, nil
}

// learnLast reads from etcd what an earlier process of this shard has reported.
func (p *reporter) learnLast(ctx context.Context) (err error) {
	if p.last != nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, etcdTime)
	defer cancel()
	if p.last, err = p.cfg.Placement.Weights(ctx, p.cfg.Name); err == nil && p.last == nil {
		p.last = map[string]registry.Weight{}
	}
	return err
}

func (p *reporter) report(ctx context.Context, state placement.Group) error {
	ctx, cancel := context.WithTimeout(ctx, etcdTime)
	defer cancel()
	put := p.cfg.Placement.PutGroup
	if len(state.Members) > 1 {
		put = p.cfg.Placement.PutGroupAsLeader
	}
	_, err := put(ctx, state)
	if errors.Is(err, placement.ErrChanged) || errors.Is(err, placement.ErrStaleLeader) {
		return nil // the next view shows the change
	}
	return err
}

// weigh writes the weights of this shard's groups to the shard's own keys in etcd, unless the changes are too small
// to be worth a write.
func (p *reporter) weigh(ctx context.Context, r *replicas.Routes, weights map[string]registry.Weight) error {
	if base := r.View.Meta.EpochBase; base != p.base {
		p.reported, p.base = nil, base // a different etcd may have no weights, or old ones
	}
	if !worthReporting(p.reported, weights, time.Since(p.at), p.cfg.ReportInterval) {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, etcdTime)
	defer cancel()
	if err := p.cfg.Placement.PutWeights(ctx, p.cfg.Name, weights); err != nil {
		return err
	}
	p.reported, p.last, p.at = weights, weights, time.Now()
	return nil
}

// worthReporting reports whether weights must be reported. age is the time since the last report. Large changes are
// reported after a few intervals, and all others after a long time.
func worthReporting(told, now map[string]registry.Weight, age, interval time.Duration) bool {
	if told != nil && age < reportIntervals*interval {
		return false
	}
	for name, w := range now {
		old := told[name]
		moved := max(old.Bytes-w.Bytes, w.Bytes-old.Bytes)
		// When a group gets its first hold, its weights must be reported soon. Until the other members learn of the hold,
		// they drop entries that the hold is meant to keep. When the hold ends, the other members wait for the report.
		changes := w.Holds != old.Holds
		if changes || moved > max(reportBytesMin, old.Bytes/reportShare) || age > reportAge && w != old {
			return true
		}
	}
	return false
}
