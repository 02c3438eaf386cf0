// Package memetcdtest is an etcd in memory, for tests: it runs in the virtual time of testing/synctest, and tests break
// it as they like.
//
// What is in memory is the server alone: it speaks etcd's gRPC services KV, Watch and Lease, and the client is
// go.etcd.io/etcd/client/v3 itself, with its retries, resumed watches, sessions and elections. There is one member,
// which nobody has to log in to; members and maintenance are not served. The table in etcd's contract_test.go says what
// both this server and a real one do, and runs on both: whoever depends on more of etcd adds a row there.
//
//	server := memetcdtest.New(t)
//	client := server.Client(t)
//	server.Away()         // calls fail with Unavailable, watches wait
//	server.Back()
//	server.BreakWatches() // clients resume them
//	backup := server.Backup()
//	server.Restore(backup)
package memetcdtest

import (
	"context"
	"net"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/keepalive"

	"sheaf.dev/sheaf/internal/test/bubbletest"
)

// Defaults of a member of etcd.
const (
	requestBytesMax = 3 << 19 // 1.5 MiB
	txnOpsMax       = 128
	// callTimeout is the time after which etcd gives up a call that its disk has not answered.
	callTimeout = 7 * time.Second
	// pingsMin is the shortest time between two pings of a client.
	pingsMin = 5 * time.Second
)

// Server is an etcd of one member. Safe for concurrent use.
type Server struct {
	tb      testing.TB
	network *bubbletest.Net
	address string

	running  sync.Mutex   // guards server and listener, and is held while they start or stop
	server   *grpc.Server // nil: it is away
	listener net.Listener

	mu      sync.Mutex // guards what follows, and is never held over I/O
	data    *store
	streams map[*watchStream]struct{}
	delay   time.Duration
	hook    grpc.UnaryServerInterceptor
}

// service is what a Server does for its clients.
type service struct {
	pb.UnimplementedKVServer
	pb.UnimplementedWatchServer
	pb.UnimplementedLeaseServer

	*Server
}

// New starts an empty etcd on a network of its own. The etcd ends with the test.
func New(tb testing.TB) *Server {
	tb.Helper()
	return On(tb, bubbletest.NewNet(), "etcd:2379")
}

// On starts an empty etcd at an address, host:port, of a network that others use, too.
func On(tb testing.TB, network *bubbletest.Net, address string) *Server {
	tb.Helper()
	s := &Server{tb: tb, network: network, address: address, data: newStore(), streams: map[*watchStream]struct{}{}}
	s.Back()
	tb.Cleanup(s.Away)
	return s
}

// Endpoint returns the address, host:port, on the server's network.
func (s *Server) Endpoint() string { return s.address }

// Client makes a new client, which is closed when the test ends. It connects in the same way as the clients of
// internal/placement/etcd. In a bubble, whatever the test leaves running should end with tb.Context(), which ends
// before the client is closed.
func (s *Server) Client(tb testing.TB) *clientv3.Client {
	tb.Helper()
	client, err := clientv3.New(clientv3.Config{
		Endpoints:            []string{s.address},
		DialKeepAliveTime:    10 * time.Second,
		DialKeepAliveTimeout: 5 * time.Second,
		Logger:               zap.NewNop(),
		DialOptions: []grpc.DialOption{s.network.Dialer(), grpc.WithConnectParams(grpc.ConnectParams{
			Backoff: backoff.Config{BaseDelay: 200 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2,
				MaxDelay: 3 * time.Second},
			MinConnectTimeout: 5 * time.Second,
		})},
	})
	if err != nil {
		tb.Fatalf("a client of the etcd in memory: %v", err)
	}
	tb.Cleanup(func() {
		settle()
		_ = client.Close()
	})
	return client
}

// settle lets what ends with the context of the test come to its end, as far as it takes no time: the test's goroutines
// give leases back, and close watches, while client and server are still there. In a bubble whose test is over no time
// passes, so that a goroutine which tries again later would be taken for one that hangs. Outside of a bubble it does
// nothing.
func settle() {
	defer func() { _ = recover() }() // of Wait, where this is no bubble
	synctest.Wait()
}

// Away stops the server: connections are closed, and nobody listens. Its data remains, and no lease expires.
func (s *Server) Away() {
	s.running.Lock()
	defer s.running.Unlock()
	s.stop()
}

// Back starts the server after Away. Leases have their full time again, as after a restart of etcd.
func (s *Server) Back() {
	s.tb.Helper()
	s.running.Lock()
	defer s.running.Unlock()
	s.start()
}

// stop needs s.running.
func (s *Server) stop() {
	if s.server == nil {
		return
	}
	s.server.Stop()
	_ = s.listener.Close() // where Serve has not begun yet, Stop does not know of it
	s.server = nil
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, l := range s.data.leases {
		l.timer.Stop()
	}
}

// start needs s.running.
func (s *Server) start() {
	s.tb.Helper()
	if s.server != nil {
		return
	}
	listener, err := s.network.Listen(context.Background(), s.address)
	if err != nil {
		s.tb.Fatalf("the etcd in memory: %v", err)
	}
	s.mu.Lock()
	for _, l := range s.data.leases {
		s.renew(l)
	}
	s.mu.Unlock()
	server := grpc.NewServer(
		grpc.WaitForHandlers(true),
		grpc.MaxRecvMsgSize(requestBytesMax+512<<10),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: pingsMin}),
		grpc.UnaryInterceptor(s.intercept),
	)
	served := service{Server: s}
	pb.RegisterKVServer(server, served)
	pb.RegisterWatchServer(server, served)
	pb.RegisterLeaseServer(server, served)
	s.server, s.listener = server, listener
	go func() { _ = server.Serve(listener) }() // ends with server.Stop
}

// Slow delays each call from now on; 0 ends the delay. From etcd's time limit for a call (seven seconds) on, the
// request is done, but the caller receives a timeout. Watches and renewals of leases are not delayed.
func (s *Server) Slow(delay time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.delay = delay
}

// Intercept sends each call through a function, which replaces that of an earlier Intercept; nil means no function. The
// function may wait, refuse the call, or have it done and lose the answer. Streams (watches, renewals of leases) do not
// go through it.
func (s *Server) Intercept(hook grpc.UnaryServerInterceptor) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.hook = hook
}

func (s *Server) intercept(ctx context.Context, request any, info *grpc.UnaryServerInfo,
	handler grpc.UnaryHandler) (any, error) {
	s.mu.Lock()
	hook, delay := s.hook, s.delay
	s.mu.Unlock()
	if hook != nil {
		return hook(ctx, request, info, handler)
	}
	if delay == 0 {
		return handler(ctx, request)
	}
	wait := time.NewTimer(min(delay, callTimeout))
	defer wait.Stop()
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-wait.C:
	}
	answer, err := handler(ctx, request)
	if err == nil && delay >= callTimeout {
		return nil, rpctypes.ErrGRPCTimeout
	}
	return answer, err
}

// BreakWatches ends the streams of all watches, as a broken connection does. Clients resume the watches automatically.
func (s *Server) BreakWatches() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for stream := range s.streams {
		stream.breakOff()
	}
}

// Revision returns the revision of the last write.
func (s *Server) Revision() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.data.revision
}

// Compact discards everything before the last write.
func (s *Server) Compact() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.data.compact(s.data.revision)
}

// Backup is the content of an etcd at one moment. It does not change.
type Backup struct{ data *store }

// Backup takes a backup.
func (s *Server) Backup() Backup {
	s.mu.Lock()
	defer s.mu.Unlock()
	return Backup{s.data.clone()}
}

// Restore sets etcd back to a backup, as a copy of its folder that is put in place does: the cluster is the same,
// connections are closed, and leases have their full time again. An etcd that is stopped remains stopped.
func (s *Server) Restore(b Backup) { s.replace(b.data.clone()) }

// Wipe makes etcd a new cluster without keys or leases, as the loss of its volumes does. Connections are closed. An
// etcd that is stopped remains stopped.
func (s *Server) Wipe() { s.replace(newStore()) }

func (s *Server) replace(data *store) {
	s.tb.Helper()
	s.running.Lock()
	defer s.running.Unlock()
	served := s.server != nil
	s.stop()
	s.mu.Lock()
	s.data = data
	s.mu.Unlock()
	if served {
		s.start()
	}
}
