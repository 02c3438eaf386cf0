package fleet_test

import (
	"slices"
	"testing"

	"sheaf.dev/sheaf/api/v1alpha1"
	"sheaf.dev/sheaf/controllers/fleet"
	"sheaf.dev/sheaf/internal/placement"
	"sheaf.dev/sheaf/internal/test/fleettest"
)

func TestWhatGroupsGoOnWithout(t *testing.T) {
	v := fleettest.View(3, "a b c d", map[string]string{"1": "a b c", "2": "b -c d", "3": "d", "10": "a b d", "11": "-c"})
	for without, want := range map[string][]string{"a": nil, "b": {"2"}, "c": {"11"}, "d": {"2", "3"}, "e": nil} {
		if got := v.Undecided(fleet.OnShard(without)); !slices.Equal(got, want) {
			t.Errorf("without %s: %v, want %v", without, got, want)
		}
	}
	if got := v.Undecided(func(m placement.Member) bool {
		return m.Shard == "a" || m.Shard == "b"
	}); !slices.Equal(got, []string{"1", "2", "10"}) {
		t.Errorf("without a and b: %v", got)
	}
	if got := v.Holds("c"); !slices.Equal(got, []string{"1", "2", "11"}) {
		t.Errorf("c holds %v", got)
	}
	v.Unplaced["2"] = "no room"
	if names, why := v.Stuck("d"); !slices.Equal(names, []string{"2"}) || why != "no room" {
		t.Errorf("stuck on d: %v %s", names, why)
	}
	if got := fleet.GroupWords([]string{"1", "2", "3", "4", "5", "6", "7"}); got != "groups 1, 2, 3, 4, 5 and 2 more" {
		t.Error(got)
	}
}

func TestShardsToCome(t *testing.T) {
	old := fleettest.PoolOf("old", 2, v1alpha1.ShardServing, v1alpha1.ShardServing)
	old.Spec.State = v1alpha1.PoolDrained
	// The pool should have four shards, but shard new-3 does not exist yet.
	next := fleettest.PoolOf("new", 4, v1alpha1.ShardServing, v1alpha1.ShardPending, v1alpha1.ShardNoVolume)
	next.Spec.State = v1alpha1.PoolActive
	idle := fleettest.PoolOf("idle", 1, v1alpha1.ShardPending)
	idle.Spec.State = v1alpha1.PoolCordoned
	parkedPool := fleettest.PoolOf("parked", 1, v1alpha1.ShardPending)
	parkedPool.Spec.State, parkedPool.Spec.Parked = v1alpha1.PoolActive, []int32{0}
	view := fleettest.View(1, "old-0 old-1 new-0", nil)
	pools := []v1alpha1.ShardPool{old, next, idle, parkedPool}
	got := fleet.ShardsToCome(view, pools, fleet.ObservedOf(pools, nil))
	if !slices.Equal(got, []string{"new-1", "new-3"}) {
		t.Errorf("%q", got)
	}
}
