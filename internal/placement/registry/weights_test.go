package registry_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"

	"github.com/google/uuid"
	clientv3 "go.etcd.io/etcd/client/v3"

	"sheaf.dev/sheaf/internal/placement"
	"sheaf.dev/sheaf/internal/placement/registry"
	"sheaf.dev/sheaf/internal/test/memetcdtest"
	"sheaf.dev/sheaf/internal/test/must"
	"sheaf.dev/sheaf/internal/test/placementtest"
)

// led creates a group with one copy, whose leader is the given shard. The group's own key contains the bytes and
// records, as it does if an older version of Sheaf reports them.
func led(t *testing.T, ctx context.Context, store *registry.Store, name, shard string) placement.Group {
	t.Helper()
	g := placement.NewGroup(placement.Routing{Mode: placement.Named}, name, 0)
	g.Members, g.Leader = []placement.Member{{Shard: shard, VolumeUUID: uuid.New(), RaftID: 1}}, shard
	g.Bytes, g.Records, g.Everywhere = 10, 1, 5
	g = mustPut(t, ctx, store, g)
	return g
}

// A view contains the sizes that the shard of a group's leader has reported, provided that this shard still leads the
// group, and that its version of Sheaf reports sizes in separate keys.
func TestViewsHaveWhatLeadersReportOfTheirGroups(t *testing.T) {
	synctest.Test(t, viewsHaveWhatLeadersReportOfTheirGroups)
}

func viewsHaveWhatLeadersReportOfTheirGroups(t *testing.T) {
	ctx, cancel := context.WithCancel(testContext(t))
	t.Cleanup(cancel)
	client := memetcdtest.New(t).Client(t)
	store := newStore(t, client)
	must.OK(t, store.PutWeights(ctx, "a", map[string]registry.Weight{"g": {Bytes: 1}}))
	if answer, err := client.Get(ctx, "/sheaf/"+store.Name()+"/", clientv3.WithPrefix(),
		clientv3.WithCountOnly()); err != nil || answer.Count != 0 {
		t.Fatalf("a store that is not there holds %d keys, %v", answer.Count, err)
	}
	mustInit(t, ctx, store, namedMeta())
	g := led(t, ctx, store, "g", "a")
	views := store.Watch(ctx)
	await(t, ctx, views, "the group", func(v placement.View) bool { return v.Groups["g"].Bytes == 10 })
	has := func(what string, bytes int64) {
		t.Helper()
		want := func(v placement.View) bool { return v.Groups["g"].Bytes == bytes }
		if v, err := store.View(ctx); err != nil || !want(v) {
			t.Fatalf("%s: listed are %d bytes, %v; wanted are %d", what, v.Groups["g"].Bytes, err, bytes)
		}
		for v := range views {
			if want(v) {
				return
			}
		}
		t.Fatalf("%s: the watch ended", what)
	}
	tell := func(shard string, id uuid.UUID, bytes int64) {
		t.Helper()
		must.OK(t, store.PutWeights(ctx, shard, map[string]registry.Weight{"g": {UUID: id, Bytes: bytes, Records: 3,
			Everywhere: 4}}))
	}
	tell("a", g.UUID, 20)
	has("its leader told it", 20)
	if v, err := store.View(ctx); err != nil || v.Groups["g"].Records != 3 || v.Groups["g"].Everywhere != 5 ||
		v.Groups["g"].Revision != g.Revision {
		t.Fatalf("the group is %+v, %v", v.Groups["g"], err)
	}
	tell("b", g.UUID, 30)
	tell("a", g.UUID, 21)
	has("another shard told it too", 21)
	tell("a", uuid.New(), 40)
	has("it was told of another group of that name", 10)
	tell("a", g.UUID, 22)
	has("it was told again", 22)

	// The shard restarts with an older version of Sheaf, which reports sizes in the group's own key, and then again with
	// this version.
	old := shard("a")
	stop, err := store.RegisterShard(ctx, old)
	must.OK(t, err)
	has("an older program leads it", 10)
	stop()
	has("its shard is gone", 22)
	now := old
	now.Generation, now.Weighs = 2, true
	if stop, err = store.RegisterShard(ctx, now); err != nil {
		t.Fatal(err)
	}
	defer stop()
	has("this program leads it again", 22)

	if _, err := placementtest.UpdateGroup(ctx, store, "g", func(g *placement.Group) error {
		g.Leader = "b"
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	has("another leads it", 30)
}

// Reports about many groups need several keys. Every group must be reported, except those that the shard no longer
// leads.
func TestWeightsOfManyGroups(t *testing.T) { synctest.Test(t, weightsOfManyGroups) }

func weightsOfManyGroups(t *testing.T) {
	ctx := testContext(t)
	client := memetcdtest.New(t).Client(t)
	store := newStore(t, client)
	mustInit(t, ctx, store, namedMeta())
	for _, n := range []int{3, 2500, 10_000, 1200, 1} {
		told := map[string]registry.Weight{}
		for i := range n {
			told[fmt.Sprint("g", i)] = registry.Weight{UUID: uuid.New(), Bytes: int64(i)}
		}
		must.OK(t, store.PutWeights(ctx, "a", told))
		heard, err := store.Weights(ctx, "a")
		if err != nil || len(heard) != n {
			t.Fatalf("%d of %d groups are there, %v", len(heard), n, err)
		}
		for name, w := range told {
			if heard[name] != w {
				t.Fatalf("group %s: told was %+v, heard is %+v", name, w, heard[name])
			}
		}
		answer, err := client.Get(ctx, "/sheaf/"+store.Name()+"/weights/", clientv3.WithPrefix())
		must.OK(t, err)
		for _, kv := range answer.Kvs {
			if len(kv.Value) > 512<<10 {
				t.Errorf("key %s has %d bytes", kv.Key, len(kv.Value))
			}
		}
		t.Logf("%d groups: %d keys", n, len(answer.Kvs))
	}
	if heard, err := store.Weights(ctx, "b"); err != nil || len(heard) != 0 {
		t.Errorf("nothing was told by b: %v, %v", heard, err)
	}
	if err := store.PutWeights(ctx, "A/b", nil); err == nil {
		t.Error("a shard of no name told something")
	}
	for value, key := range map[string]string{"{": "/weights/c/0000", `{"shard":"x"}`: "/weights/c/0000"} {
		if _, err := client.Put(ctx, "/sheaf/"+store.Name()+key, value); err != nil {
			t.Fatal(err)
		}
		if _, err := store.Weights(ctx, "c"); err == nil {
			t.Errorf("%s is taken for what groups weigh", value)
		}
	}
}

// A shard's views contain only the shards that are named by its groups, and only its own desired state. The shard can
// still look up a group that it does not follow.
func TestWhatAShardReceives(t *testing.T) { synctest.Test(t, whatAShardReceives) }

func whatAShardReceives(t *testing.T) {
	ctx, cancel := context.WithCancel(testContext(t))
	t.Cleanup(cancel)
	meta := namedMeta()
	server, store := madeStore(t, ctx, meta)
	mine, stray := led(t, ctx, store, "mine", "a"), led(t, ctx, store, "stray", "b")
	foreign := led(t, ctx, store, "foreign", "b")
	f := &follower{name: "a", store: sameStore(t, server.Client(t), store)}
	f.views = f.store.Follow(ctx, placement.Progress{}, placement.Own{Shard: "a", Holds: func(id uuid.UUID) bool {
		return id == stray.UUID
	}})
	first := await(t, ctx, f.views, "everything", func(v placement.View) bool { return len(v.Groups) == 3 })
	if !first.Own {
		t.Fatal("it is not said that the view is for one shard")
	}
	next := func(what string, want func(v placement.View) bool) placement.View {
		t.Helper()
		v := await(t, ctx, f.views, what, want)
		if _, there := v.Groups["foreign"]; there || v.Groups["mine"].UUID != mine.UUID ||
			v.Groups["stray"].UUID != stray.UUID {
			t.Fatalf("%s: the view has %+v", what, v.Groups)
		}
		return v
	}
	mustTarget(t, ctx, store, placement.Target{Group: "mine", Shards: []string{"a", "c"}},
		placement.Target{Group: "foreign", Shards: []string{"b", "d"}})
	next("its target", func(v placement.View) bool { return len(v.Targets) == 1 && v.Targets["mine"].Shards[1] == "c" })
	// Shard d does not concern this shard. It registers first, so if its registration were reported, it would arrive
	// before that of c.
	for _, name := range []string{"d", "c"} {
		stop, err := store.RegisterShard(ctx, shard(name))
		must.OK(t, err)
		defer stop()
	}
	v := next("a shard of its groups", func(v placement.View) bool { return v.Shards["c"].Alive })
	if !v.Shards["d"].Alive {
		t.Error("the other shard is not known")
	}
	must.OK(t, store.SetShardState(ctx, meta.StoreUUID, "b", placement.Draining))
	must.OK(t, store.SetShardState(ctx, meta.StoreUUID, "a", placement.Cordoned))
	if v := next("its state", func(v placement.View) bool {
		return v.States["a"] == placement.Cordoned
	}); v.States["b"] != "" {
		t.Errorf("it hears of the states of others: %v", v.States)
	}
	// A change to a group that is on the shard's volume but is not assigned to the shard does not notify the shard.
	if stray, err := placementtest.UpdateGroup(ctx, store, "stray", func(g *placement.Group) error {
		g.ConfIndex++
		return nil
	}); err == nil {
		next("the group on its volume", func(v placement.View) bool { return v.Groups["stray"].Revision == stray.Revision })
	} else {
		t.Fatal(err)
	}
	if _, err := placementtest.UpdateGroup(ctx, store, "foreign", func(g *placement.Group) error {
		g.Members[0].Shard = "a"
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	await(t, ctx, f.views, "a group that came to it", func(v placement.View) bool {
		return v.Groups["foreign"].UUID == foreign.UUID
	})
	must.OK(t, store.Freeze(ctx, "a test", "it was set back"))
	await(t, ctx, f.views, "the freeze", func(v placement.View) bool { return v.Freeze != nil })

	look, err := f.store.Look(ctx, "stray")
	if err != nil || !look.Own || look.Freeze == nil || look.Meta.StoreUUID != meta.StoreUUID ||
		look.Groups["stray"].Leader != "b" || len(look.Groups) != 1 {
		t.Errorf("asked for a group: %+v, %v", look, err)
	}
	if look, err = f.store.Look(ctx, "mine"); err != nil || !look.Shards["c"].Alive ||
		look.Targets["mine"].Group != "mine" || look.Shards["d"].Alive {
		t.Errorf("asked for a group with a target: %+v, %v", look, err)
	}
	if look, err = f.store.Look(ctx, "none"); err != nil || len(look.Groups) != 0 {
		t.Errorf("asked for a group that is not there: %+v, %v", look, err)
	}
	over, end := context.WithCancel(ctx)
	end()
	if _, err := f.store.Look(over, "none"); !errors.Is(err, context.Canceled) {
		t.Errorf("asked of nobody: %v", err)
	}
}
