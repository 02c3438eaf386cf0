package registry_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"sheaf.dev/sheaf/internal/placement"
	"sheaf.dev/sheaf/internal/placement/registry"
	"sheaf.dev/sheaf/internal/test/etcdtest"
	"sheaf.dev/sheaf/internal/test/memetcdtest"
	"sheaf.dev/sheaf/internal/test/must"
	"sheaf.dev/sheaf/internal/test/placementtest"
)

func TestMain(m *testing.M) { etcdtest.Main(m) }

// onEtcd returns a client for a real etcd, for the few tests that need one. All other tests run in virtual time on an
// in-memory etcd (see memetcdtest).
func onEtcd(tb testing.TB) *clientv3.Client {
	tb.Helper()
	client, err := etcdtest.Shared(tb).Client()
	must.OK(tb, err)
	tb.Cleanup(func() { _ = client.Close() })
	return client
}

func newStore(t *testing.T, client *clientv3.Client) *registry.Store {
	t.Helper()
	store, err := registry.NewStore(client, "s-"+uuid.NewString(), nil)
	must.OK(t, err)
	return store
}

func testContext(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	t.Cleanup(cancel)
	return ctx
}

func hashMeta(groups int) placement.Meta {
	return placement.Meta{StoreUUID: uuid.New(), Routing: placement.Routing{Mode: placement.Hash, Groups: groups},
		Copies: 1}
}

func namedMeta() placement.Meta {
	return placement.Meta{StoreUUID: uuid.New(), Routing: placement.Routing{Mode: placement.Named}, Copies: 1}
}

func mustInit(t *testing.T, ctx context.Context, store *registry.Store, meta placement.Meta) {
	t.Helper()
	must.OK(t, placementtest.Again(ctx, func() error {
		_, err := store.InitMeta(ctx, meta)
		return err
	}))
}

// madeStore returns an in-memory etcd and a store that was created in it.
func madeStore(t *testing.T, ctx context.Context, meta placement.Meta) (*memetcdtest.Server, *registry.Store) {
	t.Helper()
	server := memetcdtest.New(t)
	store := newStore(t, server.Client(t))
	mustInit(t, ctx, store, meta)
	return server, store
}

// mustTarget writes targets, and fails the test on an error.
func mustTarget(t *testing.T, ctx context.Context, store *registry.Store, targets ...placement.Target) {
	t.Helper()
	must.OK(t, placementtest.Again(ctx, func() error { return store.SetTargets(ctx, targets) }))
}

// mustPut writes a group that has not changed since it was read. If etcd applies an attempt but responds too late,
// mustPut accepts that the next attempt finds the group already written.
func mustPut(t *testing.T, ctx context.Context, store *registry.Store, g placement.Group) (written placement.Group) {
	t.Helper()
	tries := 0
	must.OK(t, placementtest.Again(ctx, func() (err error) {
		tries++
		written, err = store.PutGroup(ctx, g)
		if tries == 1 || !errors.Is(err, placement.ErrChanged) {
			return err
		}
		there, readErr := store.Group(ctx, g.Name)
		want := g
		want.Revision = there.Revision
		if readErr != nil || !reflect.DeepEqual(there, want) {
			return errors.Join(err, readErr)
		}
		written = there
		return nil
	}))
	return written
}

func shard(name string) placement.Shard {
	return placement.Shard{Name: name, Address: "127.0.0.1:1", VolumeUUID: uuid.New(), Generation: 1}
}

// await receives views until want returns true for one of them.
func await(t *testing.T, ctx context.Context, views <-chan placement.View, what string,
	want func(placement.View) bool) placement.View {
	t.Helper()
	var last placement.View
	for {
		select {
		case v, ok := <-views:
			if !ok {
				t.Fatalf("the watch ended before %s", what)
			}
			if v.Epoch < last.Epoch || v.Epoch == last.Epoch && !v.Own {
				t.Fatalf("epoch %d after %d", v.Epoch, last.Epoch)
			}
			if last = v; want(v) {
				return v
			}
		case <-ctx.Done():
			t.Fatalf("no view with %s; the last one: %+v", what, last)
		}
	}
}

func TestInitMetaKeepsTheFirst(t *testing.T) { synctest.Test(t, initMetaKeepsTheFirst) }

func initMetaKeepsTheFirst(t *testing.T) {
	ctx := testContext(t)
	store := newStore(t, memetcdtest.New(t).Client(t))
	if _, err := store.Meta(ctx); !errors.Is(err, placement.ErrNoMeta) {
		t.Fatalf("Meta of no store: %v", err)
	}
	if _, err := store.View(ctx); !errors.Is(err, placement.ErrNoMeta) {
		t.Fatalf("View of no store: %v", err)
	}
	first, second := hashMeta(4), hashMeta(8)
	mustInit(t, ctx, store, first)
	there, err := store.InitMeta(ctx, second)
	if err != nil || there != first {
		t.Fatalf("second InitMeta: %+v, %v; want the first one's %+v", there, err, first)
	}
	if read, err := store.Meta(ctx); err != nil || read != first {
		t.Fatalf("Meta: %+v, %v", read, err)
	}
}

func TestWrongInputIsRefused(t *testing.T) { synctest.Test(t, wrongInputIsRefused) }

func wrongInputIsRefused(t *testing.T) {
	ctx := testContext(t)
	client := memetcdtest.New(t).Client(t)
	for _, name := range []string{"", "A", "a/b", "-a", ".a"} {
		if _, err := registry.NewStore(client, name, nil); err == nil {
			t.Errorf("store name %q was taken", name)
		}
	}
	store := newStore(t, client)
	for _, meta := range []placement.Meta{
		{}, {StoreUUID: uuid.New(), Copies: 1}, {StoreUUID: uuid.New(), Copies: 2,
			Routing: placement.Routing{Mode: placement.Named}},
		{StoreUUID: uuid.New(), Copies: 1, Routing: placement.Routing{Mode: placement.Named, Groups: 3}},
		{StoreUUID: uuid.New(), Copies: 1, Routing: placement.Routing{Mode: placement.Hash}},
		{StoreUUID: uuid.New(), Copies: 1, Routing: placement.Routing{Mode: placement.Hash, Groups: 65537}},
	} {
		if _, err := store.InitMeta(ctx, meta); err == nil {
			t.Errorf("meta %+v was taken", meta)
		}
	}
	bad := []placement.Shard{shard("UP"), shard(""), shard("ok"), shard("ok"), shard("ok")}
	bad[2].VolumeUUID, bad[3].Address, bad[4].State = uuid.Nil, "nowhere", "Asleep"
	for _, s := range bad {
		if _, err := store.RegisterShard(ctx, s); err == nil {
			t.Errorf("shard %+v was taken", s)
		}
	}
	for _, name := range []string{"", ".hidden", "a/b", "ä"} {
		if _, _, err := store.CreateGroup(ctx, placement.Group{Name: name, UUID: uuid.New()}); err == nil {
			t.Errorf("group name %q was taken", name)
		}
	}
	if err := registry.RunPlanner(ctx, store, placement.Policy{Copies: 2}, slog.New(slog.DiscardHandler)); err == nil {
		t.Error("a policy of 2 copies was taken")
	}
}

func TestPutGroupWritesOnlyWhatIsUnchanged(t *testing.T) {
	synctest.Test(t, putGroupWritesOnlyWhatIsUnchanged)
}

func putGroupWritesOnlyWhatIsUnchanged(t *testing.T) {
	ctx := testContext(t)
	_, store := madeStore(t, ctx, namedMeta())
	g, created, err := store.CreateGroup(ctx, placement.NewGroup(placement.Routing{Mode: placement.Named}, "day", 0))
	if err != nil || !created || g.Revision == 0 {
		t.Fatalf("CreateGroup: %+v, %v, %v", g, created, err)
	}
	again, created, err := store.CreateGroup(ctx, placement.NewGroup(placement.Routing{Mode: placement.Named}, "day", 0))
	if err != nil || created || again.UUID != g.UUID {
		t.Fatalf("second CreateGroup: %+v, %v, %v; want the first one's UUID %s", again, created, err, g.UUID)
	}
	g.Leader = "a"
	newer, err := store.PutGroup(ctx, g)
	must.OK(t, err)
	if _, err := store.PutGroup(ctx, g); !errors.Is(err, placement.ErrChanged) {
		t.Fatalf("PutGroup of an old revision: %v", err)
	}
	if _, err := store.PutGroup(ctx, newer); err != nil {
		t.Fatalf("PutGroup of the new revision: %v", err)
	}
}

func TestUpdateGroupLosesNoChange(t *testing.T) { synctest.Test(t, updateGroupLosesNoChange) }

func updateGroupLosesNoChange(t *testing.T) {
	ctx := testContext(t)
	store := newStore(t, memetcdtest.New(t).Client(t))
	mustPut(t, ctx, store, placement.NewGroup(placement.Routing{Mode: placement.Named}, "n", 0))
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			for range 10 {
				if _, err := placementtest.UpdateGroup(ctx, store, "n", func(g *placement.Group) error {
					g.Records++
					return nil
				}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	if g, err := store.Group(ctx, "n"); err != nil || g.Records != 40 {
		t.Fatalf("%d records, %v; want 40", g.Records, err)
	}
}

func TestGroupLimit(t *testing.T) { synctest.Test(t, groupLimit) }

func groupLimit(t *testing.T) {
	ctx := testContext(t)
	store := newStore(t, memetcdtest.New(t).Client(t))
	named := placement.Routing{Mode: placement.Named}
	for n := range 3 {
		if _, created, err := store.CreateGroup(ctx, placement.NewGroup(named, fmt.Sprint("g", n), 0),
			placement.Bound{Most: 3}); err != nil || !created {
			t.Fatalf("group %d: %v, %v", n, created, err)
		}
	}
	if _, _, err := store.CreateGroup(ctx, placement.NewGroup(named, "g3", 0), placement.Bound{Most: 3}); !errors.Is(err,
		placement.ErrGroupLimit) {
		t.Fatalf("group beyond the limit: %v", err)
	}
	if _, created, err := store.CreateGroup(ctx, placement.NewGroup(named, "g1", 0),
		placement.Bound{Most: 3}); err != nil || created {
		t.Fatalf("group that is there, at the limit: %v, %v", created, err)
	}
}

// Even if several processes create groups with one prefix at the same moment, the bound for that prefix is never
// exceeded. Groups with other prefixes do not count towards it.
func TestABoundOfGroupsIsExact(t *testing.T) { synctest.Test(t, aBoundOfGroupsIsExact) }

func aBoundOfGroupsIsExact(t *testing.T) {
	ctx := testContext(t)
	etcd := memetcdtest.New(t)
	named := placement.Routing{Mode: placement.Named}
	bounds := []placement.Bound{{Prefix: "team-", Most: 5}, {Most: 100}}
	var made, refused atomic.Int64
	var all sync.WaitGroup
	for process := range 3 {
		store, err := registry.NewStore(etcd.Client(t), "quotes", nil)
		must.OK(t, err)
		for n := range 4 {
			all.Go(func() {
				_, created, err := store.CreateGroup(ctx, placement.NewGroup(named, fmt.Sprintf("team-%d-%d", process, n), 0),
					bounds...)
				limit, over := errors.AsType[*placement.LimitError](err)
				switch {
				case over && limit.Groups == 5 && limit.Bound == bounds[0]:
					refused.Add(1)
				case err == nil && created:
					made.Add(1)
				default:
					t.Errorf("%v, %v", created, err)
				}
			})
			all.Go(func() {
				mustPut(t, ctx, store, placement.NewGroup(named, fmt.Sprintf("other-%d-%d", process, n), 0))
			})
		}
	}
	all.Wait()
	if made.Load() != 5 || refused.Load() != 7 {
		t.Errorf("%d groups were created and %d refused, of 12 with a bound of 5", made.Load(), refused.Load())
	}
}

// A deleted group is not in any view, does not count towards a bound, and is not overwritten by a leader that has not
// noticed the deletion. Its name can be used again. No process mistakes the deletion for a rollback of etcd.
func TestADeletedGroupIsNoSetback(t *testing.T) { synctest.Test(t, aDeletedGroupIsNoSetback) }

func aDeletedGroupIsNoSetback(t *testing.T) {
	ctx := testContext(t)
	etcd := memetcdtest.New(t)
	store := newStore(t, etcd.Client(t))
	named := placement.Routing{Mode: placement.Named}
	if _, err := store.InitMeta(ctx, placement.Meta{StoreUUID: uuid.New(), Routing: named, Copies: 1}); err != nil {
		t.Fatal(err)
	}
	one := placement.Bound{Prefix: "t-", Most: 1}
	g, _, err := store.CreateGroup(ctx, placement.NewGroup(named, "t-1", 0), one)
	must.OK(t, err)
	must.OK(t, store.SetTargets(ctx, []placement.Target{{Group: "t-1", Shards: []string{"s1"}}}))
	followed := store.Watch(ctx)
	if view := <-followed; view.Groups["t-1"].UUID != g.UUID {
		t.Fatalf("%+v", view)
	}
	stale := g
	stale.Revision--
	if err := store.DeleteGroup(ctx, stale); !errors.Is(err, placement.ErrChanged) {
		t.Errorf("delete of a group that has changed since: %v", err)
	}
	other := g
	other.UUID = uuid.New() // after a rollback, etcd has used the same revision for a different group
	if err := store.DeleteGroup(ctx, other); !errors.Is(err, placement.ErrChanged) {
		t.Errorf("delete of a group whose name another group has: %v", err)
	}
	must.OK(t, store.DeleteGroup(ctx, g))
	var last placement.View
	for range 2 {
		time.Sleep(time.Minute)
		for more := true; more; {
			select {
			case last = <-followed:
			default:
				more = false
			}
		}
		etcd.BreakWatches() // every process that follows the store then has to list the groups again
	}
	if len(last.Groups) != 0 || last.Deleted["t-1"] != g.UUID || last.Held() != "" ||
		len(last.Targets["t-1"].Shards) != 0 {
		t.Errorf("groups %v, targets %v, deleted %v, held: %s", last.Groups, last.Targets, last.Deleted, last.Held())
	}
	if why, held := store.LastAnswer(); held != "" {
		t.Errorf("%v, held: %s", why, held)
	}
	if _, err := store.PutGroupAsLeader(ctx, g); !errors.Is(err, placement.ErrNoGroup) {
		t.Errorf("its leader writes it: %v", err)
	}
	if _, err := store.Group(ctx, "t-1"); !errors.Is(err, placement.ErrNoGroup) {
		t.Errorf("%v", err)
	}
	next, created, err := store.CreateGroup(ctx, placement.NewGroup(named, "t-1", 0), one)
	if err != nil || !created || next.UUID == g.UUID {
		t.Fatalf("%+v, %v, %v", next, created, err)
	}
	if _, _, err := store.CreateGroup(ctx, placement.NewGroup(named, "t-2", 0), one); !errors.Is(err,
		placement.ErrGroupLimit) {
		t.Errorf("a second group within a bound of one: %v", err)
	}
	ledgers, err := store.Ledgers(ctx, []registry.TenantKey{{Name: "t", Prefix: "t-"}})
	if err != nil || ledgers[0].Groups != 1 {
		t.Errorf("%+v, %v", ledgers, err)
	}
	if view, err := store.View(ctx); err != nil || view.Groups["t-1"].UUID != next.UUID || len(view.Deleted) != 0 {
		t.Errorf("%+v, %v", view, err)
	}
}

func TestRegisterShardRefusesAnotherVolumeAndAClone(t *testing.T) {
	synctest.Test(t, registerShardRefusesAnotherVolumeAndAClone)
}

func registerShardRefusesAnotherVolumeAndAClone(t *testing.T) {
	ctx := testContext(t)
	store := newStore(t, memetcdtest.New(t).Client(t))
	first := shard("a")
	stop, err := store.RegisterShard(ctx, first)
	must.OK(t, err)
	defer stop()
	if _, err := store.RegisterShard(ctx, shard("a")); !errors.Is(err, placement.ErrNameTaken) {
		t.Fatalf("another volume: %v", err)
	}
	clone := first
	clone.Address = "127.0.0.1:2"
	if _, err := store.RegisterShard(ctx, clone); !errors.Is(err, placement.ErrNameTaken) {
		t.Fatalf("a clone of the same generation: %v", err)
	}
	clone.Generation = 2 // a restart of the process raises the generation
	stopAgain, err := store.RegisterShard(ctx, clone)
	if err != nil {
		t.Fatalf("a later generation: %v", err)
	}
	defer stopAgain()
	if _, err := store.RegisterShard(ctx, first); !errors.Is(err, placement.ErrNameTaken) {
		t.Fatalf("an earlier generation: %v", err)
	}
	stopAgain()
	stopOther, err := store.RegisterShard(ctx, shard("a"))
	if err != nil {
		t.Fatalf("another volume after the first was stopped: %v", err)
	}
	stopOther()
}

func TestWatchSeesEveryKindOfChangeCoherently(t *testing.T) {
	synctest.Test(t, watchSeesEveryKindOfChangeCoherently)
}

func watchSeesEveryKindOfChangeCoherently(t *testing.T) {
	ctx, cancel := context.WithCancel(testContext(t))
	defer cancel()
	// A goroutine that does not return would keep the synctest bubble from ending, so the test would fail.
	store := newStore(t, memetcdtest.New(t).Client(t))
	views := store.Watch(ctx)
	select {
	case v := <-views:
		t.Fatalf("a view of no store: %+v", v)
	case <-time.After(20 * time.Millisecond):
	}
	meta := namedMeta()
	mustInit(t, ctx, store, meta)
	v := await(t, ctx, views, "meta", func(v placement.View) bool { return v.Meta == meta })
	if len(v.Groups)+len(v.Shards)+len(v.Targets) != 0 {
		t.Fatalf("an empty store has %+v", v)
	}
	stop, err := store.RegisterShard(ctx, shard("a"))
	must.OK(t, err)
	await(t, ctx, views, "the shard", func(v placement.View) bool { return v.Shards["a"].Alive })
	g := mustPut(t, ctx, store, placement.NewGroup(meta.Routing, "g", 0))
	v = await(t, ctx, views, "the group", func(v placement.View) bool { return v.Groups["g"].UUID == g.UUID })
	if v.Groups["g"].Revision != g.Revision {
		t.Fatalf("revision %d in the view, %d written", v.Groups["g"].Revision, g.Revision)
	}
	if v.Epoch != uint64(g.Revision) {
		t.Fatalf("epoch %d, the change was at %d", v.Epoch, g.Revision)
	}
	mustTarget(t, ctx, store, placement.Target{Group: "g", Shards: []string{"a"}})
	v = await(t, ctx, views, "the target", func(v placement.View) bool { return len(v.Targets) == 1 })
	listed, err := store.View(ctx)
	must.OK(t, err)
	listed.Epoch = v.Epoch
	if !reflect.DeepEqual(listed, v) {
		t.Fatalf("listed %+v, watched %+v", listed, v)
	}
	stop()
	await(t, ctx, views, "the shard gone", func(v placement.View) bool { return len(v.Shards) == 0 })
	cancel()
	for range views { // the channel is closed when ctx is done
	}
}

func TestWatchAndRegistrationOutliveEtcd(t *testing.T) {
	synctest.Test(t, watchAndRegistrationOutliveEtcd)
}

func watchAndRegistrationOutliveEtcd(t *testing.T) {
	ctx := testContext(t)
	meta := namedMeta()
	server, store := madeStore(t, ctx, meta)
	me := shard("a")
	stop, err := store.RegisterShard(ctx, me)
	must.OK(t, err)
	defer stop()
	views := store.Watch(ctx)
	await(t, ctx, views, "the shard", func(v placement.View) bool { return v.Shards["a"].Alive })
	server.Away()
	// When all goroutines are blocked, the clients have failed to connect again, and are waiting for their next attempt.
	synctest.Wait()
	server.Back()
	// While the watcher is disconnected, another client makes many writes, and etcd compacts their revisions.
	second := server.Client(t)
	other := sameStore(t, second, store)
	for n := range 5 {
		mustPut(t, ctx, other, placement.NewGroup(meta.Routing, fmt.Sprint("g", n), 0))
	}
	server.Compact()
	await(t, ctx, views, "5 groups", func(v placement.View) bool { return len(v.Groups) == 5 })
	// The registration is deleted, which has the same effect as the expiry of its lease. The shard must register again.
	leases, err := second.Leases(ctx)
	must.OK(t, err)
	if len(leases.Leases) == 0 {
		t.Fatal("no lease: the fault cannot be injected")
	}
	registered := func() int64 { // returns the lease of the registration, or 0 if there is none
		t.Helper()
		answer, err := second.Get(ctx, registry.PrefixDefault+"/"+store.Name()+"/shards/a")
		must.OK(t, err)
		if len(answer.Kvs) == 0 {
			return 0
		}
		return answer.Kvs[0].Lease
	}
	before := registered()
	for _, l := range leases.Leases {
		if _, err := second.Revoke(ctx, l.ID); err != nil && !errors.Is(err, rpctypes.ErrLeaseNotFound) {
			t.Fatal(err)
		}
	}
	// The test waits until the shard is registered again. If it read the view earlier, the view might lack the shard.
	for now := registered(); now == 0 || now == before; now = registered() {
		if ctx.Err() != nil {
			t.Fatal("it does not register again")
		}
		time.Sleep(10 * time.Millisecond)
	}
	await(t, ctx, views, "the shard back", func(v placement.View) bool {
		return v.Shards["a"].VolumeUUID == me.VolumeUUID
	})
}

func TestPlannerCreatesHashGroupsAndTargetsOnceForSeveral(t *testing.T) {
	synctest.Test(t, plannerCreatesHashGroupsAndTargetsOnceForSeveral)
}

func plannerCreatesHashGroupsAndTargetsOnceForSeveral(t *testing.T) {
	ctx, cancel := context.WithCancel(testContext(t))
	defer cancel()
	store := newStore(t, memetcdtest.New(t).Client(t))
	const groups = 250
	meta := hashMeta(groups)
	mustInit(t, ctx, store, meta)
	var all sync.WaitGroup
	defer all.Wait()
	defer cancel()
	first, cancelFirst := context.WithCancel(ctx)
	defer cancelFirst()
	for _, c := range []context.Context{first, ctx} {
		all.Go(func() {
			if err := registry.RunPlanner(c, store, placement.Policy{Copies: 1}, slog.New(slog.DiscardHandler)); err != nil {
				t.Error(err)
			}
		})
	}
	views := store.Watch(ctx)
	await(t, ctx, views, "all groups", func(v placement.View) bool { return len(v.Groups) == groups })
	for _, name := range []string{"a", "b"} {
		stop, err := store.RegisterShard(ctx, shard(name))
		must.OK(t, err)
		defer stop()
	}
	v := await(t, ctx, views, "all targets", func(v placement.View) bool { return len(v.Targets) == groups })
	for n := range groups {
		g := v.Groups[placement.GroupName(n)]
		if f, l := meta.Routing.KeyRange(n); g.KeyFirst != f || g.KeyLast != l {
			t.Fatalf("group %d has keys %d to %d, want %d to %d", n, g.KeyFirst, g.KeyLast, f, l)
		}
	}
	// If one planner stops, the other one takes over, no matter which of the two was elected first.
	cancelFirst()
	lateGroup := mustPut(t, ctx, store, placement.NewGroup(meta.Routing, "late", 0))
	await(t, ctx, views, "the target of the late group", func(v placement.View) bool {
		return len(v.Targets[lateGroup.Name].Shards) == 1
	})
}
