// Package serve implements a shard's gRPC services, RecordService and AdminService. It also implements what all calls
// have in common: limits, metrics and a graceful stop. It uses the shard through the interfaces Replicas and Admin.
package serve

import (
	"context"
	"errors"
	"log/slog"
	"runtime/debug"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"sheaf.dev/sheaf/client/call/message"
	"sheaf.dev/sheaf/client/call/reason"
	"sheaf.dev/sheaf/client/recordv1"
	"sheaf.dev/sheaf/internal/base/rules"
	"sheaf.dev/sheaf/internal/shard/answer"
	"sheaf.dev/sheaf/internal/storage/group"
)

// isOurs reports whether calls of a method are counted, limited, and refused while the shard stops. Calls from other
// shards are exempt, because a graceful stop needs them.
func isOurs(method string) bool {
	return strings.HasPrefix(method, "/sheaf.record.v1.") || strings.HasPrefix(method, "/sheaf.archive.v1.") ||
		strings.HasPrefix(method, reason.FlightService)
}

// callTimeout is the time limit for a unary call without a deadline, and for each message in a batch. It is longer than
// any successful call takes, so that only calls that would otherwise wait indefinitely fail.
const callTimeout = time.Minute

// ScanTTL is the time after which the snapshot of a scan expires if it is not read. An interrupted caller has this
// time to continue from its cursor, while data that only the snapshot needs is not kept for long.
const ScanTTL = 10 * time.Minute

// Options configures a Server. All but Tracer are required.
type Options struct {
	Name        string // name of the shard, for spans
	Residency   group.Residency
	Logger      *slog.Logger
	Tracer      trace.Tracer  // for spans inside traced calls; nil: no spans
	SlowCallMin time.Duration // unary calls that take longer are reported to Replicas.WasSlow

	CallsMax         int           // maximum number of concurrent calls
	BytesInFlightMax int64         // maximum bytes of data in writes in progress
	AnswerBytesMax   int64         // maximum bytes of responses that are being prepared or that callers have not read yet
	ScansReadingMax  int           // maximum number of scans that read their log at the same time
	SendTimeout      time.Duration // how long a message of a stream may wait until its caller reads it

	Off rules.Off // rules that a test switches off
}

// Server handles the calls to a shard, within limits. It is safe for concurrent use.
type Server struct {
	opts    Options
	shard   Replicas
	metrics *callMetrics

	calls   *message.Budget // calls in progress
	bytes   *message.Budget // bytes of data in writes in progress
	answers *message.Budget // memory of responses that are being prepared or that callers have not read yet
	reading *turns
	scans   scanCloser
	views   viewScans

	stopping context.Context // canceled when the shard begins to stop
	stop     context.CancelFunc
	streams  sync.WaitGroup // handlers of streams
}

// New creates a server for the calls to a shard. The services of the Server must be registered with a gRPC server that
// uses the interceptors Unary and Stream.
func New(opts Options, shard Replicas) *Server {
	s := &Server{
		opts: opts, shard: shard, metrics: newCallMetrics(opts.SlowCallMin),
		calls:   newBudget("calls", int64(opts.CallsMax)),
		bytes:   newBudget("bytes in flight", opts.BytesInFlightMax),
		answers: newBudget("bytes of answers", opts.AnswerBytesMax),
		reading: newTurns(opts.ScansReadingMax), scans: scanCloser{ended: map[scanKey]time.Time{}},
		views: viewScans{scans: map[viewKey]*viewScan{}},
	}
	s.stopping, s.stop = context.WithCancel(context.Background())
	return s
}

// Records returns the implementation of RecordService. It creates the method descriptions that the handlers of Get
// and Put pass to interceptors, so that they are created only once.
func (s *Server) Records() recordv1.RecordServiceServer {
	r := &recordServer{Server: s}
	r.get = &grpc.UnaryServerInfo{Server: r, FullMethod: recordv1.RecordService_Get_FullMethodName}
	r.put = &grpc.UnaryServerInfo{Server: r, FullMethod: recordv1.RecordService_Put_FullMethodName}
	return r
}

// Admin returns the implementation of AdminService on top of admin.
func (s *Server) Admin(admin Admin) recordv1.AdminServiceServer {
	return &adminServer{Server: s, admin: admin}
}

// Stop refuses new calls, and aborts calls that would never finish by themselves, such as watches. Other calls in
// progress continue.
func (s *Server) Stop() { s.stop() }

func (s *Server) isStopping() bool { return s.stopping.Err() != nil }

// Wait returns when the handlers of all streams have returned.
func (s *Server) Wait() { s.streams.Wait() }

// Calls returns the number of calls in progress.
func (s *Server) Calls() int64 { return s.calls.Used() }

// BytesInFlight returns the bytes of data in writes in progress.
func (s *Server) BytesInFlight() int64 { return s.bytes.Used() }

// AnswerBytes returns the memory held for responses, in bytes.
func (s *Server) AnswerBytes() int64 { return s.answers.Used() }

// ExpireScans closes the snapshots of scans that were read to the end more than grace ago. Call it regularly.
func (s *Server) ExpireScans(grace time.Duration) {
	s.scans.expire(grace)
	s.views.expire()
}

// Collectors returns the metrics of calls.
func (s *Server) Collectors() []prometheus.Collector {
	m := s.metrics
	return []prometheus.Collector{m.duration, m.calls, m.records, m.bytes, m.streams}
}

// limit returns the context of a unary call. A call without a deadline gets the default deadline, except Verify and
// Compact, which take longer the larger the group is. The contexts of Verify and Compact are canceled when the shard
// begins to stop, because these calls must not delay a stop.
func (s *Server) limit(ctx context.Context, method *methodMetrics) (context.Context, context.CancelFunc) {
	if method.long {
		ctx, cancel := context.WithCancel(ctx)
		release := context.AfterFunc(s.stopping, cancel)
		return ctx, func() { release(); cancel() }
	}
	if _, ok := ctx.Deadline(); ok {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, callTimeout)
}

// begin admits a call. If it returns nil, the caller must call endCall.
func (s *Server) begin() error {
	if s.isStopping() {
		return answer.Stopping()
	}
	if err := s.calls.Take(1, 0); err != nil {
		return err
	}
	// If the shard has begun to stop in the meantime, it may not wait for this call any more, so the call is refused.
	if s.isStopping() {
		s.calls.Add(-1)
		return answer.Stopping()
	}
	return nil
}

// endCall ends a call and counts it. It must be deferred, because it also recovers from a panic, so that a single
// call cannot crash the process.
func (s *Server) endCall(c *running, err *error) {
	s.calls.Add(-1)
	if p := recover(); p != nil {
		*err = s.panicked(c.method, p)
	}
	took := time.Since(c.began)
	c.method.observe(*err, took)
	if took > c.method.slowMin {
		s.wasSlow(c, took, *err)
	}
}

// contain recovers from a panic in a goroutine that a call has started. endCall cannot do so, because it runs in a
// different goroutine. contain must be deferred in the goroutine that may panic.
func (s *Server) contain(method *methodMetrics, err *error) {
	if p := recover(); p != nil {
		*err = s.panicked(method, p)
	}
}

func (s *Server) panicked(method *methodMetrics, p any) error {
	s.opts.Logger.Error("panic", "method", method.name, "panic", p, "stack", string(debug.Stack()))
	return answer.Panicked(method.name)
}

// Unary is the interceptor of unary calls.
func (s *Server) Unary(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (out any,
	err error) {
	if !isOurs(info.FullMethod) {
		return handler(ctx, req)
	}
	method := s.metrics.method(info.FullMethod)
	if err := s.begin(); err != nil {
		method.observe(err, 0)
		return nil, err
	}
	call := running{method: method, began: time.Now(), request: req}
	defer s.endCall(&call, &err)
	ctx, cancel := s.limit(ctx, method)
	defer cancel()
	out, err = handler(ctx, req)
	if err != nil && method.long && s.isStopping() {
		err = answer.Stopping()
	}
	return out, err
}

// Stream is the interceptor of streams.
func (s *Server) Stream(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo,
	handler grpc.StreamHandler) (err error) {
	if !isOurs(info.FullMethod) {
		return handler(srv, ss)
	}
	method := s.metrics.method(info.FullMethod)
	if err := s.begin(); err != nil {
		method.observe(err, 0)
		return err
	}
	call := running{method: method, began: time.Now()}
	defer s.endCall(&call, &err)
	open := s.metrics.streams.WithLabelValues(method.name)
	open.Inc()
	defer open.Dec()
	return s.sendWithin(srv, ss, method, handler)
}

// patience is a factor: a message of a patient method may wait this many times longer than Options.SendTimeout. An
// archiver writes the fetched data to a bucket, which may be unavailable for minutes. With a shorter wait, the
// archiver would have to begin again.
const patience = 10

// sendWithin runs the handler of a stream, and counts the memory held for its responses. It aborts the stream if a
// message takes longer than Options.SendTimeout, or if the shard stops while no message is received or sent. When the
// stream has ended, a waiting message is dropped, so that the handler returns as well.
func (s *Server) sendWithin(srv any, stream grpc.ServerStream, method *methodMetrics,
	handler grpc.StreamHandler) error {
	most := s.opts.SendTimeout
	if method.patient {
		most *= patience
	}
	out := message.NewStream(stream, message.Codec{}, s.StreamAnswers(), most)
	ended := make(chan error, 1)
	s.streams.Go(func() {
		var err error
		defer func() { ended <- err }()
		defer out.End()
		defer s.contain(method, &err)
		err = handler(srv, out)
	})
	err := out.Await(ended, s.stopping.Done())
	switch {
	case errors.Is(err, message.ErrSlow):
		return answer.SlowReader(most)
	case errors.Is(err, message.ErrStopping):
		return answer.Stopping()
	}
	return err
}

// bounded wraps a message that is to be received. The message is decoded only if it is within the limit.
func (s *Server) bounded(m proto.Message) *message.Bounded {
	return &message.Bounded{Message: m, BytesMax: message.BytesMax}
}

// These strings tell callers what to do instead of sending a message that is too large.
const (
	smallerBatches = "send at most 4 MiB of data in one message, and a record above 1 MiB by Upload"
	smallerChunks  = "send chunks of at most 1 MiB"
)

// newBudget returns a budget that refuses with OVERLOADED.
func newBudget(what string, limit int64) *message.Budget {
	return message.NewBudget(limit, func(limit int64) error { return answer.Overloaded(what, limit) })
}

// StreamAnswers returns the response memory that streams may use. The rest is reserved for Get, whose responses are
// short-lived, because callers that do not read their streams must not keep others from reading a record.
func (s *Server) StreamAnswers() message.Allowance {
	return s.answers.Within(s.opts.AnswerBytesMax - s.opts.AnswerBytesMax/getShare)
}

// getShare is a divisor: the response memory divided by getShare is reserved for Get.
const getShare = 8

const (
	// messageSize is the largest size of a message without its results; most of it is the cursor.
	messageSize = 1 << 10
	// recordHeldBytes is the memory of a record's message without data and attributes.
	recordHeldBytes = 320
)

// answerSize returns an upper bound on the size of a record in an encoded response. If the record has attributes, the
// bound also covers the memory that the record takes.
func answerSize(name string, rec *group.Record) int64 {
	n := 128 + len(name) + len(rec.Data)
	if len(rec.Attributes) > 0 {
		n += 512 + 4*len(rec.Attributes)
	}
	return int64(n)
}
