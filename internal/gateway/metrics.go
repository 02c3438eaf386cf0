package gateway

import (
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/codes"

	"sheaf.dev/sheaf/internal/base/telemetry"
	"sheaf.dev/sheaf/internal/security/ratelimit"
)

// metrics holds a gateway's metrics.
type metrics struct {
	registry   prometheus.Registerer
	collectors []prometheus.Collector
	calls      *prometheus.CounterVec
	seconds    *prometheus.HistogramVec
	retries    *prometheus.CounterVec
	refused    *prometheus.CounterVec
}

// newMetrics registers the metrics. The argument floods is the guard against floods in a gateway without certificates,
// and nil in any other gateway.
func newMetrics(g *Gateway, floods *ratelimit.Guard) (*metrics, error) {
	m := &metrics{
		registry: g.cfg.Registry,
		calls: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "sheaf_gateway_calls_total", Help: "Calls answered, by method and gRPC code.",
		}, []string{"method", "code"}),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "sheaf_gateway_call_duration_seconds", Help: "Time from the request to the answer of unary calls.",
			Buckets: telemetry.Seconds(),
		}, []string{"method"}),
		retries: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "sheaf_gateway_retries_total", Help: "Attempts repeated, by the reason why.",
		}, []string{"reason"}),
		refused: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "sheaf_gateway_tenant_refused_total",
			Help: "Groups of a tenant that were not created, as its quota is used up.",
		}, []string{"tenant", "quota"}),
	}
	gauge := func(name, help string, value func() float64) prometheus.Collector {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, value)
	}
	m.collectors = []prometheus.Collector{
		m.calls, m.seconds, m.retries, m.refused,
		gauge("sheaf_gateway_calls_in_flight", "Calls under way.", func() float64 { return float64(g.calls.Load()) }),
		gauge("sheaf_gateway_bytes_in_flight", "Bytes of requests under way.", func() float64 {
			return float64(g.bytes.Load())
		}),
		gauge("sheaf_gateway_answer_bytes", "Data of answers being handed on, or not taken by their callers yet.",
			func() float64 { return float64(g.answers.Used()) }),
		gauge("sheaf_gateway_routing_epoch", "Revision of the routing in use; 0: none.", func() float64 {
			return float64(g.epoch())
		}),
		groupGauges{g},
	}
	if floods != nil {
		m.collectors = append(m.collectors, floods.Collectors()...)
	}
	for _, c := range m.collectors {
		if err := m.registry.Register(c); err != nil {
			m.unregister()
			return nil, fmt.Errorf("gateway: register metrics: %w", err)
		}
	}
	return m, nil
}

func (m *metrics) unregister() {
	for _, c := range m.collectors {
		m.registry.Unregister(c)
	}
}

// methodMetrics holds the metrics of one method, looked up once.
type methodMetrics struct {
	m       *metrics
	name    string
	ok      prometheus.Counter
	seconds prometheus.Observer
}

func (m *metrics) method(name string) methodMetrics {
	return methodMetrics{m: m, name: name, ok: m.calls.WithLabelValues(name, codes.OK.String()),
		seconds: m.seconds.WithLabelValues(name)}
}

// done counts a finished call.
func (mm *methodMetrics) done(code codes.Code, began time.Time) {
	if code == codes.OK {
		mm.ok.Inc()
	} else {
		mm.m.calls.WithLabelValues(mm.name, code.String()).Inc()
	}
	if !began.IsZero() {
		mm.seconds.Observe(time.Since(began).Seconds())
	}
}

// groupGauges collects the number of groups in the store, and the group limit. It collects nothing before the first
// view, and no limit if the number of groups is fixed.
type groupGauges struct{ g *Gateway }

var (
	descGroups = prometheus.NewDesc("sheaf_gateway_groups", "Groups of the store, as this gateway knows them.", nil, nil)
	descLimit  = prometheus.NewDesc("sheaf_gateway_groups_limit",
		"Most groups that the store may have, in Named routing.", nil, nil)
)

// Describe implements prometheus.Collector.
func (c groupGauges) Describe(to chan<- *prometheus.Desc) {
	to <- descGroups
	to <- descLimit
}

// Collect implements prometheus.Collector.
func (c groupGauges) Collect(to chan<- prometheus.Metric) {
	t := c.g.router.table.Load()
	if t == nil {
		return
	}
	to <- prometheus.MustNewConstMetric(descGroups, prometheus.GaugeValue, float64(len(t.named)))
	if limit := t.groupLimit(); limit > 0 {
		to <- prometheus.MustNewConstMetric(descLimit, prometheus.GaugeValue, float64(limit))
	}
}
