package guard

import "github.com/prometheus/client_golang/prometheus"

// counts holds the counters of a Guard.
type counts struct {
	errors  prometheus.Counter
	refused *prometheus.CounterVec
	version prometheus.Gauge
	streams prometheus.GaugeFunc
}

func newCounts(g *Guard) counts {
	return counts{
		errors: prometheus.NewCounter(prometheus.CounterOpts{Name: "sheaf_access_table_errors_total",
			Help: "Tables of grants that were found in etcd and cannot be used, or were gone; the one before stays in use."}),
		refused: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "sheaf_access_refused_total",
			Help: "Calls, or records of a batch, that were refused, by code: Unauthenticated, PermissionDenied."},
			[]string{"code"}),
		version: prometheus.NewGauge(prometheus.GaugeOpts{Name: "sheaf_access_table_version",
			Help: "Version of the table of grants in use; 0: the store has none, or it is not known yet."}),
		streams: prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "sheaf_access_open_streams",
			Help: "Open streams that are looked at again when the table of grants changes."}, func() float64 {
			g.mu.Lock()
			defer g.mu.Unlock()
			return float64(len(g.open))
		}),
	}
}
