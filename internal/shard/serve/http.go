package serve

import (
	"fmt"
	"log/slog"
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"sheaf.dev/sheaf/internal/status/page"
)

// HTTP serves the port for people, probes and metrics. It serves a page at /, /metrics, /status, the checks, and
// /healthz, which answers as long as the process does.
type HTTP struct {
	Registry prometheus.Registerer   // /metrics is served if it is also a prometheus.Gatherer
	Checks   map[string]func() error // the checks, by path
	Status   func() any              // returns what /status shows as JSON
	Logger   *slog.Logger
}

// Handler returns the handler of all these paths.
func (h HTTP) Handler() http.Handler {
	mux := http.NewServeMux()
	page.HandleStatus(mux, h.Logger, h.Status)
	if gatherer, ok := h.Registry.(prometheus.Gatherer); ok {
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
	for path, is := range h.Checks {
		check(path, is)
	}
	return mux
}
