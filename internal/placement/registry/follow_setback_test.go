package registry_test

import (
	"testing"
	"testing/synctest"

	"github.com/google/uuid"

	"sheaf.dev/sheaf/internal/placement"
	"sheaf.dev/sheaf/internal/test/must"
)

// A freeze may be the first change that a shard sees from an etcd that was rolled back. A view with this freeze must
// not contain shards from the earlier state of etcd, because the shards in a view determine which volumes are
// trusted.
func TestAFreezeIsSeenWithTheShardsOfItsOwnEtcd(t *testing.T) {
	synctest.Test(t, aFreezeIsSeenWithTheShardsOfItsOwnEtcd)
}

func aFreezeIsSeenWithTheShardsOfItsOwnEtcd(t *testing.T) {
	ctx := testContext(t)
	own, client := newBackedUp(t)
	store := newStore(t, client)
	mustInit(t, ctx, store, namedMeta())
	for _, shard := range []string{"a", "b"} {
		if _, err := store.RegisterShard(ctx, placement.Shard{Name: shard, VolumeUUID: uuid.New(),
			Address: shard + ":1"}); err != nil {
			t.Fatal(err)
		}
	}
	g := placement.NewGroup(placement.Routing{Mode: placement.Named}, "of-both", 0)
	// Both shards are members of the group, so shard b also follows the registration of shard a.
	for n, shard := range []string{"a", "b"} {
		g.Members = append(g.Members, placement.Member{Shard: shard, VolumeUUID: uuid.New(), RaftID: uint64(n + 1)})
	}
	mustPut(t, ctx, store, g)
	follower := sameStore(t, client, store)
	views := follower.Follow(ctx, placement.Progress{}, placement.Own{Shard: "b"})
	await(t, ctx, views, "both shards", func(v placement.View) bool { return len(v.Shards) == 2 })
	backup := own.Backup()
	// This write, which removes shard a, is not in the backup, so the revision of the backup is lower.
	if _, err := client.Delete(ctx, "/sheaf/"+store.Name()+"/shards/a"); err != nil {
		t.Fatal(err)
	}
	await(t, ctx, views, "a is gone", func(v placement.View) bool { return len(v.Shards) == 1 })
	own.Restore(backup)
	must.OK(t, store.Freeze(ctx, "the test", "it was set back"))
	await(t, ctx, views, "the freeze", func(v placement.View) bool {
		if _, there := v.Shards["a"]; v.Held() != "" && !there {
			t.Fatalf("the view says %q, and has the shards of the etcd of before: %v", v.Held(), v.Shards)
		}
		return v.Freeze != nil
	})
}
