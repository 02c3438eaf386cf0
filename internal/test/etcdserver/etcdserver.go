// Package etcdserver runs an etcd that listens on addresses, for tests and benchmarks whose processes connect to it.
// The product itself has no such etcd: etcd.StartEmbedded does not listen, and the members of a cluster sync their
// writes.
package etcdserver

import (
	"fmt"
	"net/url"
	"path/filepath"
	"strings"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"sheaf.dev/sheaf/internal/placement/etcd"
)

const startTimeout = 2 * time.Minute

// Server is a running etcd with one member.
type Server struct {
	etcd      *embed.Etcd
	endpoints []string
	closing   chan struct{}
	closeOnce sync.Once
}

// Start starts etcd on a folder, and returns when etcd serves. Nothing is synced, because tests should not wait for a
// busy disk. Writes survive a process exit, but not a machine failure. Clients connect without TLS at the addresses in
// listen, which are host:port or unix:///path. The default is a free port of 127.0.0.1.
func Start(dir string, listen ...string) (*Server, error) {
	if len(listen) == 0 {
		listen = []string{"127.0.0.1:0"}
	}
	s := &Server{closing: make(chan struct{})}
	cfg := embed.NewConfig()
	cfg.Dir, cfg.Name = filepath.Clean(dir), "sheaf"
	cfg.ZapLoggerBuilder = embed.NewZapLoggerBuilder(zap.NewNop())
	// etcd requires a peer address. Nobody connects to it, because there is no other member.
	peer := url.URL{Scheme: "http", Host: "127.0.0.1:2380"}
	cfg.ListenPeerUrls, cfg.AdvertisePeerUrls = nil, []url.URL{peer}
	cfg.InitialCluster = cfg.Name + "=" + peer.String()
	cfg.ListenClientUrls = nil
	for _, address := range listen {
		if !strings.Contains(address, "://") {
			address = "http://" + address
		}
		u, err := url.Parse(address)
		if err != nil {
			return nil, fmt.Errorf("etcd for tests: address %q: %w", address, err)
		}
		cfg.ListenClientUrls = append(cfg.ListenClientUrls, *u)
	}
	cfg.AdvertiseClientUrls = cfg.ListenClientUrls
	cfg.TickMs, cfg.ElectionMs = 10, 100
	cfg.AutoCompactionMode, cfg.AutoCompactionRetention = embed.CompactorModePeriodic, "5m"
	cfg.WatchProgressNotifyInterval = time.Minute
	cfg.QuotaBackendBytes = 2 << 30
	cfg.UnsafeNoFsync = true
	cfg.GRPCAdditionalServerOptions = []grpc.ServerOption{grpc.ChainStreamInterceptor(s.endStreams)}
	var err error
	if s.etcd, err = embed.StartEtcd(cfg); err != nil {
		return nil, fmt.Errorf("etcd for tests in %s: %w", dir, err)
	}
	select {
	case <-s.etcd.Server.ReadyNotify():
	case err := <-s.etcd.Err():
		s.Close()
		return nil, fmt.Errorf("etcd for tests in %s: %w", dir, err)
	case <-time.After(startTimeout):
		s.etcd.Server.HardStop()
		s.Close()
		return nil, fmt.Errorf("etcd for tests in %s did not start within %v", dir, startTimeout)
	}
	for _, l := range s.etcd.Clients {
		endpoint := l.Addr().String()
		if l.Addr().Network() == "unix" {
			endpoint = "unix://" + endpoint
		}
		s.endpoints = append(s.endpoints, endpoint)
	}
	return s, nil
}

// Endpoints returns the addresses of clients: host:port or unix:///path.
func (s *Server) Endpoints() []string { return s.endpoints }

// Client connects to the server. The caller must close the client before the server.
func (s *Server) Client() (*clientv3.Client, error) {
	return etcd.Dial(etcd.ClientConfig{Endpoints: s.endpoints})
}

// Close stops the server. It may be called more than once. Later calls of clients fail with UNAVAILABLE.
func (s *Server) Close() {
	s.closeOnce.Do(func() {
		close(s.closing)
		s.etcd.Close()
	})
}

// endStreams aborts watches and keepalives when the server closes. Otherwise the server would wait five seconds for
// clients that do not disconnect.
func (s *Server) endStreams(service any, stream grpc.ServerStream, _ *grpc.StreamServerInfo,
	handler grpc.StreamHandler) error {
	done := make(chan error, 1)
	go func() { done <- handler(service, stream) }()
	select {
	case err := <-done:
		return err
	case <-s.closing:
		return status.Error(codes.Unavailable, "etcd is stopping")
	}
}
