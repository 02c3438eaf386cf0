// Package sheaftest runs a whole Sheaf store inside a test: etcd, shards, planner and gateway in one process, with a
// temporary folder and free ports of 127.0.0.1. It runs the production code without TLS. Shards sync everything to
// disk; the store's etcd does not sync.
package sheaftest

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	clientv3 "go.etcd.io/etcd/client/v3"

	"sheaf.dev/sheaf/client"
	"sheaf.dev/sheaf/internal/gateway"
	"sheaf.dev/sheaf/internal/placement"
	"sheaf.dev/sheaf/internal/placement/etcd"
	"sheaf.dev/sheaf/internal/placement/registry"
	"sheaf.dev/sheaf/internal/shard"
)

// startTimeout bounds the start and the stop of a store.
const startTimeout = 2 * time.Minute

// Config configures a store. A zero field takes its default.
type Config struct {
	// Dir is the folder for the data, which a later process may use again. The data may be lost in a machine failure,
	// because the store's etcd does not sync. If Dir is empty, the data is in a temporary folder, which Close removes.
	Dir string
	// Groups is the number of groups with Hash routing. The default is 4.
	Groups int
	// Named selects Named routing, where the caller names groups, and the first write to a group creates it.
	Named bool
	// Shards is the number of shards. The default is 1.
	Shards int
	// Logger receives the log lines of the store. If it is nil, nothing is logged.
	Logger *slog.Logger
}

// Server is a running store.
type Server struct {
	cfg     Config
	remove  string // temporary folder that Close removes; empty if there is none
	etcd    *etcd.Server
	client  *clientv3.Client
	store   *registry.Store
	shards  []*shard.Shard
	gateway *gateway.Gateway
	planner sync.WaitGroup
	cancel  context.CancelFunc
	stop    func() error // closes the store; only the first call has an effect
}

// Start runs a store with one shard and Hash routing until the test ends.
func Start(t testing.TB) *Server {
	t.Helper()
	return StartWith(t, Config{})
}

// StartWith runs a store until the test ends.
func StartWith(t testing.TB, cfg Config) *Server {
	t.Helper()
	if cfg.Dir == "" {
		cfg.Dir = t.TempDir()
	}
	s, err := New(cfg)
	if err != nil {
		t.Fatalf("start a test store: %v", err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Errorf("stop the test store: %v", err)
		}
	})
	return s
}

// New runs a store until Close. It returns when every group of Hash routing can be read and written.
func New(cfg Config) (*Server, error) {
	if cfg.Groups == 0 {
		cfg.Groups = 4
	}
	if cfg.Shards == 0 {
		cfg.Shards = 1
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	s := &Server{cfg: cfg}
	s.stop = sync.OnceValue(s.close)
	if cfg.Dir == "" {
		dir, err := os.MkdirTemp("", "sheaftest-")
		if err != nil {
			return nil, fmt.Errorf("sheaftest: %w", err)
		}
		s.cfg.Dir, s.remove = dir, dir
	}
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	if err := s.start(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("sheaftest: %w", err), s.Close())
	}
	return s, nil
}

func (s *Server) start(ctx context.Context) (err error) {
	if s.etcd, err = etcd.StartUnsynced(filepath.Join(s.cfg.Dir, "etcd")); err != nil {
		return err
	}
	s.client = s.etcd.Client()
	if s.store, err = registry.NewStore(s.client, "test", s.cfg.Logger); err != nil {
		return err
	}
	meta := placement.Meta{
		StoreUUID: uuid.New(), Routing: placement.Routing{Mode: placement.Hash, Groups: s.cfg.Groups}, Copies: 1,
		CreatedUTC: time.Now().UTC().Format(time.RFC3339),
	}
	if s.cfg.Named {
		meta.Routing = placement.Routing{Mode: placement.Named}
	}
	there, err := s.store.InitMeta(ctx, meta)
	if err != nil {
		return err
	}
	if there.Routing != meta.Routing {
		return fmt.Errorf("the folder holds a store with routing %+v, not %+v", there.Routing, meta.Routing)
	}
	background, cancel := context.WithCancel(context.Background())
	s.cancel = cancel
	s.planner.Go(func() {
		// The policy is valid, so RunPlanner returns only when it is cancelled.
		_ = registry.RunPlanner(background, s.store, there.Policy(), s.cfg.Logger)
	})
	for n := range s.cfg.Shards {
		if err := s.startShard(ctx, n); err != nil {
			return err
		}
	}
	if s.gateway, err = gateway.Start(ctx, gateway.Config{Listen: "127.0.0.1:0", Store: s.store,
		Logger: s.cfg.Logger}); err != nil {
		return err
	}
	return s.ready(ctx, there)
}

func (s *Server) startShard(ctx context.Context, n int) error {
	dir := filepath.Join(s.cfg.Dir, fmt.Sprintf("shard-%d", n))
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	started, err := shard.Start(ctx, shard.Config{
		Name: fmt.Sprintf("shard-%d", n), Dir: dir, Listen: "127.0.0.1:0", Placement: s.store, Logger: s.cfg.Logger,
		ReportInterval: 100 * time.Millisecond,
	})
	if err != nil {
		return err
	}
	if n < len(s.shards) {
		s.shards[n] = started
	} else {
		s.shards = append(s.shards, started)
	}
	return nil
}

// ready waits until every group has an owner, and the gateway knows the placement.
func (s *Server) ready(ctx context.Context, meta placement.Meta) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	owned := 0
	for view := range s.store.Watch(ctx) {
		owned = 0
		for _, g := range view.Groups {
			if len(g.Members) > 0 {
				owned++
			}
		}
		if owned >= meta.Routing.Groups && owned == len(view.Groups) {
			return s.gateway.Ready(ctx)
		}
	}
	return fmt.Errorf("%d of %d groups have an owner after %v", owned, meta.Routing.Groups, startTimeout)
}

// Addr returns the address of the gateway as host:port.
func (s *Server) Addr() string { return s.gateway.Addr() }

// ShardAddr returns the address of shard n as host:port.
func (s *Server) ShardAddr(n int) string { return s.shards[n].Addr() }

// Client returns a client of the store, which is closed when the test ends.
func (s *Server) Client(t testing.TB, cfg client.Config) *client.Client {
	t.Helper()
	cfg.Addresses = []string{s.Addr()}
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	c, err := client.Dial(ctx, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() }) // Close fails only if a connection is already closed
	return c
}

// KillShard stops shard n at once, as a crash of its process would, so that nothing is sealed. Acknowledged writes
// survive.
func (s *Server) KillShard(n int) { s.shards[n].Kill() }

// RestartShard starts shard n again after KillShard, with its old folder and a new address.
func (s *Server) RestartShard(n int) error {
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	return s.startShard(ctx, n)
}

// Close stops the store. It may be called more than once.
func (s *Server) Close() error { return s.stop() }

func (s *Server) close() error {
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	var errs []error
	if s.gateway != nil {
		// Clients that still keep streams open after this time are disconnected.
		short, cut := context.WithTimeout(ctx, time.Second)
		errs = append(errs, s.gateway.Stop(short))
		cut()
	}
	for _, started := range s.shards {
		short, cut := context.WithTimeout(ctx, 5*time.Second)
		errs = append(errs, started.Stop(short))
		cut()
	}
	if s.cancel != nil {
		s.cancel()
	}
	s.planner.Wait()
	if s.client != nil {
		// A client that has no connection returns the error of its own context, which Close has cancelled.
		_ = s.client.Close()
	}
	if s.etcd != nil {
		s.etcd.Close()
	}
	if s.remove != "" {
		errs = append(errs, os.RemoveAll(s.remove))
	}
	return errors.Join(errs...)
}
