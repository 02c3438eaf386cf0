package certs

import (
	"github.com/prometheus/client_golang/prometheus"
)

// counts holds the counters of a Source since it was opened.
type counts struct {
	reloadErrors prometheus.Counter
	closed       prometheus.Counter
	handshakes   *prometheus.CounterVec
}

func newCounts() counts {
	return counts{
		reloadErrors: prometheus.NewCounter(prometheus.CounterOpts{Name: "sheaf_tls_reload_errors_total",
			Help: "Looks at the folder of certificates that found files that cannot be used; those read before stay in use."}),
		closed: prometheus.NewCounter(prometheus.CounterOpts{Name: "sheaf_tls_closed_connections_total",
			Help: "Connections that were closed because their peer was no longer trusted, or they were plaintext when TLS " +
				"became required."}),
		handshakes: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "sheaf_tls_refused_handshakes_total",
			Help: "Connections without a handshake, by reason: none, plaintext, authority, expired, usage, identity, peer, " +
				"other."}, []string{"reason"}),
	}
}

// Collectors returns the metrics of a Source, for a registry.
func (s *Source) Collectors() []prometheus.Collector {
	return []prometheus.Collector{
		s.counts.reloadErrors, s.counts.closed, s.counts.handshakes,
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "sheaf_tls_certificate_not_after_timestamp_seconds",
			Help: "When the certificate in use ends."}, func() float64 { return float64(s.Status().NotAfter.Unix()) }),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "sheaf_tls_read_timestamp_seconds",
			Help: "When the certificates in use were last found in their folder."}, func() float64 {
			return float64(s.Status().Read.Unix())
		}),
	}
}
