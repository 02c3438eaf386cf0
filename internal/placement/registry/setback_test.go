package registry_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"sheaf.dev/sheaf/internal/placement"
	"sheaf.dev/sheaf/internal/placement/registry"
	"sheaf.dev/sheaf/internal/test/memetcdtest"
	"sheaf.dev/sheaf/internal/test/must"
	"sheaf.dev/sheaf/internal/test/placementtest"
)

// grownSince restores a backup of etcd and calls change, which makes the writes that other processes would make in
// the meantime. It returns a backup of the result.
func grownSince(t *testing.T, backup memetcdtest.Backup, name string,
	change func(store *registry.Store)) memetcdtest.Backup {
	t.Helper()
	server := memetcdtest.New(t)
	server.Restore(backup)
	store, err := registry.NewStore(server.Client(t), name, nil)
	must.OK(t, err)
	change(store)
	return server.Backup()
}

// etcd is rolled back while three processes use it: a shard that watches its own groups, a process that watches
// everything, and one that lists etcd now and then. Each of them must notice the rollback, no matter how many writes
// the older etcd receives before the process reaches it again.
func TestAnOlderEtcdIsNoticedByWhatItHolds(t *testing.T) {
	for name, c := range map[string]struct {
		mine, others int // number of writes after the backup, to the shard's own group and to other groups
		grown        int // number of writes to the older etcd before the process reaches etcd again
	}{
		"only others' groups had changed":                                {0, 20, 5},
		"its own group had changed, and the older etcd has outgrown all": {3, 3, 40},
		"its own group had changed last, and others go on from there":    {1, 0, 40},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { noticed(t, c.mine, c.others, c.grown) })
		})
	}
}

func noticed(t *testing.T, mine, others, grown int) {
	ctx := testContext(t)
	own, client := newBackedUp(t)
	store := newStore(t, client)
	meta := namedMeta()
	mustInit(t, ctx, store, meta)
	write := func(store *registry.Store, name, shard string) placement.Group {
		t.Helper()
		var g placement.Group // the group as etcd holds it
		must.OK(t, placementtest.Again(ctx, func() (err error) {
			g, _, err = store.CreateGroup(ctx, placement.NewGroup(meta.Routing, name, 0))
			return err
		}))
		g.Members = []placement.Member{{Shard: shard, VolumeUUID: volumeOf(shard), RaftID: 1}}
		g.Term++
		g = mustPut(t, ctx, store, g)
		return g
	}
	write(store, "mine", "b")
	write(store, "other", "a")
	write(store, "third", "a")
	shard, gateway, planner := sameStore(t, client, store), sameStore(t, client, store), sameStore(t, client, store)
	views := shard.Follow(ctx, placement.Progress{}, placement.Own{Shard: "b"})
	watched := gateway.Watch(ctx)
	<-views
	<-watched
	backup := own.Backup()
	var last placement.Group
	for range others {
		write(store, "other", "a")
	}
	for range mine {
		last = write(store, "mine", "b")
	}
	if mine > 0 {
		await(t, ctx, views, "its own group as it is", func(v placement.View) bool {
			return v.Groups["mine"].Revision == last.Revision
		})
	}
	written := time.Now()
	eventually(t, ctx, "all have heard of etcd since", func() bool {
		atShard, _ := shard.LastAnswer()
		atGateway, _ := gateway.LastAnswer()
		return atShard.After(written) && atGateway.After(written)
	})
	view, err := planner.View(ctx)
	must.OK(t, err)
	older := grownSince(t, backup, store.Name(), func(store *registry.Store) {
		for range grown {
			write(store, "third", "a")
		}
	})
	own.Restore(older)

	if _, err := planner.PlanOnce(ctx, meta.StoreUUID, meta.Policy()); err == nil {
		t.Errorf("it is planned on an older etcd")
	} else if fresh, err := sameStore(t, client, store).View(ctx); err != nil || fresh.Freeze == nil {
		t.Errorf("it is not frozen: %+v, %v", fresh.Freeze, err)
	}
	held := await(t, ctx, views, "the shard notices", func(v placement.View) bool { return v.SetBack != "" })
	t.Log("the shard:", held.SetBack)
	eventually(t, ctx, "the gateway holds on to what it knew", func() bool {
		_, held := gateway.LastAnswer()
		return held != ""
	})
	// The process restarts, as after a kill. It knows the mark that the shard's volume has stored.
	restarted := sameStore(t, client, store)
	first := <-restarted.Follow(ctx, placement.Progress{Store: meta.StoreUUID, Mark: view.Mark}, placement.Own{Shard: "b"})
	if first.SetBack == "" {
		t.Errorf("a shard that starts follows it: %+v", first)
	}
}

func eventually(t *testing.T, ctx context.Context, what string, is func() bool) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !is() {
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatalf("waited in vain: %s", what)
		}
	}
}
