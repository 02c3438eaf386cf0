package shard

import (
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/codes"

	recordv1 "sheaf.dev/sheaf/api/sheaf/record/v1"
	"sheaf.dev/sheaf/internal/group"
)

// metrics of a shard: counters that calls raise, and a collector that reads the rest when asked.
type metrics struct {
	shard    *Shard
	duration *prometheus.HistogramVec
	calls    *prometheus.CounterVec
	dropped  prometheus.Counter
	freed    prometheus.Counter
	tails    *prometheus.CounterVec
	methods  map[string]*methodMetrics // by full method name; never changed
	other    *methodMetrics
	get, put *methodMetrics

	registry   prometheus.Registerer // nil: not registered
	registered []prometheus.Collector
}

// methodMetrics are the metrics of one method, looked up when it is called for the first time.
type methodMetrics struct {
	name string
	long bool // no deadline of ours

	vectors  *metrics
	once     sync.Once
	duration prometheus.Observer
	ok       prometheus.Counter
	codes    sync.Map // codes.Code -> prometheus.Counter
}

func newMetrics(s *Shard) *metrics {
	m := &metrics{
		shard: s,
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "sheaf_shard_call_duration_seconds", Help: "Time from the first byte of a call to its answer.",
			Buckets: prometheus.ExponentialBuckets(0.00005, 4, 10),
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
		methods: map[string]*methodMetrics{},
	}
	for _, outcome := range []string{tailFound, tailInstalled, tailGivenUp} {
		m.tails.WithLabelValues(outcome)
	}
	m.other = m.newMethod("other")
	for _, service := range []struct {
		name  string
		names []string
	}{
		{recordv1.RecordService_ServiceDesc.ServiceName, methodNames(&recordv1.RecordService_ServiceDesc)},
		{recordv1.AdminService_ServiceDesc.ServiceName, methodNames(&recordv1.AdminService_ServiceDesc)},
	} {
		for _, name := range service.names {
			m.methods["/"+service.name+"/"+name] = m.newMethod(name)
		}
	}
	m.get, m.put = m.method(recordv1.RecordService_Get_FullMethodName), m.method(recordv1.RecordService_Put_FullMethodName)
	return m
}

func (m *metrics) newMethod(name string) *methodMetrics {
	return &methodMetrics{name: name, long: name == "Verify" || name == "Compact", vectors: m}
}

// method finds the metrics of a method by its full name.
func (m *metrics) method(full string) *methodMetrics {
	if mm, ok := m.methods[full]; ok {
		return mm
	}
	return m.other
}

func (mm *methodMetrics) observe(err error, took time.Duration) {
	mm.once.Do(func() {
		mm.duration = mm.vectors.duration.WithLabelValues(mm.name)
		mm.ok = mm.vectors.calls.WithLabelValues(mm.name, codes.OK.String())
	})
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
	for _, c := range []prometheus.Collector{m.duration, m.calls, m.dropped, m.freed, m.tails, &collector{m.shard}} {
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

// collector reads the shard's status when metrics are asked for.
type collector struct{ shard *Shard }

func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("sheaf_shard_"+name, help, labels, nil)
}

var (
	descLoadDone    = desc("load_done_bytes", "Bytes that the first load has read.")
	descLoadTotal   = desc("load_total_bytes", "Bytes that the first load reads in all.")
	descLoadRate    = desc("load_rate_bytes_per_second", "Rate of the first load so far.")
	descDeviceRate  = desc("device_rate_bytes_per_second", "Sequential rate of the device as measured before the load; 0: not measured.")
	descLoadShare   = desc("load_device_percent", "Rate of the first load in percent of the device's own.")
	descLoadETA     = desc("load_eta_seconds", "Time that the first load still takes, estimated.")
	descLoadTime    = desc("load_elapsed_seconds", "Time since the first load began, or that it took.")
	descGroups      = desc("groups", "Groups by state.", "state")
	descStrays      = desc("stray_groups", "Groups on the volume that are not served: etcd says they are elsewhere or does not know them.")
	descMemoryNeed  = desc("memory_need_bytes", "Memory that the groups need, computed before loading.")
	descMemoryUsed  = desc("memory_used_bytes", "Memory of indexes and images.")
	descMemoryLimit = desc("memory_limit_bytes", "Limit of that memory; 0: none.")
	descCapacity    = desc("volume_capacity_bytes", "Size of the volume.")
	descFree        = desc("volume_free_bytes", "Free bytes of the volume.")
	descReserve     = desc("volume_reserve_bytes", "Bytes kept free for compaction, deletes and consensus.")
	descInFlight    = desc("in_flight_bytes", "Data of writes being worked on.")
	descAnswers     = desc("answer_bytes", "Data of answers being worked on, or not taken by their callers yet.")
	descCalls       = desc("calls_under_way", "Calls being worked on.")
	descEpoch       = desc("routing_epoch", "Revision of etcd that the shard has seen.")
	descFrozen      = desc("etcd_set_back", "1 while etcd holds an older state of the store than was seen before: nothing is moved, made or deleted.")
	descUncompacted = desc("uncompacted_bytes", "Superseded bytes that are still stored, of all groups, by why; sheaf group compact --why says it of one group.", "reason")
	descProblems    = desc("problems", "Number of things that a person should look at; /status says which.")

	descGroupRecords    = desc("group_records", "Records of the group.", "group")
	descGroupStored     = desc("group_stored_bytes", "Bytes of the group's files.", "group")
	descGroupSuperseded = desc("group_superseded_bytes", "Bytes of superseded entries in sealed segments.", "group")
	descGroupDamages    = desc("group_damages", "Places of damage known in the group.", "group")
	descGroupLeader     = desc("group_leader", "1 where this shard leads the group.", "group")
)

// Describe implements prometheus.Collector: unchecked, since groups come and go.
func (c *collector) Describe(ch chan<- *prometheus.Desc) { ch <- descLoadDone }

// Collect implements prometheus.Collector.
func (c *collector) Collect(ch chan<- prometheus.Metric) {
	st := c.shard.Status()
	for _, m := range []struct {
		desc  *prometheus.Desc
		value float64
	}{
		{descLoadDone, float64(st.Load.BytesDone)},
		{descLoadTotal, float64(st.Load.BytesTotal)},
		{descLoadRate, st.Load.BytesPerSecond},
		{descDeviceRate, st.Load.DeviceBytesPerSecond},
		{descLoadShare, st.Load.DevicePercent},
		{descLoadETA, st.Load.ETASeconds},
		{descLoadTime, st.Load.ElapsedSeconds},
		{descStrays, float64(len(st.Strays))},
		{descMemoryNeed, float64(st.MemoryNeedBytes)},
		{descMemoryUsed, float64(st.MemoryUsedBytes)},
		{descMemoryLimit, float64(st.MemoryLimitBytes)},
		{descCapacity, float64(st.CapacityBytes)},
		{descFree, float64(st.FreeBytes)},
		{descReserve, float64(st.ReserveBytes)},
		{descInFlight, float64(c.shard.bytes.used.Load())},
		{descAnswers, float64(c.shard.answers.used.Load())},
		{descCalls, float64(c.shard.calls.used.Load())},
		{descEpoch, float64(st.Epoch)},
		{descProblems, float64(len(st.Problems))},
		{descFrozen, map[bool]float64{true: 1}[c.shard.isHeld()]},
	} {
		ch <- prometheus.MustNewConstMetric(m.desc, prometheus.GaugeValue, m.value)
	}
	states := map[string]int{"Pending": 0, "Loading": 0, "Serving": 0, "Damaged": 0, "Failed": 0}
	for _, g := range st.Groups {
		states[g.State]++
		leader := 0.0
		if g.Leader {
			leader = 1
		}
		for desc, value := range map[*prometheus.Desc]float64{
			descGroupRecords: float64(g.Records), descGroupStored: float64(g.StoredBytes),
			descGroupSuperseded: float64(g.SupersededBytes), descGroupDamages: float64(len(g.Damages)),
			descGroupLeader: leader,
		} {
			ch <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, value, g.Group)
		}
	}
	uncompacted := make(map[string]int64, len(st.Uncompacted))
	for _, u := range st.Uncompacted {
		uncompacted[u.Reason] = u.Bytes
	}
	for _, reason := range holdReasons {
		ch <- prometheus.MustNewConstMetric(descUncompacted, prometheus.GaugeValue, float64(uncompacted[reason]), reason)
	}
	c.shard.collectPeers(ch)
	c.shard.collectJournal(ch)
	for state, n := range states {
		ch <- prometheus.MustNewConstMetric(descGroups, prometheus.GaugeValue, float64(n), strings.ToLower(state))
	}
}
