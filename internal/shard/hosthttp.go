package shard

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	recordv1 "sheaf.dev/sheaf/api/sheaf/record/v1"
	"sheaf.dev/sheaf/internal/page"
)

// startupPatience: a load that reads nothing for so long is stuck. A slow disk is not: it reads something.
const startupPatience = 5 * time.Minute

// progress remembers when a load was last seen to move.
type progress struct {
	bytes  int64
	groups int
	at     time.Time
}

// moved notes the progress and says for how long there was none. Now is given for tests.
func (p *progress) moved(load LoadStatus, now time.Time) time.Duration {
	groups := load.GroupsLoaded + load.GroupsFailed
	if p.at.IsZero() || load.BytesDone != p.bytes || groups != p.groups {
		*p = progress{bytes: load.BytesDone, groups: groups, at: now}
	}
	return now.Sub(p.at)
}

// startup is nil unless a load has begun and does not move.
func (h *Host) startup(now time.Time) error {
	st := h.Status()
	h.mu.Lock()
	defer h.mu.Unlock()
	if st.state != recordv1.ShardState_SHARD_STATE_LOADING {
		h.progress = progress{}
		return nil
	}
	if still := h.progress.moved(st.Load, now); still > startupPatience {
		return fmt.Errorf("loading has read nothing for %v: %d of %d groups, %d of %d bytes", still.Round(time.Second),
			st.Load.GroupsLoaded, st.Load.GroupsTotal, st.Load.BytesDone, st.Load.BytesTotal)
	}
	return nil
}

// ready is nil when a group serves, or there is nothing to load.
func (h *Host) ready() error {
	h.mu.Lock()
	shard := h.shard
	h.mu.Unlock()
	if shard == nil {
		held := h.why()
		return fmt.Errorf("%s: %w", held.state.Word(), held)
	}
	if shard.stopping.Load() {
		return stoppingError()
	}
	state, message := shard.state()
	switch state {
	case recordv1.ShardState_SHARD_STATE_LOADING, recordv1.ShardState_SHARD_STATE_SERVING, recordv1.ShardState_SHARD_STATE_DRAINING:
	default:
		return fmt.Errorf("%s: %s", state.Word(), message)
	}
	shard.mu.Lock()
	defer shard.mu.Unlock()
	failed := 0
	for _, g := range shard.groups {
		switch {
		case g.served.Load() != nil:
			return nil
		case g.stray == "" || g.stray == unconfirmed:
			failed++
		}
	}
	if failed > 0 || state == recordv1.ShardState_SHARD_STATE_LOADING {
		return errors.New("no group serves yet: /status says why")
	}
	return nil
}

// stateCollector tells the state as a metric, also while nothing is served.
type stateCollector struct{ host *Host }

var stateDesc = prometheus.NewDesc("sheaf_shard_state", "1 for the state that the shard is in.", []string{"state"}, nil)

// Describe implements prometheus.Collector.
func (c *stateCollector) Describe(out chan<- *prometheus.Desc) { out <- stateDesc }

// Collect implements prometheus.Collector.
func (c *stateCollector) Collect(out chan<- prometheus.Metric) {
	h := c.host
	h.mu.Lock()
	shard := h.shard
	h.mu.Unlock()
	state := h.why().state
	if shard != nil {
		state, _ = shard.state()
	}
	out <- prometheus.MustNewConstMetric(stateDesc, prometheus.GaugeValue, 1, state.Word())
}

// Handler serves, from the first moment on and in every state: a page for people at /, /metrics (where Config.Registry is also a
// prometheus.Gatherer), /healthz (the process answers; never judges anything else), /startupz (fails only while a load
// does not move), /readyz (a group serves, or there is none to load) and /status (JSON of Status).
func (h *Host) Handler() http.Handler {
	mux := http.NewServeMux()
	page.Handle(mux)
	if gatherer, ok := h.cfg.Registry.(prometheus.Gatherer); ok {
		mux.Handle("GET /metrics", promhttp.HandlerFor(gatherer, promhttp.HandlerOpts{}))
	}
	check := func(path string, is func() error) {
		mux.HandleFunc("GET "+path, func(w http.ResponseWriter, _ *http.Request) {
			if err := is(); err != nil {
				http.Error(w, err.Error(), http.StatusServiceUnavailable)
				return
			}
			_, _ = fmt.Fprintln(w, "ok") // the caller went away
		})
	}
	check("/healthz", func() error { return nil })
	check("/startupz", func() error { return h.startup(time.Now()) })
	check("/readyz", h.ready)
	mux.HandleFunc("GET /status", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		encoder := json.NewEncoder(w)
		encoder.SetIndent("", "  ")
		if err := encoder.Encode(h.Status()); err != nil {
			h.cfg.Logger.Debug("answering /status", "error", err)
		}
	})
	return mux
}
