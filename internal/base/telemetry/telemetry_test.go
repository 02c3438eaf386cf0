package telemetry

import (
	"runtime"
	"slices"
	"testing"

	"sheaf.dev/sheaf/internal/test/must"
)

// TestTheRegistryShowsTheVersion checks that the registry reports the Sheaf and Go versions, in addition to the runtime
// metrics.
func TestTheRegistryShowsTheVersion(t *testing.T) {
	families, err := NewRegistry("v1.2.3").Gather()
	must.OK(t, err)
	var names []string
	for _, family := range families {
		names = append(names, family.GetName())
		if family.GetName() != "sheaf_build_info" {
			continue
		}
		got := map[string]string{}
		for _, label := range family.GetMetric()[0].GetLabel() {
			got[label.GetName()] = label.GetValue()
		}
		if got["version"] != "v1.2.3" || got["go"] != runtime.Version() || family.GetMetric()[0].GetGauge().GetValue() != 1 {
			t.Errorf("sheaf_build_info: %v", family)
		}
	}
	for _, want := range []string{"sheaf_build_info", "go_goroutines", "process_open_fds"} {
		if !slices.Contains(names, want) {
			t.Errorf("no %s in %q", want, names)
		}
	}
}

// TestSecondsGoFromMemoryToAHungDisk checks that the buckets cover both a read from memory and a sync that hung for 20
// s.
func TestSecondsGoFromMemoryToAHungDisk(t *testing.T) {
	seconds := Seconds()
	if first, last := seconds[0], seconds[len(seconds)-1]; first > 100e-6 || last < 20 {
		t.Errorf("from %v to %v", first, last)
	}
	for i := 1; i < len(seconds); i++ {
		if seconds[i] > 2.001*seconds[i-1] {
			t.Errorf("from %v to %v at once", seconds[i-1], seconds[i])
		}
	}
}
