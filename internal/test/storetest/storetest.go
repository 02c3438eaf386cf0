// Package storetest runs a whole store for one test, in the virtual time of testing/synctest: etcd, shards, planner and
// gateway, with the network and the disks in memory. sheaftest does the same with sockets and folders, for the tests of
// other programs.
//
//	synctest.Test(t, func(t *testing.T) {
//		store := storetest.Start(t)
//		c := store.Client(t, client.Config{})
package storetest

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"

	"sheaf.dev/sheaf/client"
	"sheaf.dev/sheaf/internal/gateway"
	"sheaf.dev/sheaf/internal/placement"
	"sheaf.dev/sheaf/internal/placement/registry"
	"sheaf.dev/sheaf/internal/shard"
	"sheaf.dev/sheaf/internal/test/bubbletest"
	"sheaf.dev/sheaf/internal/test/memetcdtest"
	"sheaf.dev/sheaf/internal/test/must"
	"sheaf.dev/sheaf/internal/test/vfstest"
)

// timeout limits the start and the stop of a store, in virtual time.
const timeout = 2 * time.Minute

// reserveBytes is the free space that each shard's disk in memory keeps in reserve.
const reserveBytes = 16 << 20

// Config configures a store. A zero field has its default value.
type Config struct {
	Groups int  // number of groups with Hash routing; 0 means 4
	Named  bool // whether the store has Named routing, where callers name groups and the first write creates a group
	Shards int  // number of shards; 0 means 1
	Copies int  // number of copies of each group (1, 3 or 5), at most one on each shard; 0 means 1
	// ViewsHeldMax is how many superseded bytes of a shard views may keep. 0 means 10 % of its volume.
	ViewsHeldMax int64
}

// Server is a running store.
type Server struct {
	Network *bubbletest.Net
	Etcd    *memetcdtest.Server
	Store   *registry.Store

	unreachable atomic.Pointer[string] // name of the shard that the other shards cannot reach; nil if there is none

	viewsHeldMax int64
	shards       []*shard.Shard
	disks        []*vfstest.Mem
	gateway      *gateway.Gateway
}

// Start runs a store with one shard and Hash routing until the test ends.
func Start(t testing.TB) *Server {
	t.Helper()
	return StartWith(t, Config{})
}

// StartWith runs a store until the test ends. With Hash routing, it returns when every group can be read and written.
func StartWith(t testing.TB, cfg Config) *Server {
	t.Helper()
	if cfg.Groups == 0 {
		cfg.Groups = 4
	}
	meta := placement.Meta{
		StoreUUID: uuid.New(), Routing: placement.Routing{Mode: placement.Hash, Groups: cfg.Groups},
		Copies:     max(cfg.Copies, 1),
		CreatedUTC: time.Now().UTC().Format(time.RFC3339),
	}
	if cfg.Named {
		meta.Routing = placement.Routing{Mode: placement.Named}
	}
	s := &Server{Network: bubbletest.NewNet(), viewsHeldMax: cfg.ViewsHeldMax}
	if err := s.start(t, meta, max(cfg.Shards, 1)); err != nil {
		t.Fatalf("start a store in memory: %v", err)
	}
	return s
}

// start starts the store. When the test finishes, everything is stopped in reverse order: the gateway before the
// shards, and the shards before etcd.
func (s *Server) start(t testing.TB, meta placement.Meta, shards int) (err error) {
	t.Helper()
	// This cleanup runs last, because it was registered first. Shards that have stopped still revoke, in the background,
	// the leases of their wakes (internal/placement/registry/wakes.go). This cleanup gives them time to do so.
	t.Cleanup(func() { time.Sleep(timeout) })
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	s.Etcd = memetcdtest.On(t, s.Network, "etcd:2379")
	if s.Store, err = registry.NewStore(s.Etcd.Client(t), "test", nil); err != nil {
		return err
	}
	if _, err := s.Store.InitMeta(ctx, meta); err != nil {
		return err
	}
	s.plan(t, meta)
	t.Cleanup(func() {
		for _, started := range s.shards {
			stopPart(t, 5*time.Second, started.Stop)
		}
	})
	for n := range shards {
		s.shards, s.disks = append(s.shards, nil), append(s.disks, vfstest.NewMem())
		if err := s.startShard(ctx, n); err != nil {
			return err
		}
	}
	s.gateway, err = gateway.Start(ctx, gateway.Config{
		Listen: "gateway:0", Store: s.Store, Listener: s.Network.Listen, Dial: s.Network.Dial,
	})
	if err != nil {
		return err
	}
	t.Cleanup(func() { stopPart(t, time.Second, s.gateway.Stop) }) // disconnects clients that still have open streams
	return s.awaitReady(ctx, meta)
}

// stopPart stops a part of the store. It disconnects the clients that are still connected after the given time.
func stopPart(t testing.TB, in time.Duration, stop func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), in)
	defer cancel()
	if err := stop(ctx); err != nil {
		t.Errorf("stop the store in memory: %v", err)
	}
}

// plan runs the planner until the test ends.
func (s *Server) plan(t testing.TB, meta placement.Meta) {
	ctx, cancel := context.WithCancel(context.Background())
	var planner sync.WaitGroup
	planner.Go(func() {
		// RunPlanner returns an error only for an invalid policy, or when it is canceled.
		_ = registry.RunPlanner(ctx, s.Store, meta.Policy(), slog.New(slog.DiscardHandler))
	})
	t.Cleanup(func() {
		cancel()
		planner.Wait()
	})
}

func (s *Server) startShard(ctx context.Context, n int) (err error) {
	s.shards[n], err = shard.Start(ctx, shard.Config{
		Name: fmt.Sprintf("shard-%d", n), Dir: s.Folder(n), FS: s.disks[n], ReserveBytes: reserveBytes, Placement: s.Store,
		Listen: fmt.Sprintf("shard-%d:0", n), Listener: s.Network.Listen, Dial: s.dialFrom(n),
		ReportInterval: 100 * time.Millisecond, Compaction: shard.Compaction{ViewsHeldMax: s.viewsHeldMax},
	})
	return err
}

// dialFrom returns the function with which shard n connects to others.
func (s *Server) dialFrom(n int) func(ctx context.Context, at string) (net.Conn, error) {
	return func(ctx context.Context, at string) (net.Conn, error) {
		host, _, _ := strings.Cut(at, ":")
		if name := s.unreachable.Load(); name != nil && *name == host && host != fmt.Sprintf("shard-%d", n) {
			return nil, fmt.Errorf("dial %s: %w", at, syscall.EHOSTUNREACH)
		}
		return s.Network.Dial(ctx, at)
	}
}

// awaitReady waits until the gateway can route calls to every group.
func (s *Server) awaitReady(ctx context.Context, meta placement.Meta) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	owned := 0
	for view := range s.Store.Watch(ctx) {
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
	return fmt.Errorf("%d of %d groups have an owner after %v", owned, meta.Routing.Groups, timeout)
}

// Addr returns the address of the gateway on Network.
func (s *Server) Addr() string { return s.gateway.Addr() }

// ShardAddr returns the address of shard n on Network.
func (s *Server) ShardAddr(n int) string { return s.shards[n].Addr() }

// Disk returns the disk of shard n. The shard's volume is the folder on it that Folder returns.
func (s *Server) Disk(n int) *vfstest.Mem { return s.disks[n] }

// Folder returns the folder of shard n's volume, which is on the disk that Disk returns.
func (s *Server) Folder(n int) string { return fmt.Sprintf("/shard-%d", n) }

// Client returns a client of the gateway, which is closed when the test ends.
func (s *Server) Client(t testing.TB, cfg client.Config) *client.Client {
	t.Helper()
	cfg.Addresses, cfg.Dial = []string{s.Addr()}, s.Network.Dial
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	c, err := client.Dial(ctx, cfg)
	must.OK(t, err)
	t.Cleanup(func() { _ = c.Close() }) // the only possible error is that a connection was already closed
	return c
}

// KillShard stops shard n immediately, without sealing anything, as if its process had been killed. Acknowledged writes
// remain.
func (s *Server) KillShard(n int) { s.shards[n].Kill() }

// RestartShard starts shard n again after KillShard, on its disk and with a new address.
func (s *Server) RestartShard(n int) error {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	return s.startShard(ctx, n)
}
