package shard

import (
	"path"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"sheaf.dev/sheaf/internal/base/telemetry"
)

// metrics holds a shard's metrics. These are some counters, and a collector that computes the other metrics when they
// are scraped. Package serve has the metrics of calls.
type metrics struct {
	shard    *Shard
	syncs    map[string]prometheus.Observer // durations of syncs, by kind of file; the map is never changed
	syncTime *prometheus.HistogramVec
	tails    *prometheus.CounterVec

	registry   prometheus.Registerer // nil if the metrics are not registered
	registered []prometheus.Collector
}

// These are the label values for a sync. They name the kind of file.
const (
	syncJournal = "journal"
	syncSegment = "segment"
	syncBlob    = "blob"
	syncOther   = "other" // manifests, hints and superblocks, which are small; no write waits for their syncs
)

func newMetrics(s *Shard) *metrics {
	m := &metrics{
		shard: s,
		syncTime: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "sheaf_shard_sync_duration_seconds",
			Help:    "Time that the device took to make writes durable, by kind of file.",
			Buckets: telemetry.Seconds(),
		}, []string{"file"}),
		tails: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "sheaf_shard_damaged_tails_total",
			Help: "Replicas of groups with several copies that may lack what they acknowledged: found, installed anew in " +
				"place, given up for another one.",
		}, []string{"outcome"}),
		syncs: map[string]prometheus.Observer{},
	}
	for _, file := range []string{syncJournal, syncSegment, syncBlob, syncOther} {
		m.syncs[file] = m.syncTime.WithLabelValues(file)
	}
	for _, outcome := range []string{tailFound, tailInstalled, tailGivenUp} {
		m.tails.WithLabelValues(outcome)
	}
	return m
}

// synced records the duration of one sync. It has the signature that vfs.NewTimed requires.
func (m *metrics) synced(name string, took time.Duration, err error) {
	kind := syncKind(path.Base(name))
	m.syncs[kind].Observe(took.Seconds())
	if took > m.shard.cfg.slowSyncMin {
		m.shard.slow.sync(name, kind, took, err)
	}
}

// syncKind determines the kind of a file from its name.
func syncKind(file string) string {
	for _, kind := range []string{syncSegment, syncJournal, syncBlob} {
		if strings.HasPrefix(file, kind+"-") {
			return kind
		}
	}
	return syncOther
}

// register registers the metrics with the shard's name as a label, because a process may run several shards.
func (m *metrics) register() error {
	if m.shard.cfg.Registry == nil {
		return nil
	}
	m.registry = prometheus.WrapRegistererWith(prometheus.Labels{"shard": m.shard.cfg.Name}, m.shard.cfg.Registry)
	own := []prometheus.Collector{m.syncTime, m.tails, m.shard.quotas, &collector{m.shard}}
	for _, c := range slices.Concat(m.shard.calls.Collectors(), m.shard.compactor.Collectors(), own) {
		if err := m.registry.Register(c); err != nil {
			return err
		}
		m.registered = append(m.registered, c)
	}
	return nil
}

func (m *metrics) unregister() {
	for _, c := range m.registered {
		m.registry.Unregister(c)
	}
	m.registered = nil
}
