package dev

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"os"
	"slices"
	"sync"
	"time"

	"sheaf.dev/sheaf/client/recordv1"
	"sheaf.dev/sheaf/internal/base/telemetry"
	"sheaf.dev/sheaf/internal/placement"
	"sheaf.dev/sheaf/internal/shard/status"
	"sheaf.dev/sheaf/internal/status/finding"
	"sheaf.dev/sheaf/internal/status/page"
)

// Status is the status of a dev store. It is served as JSON at /status.
type Status struct {
	Summary *recordv1.StatusSummary `json:"summary"` // the state and the next step in a sentence
	Dir     string                  `json:"dir"`
	Address string                  `json:"address"`
	Version string                  `json:"version"`
	PID     int                     `json:"pid"`
	Routing placement.Routing       `json:"routing"`
	Ready   bool                    `json:"ready"`
	NotYet  string                  `json:"notYet,omitempty"` // why the store is not ready
	Load    *recordv1.Load          `json:"load"`             // the sum of the loads of all shards
	Shards  []*recordv1.ShardStatus `json:"shards"`
}

// Status returns the current status.
func (d *Dev) Status() Status {
	s := d.status()
	s.summarize(d.folder.settings.copies())
	return s
}

func (d *Dev) status() Status {
	s := Status{Dir: d.cfg.Dir, Version: d.cfg.Version, Routing: d.folder.settings.Routing, PID: os.Getpid(),
		Load: &recordv1.Load{}}
	if waits := *d.waits.Load(); waits != "" {
		s.NotYet = "the start waits for " + waits
		return s
	}
	s.Address, s.Load.Done = d.Addr(), true
	for _, one := range d.shards {
		st := one.Status()
		s.Shards = append(s.Shards, st)
		addLoad(s.Load, st.GetShard().GetLoad())
	}
	serving, want := servingCopies(s.Shards, s.Routing.Groups, d.folder.settings.copies())
	switch {
	case !s.Load.GetDone():
		s.NotYet = fmt.Sprintf("%d of %d groups are loaded", s.Load.GetGroupsLoaded()+s.Load.GetGroupsDamaged(),
			s.Load.GetGroupsTotal())
	case serving < want:
		s.NotYet = fmt.Sprintf("%d of %d groups serve", serving, want)
		if d.folder.settings.copies() > 1 {
			s.NotYet = fmt.Sprintf("%d of %d copies of groups serve", serving, want)
		}
		if why := firstReason(s.Shards); why != "" {
			s.NotYet += " (" + why + ")"
		}
	default:
		s.Ready = true
	}
	return s
}

// servingCopies returns how many copies of groups serve, and how many should serve. A moving group has one extra copy,
// which counts in neither number.
func servingCopies(shards []*recordv1.ShardStatus, groups, copies int) (serving, want int) {
	there, serves := map[string]int{}, map[string]int{}
	for _, one := range shards {
		for _, g := range one.GetGroups() {
			there[g.GetGroup()]++
			if g.GetState().Serves() {
				serves[g.GetGroup()]++
			}
		}
	}
	for group, n := range there {
		want += min(n, copies)
		serving += min(serves[group], copies)
	}
	return serving, max(want, groups*copies)
}

// firstReason returns the first reason that a shard reports for not serving, or "" if no shard reports one.
func firstReason(shards []*recordv1.ShardStatus) string {
	for _, one := range shards {
		for _, g := range one.GetGroups() {
			if g.GetState() == recordv1.GroupState_GROUP_STATE_FAILED && g.GetMessage() != "" {
				return fmt.Sprintf("group %s on shard %s: %s", g.GetGroup(), one.GetShard().GetName(), g.GetMessage())
			}
		}
	}
	for _, one := range shards {
		if problems := one.GetShard().GetProblems(); len(problems) > 0 {
			return fmt.Sprintf("%s: %s", one.GetShard().GetName(), problems[0])
		}
	}
	return ""
}

// summarize sets the summary sentence. The argument copies is the configured number of copies of a group. A group
// serves while a majority of its copies serves.
func (s *Status) summarize(copies int) {
	f := page.Facts{Load: s.Load}
	if len(s.Shards) == 0 {
		f.Waits = s.NotYet
	}
	serving, damaged, why := map[string]int{}, map[string]bool{}, map[string]string{}
	for _, st := range s.Shards {
		f.Loading = f.Loading || st.GetShard().GetState() == recordv1.ShardState_SHARD_STATE_LOADING
		f.EtcdSilent = max(f.EtcdSilent, status.EtcdSilent(st.GetShard()))
		f.Problems = append(f.Problems, finding.Problems(finding.Reported(st), "")...)
		for _, g := range st.GetGroups() {
			name, n := g.GetGroup(), 0
			if g.GetState().Serves() {
				n = 1
			}
			serving[name] += n
			damaged[name] = damaged[name] || g.GetState() == recordv1.GroupState_GROUP_STATE_DAMAGED
			why[name] = cmp.Or(why[name], g.GetMessage())
		}
	}
	for _, group := range slices.Sorted(maps.Keys(serving)) {
		switch {
		case 2*serving[group] <= copies:
			f.Fail(group, why[group])
		case damaged[group]:
			f.Damaged = append(f.Damaged, group)
		}
	}
	f.Groups, f.Shards = len(serving), len(s.Shards)
	if f.Waits == "" && !f.Loading && f.Groups < s.Routing.Groups {
		f.Waits = fmt.Sprintf("%d of %d groups are made", f.Groups, s.Routing.Groups)
	}
	s.Summary = page.Summarize(&f)
}

// addLoad adds one shard's progress in loading to sum. All shards load in parallel from the same device. Therefore, the
// device's rate is the highest of the shards' measurements, and not their sum.
func addLoad(sum, l *recordv1.Load) {
	sum.Add(l)
	sum.DeviceBytesPerSecond = max(sum.GetDeviceBytesPerSecond(), l.GetDeviceBytesPerSecond())
	if sum.GetElapsedSeconds() > 0 {
		sum.BytesPerSecond = float64(sum.GetBytesDone()) / sum.GetElapsedSeconds()
	}
	sum.DevicePercent = sum.PercentOfDevice()
}

// progressEvery is the interval between two reports of the progress of a wait.
const progressEvery = 2 * time.Second

// WaitReady returns when every group that can serve does serve, or when ctx ends. With Hash routing, it also waits
// until the gateway knows a shard for every group. The gateway learns of groups through etcd, shortly after the
// shards have created them. WaitReady repeatedly calls progress() with the status, unless progress is nil.
func (d *Dev) WaitReady(ctx context.Context, progress func(Status)) error {
	const every = 10 * time.Millisecond
	tick := time.NewTicker(every)
	defer tick.Stop()
	shown := time.Now()
	for {
		s := d.Status()
		if s.Ready || s.Load.GetDone() && s.Load.GetGroupsFailed() > 0 {
			led := d.gateway.GroupsLed()
			if led >= s.Routing.Groups {
				return nil
			}
			s.NotYet = fmt.Sprintf("the gateway has heard from etcd of the shards of %d of %d groups", led, s.Routing.Groups)
		}
		if progress != nil && time.Since(shown) > progressEvery {
			progress(s)
			shown = time.Now()
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s: %w", s.NotYet, context.Cause(ctx))
		case err := <-d.EtcdErr():
			return fmt.Errorf("etcd has failed: %w", err)
		case <-tick.C:
		}
	}
}

// repeat calls tell() every progressEvery. The returned function ends the repetition and waits for the last call.
func repeat(tell func()) (end func()) {
	ended := make(chan struct{})
	var telling sync.WaitGroup
	telling.Go(func() {
		tick := time.NewTicker(progressEvery)
		defer tick.Stop()
		for {
			select {
			case <-ended:
				return
			case <-tick.C:
				tell()
			}
		}
	})
	return func() {
		close(ended)
		telling.Wait()
	}
}

// handler serves a web page at /, /metrics, /healthz (the process answers), /readyz (every group serves) and /status
// (JSON of Status).
func (d *Dev) handler() http.Handler {
	mux := http.NewServeMux()
	page.HandleStatus(mux, d.cfg.Logger, func() any { return d.Status() })
	telemetry.Pages(mux, d.registry, func(context.Context) error {
		if s := d.Status(); !s.Ready {
			return errors.New(s.NotYet)
		}
		return nil
	})
	return mux
}
