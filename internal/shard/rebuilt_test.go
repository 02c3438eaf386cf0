package shard

import (
	"context"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"sheaf.dev/sheaf/client/recordv1"
	"sheaf.dev/sheaf/internal/placement"
	"sheaf.dev/sheaf/internal/placement/registry"
	"sheaf.dev/sheaf/internal/placement/rescue"
	"sheaf.dev/sheaf/internal/placement/survey"
	"sheaf.dev/sheaf/internal/test/etcdserver"
)

// The tests in this file run in real time, because they use a real etcd and its socket.

// A shard's problems with etcd disappear when their causes end. In this test, etcd is stopped, comes back empty, and is
// rebuilt from the shard's volume.
func TestProblemsEndWhenEtcdWasRebuilt(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("short: rebuilds a real etcd")
	}
	address := "unix://" + filepath.Join(t.TempDir(), "etcd.sock")
	begin := func() *etcdserver.Server {
		server, err := etcdserver.Start(t.TempDir(), address)
		must(t, err)
		t.Cleanup(server.Close)
		return server
	}
	server := begin()
	client, err := server.Client()
	must(t, err)
	t.Cleanup(func() { _ = client.Close() })
	store, err := registry.NewStore(client, "test", nil)
	must(t, err)
	ctx := context.Background()
	id := uuid.New()
	meta, err := store.InitMeta(ctx, placement.Meta{StoreUUID: id, Routing: hash4, Copies: 1, CreatedUTC: time.Now().UTC().
		Format(time.RFC3339)})
	must(t, err)
	f := &fixture{t: t, cfg: Config{
		Name: "s1", Dir: t.TempDir(), Listen: "127.0.0.1:0", Placement: store, SegmentBytes: 1 << 20, ReserveBytes: 16 << 20,
		Compaction: Compaction{Off: true}, ReportInterval: 20 * time.Millisecond, Logger: slog.New(slog.DiscardHandler),
	}}
	f.run()
	serving := func() int {
		n := 0
		for _, g := range f.shard.Status().Groups {
			if g.GetState().Word() == "Serving" {
				n++
			}
		}
		return n
	}
	// A group serves calls as soon as etcd lists it at this shard. etcd lists it shortly after the group is loaded.
	f.eventually("all groups serve", func() bool {
		if _, err := store.PlanOnce(ctx, id, meta.Policy()); err != nil || serving() != 4 {
			return false
		}
		for i := range int64(10) {
			if _, err := f.records.Get(f.ctx(), &recordv1.GetRequest{Key: key(i)}); status.Code(err) != codes.NotFound {
				return false
			}
		}
		// The shard reports the sizes of groups that have a member in its view of etcd. A group begins to serve after a
		// write to etcd, and the shard receives the resulting view only after that. If etcd were stopped in between, the
		// shard would never receive the view.
		for _, g := range f.shard.replicas.Routes().View.Groups {
			if len(g.Members) == 0 {
				return false
			}
		}
		return true
	})

	server.Close()
	f.putEach(8, 1<<20)
	f.eventually("the failed report is a problem", func() bool {
		return slices.ContainsFunc(f.shard.Status().GetShard().Problems, func(p string) bool {
			return strings.HasPrefix(p, "reporting to etcd")
		})
	})

	begin()
	volume, err := survey.Volume(ctx, f.shard.Addr(), insecure.NewCredentials())
	must(t, err)
	rebuilt, err := rescue.Rebuild(id, []rescue.FoundVolume{volume}, nil)
	must(t, err)
	f.eventually("etcd takes the placement again", func() bool { return store.Restore(ctx, rebuilt, true) == nil })
	f.put(9, data(9, 1<<20))
	f.eventually("the problem is over", func() bool {
		return serving() == 4 &&
			len(f.shard.Status().GetShard().Problems) == 0
	})
}

// A shard's failure to create a group is a problem of the shard. The problem must also end if an administrator
// changes the group's target, so that this shard no longer has to create the group.
func TestProblemOfAGroupEndsWhenNothingIsToBeDone(t *testing.T) {
	registry := newRegistry(named, "s1")
	f := start(t, registry, nil)
	registry.mu.Lock()
	registry.refuse = true
	registry.mu.Unlock()
	g := placement.NewGroup(named, "quotes", 0)
	registry.change(func(v *placement.View) {
		g.Revision = int64(v.Epoch)
		v.Groups["quotes"], v.Targets["quotes"] = g, placement.Target{Group: "quotes", Shards: []string{"s1"}}
	})
	f.eventually("etcd is not told", func() bool {
		return slices.ContainsFunc(f.shard.Status().GetShard().Problems, func(p string) bool {
			return strings.HasPrefix(p, "group quotes")
		})
	})
	registry.change(func(v *placement.View) {
		delete(v.Groups, "quotes")
		delete(v.Targets, "quotes")
	})
	f.eventually("the problem is over", func() bool { return len(f.shard.Status().GetShard().Problems) == 0 })
}
