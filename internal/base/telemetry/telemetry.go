// Package telemetry is what every process of Sheaf tells of itself, whatever else it does.
package telemetry

import (
	"runtime"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
)

// NewRegistry makes a registry with the metrics of the Go runtime and of the process, and sheaf_build_info, whose
// labels say which version runs. The registry is safe for concurrent use.
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

// Seconds are the buckets of all durations that are counted: factors of two from 50 µs to 26 s, so that a quantile is
// told to a factor of two, from a read out of memory to a call that waited for a disk that hung.
func Seconds() []float64 { return prometheus.ExponentialBuckets(50e-6, 2, 20) }
