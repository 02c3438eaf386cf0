// Package memetcdtest provides an etcd in memory for tests. It runs in the virtual time of testing/synctest, and tests
// can make it fail in many ways.
//
// Only the server is simulated. It serves etcd's gRPC services KV, Watch and Lease. The client is the real
// go.etcd.io/etcd/client/v3, with its retries, resumed watches, sessions and elections. There is one member, which
// requires no login. The services Cluster and Maintenance are missing. The table in contract_test.go of
// internal/placement/etcd lists the behaviour that this server and a real one share, and its tests run on both. If new
// code depends on other behaviour of etcd, add a row to that table.
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

// These are an etcd member's defaults.
const (
	requestBytesMax = 3 << 19 // 1.5 MiB
	txnOpsMax       = 128
	// callTimeout is the time after which a call fails if etcd's disk does not respond.
	callTimeout = 7 * time.Second
	// pingsMin is the shortest permitted interval between two pings from a client.
	pingsMin = 5 * time.Second
)

// Server is an etcd of one member. Server is safe for concurrent use.
type Server struct {
	tb      testing.TB
	network *bubbletest.Net
	address string

	running  sync.Mutex   // guards server and listener; held while the server starts or stops
	server   *grpc.Server // nil after Away
	listener net.Listener

	mu      sync.Mutex // guards the fields below; never held during I/O
	data    *store
	streams map[*watchStream]struct{}
	delay   time.Duration
	hook    grpc.UnaryServerInterceptor
}

// service implements the gRPC services of a Server.
type service struct {
	pb.UnimplementedKVServer
	pb.UnimplementedWatchServer
	pb.UnimplementedLeaseServer

	*Server
}

// New starts an empty etcd on its own network. The etcd runs until the test has finished.
func New(tb testing.TB) *Server {
	tb.Helper()
	return On(tb, bubbletest.NewNet(), "etcd:2379")
}

// On starts an empty etcd at an address (host:port) in a network that other servers may share.
func On(tb testing.TB, network *bubbletest.Net, address string) *Server {
	tb.Helper()
	s := &Server{tb: tb, network: network, address: address, data: newStore(), streams: map[*watchStream]struct{}{}}
	s.Back()
	tb.Cleanup(s.Away)
	return s
}

// Endpoint returns the address (host:port) on the server's network.
func (s *Server) Endpoint() string { return s.address }

// Client creates a new client, which is closed when the test has finished. It connects like the clients of
// internal/placement/etcd. Goroutines that a test in a bubble leaves running should stop when tb.Context() is
// canceled. That happens before the client is closed.
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

// settle waits until the goroutines of the bubble have done everything that they can do without virtual time passing.
// When a test ends, these goroutines still revoke leases and close watches, for which they need the client and the
// server. After the end of the test, virtual time no longer passes. A goroutine that had to wait for a retry would
// then wait forever and be reported as a leak. Outside of a bubble, settle does nothing.
func settle() {
	defer func() { _ = recover() }() // synctest.Wait panics outside of a bubble
	synctest.Wait()
}

// Away stops the server: it closes the connections, and no longer listens. The data remains, and no lease expires.
// Before Away closes the connections, it waits until the requests that were sent have reached the server. Otherwise
// gRPC would retry a stream that the server has not seen, and meanwhile hold a mutex for which the sender of the
// stream waits. Virtual time does not pass while a goroutine waits for a mutex, so the bubble would hang.
func (s *Server) Away() {
	settle()
	s.running.Lock()
	defer s.running.Unlock()
	s.stop()
}

// Back starts the server after Away. All leases have their full duration again, as after a restart of etcd.
func (s *Server) Back() {
	s.tb.Helper()
	s.running.Lock()
	defer s.running.Unlock()
	s.start()
}

// stop stops the server. The caller holds s.running.
func (s *Server) stop() {
	if s.server == nil {
		return
	}
	s.server.Stop()
	_ = s.listener.Close() // Stop does not close the listener if Serve has not begun
	s.server = nil
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, l := range s.data.leases {
		l.timer.Stop()
	}
}

// start starts the server. The caller holds s.running.
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
	go func() { _ = server.Serve(listener) }() // returns after server.Stop
}

// Slow delays each later call. A delay of 0 disables the delays. If the delay reaches etcd's time limit for a call
// (seven seconds), the request is executed, but the call fails with a timeout. Watches and renewals of leases are not
// delayed.
func (s *Server) Slow(delay time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.delay = delay
}

// Intercept passes each later call through a function, which replaces the function of an earlier Intercept. If it is
// nil, calls are no longer intercepted. The function may wait, refuse the call, or execute it and lose the response.
// Streams (watches, renewals of leases) are not intercepted.
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

// BreakWatches aborts the streams of all watches, as a broken connection does. Clients resume the watches
// automatically.
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

// Backup is an etcd's content at one moment. It does not change.
type Backup struct{ data *store }

// Backup takes a backup.
func (s *Server) Backup() Backup {
	s.mu.Lock()
	defer s.mu.Unlock()
	return Backup{s.data.clone()}
}

// Restore rolls etcd back to a backup, as if its folder had been replaced by an earlier copy. The cluster id stays the
// same, connections are closed, and leases have their full duration again. A stopped etcd remains stopped. In a bubble,
// all clients have noticed that their connections are closed when Restore returns: a later call uses a new connection.
func (s *Server) Restore(b Backup) { s.replace(b.data.clone()) }

// Wipe turns the etcd into a new cluster without keys or leases, as if it had lost its volumes. Connections are closed,
// and clients notice it, as after Restore. A stopped etcd remains stopped.
func (s *Server) Wipe() { s.replace(newStore()) }

func (s *Server) replace(data *store) {
	s.tb.Helper()
	settle()       // waits for requests in flight, as in Away
	defer settle() // waits until clients have noticed: their next call would otherwise fail now and then
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
