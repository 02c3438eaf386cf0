package host

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/reflection"

	archivev1 "sheaf.dev/sheaf/api/sheaf/archive/v1"
	peerv1 "sheaf.dev/sheaf/api/sheaf/peer/v1"
	"sheaf.dev/sheaf/client/call/message"
	"sheaf.dev/sheaf/client/call/reason"
	"sheaf.dev/sheaf/client/recordv1"
	"sheaf.dev/sheaf/internal/base/descriptors"
	"sheaf.dev/sheaf/internal/security/access"
	"sheaf.dev/sheaf/internal/security/ratelimit"
	"sheaf.dev/sheaf/internal/shard/answer"
	"sheaf.dev/sheaf/internal/shard/serve"
)

// These are the limits of a connection.
const (
	// connWindow is the flow control window of a connection. gRPC replenishes it as bytes arrive, whether they are read or
	// not.
	connWindow = 4 << 20
	// streamsMax is the number of concurrent calls. streamsMax is high because a gateway sends many clients' calls over
	// two connections.
	streamsMax = 1024
	// pingsMin is the minimum time between two pings of a client. A client that pings more often is disconnected. The
	// gateway pings every 20 s.
	pingsMin = 10 * time.Second
	// ageMax is how old a connection may become before its client must reconnect, so that the clients also spread over
	// new shards. The calls in progress then have ageGrace to finish, because an upload or a scan of a large group takes
	// hours.
	ageMax   = 30 * time.Minute
	ageGrace = 24 * time.Hour
)

// ServerOptions configures a Server. All fields but ListenConfig, Listener and Extra are required.
type ServerOptions struct {
	Listen       string // host:port; port 0 means any free port
	ListenConfig net.ListenConfig
	// Listener opens the listener from which the server accepts connections. If it is nil, the server opens a TCP socket
	// with ListenConfig.
	Listener func(ctx context.Context, address string) (net.Listener, error)
	// Extra holds additional gRPC options, such as credentials, tracing and interceptors.
	Extra []grpc.ServerOption
}

// Server is the gRPC server of a shard's process. A process has one Server, on one socket, until the process ends.
// Every service is registered once. While a volume is served, its Services answer; otherwise each call fails with the
// reason why nothing is served. Interceptors see each call in both cases. A Server is safe for concurrent use.
type Server struct {
	listener *descriptors.Listener
	grpc     *grpc.Server
	health   *health.Server
	begun    sync.Once
	ended    sync.WaitGroup // waits until the server has stopped accepting connections
	session  atomic.Pointer[session]
}

// Services holds the implementations that handle calls while a volume is served.
type Services struct {
	Calls   *serve.Server
	Admin   serve.Admin
	Peers   peerv1.PeerServiceServer
	Archive archivev1.ArchiveServiceServer
	Views   peerv1.ViewCopyServiceServer
}

// session is a period during which one volume is served.
type session struct {
	records, admin, peers, archive, flight, views any
	calls                                         *serve.Server
	// Each call in the session holds a read lock on underWay. When the session ends, underWay is locked for writing and
	// never unlocked, so that no further call can begin.
	underWay sync.RWMutex
}

// Listen creates a server without a Host. It accepts no connection until it has services.
func Listen(ctx context.Context, opts *ServerOptions) (*Server, error) {
	return listen(ctx, opts, recordv1.UnimplementedAdminServiceServer{}, answer.Stopping)
}

// listen creates a server. While nothing is served, admin handles AdminService calls, and RecordService calls fail with
// the error that refuse returns.
func listen(ctx context.Context, opts *ServerOptions, admin recordv1.AdminServiceServer,
	refuse func() error) (*Server, error) {
	open := opts.Listener
	if open == nil {
		open = func(ctx context.Context, address string) (net.Listener, error) {
			return opts.ListenConfig.Listen(ctx, "tcp", address)
		}
	}
	root, err := open(ctx, opts.Listen)
	if err != nil {
		return nil, err
	}
	s := &Server{listener: descriptors.Listen(root, slog.Default()), health: health.NewServer()}
	s.grpc = grpc.NewServer(append([]grpc.ServerOption{
		grpc.ForceServerCodecV2(message.Codec{}),
		message.RefuseCompressed(), grpc.MaxRecvMsgSize(message.RefusedBytesMax),
		grpc.MaxSendMsgSize(2 * message.BytesMax),
		grpc.MaxConcurrentStreams(streamsMax),
		grpc.InitialWindowSize(ratelimit.StreamWindow), grpc.InitialConnWindowSize(connWindow),
		grpc.WriteBufferSize(ratelimit.WriteBufferBytes),
		grpc.MaxHeaderListSize(message.HeaderBytesMax), grpc.ConnectionTimeout(message.HandshakeTime),
		grpc.KeepaliveParams(keepalive.ServerParameters{
			MaxConnectionAge: ageMax, MaxConnectionAgeGrace: ageGrace, Time: time.Minute, Timeout: 20 * time.Second,
		}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: pingsMin, PermitWithoutStream: true}),
		grpc.WaitForHandlers(true),
		grpc.NumStreamWorkers(message.ServerWorkers),
		grpc.UnaryInterceptor(unary),
		grpc.StreamInterceptor(s.stream),
	}, opts.Extra...)...)
	s.register(serve.RecordService(), &recordv1.RecordService_ServiceDesc, &service{
		of: func(now *session) any { return now.records }, held: recordv1.UnimplementedRecordServiceServer{},
		refuse: refuse,
	})
	admins, peers := &recordv1.AdminService_ServiceDesc, &peerv1.PeerService_ServiceDesc
	s.register(admins, admins, &service{of: func(now *session) any { return now.admin }, held: admin})
	s.register(peers, peers, &service{
		of: func(now *session) any { return now.peers }, held: peerv1.UnimplementedPeerServiceServer{},
	})
	archives := &archivev1.ArchiveService_ServiceDesc
	s.register(archives, archives, &service{
		of: func(now *session) any { return now.archive }, held: archivev1.UnimplementedArchiveServiceServer{},
		refuse: refuse,
	})
	copies := &peerv1.ViewCopyService_ServiceDesc
	s.register(copies, copies, &service{
		of: func(now *session) any { return now.views }, held: peerv1.UnimplementedViewCopyServiceServer{}, refuse: refuse,
	})
	flights := serve.FlightService()
	s.register(flights, flights, &service{
		of: func(now *session) any { return now.flight }, held: serve.NoFlight{}, refuse: refuse,
	})
	recordv1.RegisterAccessServiceServer(s.grpc, access.Service{}) // this service needs no volume
	grpc_health_v1.RegisterHealthServer(s.grpc, s.health)
	reflection.Register(s.grpc)
	s.SetHealth(recordv1.AdminService_ServiceDesc.ServiceName, true)
	s.setServing(false)
	return s, nil
}

// Addr returns the address on which the server listens.
func (s *Server) Addr() string { return s.listener.Addr().String() }

// accept begins to accept connections, unless an earlier call has done so. failed is called if accepting stops by
// itself.
func (s *Server) accept(failed func(error)) {
	s.begun.Do(func() {
		s.ended.Go(func() {
			if err := s.grpc.Serve(s.listener); err != nil && !errors.Is(err, grpc.ErrServerStopped) {
				failed(err)
			}
		})
	})
}

// Serve lets services handle calls, and begins to accept connections. failed is called if the server stops by itself.
func (s *Server) Serve(services Services, failed func(error)) {
	s.session.Store(&session{
		records: services.Calls.Records(), admin: services.Calls.Admin(services.Admin), peers: services.Peers,
		archive: services.Archive, flight: services.Calls.Flight(), views: services.Views,
		calls: services.Calls,
	})
	s.setServing(true)
	s.accept(failed)
}

// Leave removes the services. It closes all connections, and returns when their calls have ended. Clients that
// reconnect receive the reason why nothing is served.
func (s *Server) Leave() {
	now := s.session.Swap(nil)
	if now == nil {
		return
	}
	s.setServing(false)
	s.listener.DisconnectAll()
	now.underWay.Lock()
}

// Drain stops the server after its calls have finished (see message.Drain). It uses open to learn how many calls are
// in progress.
func (s *Server) Drain(ctx context.Context, open func() int64) {
	s.health.Shutdown()
	message.Drain(ctx, s.grpc, open)
	s.Stop()
}

// Stop stops the server immediately. It aborts the calls and waits until their handlers have returned. It may be called
// again.
func (s *Server) Stop() {
	s.health.Shutdown()
	s.grpc.Stop()
	_ = s.listener.Close() // already closed, if the server has accepted connections
	s.ended.Wait()
}

// SetHealth sets the health of one service, or of the shard as a whole if service is empty.
func (s *Server) SetHealth(service string, serving bool) {
	st := grpc_health_v1.HealthCheckResponse_NOT_SERVING
	if serving {
		st = grpc_health_v1.HealthCheckResponse_SERVING
	}
	s.health.SetServingStatus(service, st)
}

// setServing sets the shard's health, which shows whether records are served.
func (s *Server) setServing(serving bool) {
	s.SetHealth("", serving)
	s.SetHealth(recordv1.RecordService_ServiceDesc.ServiceName, serving)
}

// enter begins a call in the session. It returns nil if there is no session. Otherwise the caller must end the call
// with underWay.RUnlock.
func (s *Server) enter() *session {
	if now := s.session.Load(); now != nil && now.underWay.TryRLock() {
		return now
	}
	return nil
}

// service describes which code handles the calls to one gRPC service.
type service struct {
	of     func(*session) any // returns the implementation in a session
	held   any                // the implementation while there is no session
	refuse func() error       // if not nil, every call fails with its error, and held is not called
}

// register registers a service that selects the handlers separately for each call. During a session, it uses the
// handlers of served. Otherwise it uses those of waiting, which must have the same methods.
func (s *Server) register(served, waiting *grpc.ServiceDesc, to *service) {
	d := *served
	d.HandlerType = (*any)(nil)
	d.Methods, d.Streams = slices.Clone(served.Methods), slices.Clone(served.Streams)
	for i := range d.Methods {
		serves, waits := served.Methods[i].Handler, waiting.Methods[i].Handler
		d.Methods[i].Handler = func(_ any, ctx context.Context, decode func(any) error,
			interceptor grpc.UnaryServerInterceptor) (any, error) {
			if now := s.enter(); now != nil {
				defer now.underWay.RUnlock()
				return serves(to.of(now), ctx, decode, interceptor)
			}
			return waits(to.held, ctx, decode, to.refusing(interceptor))
		}
	}
	for i := range d.Streams {
		serves := served.Streams[i].Handler
		d.Streams[i].Handler = func(srv any, stream grpc.ServerStream) error {
			if srv == to.held && to.refuse != nil {
				return to.refuse()
			}
			return serves(srv, stream)
		}
	}
	s.grpc.RegisterService(&d, to)
}

// refusing wraps the interceptor for calls that arrive while there is no session. If the service refuses such calls,
// the interceptor still runs, but its handler returns the error from refuse.
func (to *service) refusing(interceptor grpc.UnaryServerInterceptor) grpc.UnaryServerInterceptor {
	if to.refuse == nil {
		return interceptor
	}
	return func(ctx context.Context, req any, info *grpc.UnaryServerInfo, _ grpc.UnaryHandler) (any, error) {
		return interceptor(ctx, req, info, func(context.Context, any) (any, error) { return nil, to.refuse() })
	}
}

// unary is the outermost interceptor of unary calls. It calls the interceptor of the session that handles the call.
func unary(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	if calls, ok := info.Server.(interface {
		Unary(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error)
	}); ok {
		out, err := calls.Unary(ctx, req, info, handler)
		return out, reason.TextFor(info.FullMethod, err)
	}
	out, err := handler(ctx, req)
	return out, reason.TextFor(info.FullMethod, err)
}

// stream is the outermost interceptor of streams. It selects the implementation that handles the stream. For unary
// calls, the handler has already done that.
func (s *Server) stream(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo,
	handler grpc.StreamHandler) error {
	to, ok := srv.(*service)
	if !ok {
		return handler(srv, stream)
	}
	now := s.enter()
	if now == nil {
		return reason.TextFor(info.FullMethod, handler(to.held, stream))
	}
	defer now.underWay.RUnlock()
	return reason.TextFor(info.FullMethod, now.calls.Stream(to.of(now), stream, info, handler))
}
