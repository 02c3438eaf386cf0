package recordstore

import (
	"slices"
	"testing"

	"sheaf.dev/sheaf/api/v1alpha1"
	"sheaf.dev/sheaf/controllers/fleet"
	"sheaf.dev/sheaf/internal/test/fleettest"
)

// A store counts all shards of a pool and places groups on all of them, not only on the worst 20 in the pool's status.
func TestAStoreSeesTheShardsThatAPoolDoesNotList(t *testing.T) {
	states := slices.Repeat([]v1alpha1.ShardState{v1alpha1.ShardServing}, 25)
	states[24] = v1alpha1.ShardNodeLost
	pools := []v1alpha1.ShardPool{fleettest.PoolOf("ssd", 24, states...)}
	pool := &pools[0]
	var shards []v1alpha1.Shard
	for _, s := range pool.Status.ShardStatuses {
		shard := v1alpha1.Shard{Spec: v1alpha1.ShardSpec{Pool: pool.Name, Number: s.Number}, Status: s}
		shard.Namespace, shard.Name = pool.Namespace, s.Name
		shards = append(shards, shard)
	}
	pool.Status.Shards = 25
	pool.Status.ShardStatuses = pool.Status.ShardStatuses[:20]
	seen := fleet.ObservedOf(pools, shards)
	store := &v1alpha1.RecordStore{Status: v1alpha1.RecordStoreStatus{Groups: v1alpha1.GroupCounts{Total: 100}}}
	groups, counts := (&observed{store: store, pools: pools, shards: seen}).rollUp()
	if counts.Serving != 24 || groups.Serving != 96 {
		t.Errorf("%d shards and %d groups serve, want 24 and 96", counts.Serving, groups.Serving)
	}
	if all := seen.ByName(); len(all) != 25 || all["ssd-24"].State != v1alpha1.ShardNodeLost {
		t.Errorf("%d shards are seen, the last is %s", len(all), all["ssd-24"].State)
	}
	wanted := fleet.ShardStates(pools, seen)
	if len(wanted) != 25 || wanted["ssd-24"] != v1alpha1.PoolDrained || wanted["ssd-23"] == v1alpha1.PoolDrained {
		t.Errorf("%d shards are placed on: %v", len(wanted), wanted)
	}
	if asked := (&observed{store: &v1alpha1.RecordStore{}, pools: pools, shards: seen}).shardsAt(); len(asked) != 25 {
		t.Errorf("%d shards are asked", len(asked))
	}
}
