package serve

import (
	"errors"
	"math"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/apache/arrow-go/v18/arrow/flight/gen/flight"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	archivev1 "sheaf.dev/sheaf/api/sheaf/archive/v1"
	"sheaf.dev/sheaf/client/recordv1"
	"sheaf.dev/sheaf/internal/base/telemetry"
	"sheaf.dev/sheaf/internal/placement"
	"sheaf.dev/sheaf/internal/shard/answer"
)

// callMetrics are the metrics of calls.
type callMetrics struct {
	duration *prometheus.HistogramVec
	calls    *prometheus.CounterVec
	records  *prometheus.CounterVec
	bytes    *prometheus.CounterVec
	streams  *prometheus.GaugeVec
	slowMin  time.Duration
	methods  map[string]*methodMetrics // by full method name; never changed
	other    *methodMetrics
	get, put *methodMetrics
}

// methodMetrics are the metrics of one method, looked up when it is called for the first time.
type methodMetrics struct {
	name    string
	long    bool          // the method gets no default deadline
	stream  bool          // the client or the server sends more than one message
	patient bool          // a message may wait longer than usual until the caller takes it
	slowMin time.Duration // calls that take longer are reported as slow

	vectors  *callMetrics
	once     sync.Once
	duration prometheus.Observer
	ok       prometheus.Counter
	records  prometheus.Counter
	bytes    prometheus.Counter
	codes    sync.Map // maps a codes.Code to a prometheus.Counter

	answered, tookNs, dataBytes atomic.Int64 // calls, their total time, and the bytes of their records, for Traffic
}

func newCallMetrics(slowMin time.Duration) *callMetrics {
	m := &callMetrics{
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "sheaf_shard_call_duration_seconds", Help: "Time from the first byte of a call to its answer.",
			Buckets: telemetry.Seconds(),
		}, []string{"method"}),
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
		slowMin: slowMin, methods: map[string]*methodMetrics{},
	}
	m.other = m.newMethod("other")
	for _, service := range []*grpc.ServiceDesc{&recordv1.RecordService_ServiceDesc, &recordv1.AdminService_ServiceDesc,
		&archivev1.ArchiveService_ServiceDesc, &flight.FlightService_ServiceDesc} {
		for _, method := range service.Methods {
			m.methods["/"+service.ServiceName+"/"+method.MethodName] = m.newMethod(method.MethodName)
		}
		for _, stream := range service.Streams {
			// A stream may last for hours, for example a Watch, so no stream counts as slow.
			method := m.newMethod(stream.StreamName)
			method.slowMin, method.stream = neverSlow, true
			method.patient = service == &archivev1.ArchiveService_ServiceDesc && stream.StreamName != "Follow"
			m.methods["/"+service.ServiceName+"/"+stream.StreamName] = method
		}
	}
	m.get, m.put = m.method(recordv1.RecordService_Get_FullMethodName), m.method(recordv1.RecordService_Put_FullMethodName)
	return m
}

func (m *callMetrics) newMethod(name string) *methodMetrics {
	method := &methodMetrics{name: name, long: name == "Verify" || name == "Compact", slowMin: m.slowMin, vectors: m}
	if method.long {
		method.slowMin = neverSlow // the duration depends on the size of the group
	}
	return method
}

// method returns the metrics of a method by its full name.
func (m *callMetrics) method(full string) *methodMetrics {
	if mm, ok := m.methods[full]; ok {
		return mm
	}
	return m.other
}

// lookUp creates the series of the method at its first call, because most methods are never called.
func (mm *methodMetrics) lookUp() {
	mm.once.Do(func() {
		mm.duration = mm.vectors.duration.WithLabelValues(mm.name)
		mm.ok = mm.vectors.calls.WithLabelValues(mm.name, codes.OK.String())
		mm.records = mm.vectors.records.WithLabelValues(mm.name)
		mm.bytes = mm.vectors.bytes.WithLabelValues(mm.name)
	})
}

// moved counts the records that a call of this method wrote or read, and the bytes of their data. For a write, the
// bytes include the attributes.
func (mm *methodMetrics) moved(records int, bytes int64) {
	mm.lookUp()
	mm.records.Add(float64(records))
	mm.bytes.Add(float64(bytes))
	mm.dataBytes.Add(bytes)
}

func (mm *methodMetrics) observe(err error, took time.Duration) {
	mm.lookUp()
	mm.duration.Observe(took.Seconds())
	mm.answered.Add(1)
	mm.tookNs.Add(int64(took))
	code := answer.CodeOf(err)
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

// Traffic returns sums over the RecordService calls that the server has handled.
func (s *Server) Traffic() *recordv1.Traffic {
	out := &recordv1.Traffic{}
	for name, mm := range s.metrics.methods {
		if !strings.HasPrefix(name, "/"+recordv1.RecordService_ServiceDesc.ServiceName+"/") {
			continue
		}
		calls := mm.answered.Load()
		out.CallsTotal += calls
		out.RecordBytesTotal += mm.dataBytes.Load()
		if !mm.stream {
			out.UnaryCallsTotal += calls
			out.UnarySecondsTotal += time.Duration(mm.tookNs.Load()).Seconds()
		}
	}
	return out
}

// neverSlow is the value of slowMin for methods whose calls are never reported as slow.
const neverSlow = time.Duration(math.MaxInt64)

// running is a call in progress.
type running struct {
	method  *methodMetrics
	began   time.Time
	request any // needed to identify the group if the call turns out to be slow; nil for a stream
}

// wasSlow reports a call that took longer than a call of its method should take.
func (s *Server) wasSlow(c *running, took time.Duration, err error) {
	one := &recordv1.SlowCall{
		BeganUnixNs: c.began.UnixNano(), DurationNs: took.Nanoseconds(), Method: c.method.name, Group: s.groupOf(c.request),
		Code: answer.CodeOf(err).String(),
	}
	var reason *answer.Error
	if errors.As(err, &reason) {
		one.Reason = reason.Reason
	}
	s.shard.WasSlow(one)
}

// groupOf returns the group of a request. It returns an empty string if the request names no group, or a group for
// which this shard is not responsible. The returned string is the shard's copy, because the name in the request may be
// arbitrarily long.
func (s *Server) groupOf(request any) (name string) {
	switch in := request.(type) {
	case interface{ GetKey() *recordv1.RecordKey }:
		name = in.GetKey().GetGroup()
		if routing := s.shard.Routing(); routing.Mode == placement.Hash && in.GetKey() != nil {
			name = placement.GroupName(routing.GroupOf(in.GetKey().GetId()))
		}
	case interface{ GetGroup() string }:
		name = in.GetGroup()
	}
	return s.shard.Known(name)
}
