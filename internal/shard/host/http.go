package host

import (
	"fmt"
	"log/slog"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"sheaf.dev/sheaf/client/recordv1"
	"sheaf.dev/sheaf/internal/status/page"
)

// startupPatience is the time without a read after which a load counts as stuck. A load from a slow disk is not
// stuck, because it still reads something.
const startupPatience = 5 * time.Minute

// progress records when a load last made progress.
type progress struct {
	bytes  int64
	groups int32
	at     time.Time
}

// moved records the progress of a load, and returns the time since the load last made progress. Tests pass their own
// time as now.
func (p *progress) moved(load *recordv1.Load, now time.Time) time.Duration {
	groups := load.GetGroupsLoaded() + load.GetGroupsFailed()
	if p.at.IsZero() || load.GetBytesDone() != p.bytes || groups != p.groups {
		*p = progress{bytes: load.GetBytesDone(), groups: groups, at: now}
	}
	return now.Sub(p.at)
}

// startup returns an error if a load has begun and makes no progress, and nil otherwise.
func (h *Host) startup(now time.Time) error {
	var load *recordv1.Load
	if shard := h.serving(); shard != nil {
		if state, _ := shard.State(); state == recordv1.ShardState_SHARD_STATE_LOADING {
			load = shard.Load()
		}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if load == nil {
		h.progress = progress{}
		return nil
	}
	if still := h.progress.moved(load, now); still > startupPatience {
		return fmt.Errorf("loading has read nothing for %v: %d of %d groups, %d of %d bytes", still.Round(time.Second),
			load.GetGroupsLoaded(), load.GetGroupsTotal(), load.GetBytesDone(), load.GetBytesTotal())
	}
	return nil
}

// ready returns nil if a group serves, or there is nothing to load.
func (h *Host) ready() error {
	if shard := h.serving(); shard != nil {
		return shard.Ready()
	}
	held := h.why()
	return fmt.Errorf("%s: %w", held.state.Word(), held)
}

// stateCollector exports the state as a metric, even while nothing is served.
type stateCollector struct{ host *Host }

var stateDesc = prometheus.NewDesc("sheaf_shard_state", "1 for the state that the shard is in.", []string{"state"}, nil)

// Describe implements prometheus.Collector.
func (c *stateCollector) Describe(out chan<- *prometheus.Desc) { out <- stateDesc }

// Collect implements prometheus.Collector.
func (c *stateCollector) Collect(out chan<- prometheus.Metric) {
	state := c.host.why().state
	if shard := c.host.serving(); shard != nil {
		state, _ = shard.State()
	}
	out <- prometheus.MustNewConstMetric(stateDesc, prometheus.GaugeValue, 1, state.Word())
}

// Handler returns the HTTP handler of the Host, which responds in every state. / is a page for people. /metrics is
// served if Options.Registry is also a prometheus.Gatherer. /healthz succeeds whenever the process responds. /startupz
// fails only while a load makes no progress. /readyz succeeds if the disk responds, and a group serves or there is none
// to load. Kubernetes uses /readyz for the disruption budget. /status is the JSON of Status.
func (h *Host) Handler() http.Handler {
	return NewHandler(h.opts.Registry, h.opts.Logger, func() any { return h.Status() }, map[string]func() error{
		"/startupz": func() error { return h.startup(time.Now()) }, "/readyz": h.ready,
	})
}

// NewHandler returns a handler for people, probes and metrics. It serves the same paths as Host.Handler. /status shows
// the result of status as JSON. For each probe except /healthz, checks maps the path to a function that returns an
// error if the probe must fail.
func NewHandler(registry prometheus.Registerer, logger *slog.Logger, status func() any,
	checks map[string]func() error) http.Handler {
	mux := http.NewServeMux()
	page.HandleStatus(mux, logger, status)
	if gatherer, ok := registry.(prometheus.Gatherer); ok {
		mux.Handle("GET /metrics", promhttp.HandlerFor(gatherer, promhttp.HandlerOpts{}))
	}
	check := func(path string, is func() error) {
		mux.HandleFunc("GET "+path, func(w http.ResponseWriter, _ *http.Request) {
			if err := is(); err != nil {
				http.Error(w, err.Error(), http.StatusServiceUnavailable)
				return
			}
			_, _ = fmt.Fprintln(w, "ok") // an error means that the caller has disconnected
		})
	}
	check("/healthz", func() error { return nil })
	for path, is := range checks {
		check(path, is)
	}
	return mux
}
