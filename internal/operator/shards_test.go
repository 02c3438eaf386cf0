package operator

import (
	"context"
	"errors"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"

	"sheaf.dev/sheaf/client/recordv1"
	"sheaf.dev/sheaf/controllers/fleet"
	"sheaf.dev/sheaf/internal/test/must"
)

// fakeShard simulates a shard that responds with its name, and counts the connections to it.
type fakeShard struct {
	recordv1.UnimplementedAdminServiceServer
	net.Listener
	name     string
	accepted atomic.Int32
	server   *grpc.Server
	silent   atomic.Bool // whether the shard reports that its disk does not respond
	groups   atomic.Int32
}

// askedAt starts a simulated shard at the given address. The address 127.0.0.1:0 chooses a free port.
func askedAt(t *testing.T, address, name string) *fakeShard {
	t.Helper()
	listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", address)
	must.OK(t, err)
	a := &fakeShard{Listener: listener, name: name, server: grpc.NewServer()}
	recordv1.RegisterAdminServiceServer(a.server, a)
	go func() { _ = a.server.Serve(a) }() // Serve returns when the server is stopped
	t.Cleanup(a.server.Stop)
	return a
}

func (a *fakeShard) Accept() (net.Conn, error) {
	conn, err := a.Listener.Accept()
	if err == nil {
		a.accepted.Add(1)
	}
	return conn, err
}

func (a *fakeShard) ListShards(context.Context, *recordv1.ListShardsRequest) (*recordv1.ListShardsResponse, error) {
	shard := &recordv1.Shard{Name: a.name, State: recordv1.ShardState_SHARD_STATE_SERVING}
	if a.silent.Load() {
		shard.VolumeSilent, shard.Problems = true, []string{"a read takes more than 15s"}
	}
	return &recordv1.ListShardsResponse{Shards: []*recordv1.Shard{shard}}, nil
}

func (a *fakeShard) ListGroups(context.Context, *recordv1.ListGroupsRequest) (*recordv1.ListGroupsResponse, error) {
	a.groups.Add(1)
	return &recordv1.ListGroupsResponse{}, nil
}

func describes(t *testing.T, s *Shards, a *fakeShard) {
	t.Helper()
	report, err := s.Describe(t.Context(), fleet.ShardAt{Address: a.Addr().String()})
	if err != nil || report.GetShard().GetName() != a.name {
		t.Fatalf("%+v, %v, want shard %s", report, err, a.name)
	}
}

// A shard that is queried repeatedly is dialled only once.
func TestQueriesShareAConnection(t *testing.T) {
	s := NewShards(nil)
	t.Cleanup(s.Close)
	a, b := askedAt(t, "127.0.0.1:0", "a"), askedAt(t, "127.0.0.1:0", "b")
	for range 5 {
		describes(t, s, a)
		describes(t, s, b)
	}
	if a.accepted.Load() != 1 || b.accepted.Load() != 1 {
		t.Errorf("%d and %d connections for five looks at two shards", a.accepted.Load(), b.accepted.Load())
	}
}

// The next request reaches a shard that has restarted at the same address, even if the previous request failed. It also
// reaches another shard that now has the address.
func TestRestartedShardIsReachedAtOnce(t *testing.T) {
	s := NewShards(nil)
	t.Cleanup(s.Close)
	a := askedAt(t, "127.0.0.1:0", "a")
	describes(t, s, a)
	address := a.Addr().String()
	a.server.Stop()
	for range 3 { // on a kept connection, each failure would make gRPC wait longer before the next attempt
		if report, err := s.Describe(t.Context(), fleet.ShardAt{Address: address}); err == nil ||
			!strings.Contains(err.Error(), address) {
			t.Fatalf("%+v, %v", report, err)
		}
	}
	next := askedAt(t, address, "b")
	describes(t, s, next)
	next.server.Stop() // no request is in progress that would notice the stop of this shard
	describes(t, s, askedAt(t, address, "c"))
}

// A connection that has not been used for a while is closed, so that deleted pods leave no connections behind.
func TestUnusedConnectionsAreClosed(t *testing.T) {
	s := NewShards(nil)
	t.Cleanup(s.Close)
	now := time.Now()
	s.now = func() time.Time { return now }
	a, b := askedAt(t, "127.0.0.1:0", "a"), askedAt(t, "127.0.0.1:0", "b")
	describes(t, s, a)
	describes(t, s, b)
	for range 3 {
		now = now.Add(connectionRest / 2)
		describes(t, s, b)
	}
	way := func(to net.Addr) wayTo { return wayTo{ShardAt: fleet.ShardAt{Address: to.String()}} }
	if s.open[way(a.Addr())] != nil || s.open[way(b.Addr())] == nil || len(s.open) != 1 {
		t.Errorf("%d connections are open, want one to %s: %v", len(s.open), b.Addr(), s.open)
	}
	describes(t, s, a)
	s.Close()
	if len(s.open) != 0 {
		t.Errorf("%d connections are open after the end", len(s.open))
	}
	if _, err := s.Describe(t.Context(), fleet.ShardAt{Address: a.Addr().String()}); err == nil {
		t.Error("it dials after its end")
	}
}

// A shard whose disk hangs still reports that it serves, but calls to its groups may wait.
func TestADiskThatHangsIsDistinguished(t *testing.T) {
	s := NewShards(nil)
	t.Cleanup(s.Close)
	a := askedAt(t, "127.0.0.1:0", "a")
	a.silent.Store(true)
	_, err := s.Describe(t.Context(), fleet.ShardAt{Address: a.Addr().String()})
	if !errors.Is(err, fleet.ErrVolumeSilent) || !strings.Contains(err.Error(), "a read takes more than 15s") ||
		a.groups.Load() != 0 {
		t.Errorf("%v, asked for groups %d times", err, a.groups.Load())
	}
	a.silent.Store(false)
	describes(t, s, a)
	if a.accepted.Load() != 1 {
		t.Errorf("%d connections", a.accepted.Load())
	}
}
