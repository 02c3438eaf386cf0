package recordarchive

import (
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"sheaf.dev/sheaf/api/v1alpha1"
)

// figures holds the Prometheus values of one archive.
type figures struct {
	store      string
	conditions map[string]bool // does not contain conditions that are Unknown
	through    float64         // Unix seconds; 0 if not known
	holes      *int32          // nil if not known
	unproven   float64         // Unix seconds; 0 if the archive had no drill, and is to have none
}

// archiveMetrics exports the existing archives to Prometheus. Safe for concurrent use.
type archiveMetrics struct {
	mu       sync.Mutex
	archives map[types.NamespacedName]figures
}

// series holds the series of all archives that this operator manages.
var series = &archiveMetrics{archives: map[types.NamespacedName]figures{}}

func init() { metrics.Registry.MustRegister(series) }

func describe(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("sheaf_store_"+name, help,
		append([]string{"namespace", "store", "archive"}, labels...), nil)
}

var (
	descCondition = describe("archive_condition",
		"1 where the condition of a RecordArchive is True, 0 where it is False; absent where it is unknown.", "condition")
	descThrough = describe("archive_through_timestamp_seconds",
		"Everything that the store acknowledged before this time is archived; absent while that is not known.")
	descHoles    = describe("archive_holes", "Holes in the history of a RecordArchive; absent while that is not known.")
	descUnproven = describe("archive_unproven_since_timestamp_seconds",
		"When the newest drill began that has proven that the archive can be restored; if none has, when the RecordArchive "+
			"was made; absent if it had no drill and has no spec.drill.")
)

// Describe implements prometheus.Collector.
func (m *archiveMetrics) Describe(to chan<- *prometheus.Desc) {
	to <- descCondition
	to <- descThrough
	to <- descHoles
	to <- descUnproven
}

// Collect implements prometheus.Collector.
func (m *archiveMetrics) Collect(to chan<- prometheus.Metric) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for key, f := range m.archives {
		gauge := func(d *prometheus.Desc, value float64, labels ...string) {
			to <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, value,
				append([]string{key.Namespace, f.store, key.Name}, labels...)...)
		}
		for kind, truth := range f.conditions {
			value := 0.0
			if truth {
				value = 1
			}
			gauge(descCondition, value, kind)
		}
		if f.through > 0 {
			gauge(descThrough, f.through)
		}
		if f.holes != nil {
			gauge(descHoles, float64(*f.holes))
		}
		if f.unproven > 0 {
			gauge(descUnproven, f.unproven)
		}
	}
}

// observe records the status of an archive.
func (m *archiveMetrics) observe(archive *v1alpha1.RecordArchive) {
	f := figures{store: archive.Spec.StoreRef.Name, conditions: map[string]bool{}, holes: archive.Status.Holes}
	for _, c := range archive.Status.Conditions {
		if c.Status != metav1.ConditionUnknown {
			f.conditions[c.Type] = c.Status == metav1.ConditionTrue
		}
	}
	if at := archive.Status.ArchivedThrough; at != nil {
		f.through = float64(at.Unix())
	}
	switch d := archive.Status.Drill; {
	case d != nil && d.Proven != nil:
		f.unproven = float64(d.Proven.Unix())
	case d != nil, archive.Spec.Drill != nil:
		f.unproven = float64(archive.CreationTimestamp.Unix())
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.archives[types.NamespacedName{Namespace: archive.Namespace, Name: archive.Name}] = f
}

func (m *archiveMetrics) forget(key types.NamespacedName) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.archives, key)
}
