// Package gateway routes calls to shards. It reads the key of a request from its bytes and forwards the bytes
// unchanged; it never decodes data. Until the caller's deadline it retries calls that were certainly not applied, and
// writes that carry a request id.
package gateway

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/singleflight"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/reflection"

	"sheaf.dev/sheaf/client/batchv1"
	"sheaf.dev/sheaf/client/call/backoff"
	"sheaf.dev/sheaf/client/call/message"
	"sheaf.dev/sheaf/client/call/reason"
	"sheaf.dev/sheaf/client/call/routing"
	"sheaf.dev/sheaf/client/recordv1"
	"sheaf.dev/sheaf/internal/base/descriptors"
	"sheaf.dev/sheaf/internal/placement/registry"
	"sheaf.dev/sheaf/internal/security/access"
	"sheaf.dev/sheaf/internal/security/access/guard"
	"sheaf.dev/sheaf/internal/security/ratelimit"
)

// Config configures a gateway. Listen and Store are required.
type Config struct {
	Listen string // host:port; port 0 means any free port
	Store  *registry.Store
	// StoreUUID is the expected store. Views of another store are ignored. If it is zero, any store is accepted.
	StoreUUID uuid.UUID
	// PlannedElsewhere means that the planner runs in another process. The gateway then refuses calls that would
	// change the planner's input in etcd.
	PlannedElsewhere bool
	// ListProblem returns the reason why the groups of a restore are not listed yet, for the status, or an empty string.
	// If it is nil, there is no such reason.
	ListProblem func() string
	Limits      Limits
	Version     string                // version of the binary, for the status
	Logger      *slog.Logger          // if nil, log messages are discarded
	Registry    prometheus.Registerer // if nil, metrics are not exported
	// ListenConfig opens the gRPC server's socket. Secure adds the flood limits to it.
	ListenConfig net.ListenConfig
	// Listener opens the listener of the gRPC server, and Dial connects to a shard's address. If they are nil, TCP is
	// used. Tests use in-memory connections.
	Listener func(ctx context.Context, address string) (net.Listener, error)
	Dial     func(ctx context.Context, address string) (net.Conn, error)
	// ServerOptions are additional options of the gRPC server: credentials, and hooks for tests.
	ServerOptions []grpc.ServerOption
	// Audit records refusals, which Secure reports, and completed operations. If it is nil, there is no audit log.
	Audit *guard.Audit
	// ShardCredentials returns the credentials for connections to a shard, by its name. If it is nil, TLS is not used.
	ShardCredentials func(shard string) credentials.TransportCredentials
	// ShardDialOptions are additional options of the connections to shards.
	ShardDialOptions []grpc.DialOption

	// RecordsHTTP is the host:port of records over HTTP. If it is empty, they are not served. Listener opens its listener,
	// too.
	RecordsHTTP string

	web      webSecurity // of RecordsHTTP; Secure sets it
	watched  bool        // whether Secure has set credentials that limit the memory of unfinished messages
	callsMax int64       // limit on concurrent calls, which is lower in tests
}

// Limits are the limits that a program adapts to its memory. A zero field takes its default.
type Limits struct {
	BytesInFlightMax int64 // limit on the bytes of requests in progress; calls above it get OVERLOADED; default: 512 MiB
	// AnswerBytesMax bounds the bytes held for stream responses that are being forwarded or that callers have not read
	// yet. When the limit is reached, further calls fail with OVERLOADED. The default is 512 MiB.
	AnswerBytesMax int64
}

const (
	// streamsMax is the number of concurrent calls on one connection. The limit is higher than that of a shard, because a
	// client sends its calls for all shards over this connection.
	streamsMax = 4096
	// callsMax is the number of concurrent calls above which calls get OVERLOADED. It bounds the memory of calls that
	// wait.
	callsMax = 65536
	// sendTimeout is the time limit for the caller to read one message of a stream. After that time, the stream is aborted
	// with SLOW_READER, because it holds memory that other calls need.
	sendTimeout = time.Minute
	// callTimeout is the time limit for a unary call without a deadline, and for each message in a batch. It is longer
	// than any successful call takes, so it aborts only calls that would otherwise wait indefinitely.
	callTimeout = time.Minute
	// pingsMin is the minimum time between two pings from a client. A client that pings more often is disconnected,
	// because each ping costs a response.
	pingsMin = 10 * time.Second
	// ageMax is the age at which clients must reconnect, so that they spread over gateways that have been added. Calls in
	// progress then have ageGrace to finish. A client resumes an interrupted stream from its cursor.
	ageMax   = 30 * time.Minute
	ageGrace = 10 * time.Minute
	// A client that does not respond to a ping within keepaliveWait is disconnected. The gateway pings a client from which
	// it has received nothing for keepaliveTime.
	keepaliveTime = 20 * time.Second
	keepaliveWait = 5 * time.Second
)

func (l *Limits) setDefaults() error {
	l.BytesInFlightMax = cmp.Or(l.BytesInFlightMax, 512<<20)
	l.AnswerBytesMax = cmp.Or(l.AnswerBytesMax, 512<<20)
	if l.BytesInFlightMax < 0 || l.AnswerBytesMax < 0 {
		return fmt.Errorf("gateway: a limit is negative: %+v", *l)
	}
	return nil
}

// unfinishedMax bounds the memory of messages that have arrived only in part. When these messages take more memory, the
// connection that holds the most is closed.
func (l Limits) unfinishedMax() int64 {
	_ = l.setDefaults() // the error can be ignored, because Start returns it
	return max(l.BytesInFlightMax/2, 2*message.RefusedBytesMax)
}

// If building a table took longer than tableCostMax, the method follow pauses before it builds the next one. The
// pause is three times as long as the building took, but at most tablePauseMax.
const (
	tableCostMax  = 5 * time.Millisecond
	tablePauseMax = 200 * time.Millisecond
)

// Gateway serves RecordService, RoutingService, AdminService, health and reflection.
type Gateway struct {
	cfg      Config
	pace     routing.Pace // pace of retries
	router   *router
	server   *grpc.Server
	listener net.Listener
	taken    *descriptors.Listener // wraps listener, and accepts a connection only while enough file descriptors are left
	health   *health.Server
	metrics  *metrics
	creating singleflight.Group
	tenants  atomic.Pointer[knownTenants]

	open  atomic.Int64 // number of calls that Stop waits for
	calls atomic.Int64 // number of calls in progress
	bytes atomic.Int64 // bytes of requests in progress

	answers *message.Budget
	streams sync.WaitGroup // waits for the handlers of streams

	web *webServer // nil if Config.RecordsHTTP is empty

	cancel  context.CancelFunc // cancels the watch
	watched chan struct{}      // closed when the watch has ended
	served  chan error         // the result of Serve
	// stopping is closed when Stop begins. Closing it aborts streams that would otherwise never end.
	stopping chan struct{}
}

// Start listens, follows the store in the background, and serves. Until the gateway has its first view, calls wait,
// at most until their deadline. The argument ctx bounds only the start itself. The health status is SERVING once the
// gateway has a view.
func Start(ctx context.Context, cfg Config) (*Gateway, error) {
	if cfg.Store == nil {
		return nil, errors.New("gateway: the store is missing")
	}
	if err := cfg.Limits.setDefaults(); err != nil {
		return nil, err
	}
	cfg.callsMax = cmp.Or(cfg.callsMax, callsMax)
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if cfg.Registry == nil {
		cfg.Registry = prometheus.NewRegistry()
	}
	if cfg.ShardCredentials == nil {
		cfg.ShardCredentials = func(string) credentials.TransportCredentials { return insecure.NewCredentials() }
	}
	if cfg.Listener == nil {
		cfg.Listener = func(ctx context.Context, address string) (net.Listener, error) {
			return cfg.ListenConfig.Listen(ctx, "tcp", address)
		}
	}
	var floods *ratelimit.Guard
	if !cfg.watched {
		floods = ratelimit.New(ratelimit.Config{MessagesOnly: true, HeldBytesMax: cfg.Limits.unfinishedMax(),
			Logger: cfg.Logger})
		cfg.web = webSecurity{interceptors: guard.PlaintextInterceptors(), credentials: insecure.NewCredentials()}
		cfg.ServerOptions = slices.Concat(guard.Plaintext(),
			[]grpc.ServerOption{grpc.Creds(floods.Credentials(insecure.NewCredentials()))}, cfg.ServerOptions)
	}
	listener, err := cfg.Listener(ctx, cfg.Listen)
	if err != nil {
		return nil, fmt.Errorf("gateway: listen on %q: %w", cfg.Listen, err)
	}
	g := &Gateway{
		cfg: cfg, listener: listener, taken: descriptors.Listen(listener, cfg.Logger),
		health: health.NewServer(), watched: make(chan struct{}), served: make(chan error, 1),
		pace:     routing.Pace{First: pauseFirst, Most: pauseMax, Patience: callTimeout, Reserve: reserveMax},
		stopping: make(chan struct{}), answers: newAnswers(cfg.Limits.AnswerBytesMax),
		router: newRouter(cfg),
	}
	if g.metrics, err = newMetrics(g, floods); err != nil {
		_ = listener.Close()
		return nil, err
	}
	g.server = g.newServer()
	if err := g.startWeb(ctx); err != nil {
		g.metrics.unregister()
		_ = listener.Close()
		return nil, err
	}
	g.setHealth(healthv1.HealthCheckResponse_NOT_SERVING)
	var watch context.Context
	watch, g.cancel = context.WithCancel(context.WithoutCancel(ctx))
	go g.follow(watch)
	g.streams.Go(func() { g.expireViews(watch) })
	go func() { g.served <- g.server.Serve(g.taken) }()
	return g, nil
}

func (g *Gateway) newServer() *grpc.Server {
	options := append([]grpc.ServerOption{
		grpc.ForceServerCodecV2(codec{}),
		message.RefuseCompressed(), grpc.MaxRecvMsgSize(message.RefusedBytesMax),
		grpc.MaxConcurrentStreams(streamsMax),
		grpc.MaxHeaderListSize(message.HeaderBytesMax), grpc.ConnectionTimeout(message.HandshakeTime),
		grpc.NumStreamWorkers(message.ServerWorkers),
		grpc.ChainStreamInterceptor(g.countStream), grpc.ChainUnaryInterceptor(g.countUnary),
		grpc.InitialWindowSize(ratelimit.StreamWindow), grpc.InitialConnWindowSize(connWindow),
		grpc.WriteBufferSize(ratelimit.WriteBufferBytes),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: pingsMin, PermitWithoutStream: true}),
		grpc.KeepaliveParams(keepalive.ServerParameters{
			MaxConnectionAge: ageMax, MaxConnectionAgeGrace: ageGrace, Time: keepaliveTime, Timeout: keepaliveWait,
		}),
	}, g.cfg.ServerOptions...)
	server := grpc.NewServer(options...)
	server.RegisterService(g.recordService(), nil)
	server.RegisterService(g.flightService(), &flightServer{g: g})
	recordv1.RegisterRoutingServiceServer(server, &routingServer{g: g})
	recordv1.RegisterAdminServiceServer(server, &adminServer{g: g})
	batchv1.RegisterViewServiceServer(server, &viewServer{g: g})
	recordv1.RegisterAccessServiceServer(server, access.Service{})
	healthv1.RegisterHealthServer(server, g.health)
	reflection.Register(server)
	return server
}

// setHealth sets the same health status for the process and for each service by name, because a probe may ask for
// either.
func (g *Gateway) setHealth(st healthv1.HealthCheckResponse_ServingStatus) {
	for _, service := range []string{
		"", recordv1.RecordService_ServiceDesc.ServiceName, recordv1.RoutingService_ServiceDesc.ServiceName,
		recordv1.AdminService_ServiceDesc.ServiceName,
		recordv1.AccessService_ServiceDesc.ServiceName, batchv1.ViewService_ServiceDesc.ServiceName,
	} {
		g.health.SetServingStatus(service, st)
	}
}

// follow applies views until ctx is done.
func (g *Gateway) follow(ctx context.Context) {
	defer close(g.watched)
	for view := range g.cfg.Store.Watch(ctx) {
		if want := g.cfg.StoreUUID; want != uuid.Nil && view.Meta.StoreUUID != want {
			g.cfg.Logger.Error("etcd holds another store, it is not followed", "store", view.Meta.StoreUUID, "wanted", want)
			continue
		}
		began := time.Now()
		g.router.set(view)
		g.setHealth(healthv1.HealthCheckResponse_SERVING)
		// While many groups are being created in a large store, building a table for each new view would keep a processor
		// busy. Therefore the newest view waits briefly, and the views in between are skipped.
		if cost := time.Since(began); cost > tableCostMax {
			backoff.Sleep(ctx, min(3*cost, tablePauseMax))
		}
	}
}

// Addr returns the address on which gRPC listens.
func (g *Gateway) Addr() string { return g.listener.Addr().String() }

// Ready waits until the gateway has a view, or ctx is done.
func (g *Gateway) Ready(ctx context.Context) error {
	_, err := g.router.wait(ctx)
	return err
}

// GroupsLed returns the number of groups for which the gateway knows a shard to call. This is the leader if etcd
// names one, and otherwise another voting member.
func (g *Gateway) GroupsLed() (led int) {
	if t := g.router.table.Load(); t != nil {
		for _, r := range t.named {
			if len(r.voters) > 0 && r.told != nil {
				led++
			}
		}
	}
	return led
}

// epoch returns the epoch of the newest view, or 0 if there is none yet.
func (g *Gateway) epoch() uint64 {
	if t := g.router.table.Load(); t != nil {
		return t.view.Epoch
	}
	return 0
}

// isOurs reports whether Stop waits for calls of a method.
func isOurs(method string) bool {
	return strings.HasPrefix(method, "/sheaf.") || strings.HasPrefix(method, reason.FlightService)
}

func (g *Gateway) countStream(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo,
	handler grpc.StreamHandler) error {
	if isOurs(info.FullMethod) {
		g.open.Add(1)
		defer g.open.Add(-1)
	}
	return reason.TextFor(info.FullMethod, handler(srv, ss))
}

func (g *Gateway) countUnary(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any,
	error) {
	if isOurs(info.FullMethod) {
		g.open.Add(1)
		defer g.open.Add(-1)
	}
	out, err := handler(ctx, req)
	return out, reason.TextFor(info.FullMethod, err)
}

// Stop refuses new calls and waits for calls in flight; when ctx is done, it aborts the remaining ones. It aborts
// streams earlier if their callers neither receive nor send anything. Stop must be called only once.
func (g *Gateway) Stop(ctx context.Context) error {
	g.health.Shutdown()
	close(g.stopping)
	stopWeb := g.web.stopping(ctx)
	message.Drain(ctx, g.server, g.open.Load)
	stopWeb()
	g.cancel()
	g.streams.Wait() // the streams of these handlers have already ended
	<-g.watched
	g.router.close()
	g.metrics.unregister()
	if err := <-g.served; err != nil && !errors.Is(err, grpc.ErrServerStopped) {
		return fmt.Errorf("gateway: %w", err)
	}
	return nil
}
