// Package etcd runs an etcd server inside the process. The server is the only member of a cluster for `sheaf dev`
// (StartEmbedded) and for sheaftest (StartUnsynced), or one of several members for `sheaf etcd` (StartMember). The
// package also creates the etcd clients of all processes. As in any other etcd, writes are synced to disk, except by
// a server from StartUnsynced.
package etcd

import (
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3client"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

const (
	quotaBytes   = 2 << 30
	startTimeout = 2 * time.Minute
	dialTimeout  = 5 * time.Second
)

// Server is a running etcd member.
type Server struct {
	etcd      *embed.Etcd
	closing   chan struct{}
	closeOnce sync.Once
}

// StartEmbedded starts etcd on a folder, and returns when etcd serves requests. It creates the folder if needed. This
// etcd does not listen on any address, because otherwise other users of the machine could read and write the
// placement, the grants and the signing key. Only this process can reach it, through Client. The cluster always has
// exactly one member.
func StartEmbedded(dir string) (*Server, error) { return startEmbedded(dir, false) }

// StartUnsynced is like StartEmbedded, but never syncs to disk. It is meant for tests, which should not have to wait
// for a busy disk. Writes survive the end of the process, but not a crash of the machine.
func StartUnsynced(dir string) (*Server, error) { return startEmbedded(dir, true) }

func startEmbedded(dir string, unsynced bool) (*Server, error) {
	if dir == "" {
		return nil, errors.New("embedded etcd: the folder is empty: give one")
	}
	s := &Server{closing: make(chan struct{})}
	cfg := config(dir)
	cfg.UnsafeNoFsync = unsynced
	cfg.GRPCAdditionalServerOptions = []grpc.ServerOption{grpc.ChainStreamInterceptor(s.endStreams)}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("embedded etcd: %w", err)
	}
	server, err := start(cfg)
	if err != nil {
		return nil, fmt.Errorf("embedded etcd in %s: %w", dir, err)
	}
	select {
	case <-server.Server.ReadyNotify():
	case err := <-server.Err():
		server.Close()
		return nil, fmt.Errorf("embedded etcd in %s: %w", dir, err)
	case <-time.After(startTimeout):
		server.Server.Stop()
		server.Close()
		return nil, fmt.Errorf("embedded etcd in %s did not start within %v", dir, startTimeout)
	}
	s.etcd = server
	return s, nil
}

// start starts etcd. etcd panics if it cannot create its files, and start turns that panic into an error.
func start(cfg *embed.Config) (server *embed.Etcd, err error) {
	defer func() {
		if p := recover(); p != nil {
			server, err = nil, fmt.Errorf(
				"etcd gave up: %v: see that its folder can be written and has free space (its log begins with 64 MiB)", p)
		}
	}()
	return embed.StartEtcd(cfg)
}

// config returns a configuration with which etcd does not listen on any address.
func config(dir string) *embed.Config {
	cfg := embed.NewConfig()
	cfg.Dir = filepath.Clean(dir)
	cfg.Name = "sheaf"
	// Only the last message of an embedded etcd is logged, and all others are discarded. If etcd fails, for example
	// because its disk fails, it ends the whole process, and this message is the only one that gives the reason.
	cfg.ZapLoggerBuilder = embed.NewZapLoggerBuilder(zap.New(&zapCore{logger: slog.New(slog.DiscardHandler),
		last: func(entry zapcore.Entry, fields map[string]any) {
			slog.Error("the etcd in this process ends the process: see that its folder can be written, that its disk is well "+
				"(dmesg) and has free space, then start the process again", "dir", cfg.Dir, "reason", entry.Message,
				"error", fields["error"])
		}}))
	cfg.ListenPeerUrls = nil
	// The cluster has only one member, so nobody ever connects to this URL. It is set because etcd requires a URL with a
	// host and a port.
	peer := url.URL{Scheme: "http", Host: "127.0.0.1:2380"}
	cfg.AdvertisePeerUrls = []url.URL{peer}
	cfg.InitialCluster = cfg.Name + "=" + peer.String()
	cfg.ListenClientUrls, cfg.AdvertiseClientUrls = nil, nil
	// A single member has no others to wait for, so the only effect of short ticks is a faster election at the start.
	cfg.TickMs, cfg.ElectionMs = 10, 100
	cfg.AutoCompactionMode = embed.CompactorModePeriodic
	cfg.AutoCompactionRetention = "5m"
	cfg.WatchProgressNotifyInterval = progressEvery
	cfg.QuotaBackendBytes = quotaBytes
	return cfg
}

// progressEvery is the interval at which etcd sends progress notifications on a watch that has no events. Most
// watches of shards have none. The interval is shorter than the compaction interval, so that such a watch can resume
// after its connection breaks.
const progressEvery = time.Minute

// Client returns a client that connects inside the process. The caller must close it before the server is closed.
func (s *Server) Client() *clientv3.Client { return v3client.New(s.etcd.Server) }

// Err returns a channel that receives an error if the server fails before Close is called.
func (s *Server) Err() <-chan error { return s.etcd.Err() }

// Close stops the server. Calls in progress are aborted, and their clients see UNAVAILABLE.
func (s *Server) Close() {
	s.closeOnce.Do(func() {
		close(s.closing)
		s.etcd.Close()
	})
}

// endStreams ends watches and keepalives when the server closes. Otherwise the server would wait five seconds for
// clients that do not disconnect by themselves. The handler itself returns as soon as its stream has ended.
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
