package shard

import (
	"path"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	recordv1 "sheaf.dev/sheaf/api/sheaf/record/v1"
	"sheaf.dev/sheaf/internal/group"
	"sheaf.dev/sheaf/internal/telemetry"
)

// metrics of a shard: counters that calls raise, and a collector that reads the rest when asked.
type metrics struct {
	shard    *Shard
	duration *prometheus.HistogramVec
	calls    *prometheus.CounterVec
	records  *prometheus.CounterVec
	bytes    *prometheus.CounterVec
	streams  *prometheus.GaugeVec
	syncs    map[string]prometheus.Observer // by kind of file; never changed
	syncTime *prometheus.HistogramVec
	dropped  prometheus.Counter
	freed    prometheus.Counter
	tails    *prometheus.CounterVec
	// scansLost counts scans that were given up for room.
	scansLost *prometheus.CounterVec
	methods   map[string]*methodMetrics // by full method name; never changed
	other     *methodMetrics
	get, put  *methodMetrics

	registry   prometheus.Registerer // nil: not registered
	registered []prometheus.Collector
}

// methodMetrics are the metrics of one method, looked up when it is called for the first time.
type methodMetrics struct {
	name    string
	long    bool          // no deadline of ours
	slowMin time.Duration // calls that take longer are kept

	vectors  *metrics
	once     sync.Once
	duration prometheus.Observer
	ok       prometheus.Counter
	records  prometheus.Counter
	bytes    prometheus.Counter
	codes    sync.Map // codes.Code -> prometheus.Counter
}

// What a sync is told of by, as a label: the kind of file.
const (
	syncJournal = "journal"
	syncSegment = "segment"
	syncBlob    = "blob"
	syncOther   = "other" // manifests, hints, superblocks: small, and not in the way of writes
)

func newMetrics(s *Shard) *metrics {
	m := &metrics{
		shard: s,
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "sheaf_shard_call_duration_seconds", Help: "Time from the first byte of a call to its answer.",
			Buckets: telemetry.Seconds(),
		}, []string{"method"}),
		syncTime: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "sheaf_shard_sync_duration_seconds", Help: "Time that the device took to make writes durable, by kind of file.",
			Buckets: telemetry.Seconds(),
		}, []string{"file"}),
		records: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "sheaf_shard_records_total", Help: "Records that calls wrote, deleted or read, by method.",
		}, []string{"method"}),
		bytes: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "sheaf_shard_record_bytes_total", Help: "Data of records that calls wrote or read, by method.",
		}, []string{"method"}),
		streams: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "sheaf_shard_open_streams", Help: "Calls in flight in which a side sends more than one message, by method.",
		}, []string{"method"}),
		calls: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "sheaf_shard_calls_total", Help: "Calls answered, by method and gRPC code.",
		}, []string{"method", "code"}),
		dropped: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "sheaf_shard_compaction_dropped_entries_total", Help: "Entries dropped by background compaction.",
		}),
		freed: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "sheaf_shard_compaction_freed_bytes_total", Help: "Bytes freed by background compaction.",
		}),
		tails: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "sheaf_shard_damaged_tails_total",
			Help: "Replicas of groups with several copies that may lack what they acknowledged: found, installed anew in place, given up for another one.",
		}, []string{"outcome"}),
		scansLost: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "sheaf_shard_scans_given_up_total",
			Help: "Scans that were given up because what they keep needs room: nobody read them (cut_off), or they were the oldest. Their callers get CURSOR_EXPIRED.",
		}, []string{"why"}),
		methods: map[string]*methodMetrics{}, syncs: map[string]prometheus.Observer{},
	}
	for _, file := range []string{syncJournal, syncSegment, syncBlob, syncOther} {
		m.syncs[file] = m.syncTime.WithLabelValues(file)
	}
	for _, outcome := range []string{tailFound, tailInstalled, tailGivenUp} {
		m.tails.WithLabelValues(outcome)
	}
	for _, why := range []scanLoss{scansCutOff, scansOldest} {
		m.scansLost.WithLabelValues(string(why))
	}
	m.other = m.newMethod("other")
	for _, service := range []*grpc.ServiceDesc{&recordv1.RecordService_ServiceDesc, &recordv1.AdminService_ServiceDesc} {
		for _, method := range service.Methods {
			m.methods["/"+service.ServiceName+"/"+method.MethodName] = m.newMethod(method.MethodName)
		}
		for _, stream := range service.Streams {
			// A stream takes as long as its two sides go on, a Watch hours.
			method := m.newMethod(stream.StreamName)
			method.slowMin = neverSlow
			m.methods["/"+service.ServiceName+"/"+stream.StreamName] = method
		}
	}
	m.get, m.put = m.method(recordv1.RecordService_Get_FullMethodName), m.method(recordv1.RecordService_Put_FullMethodName)
	return m
}

func (m *metrics) newMethod(name string) *methodMetrics {
	method := &methodMetrics{name: name, long: name == "Verify" || name == "Compact", slowMin: m.shard.cfg.slowCallMin, vectors: m}
	if method.long {
		method.slowMin = neverSlow // as long as the group is large
	}
	return method
}

// method finds the metrics of a method by its full name.
func (m *metrics) method(full string) *methodMetrics {
	if mm, ok := m.methods[full]; ok {
		return mm
	}
	return m.other
}

// lookUp makes the series of the method, which is not done before it is called: most methods never are.
func (mm *methodMetrics) lookUp() {
	mm.once.Do(func() {
		mm.duration = mm.vectors.duration.WithLabelValues(mm.name)
		mm.ok = mm.vectors.calls.WithLabelValues(mm.name, codes.OK.String())
		mm.records = mm.vectors.records.WithLabelValues(mm.name)
		mm.bytes = mm.vectors.bytes.WithLabelValues(mm.name)
	})
}

// moved counts records that a call of the method wrote or read, and the bytes of their data (of a write with its attributes).
func (mm *methodMetrics) moved(records int, bytes int64) {
	mm.lookUp()
	mm.records.Add(float64(records))
	mm.bytes.Add(float64(bytes))
}

// movedRecords is moved for what a message held.
func (mm *methodMetrics) movedRecords(records []*recordv1.Record) {
	bytes := int64(0)
	for _, r := range records {
		bytes += int64(len(r.Data))
	}
	mm.moved(len(records), bytes)
}

func (mm *methodMetrics) observe(err error, took time.Duration) {
	mm.lookUp()
	mm.duration.Observe(took.Seconds())
	code := codeOf(err)
	if code == codes.OK {
		mm.ok.Inc()
		return
	}
	counter, ok := mm.codes.Load(code)
	if !ok {
		counter, _ = mm.codes.LoadOrStore(code, mm.vectors.calls.WithLabelValues(mm.name, code.String()))
	}
	counter.(prometheus.Counter).Inc()
}

// synced counts the time of one sync. It has the form that vfs.NewTimed asks for.
func (m *metrics) synced(name string, took time.Duration, err error) {
	kind := syncKind(path.Base(name))
	m.syncs[kind].Observe(took.Seconds())
	if took > m.shard.cfg.slowSyncMin {
		m.shard.syncWasSlow(name, kind, took, err)
	}
}

// syncKind is the kind of a file by its name.
func syncKind(file string) string {
	for _, kind := range []string{syncSegment, syncJournal, syncBlob} {
		if strings.HasPrefix(file, kind+"-") {
			return kind
		}
	}
	return syncOther
}

func (m *metrics) compacted(report group.CompactReport) {
	m.dropped.Add(float64(report.EntriesDropped))
	m.freed.Add(float64(max(report.BytesBefore-report.BytesAfter, 0)))
}

// register makes them known, with the shard's name as a label: in one process there may be several shards.
func (m *metrics) register() error {
	if m.shard.cfg.Registry == nil {
		return nil
	}
	m.registry = prometheus.WrapRegistererWith(prometheus.Labels{"shard": m.shard.cfg.Name}, m.shard.cfg.Registry)
	for _, c := range []prometheus.Collector{m.duration, m.calls, m.records, m.bytes, m.streams, m.syncTime, m.dropped, m.freed, m.tails, m.scansLost, &collector{m.shard}} {
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
