package recordstore

import (
	"fmt"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"sheaf.dev/sheaf/api/v1alpha1"
	"sheaf.dev/sheaf/controllers/fleet"
)

// The first placement of a store waits for all of its shards, so that they share the groups: those that are placed
// before the last shards come have to move. One that cannot start must not keep the others from serving, though.
const (
	// firstPlacementPause without a shard that is new ends the wait.
	firstPlacementPause = 2 * time.Minute
	// firstPlacementMost ends it in any case.
	firstPlacementMost = 15 * time.Minute
)

// firstPlacement is what the first placement of groups waits for.
type firstPlacement struct {
	shards int32     // so many have to be registered; 0: none
	until  time.Time // zero: etcd does not hold the placement yet
	most   time.Time // until is never later
}

// decideFirst counts from when etcd held the placement, the last pool was made, and the last shard came: zero where
// this operator has not looked yet.
func decideFirst(store *v1alpha1.RecordStore, pools []v1alpha1.ShardPool, came, now time.Time) firstPlacement {
	first := firstPlacement{shards: shardsWanted(pools)}
	ready := meta.FindStatusCondition(store.Status.Conditions, v1alpha1.ConditionPlacementReady)
	if ready == nil || ready.Status != metav1.ConditionTrue {
		return first
	}
	since := ready.LastTransitionTime.Time
	for n := range pools {
		if made := pools[n].CreationTimestamp.Time; made.After(since) {
			since = made
		}
	}
	first.most = since.Add(firstPlacementMost)
	switch {
	case came.IsZero(): // an operator that has just started sees in its first look who is there
		since = now
	case came.After(since):
		since = came
	}
	first.until = since.Add(firstPlacementPause)
	if first.until.After(first.most) {
		first.until = first.most
	}
	if !now.Before(first.until) {
		first.shards = 0
	}
	return first
}

// words say that the first placement waits; empty where it does not.
func (f firstPlacement) words(state *fleet.PlacementState) string {
	if int(f.shards) <= len(state.Alive) || state.Groups == 0 || state.Homeless < state.Groups {
		return ""
	}
	text := fmt.Sprintf(
		"the first placement of groups waits until all %d shards are registered, so that they share the groups; %d are",
		f.shards, len(state.Alive))
	if !f.until.IsZero() {
		text += fmt.Sprintf(
			". It goes on with those at %s, %v after the last of them came, or, while more come, at the latest at %s",
			f.until.UTC().Format(time.RFC3339), firstPlacementPause, f.most.UTC().Format(time.RFC3339))
	}
	return text
}

// arrivals remember when the last new shard of each store was seen registered, until the store has placed a group. The
// zero value remembers nothing. Safe for concurrent use.
type arrivals struct {
	mu sync.Mutex
	of map[types.UID]*arrived // by the store's UID
}

type arrived struct {
	shards map[string]bool // that were registered once
	last   time.Time
}

// note is called with what each look at etcd has found.
func (a *arrivals) note(store types.UID, state *fleet.PlacementState, now time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if state.Homeless < state.Groups { // some are placed: nobody asks any more
		delete(a.of, store)
		return
	}
	known := a.of[store]
	if known == nil {
		if a.of == nil {
			a.of = map[types.UID]*arrived{}
		}
		known = &arrived{shards: map[string]bool{}, last: now}
		a.of[store] = known
	}
	for shard := range state.Alive {
		if !known.shards[shard] {
			known.shards[shard], known.last = true, now
		}
	}
}

// last is when the last new shard of a store came; zero: nobody has looked yet.
func (a *arrivals) last(store types.UID) time.Time {
	a.mu.Lock()
	defer a.mu.Unlock()
	if known := a.of[store]; known != nil {
		return known.last
	}
	return time.Time{}
}

// forget what is known of a store that is deleted.
func (a *arrivals) forget(store types.UID) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.of, store)
}
