package care

import (
	"github.com/prometheus/client_golang/prometheus"

	"sheaf.dev/sheaf/internal/storage/group"
)

type metrics struct {
	dropped, freed prometheus.Counter
	scansLost      *prometheus.CounterVec // number of scans that were closed to free space
}

func newMetrics() metrics {
	m := metrics{
		dropped: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "sheaf_shard_compaction_dropped_entries_total", Help: "Entries dropped by background compaction.",
		}),
		freed: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "sheaf_shard_compaction_freed_bytes_total", Help: "Bytes freed by background compaction.",
		}),
		scansLost: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "sheaf_shard_scans_given_up_total",
			Help: "Scans that were given up because what they keep needs space: nobody read them (cut_off), or they were the " +
				"oldest. Their callers get CURSOR_EXPIRED.",
		}, []string{"why"}),
	}
	for _, why := range []scanLoss{scansAbandoned, scansOldest} {
		m.scansLost.WithLabelValues(string(why))
	}
	return m
}

// Collectors returns the metrics of compaction.
func (c *Compactor) Collectors() []prometheus.Collector {
	return []prometheus.Collector{c.metrics.dropped, c.metrics.freed, c.metrics.scansLost}
}

func (m *metrics) compacted(report group.CompactReport) {
	m.dropped.Add(float64(report.EntriesDropped))
	m.freed.Add(float64(max(report.BytesBefore-report.BytesAfter, 0)))
}
