package shard

import (
	"context"
	"runtime/debug"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/reflection"
	"google.golang.org/grpc/status"

	recordv1 "sheaf.dev/sheaf/api/sheaf/record/v1"
	"sheaf.dev/sheaf/internal/message"
)

// ourServices begins the names of the methods that are counted, limited and refused while stopping.
const ourServices = "/sheaf.record.v1."

// newServer makes the gRPC server with everything registered.
func (s *Shard) newServer() *grpc.Server {
	l := s.cfg.Limits
	params := keepalive.ServerParameters{Time: time.Minute, Timeout: 20 * time.Second}
	if l.ConnectionAgeMax > 0 {
		params.MaxConnectionAge, params.MaxConnectionAgeGrace = l.ConnectionAgeMax, l.ConnectionAgeGrace
	}
	options := append([]grpc.ServerOption{
		grpc.ForceServerCodecV2(message.Codec{}),
		grpc.MaxRecvMsgSize(message.RefusedBytesMax(l.MessageBytesMax)),
		grpc.MaxSendMsgSize(2 * l.MessageBytesMax),
		grpc.MaxConcurrentStreams(l.StreamsPerConnectionMax),
		grpc.MaxHeaderListSize(16 << 10),
		grpc.ConnectionTimeout(20 * time.Second),
		grpc.KeepaliveParams(params),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: l.KeepaliveMin, PermitWithoutStream: true}),
		grpc.WaitForHandlers(true),
		grpc.NumStreamWorkers(message.ServerWorkers),
		grpc.UnaryInterceptor(s.unary),
		grpc.StreamInterceptor(s.stream),
	}, s.cfg.ServerOptions...)
	server := grpc.NewServer(options...)
	server.RegisterService(recordServiceDesc(), &recordServer{Shard: s})
	recordv1.RegisterAdminServiceServer(server, &adminServer{Shard: s})
	s.hub.Register(server)
	grpc_health_v1.RegisterHealthServer(server, s.health)
	s.health.SetServingStatus("", grpc_health_v1.HealthCheckResponse_SERVING)
	s.health.SetServingStatus(recordv1.RecordService_ServiceDesc.ServiceName, grpc_health_v1.HealthCheckResponse_SERVING)
	s.health.SetServingStatus(recordv1.AdminService_ServiceDesc.ServiceName, grpc_health_v1.HealthCheckResponse_SERVING)
	reflection.Register(server)
	return server
}

// setHealth tells the health service about one group: "group/NAME".
func (s *Shard) setHealth(g *groupReplica, serving bool) {
	st := grpc_health_v1.HealthCheckResponse_NOT_SERVING
	if serving {
		st = grpc_health_v1.HealthCheckResponse_SERVING
	}
	s.health.SetServingStatus("group/"+g.name, st)
}

// begin admits a call. endCall must follow where it answers nil.
func (s *Shard) begin() error {
	if s.stopping.Load() {
		return stoppingError()
	}
	if err := s.calls.take(1); err != nil {
		return err
	}
	// Stopping may have begun in between, and then does not wait for this call.
	if s.stopping.Load() {
		s.calls.give(1)
		return stoppingError()
	}
	return nil
}

// endCall counts a call. It is deferred, so that it also catches panics: one call must not stop the process.
func (s *Shard) endCall(c *running, err *error) {
	s.calls.give(1)
	if p := recover(); p != nil {
		*err = s.panicked(c.method, p)
	}
	took := time.Since(c.began)
	c.method.observe(*err, took)
	if took > c.method.slowMin {
		s.wasSlow(c, took, *err)
	}
}

// contain is deferred on a goroutine of a call that endCall does not see.
func (s *Shard) contain(method *methodMetrics, err *error) {
	if p := recover(); p != nil {
		*err = s.panicked(method, p)
	}
}

func (s *Shard) panicked(method *methodMetrics, p any) error {
	s.logger.Error("panic", "method", method.name, "panic", p, "stack", string(debug.Stack()))
	return panicError(method.name)
}

// unary is the interceptor of unary calls.
func (s *Shard) unary(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (out any, err error) {
	if !strings.HasPrefix(info.FullMethod, ourServices) {
		return handler(ctx, req)
	}
	method := s.metrics.method(info.FullMethod)
	if err := s.begin(); err != nil {
		method.observe(err, 0)
		return nil, err
	}
	call := running{method: method, began: time.Now(), request: req}
	defer s.endCall(&call, &err)
	var cancel context.CancelFunc
	if method.long {
		ctx, cancel = s.untilStopped(ctx)
	} else {
		ctx, cancel = s.deadline(ctx)
	}
	defer cancel()
	out, err = handler(ctx, req)
	if err != nil && method.long && s.stopping.Load() {
		err = stoppingError()
	}
	return out, err
}

// untilStopped is for Verify and Compact: they take as long as the group is large, and must not hold up a stop.
func (s *Shard) untilStopped(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	go func() {
		select {
		case <-s.stopped:
			cancel()
		case <-ctx.Done():
		}
	}()
	return ctx, cancel
}

// stream is the interceptor of streams.
func (s *Shard) stream(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) (err error) {
	if !strings.HasPrefix(info.FullMethod, ourServices) {
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

// codeOf is the code that the caller sees.
func codeOf(err error) codes.Code {
	if err == nil {
		return codes.OK
	}
	if answer, ok := err.(*callError); ok { //nolint:errorlint // the hot path; anything wrapped goes the long way
		return answer.code
	}
	return status.Code(err)
}
