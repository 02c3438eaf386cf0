package registry_test

import (
	"context"
	"errors"
	"reflect"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"

	"sheaf.dev/sheaf/internal/placement"
	"sheaf.dev/sheaf/internal/placement/registry"
	"sheaf.dev/sheaf/internal/placement/rescue"
	"sheaf.dev/sheaf/internal/test/memetcdtest"
	"sheaf.dev/sheaf/internal/test/must"
)

// register registers a shard for the duration of a test.
func register(t *testing.T, store *registry.Store, name string) placement.Shard {
	t.Helper()
	shard := placement.Shard{Name: name, Address: name + ":7610", VolumeUUID: uuid.New(), Generation: 1}
	stop, err := store.RegisterShard(context.Background(), shard)
	must.OK(t, err)
	t.Cleanup(stop)
	return shard
}

func TestPlanOnceByManyAtOnce(t *testing.T) { synctest.Test(t, planOnceByManyAtOnce) }

func planOnceByManyAtOnce(t *testing.T) {
	store := newStore(t, memetcdtest.New(t).Client(t))
	ctx := testContext(t)
	meta := hashMeta(200)
	id := meta.StoreUUID
	for _, err := range []error{
		func() error { _, err := store.PlanOnce(ctx, id, meta.Policy()); return err }(),
		func() error { _, err := store.ViewOf(ctx, id); return err }(),
		store.SetShardState(ctx, id, "a", placement.Draining),
		store.ForgetShard(ctx, id, "a"),
	} {
		if !errors.Is(err, placement.ErrPlacementLost) {
			t.Errorf("an empty etcd: error %v", err)
		}
	}
	if _, err := store.Meta(ctx); !errors.Is(err, placement.ErrNoMeta) {
		t.Fatalf("something made the store: %v", err)
	}
	if _, err := store.InitMeta(ctx, meta); err != nil {
		t.Fatal(err)
	}
	if _, err := store.ViewOf(ctx, uuid.New()); !errors.Is(err, placement.ErrOtherStore) {
		t.Errorf("another store: error %v", err)
	}
	register(t, store, "a")
	register(t, store, "b")
	// Several operators run at the same time. Each of them either succeeds, or gets an error because another one was
	// faster.
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			for {
				did, err := store.PlanOnce(ctx, id, meta.Policy())
				if err == nil && did.GroupsCreated == 0 && did.TargetsWritten == 0 {
					return
				}
				if err != nil && !errors.Is(err, placement.ErrChanged) {
					t.Errorf("error %v", err)
					return
				}
			}
		})
	}
	all.Wait()
	view, err := store.ViewOf(ctx, id)
	if err != nil || len(view.Groups) != 200 || len(view.Targets) != 200 {
		t.Fatalf("%d groups, %d targets, %v", len(view.Groups), len(view.Targets), err)
	}
	if did, err := store.PlanOnce(ctx, id, meta.Policy()); err != nil || did.TargetsWritten != 0 ||
		did.Epoch != view.Epoch {
		t.Errorf("a settled store is written again: %+v, %v", did, err)
	}
}

func TestShardStatesOutliveRegistrations(t *testing.T) {
	synctest.Test(t, shardStatesOutliveRegistrations)
}

func shardStatesOutliveRegistrations(t *testing.T) {
	store := newStore(t, memetcdtest.New(t).Client(t))
	ctx := testContext(t)
	meta := hashMeta(4)
	id := meta.StoreUUID
	if _, err := store.InitMeta(ctx, meta); err != nil {
		t.Fatal(err)
	}
	must.OK(t, store.SetShardState(ctx, id, "a", placement.Cordoned))
	register(t, store, "a")
	register(t, store, "b")
	for range 2 {
		if _, err := store.PlanOnce(ctx, id, meta.Policy()); err != nil {
			t.Fatal(err)
		}
	}
	view, err := store.ViewOf(ctx, id)
	if err != nil || view.Shards["a"].State != placement.Cordoned || view.Shards["b"].State != "" ||
		view.States["a"] != placement.Cordoned {
		t.Fatalf("shards %+v, states %v, %v", view.Shards, view.States, err)
	}
	for name, target := range view.Targets {
		if !reflect.DeepEqual(target.Shards, []string{"b"}) {
			t.Errorf("group %s is wanted on %v: a is cordoned", name, target.Shards)
		}
	}
	// Setting the same state a second time writes nothing.
	must.OK(t, store.SetShardState(ctx, id, "a", placement.Cordoned))
	if again, err := store.ViewOf(ctx, id); err != nil || again.Epoch != view.Epoch {
		t.Errorf("epoch %d after %d, %v", again.Epoch, view.Epoch, err)
	}
	if err := store.SetShardState(ctx, id, "a", "Tired"); err == nil {
		t.Error("a state that cannot be was taken")
	}
	if err := store.ForgetShard(ctx, id, "b"); !errors.Is(err, placement.ErrShardRegistered) {
		t.Errorf("a shard that runs: error %v", err)
	}
	if err := store.ForgetShard(ctx, id, "nobody"); err != nil {
		t.Error(err)
	}
}

// etcd is stopped, wiped and started again while a watcher runs. The watcher must keep its last view, and must not
// follow any other store. Once the placement has been rebuilt, it must continue with a higher epoch.
func TestWatchOverAWipedEtcd(t *testing.T) { synctest.Test(t, watchOverAWipedEtcd) }

func watchOverAWipedEtcd(t *testing.T) {
	server := memetcdtest.New(t)
	client := server.Client(t)
	ctx, store := testContext(t), newStore(t, client)
	meta := hashMeta(3)
	if _, err := store.InitMeta(ctx, meta); err != nil {
		t.Fatal(err)
	}
	volume := uuid.New()
	var groups []placement.Group
	for n := range 3 {
		g := mustPut(t, ctx, store, placement.NewGroup(meta.Routing, placement.GroupName(n), n))
		g.Members, g.Leader = []placement.Member{{Shard: "a", VolumeUUID: volume, RaftID: uint64(n + 7)}}, "a"
		g = mustPut(t, ctx, store, g)
		groups = append(groups, g)
	}
	watched, cancel := context.WithCancel(ctx)
	defer cancel()
	views := store.Watch(watched)
	last := <-views
	for len(last.Groups) < 3 {
		last = <-views
	}

	server.Wipe()
	if _, err := store.ViewOf(ctx, meta.StoreUUID); !errors.Is(err, placement.ErrPlacementLost) {
		t.Fatalf("after the wipe: error %v", err)
	}
	quiet := func(what string) {
		t.Helper()
		select {
		case v := <-views:
			t.Fatalf("%s: a view was given: %+v", what, v)
		case <-time.After(5 * time.Second): // enough time for two checks by the watcher
		}
	}
	quiet("an empty etcd")

	found := rescue.FoundVolume{
		Shard: "a", UUID: volume, Store: meta.StoreUUID,
		Facts: &rescue.FoundFacts{Routing: meta.Routing, Copies: 1, Epoch: last.Epoch},
	}
	for _, g := range groups {
		found.Replicas = append(found.Replicas, rescue.FoundReplica{
			Name: g.Name, UUID: g.UUID, Store: meta.StoreUUID, RaftID: g.Members[0].RaftID,
			Voters: []uint64{g.Members[0].RaftID}, Term: 1, Leader: true,
		})
	}
	rebuilt, err := rescue.Rebuild(meta.StoreUUID, []rescue.FoundVolume{found}, nil)
	if err != nil || len(rebuilt.Missing) != 0 {
		t.Fatalf("%+v, %v", rebuilt, err)
	}
	must.OK(t, store.Restore(ctx, rebuilt, false))
	select {
	case v := <-views:
		if v.Epoch <= last.Epoch || len(v.Groups) != 3 {
			t.Errorf("epoch %d after %d, groups %v", v.Epoch, last.Epoch, v.Groups)
		}
		for _, g := range groups {
			got := v.Groups[g.Name]
			if got.Revision, g.Revision, g.Term = 0, 0, 1; !reflect.DeepEqual(got, g) {
				t.Errorf("group %+v, was %+v", got, g)
			}
		}
	case <-ctx.Done():
		t.Fatal("the placement that was rebuilt is not followed")
	}
	if err := store.Restore(ctx, rebuilt, false); !errors.Is(err, placement.ErrStoreExists) {
		t.Errorf("a second time: error %v", err)
	}
	if err := store.Restore(ctx, rebuilt, true); err != nil {
		t.Errorf("with force: %v", err)
	}
	other := rebuilt
	other.Meta.StoreUUID = uuid.New()
	if err := store.Restore(ctx, other, true); !errors.Is(err, placement.ErrStoreExists) {
		t.Errorf("over another store: error %v", err)
	}
}
