package shard

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	recordv1 "sheaf.dev/sheaf/api/sheaf/record/v1"
	"sheaf.dev/sheaf/internal/group"
	"sheaf.dev/sheaf/internal/page"
)

func (s *Shard) loadStatus() LoadStatus {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.load.status(!s.load.endedAt.IsZero())
}

// Status tells the present state.
func (s *Shard) Status() Status {
	superblock := s.volume.Superblock()
	st := Status{
		Name: s.cfg.Name, Address: s.address, Version: s.cfg.Version, Path: s.cfg.Dir,
		MemoryUsedBytes: s.budget.used.Load(), MemoryLimitBytes: s.cfg.MemoryLimitBytes,
		Residency: residencyName(s.cfg.Residency), Stopping: s.stopping.Load(), Load: s.loadStatus(),
		Groups: []GroupStatus{},
	}
	st.state, st.Message = s.state()
	st.describe(&s.cfg, s.cfg.Wanted, superblock)
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
	st.Problems = append(st.Problems, s.left.problems(s.cfg.Dir)...)
	groups := s.groupStatuses()
	for _, g := range groups {
		st.Groups = append(st.Groups, groupStatusOf(g))
	}
	st.Moves, st.Uncompacted, st.Slow = s.moveStatuses(), s.compactor.uncompacted(), s.slow.status()
	last, _ := s.cfg.Placement.Heard()
	st.EtcdSilentSeconds = silentSeconds(last)
	s.mu.Lock()
	defer s.mu.Unlock()
	st.Epoch, st.MemoryNeedBytes = s.view.Epoch, s.load.need
	cut := make(map[string]int64, len(s.groups))
	for _, g := range s.groups {
		cut[g.uuid.String()] = g.report.CutBytes
		if g.stray != "" && g.stray != unconfirmed {
			st.Strays = append(st.Strays, Stray{Group: g.name, UUID: g.uuid.String(), Reason: g.stray})
		}
	}
	for i := range st.Groups {
		st.Groups[i].CutBytes = cut[st.Groups[i].UUID]
	}
	slices.SortFunc(st.Strays, func(a, b Stray) int { return cmp.Compare(a.UUID, b.UUID) })
	if s.memory != nil {
		st.Problems = append(st.Problems, s.memory.Error())
	}
	for what, err := range s.problems {
		st.Problems = append(st.Problems, what+": "+err.Error())
	}
	slices.Sort(st.Problems)
	st.find(groups)
	st.summarize()
	return st
}

func groupStatusOf(g *recordv1.Group) GroupStatus {
	st := GroupStatus{
		Group: g.GetGroup(), UUID: g.GetUuid(), Message: g.GetMessage(), Leader: g.GetLeader(), Records: g.GetRecords(),
		StoredBytes: g.GetStoredBytes(), SupersededBytes: g.GetSupersededBytes(), Segments: int(g.GetSegments()),
		AppliedIndex: g.GetAppliedIndex(), MemoryBytes: g.GetMemoryBytes(),
		State: word(g.GetState().String(), "GROUP_STATE_"),
	}
	if g.GetOutcome() != recordv1.LoadOutcome_LOAD_OUTCOME_UNSPECIFIED {
		st.Outcome = word(g.GetOutcome().String(), "LOAD_OUTCOME_")
	}
	for _, d := range g.GetDamages() {
		st.Damages = append(st.Damages, Damage{
			File: d.GetFile(), OffsetBytes: d.GetOffsetBytes(), LengthBytes: d.GetLengthBytes(), What: d.GetWhat(),
			IDs: d.GetIds(), IDsUnknown: d.GetIdsUnknown(),
		})
	}
	return st
}

// word makes "Serving" of GROUP_STATE_SERVING.
func word(name, prefix string) string {
	w := strings.TrimPrefix(name, prefix)
	return w[:1] + strings.ToLower(w[1:])
}

func residencyName(r group.Residency) string {
	if r == group.Resident {
		return "Resident"
	}
	return "Index"
}

// ready is nil where the shard serves all its groups, else says which it does not.
func (s *Shard) ready() error {
	if s.stopping.Load() {
		return stoppingError()
	}
	if st := s.loadStatus(); !st.Done {
		return fmt.Errorf("loading: %d of %d groups, %s to go", st.GroupsLoaded, st.GroupsTotal,
			time.Duration(st.ETASeconds*float64(time.Second)).Round(time.Second))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, g := range s.groups {
		if g.stray == "" && g.served.Load() == nil {
			return fmt.Errorf("group %s does not serve: %w", g.name, cmp.Or(g.err, errLoading))
		}
	}
	return nil
}

// Handler serves a page for people at /, /metrics (where Config.Registry is also a prometheus.Gatherer), /healthz (the process
// answers; never judges loading), /readyz (it serves all its groups) and /status (JSON of Status).
func (s *Shard) Handler() http.Handler {
	mux := http.NewServeMux()
	page.Handle(mux)
	if gatherer, ok := s.cfg.Registry.(prometheus.Gatherer); ok {
		mux.Handle("GET /metrics", promhttp.HandlerFor(gatherer, promhttp.HandlerOpts{}))
	}
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = fmt.Fprintln(w, "ok") // the caller went away
	})
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		if err := s.ready(); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		_, _ = fmt.Fprintln(w, "ok") // the caller went away
	})
	mux.HandleFunc("GET /status", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		encoder := json.NewEncoder(w)
		encoder.SetIndent("", "  ")
		if err := encoder.Encode(s.Status()); err != nil {
			s.logger.Debug("answering /status", "error", err)
		}
	})
	return mux
}
