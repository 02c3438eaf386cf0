package controllers

import (
	"slices"
	"testing"

	"sheaf.dev/sheaf/api/v1alpha1"
)

func TestAPlanIsOnlyForWhatItWasMadeFor(t *testing.T) {
	store := testStore()
	store.Generation = 3
	pools := []v1alpha1.ShardPool{poolOf("a", 1), poolOf("b", 1)}
	pools[0].Generation, pools[1].Generation = 5, 7
	if got := planMisses(store, pools); got != "RecordStore quotes" {
		t.Errorf("no plan: %q", got)
	}
	store.Status.Planned = plannedFor(store, pools)
	if got := planMisses(store, pools); got != "" {
		t.Errorf("planned: %q", got)
	}
	if got := planMisses(store, pools[:1]); got != "" {
		t.Errorf("a pool is gone: %q", got)
	}
	pools[1].Generation++
	if got := planMisses(store, pools); got != "ShardPool b" {
		t.Errorf("a pool has changed: %q", got)
	}
	pools[1].Generation--
	if got := planMisses(store, append(pools, poolOf("c", 1))); got != "ShardPool c" {
		t.Errorf("a pool is new: %q", got)
	}
	store.Generation++
	if got := planMisses(store, pools); got != "RecordStore quotes" {
		t.Errorf("the store has changed: %q", got)
	}
	// The status holds so many pools and no more; of the others nobody waits for ever.
	var many []v1alpha1.ShardPool
	for range plannedPoolsMax + 1 {
		many = append(many, poolOf("p"+string(rune('a'+len(many)%26))+string(rune('a'+len(many)/26)), 1))
	}
	store.Status.Planned = plannedFor(store, many)
	if got := planMisses(store, many); len(store.Status.Planned.Pools) != plannedPoolsMax || got != "" {
		t.Errorf("many: %q", got)
	}
}

func TestShardsToCome(t *testing.T) {
	old := poolOf("old", 2, v1alpha1.ShardServing, v1alpha1.ShardServing)
	old.Spec.State = v1alpha1.PoolDrained
	next := poolOf("new", 4, v1alpha1.ShardServing, v1alpha1.ShardPending, v1alpha1.ShardNoVolume) // new-3 is not made yet
	next.Spec.State = v1alpha1.PoolActive
	idle := poolOf("idle", 1, v1alpha1.ShardPending)
	idle.Spec.State = v1alpha1.PoolCordoned
	parkedPool := poolOf("parked", 1, v1alpha1.ShardPending)
	parkedPool.Spec.State, parkedPool.Spec.Parked = v1alpha1.PoolActive, []int32{0}
	view := viewOf(1, "old-0 old-1 new-0", nil)
	pools := []v1alpha1.ShardPool{old, next, idle, parkedPool}
	if got := shardsToCome(view, pools, seenOf(pools, nil)); !slices.Equal(got, []string{"new-1", "new-3"}) {
		t.Errorf("%q", got)
	}
}
