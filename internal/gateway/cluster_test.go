package gateway_test

import (
	"context"
	"testing"
	"time"

	"github.com/google/uuid"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"sheaf.dev/sheaf/client/recordv1"
	"sheaf.dev/sheaf/internal/gateway"
	"sheaf.dev/sheaf/internal/placement"
	"sheaf.dev/sheaf/internal/placement/registry"
	"sheaf.dev/sheaf/internal/test/bubbletest"
	"sheaf.dev/sheaf/internal/test/livenesstest"
	"sheaf.dev/sheaf/internal/test/memetcdtest"
	"sheaf.dev/sheaf/internal/test/must"
)

// cluster is a gateway with stand-ins for its shards, and with etcd and the network in memory. Its test runs in a
// bubble of testing/synctest: virtual time passes when all goroutines wait, so a pause below takes no real time.
type cluster struct {
	t       *testing.T
	ctx     context.Context
	network *bubbletest.Net
	etcd    *memetcdtest.Server
	store   *registry.Store
	meta    placement.Meta
	shards  map[string]*standIn
	stops   map[string]func()
	gateway *gateway.Gateway
	conn    *grpc.ClientConn
	records recordv1.RecordServiceClient
	admin   recordv1.AdminServiceClient
}

// withoutDeadline returns a context without a deadline, for calls that must fail. The gateway then gives up before its
// caller does, so the caller learns the reason from the gateway's error.
func (c *cluster) withoutDeadline() context.Context { return context.WithoutCancel(c.ctx) }

func newCluster(t *testing.T, meta placement.Meta, cfg gateway.Config, shards ...string) *cluster {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	t.Cleanup(cancel)
	c := &cluster{t: t, ctx: ctx, network: bubbletest.NewNet(), meta: meta, shards: map[string]*standIn{},
		stops: map[string]func(){}}
	c.etcd = memetcdtest.On(t, c.network, "etcd:2379")
	var err error
	if c.store, err = registry.NewStore(c.etcd.Client(t), "quotes", nil); err != nil {
		t.Fatal(err)
	}
	if _, err := c.store.InitMeta(ctx, meta); err != nil {
		t.Fatal(err)
	}
	for _, name := range shards {
		c.start(name, uuid.New(), 1)
	}
	for n := range meta.Routing.Groups {
		if meta.Restore != nil {
			break // the test lists the groups
		}
		c.setOwner(placement.NewGroup(meta.Routing, placement.GroupName(n), n), shards[n%len(shards)])
	}
	if c.gateway, err = gateway.Start(ctx, c.config(cfg)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if c.gateway == nil { // the test has already stopped the gateway
			return
		}
		stop, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		if err := c.gateway.Stop(stop); err != nil {
			t.Error(err)
		}
	})
	// The windows have a fixed size. On a slow machine, a window that grows with the round-trip time would move bytes
	// to the reader's side. The tests of stalled readers expect these bytes in the gateway.
	windows := []grpc.DialOption{grpc.WithInitialWindowSize(64 << 10), grpc.WithInitialConnWindowSize(64 << 10)}
	c.conn = c.dial(c.gateway, windows...)
	c.records, c.admin = recordv1.NewRecordServiceClient(c.conn), recordv1.NewAdminServiceClient(c.conn)
	return c
}

// config completes a configuration for a gateway of the cluster.
func (c *cluster) config(cfg gateway.Config) gateway.Config {
	cfg.Listen, cfg.Store, cfg.Listener, cfg.Dial = "gateway:0", c.store, c.network.Listen, c.network.Dial
	return cfg
}

// dial returns a connection to a gateway. The connection is closed when the test has finished.
func (c *cluster) dial(g *gateway.Gateway, options ...grpc.DialOption) *grpc.ClientConn {
	c.t.Helper()
	options = append(options, grpc.WithTransportCredentials(insecure.NewCredentials()), c.network.Dialer())
	conn, err := grpc.NewClient(bubbletest.Target(g.Addr()), options...)
	must.OK(c.t, err)
	c.t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// another starts a second gateway with a different configuration, and waits until it has reached the given epoch.
func (c *cluster) another(cfg gateway.Config, epoch uint64) recordv1.RecordServiceClient {
	c.t.Helper()
	g, err := gateway.Start(c.ctx, c.config(cfg))
	must.OK(c.t, err)
	c.t.Cleanup(func() {
		stop, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		if err := g.Stop(stop); err != nil {
			c.t.Error(err)
		}
	})
	for g.Epoch() < epoch {
		if c.ctx.Err() != nil {
			c.t.Fatalf("the second gateway is at epoch %d, not %d", g.Epoch(), epoch)
		}
		time.Sleep(time.Millisecond)
	}
	return recordv1.NewRecordServiceClient(c.dial(g))
}

func hash(groups int) placement.Meta {
	return placement.Meta{StoreUUID: uuid.New(), Routing: placement.Routing{Mode: placement.Hash, Groups: groups},
		Copies: 1}
}

func named() placement.Meta {
	return placement.Meta{StoreUUID: uuid.New(), Routing: placement.Routing{Mode: placement.Named}, Copies: 1}
}

// start runs and registers a stand-in on a free port. A second start under the same name is a restart that keeps the
// records.
func (c *cluster) start(name string, volume uuid.UUID, generation uint64) *standIn {
	c.t.Helper()
	return c.startAt(name, name+":0", volume, generation)
}

func (c *cluster) startAt(name, address string, volume uuid.UUID, generation uint64) *standIn {
	c.t.Helper()
	listener, err := c.network.Listen(c.ctx, address)
	must.OK(c.t, err)
	s := &standIn{
		name: name, volume: volume, address: listener.Addr().String(), records: map[string]map[int64]*recordv1.Record{},
		requests: map[string]string{}, calls: map[string]int{}, routing: c.meta.Routing, server: grpc.NewServer(),
	}
	if old := c.shards[name]; old != nil {
		s.records, s.requests, s.applied = old.records, old.requests, old.applied
	}
	recordv1.RegisterRecordServiceServer(s.server, s)
	recordv1.RegisterAdminServiceServer(s.server, s)
	s.listener = livenesstest.Listen(listener)
	go func() { _ = s.server.Serve(s.listener) }()
	c.t.Cleanup(s.listener.GoOn)
	c.t.Cleanup(s.server.Stop)
	stop, err := c.store.RegisterShard(c.ctx, placement.Shard{
		Name: name, Address: s.address, VolumeUUID: volume, Generation: generation, CapacityBytes: 1 << 30,
	})
	must.OK(c.t, err)
	c.t.Cleanup(stop)
	c.shards[name], c.stops[name] = s, stop
	return s
}

// setOwner writes to etcd that the given shard is the group's only member, and its leader. It returns the revision of
// this change.
func (c *cluster) setOwner(g placement.Group, shard string) int64 {
	c.t.Helper()
	g.Members = []placement.Member{{Shard: shard, VolumeUUID: c.shards[shard].volume, RaftID: 1}}
	g.Leader = shard
	g, err := c.store.PutGroup(c.ctx, g)
	must.OK(c.t, err)
	return g.Revision
}

// awaitEpoch waits until the gateway has received the state of etcd at the given revision.
func (c *cluster) awaitEpoch(revision int64) {
	c.t.Helper()
	for c.gateway.Epoch() < uint64(revision) {
		if c.ctx.Err() != nil {
			c.t.Fatalf("the gateway is at epoch %d, not %d", c.gateway.Epoch(), revision)
		}
		time.Sleep(time.Millisecond)
	}
}

func reasonOf(err error) string {
	for _, d := range status.Convert(err).Details() {
		if info, ok := d.(*errdetails.ErrorInfo); ok {
			return info.GetReason()
		}
	}
	return ""
}

func wantError(t *testing.T, err error, code codes.Code, reason string) {
	t.Helper()
	if status.Code(err) != code || reasonOf(err) != reason {
		t.Fatalf("got %v (reason %q), want %v %s", err, reasonOf(err), code, reason)
	}
}
