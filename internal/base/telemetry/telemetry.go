// Package telemetry provides the metrics, traces and profiles that all processes of Sheaf have in common.
package telemetry

import (
	"runtime"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
)

// NewRegistry creates a registry with the metrics of the Go runtime and of the process, and with sheaf_build_info,
// whose labels name the running version. The registry is safe for concurrent use.
func NewRegistry(version string) *prometheus.Registry {
	registry := prometheus.NewRegistry()
	build := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "sheaf_build_info", Help: "1; the labels say which version runs, and the Go that built it.",
		ConstLabels: prometheus.Labels{"version": version, "go": runtime.Version()},
	})
	build.Set(1)
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
		build)
	return registry
}

// Seconds returns the buckets shared by all duration histograms. Each bound is twice the previous one, from 50 µs (a
// read from memory) to 26 s (a call that waited for a hanging disk), so a quantile is known to within a factor of two.
func Seconds() []float64 { return prometheus.ExponentialBuckets(50e-6, 2, 20) }
