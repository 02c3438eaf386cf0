package recordstore

import (
	"fmt"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"sheaf.dev/sheaf/api/v1alpha1"
	"sheaf.dev/sheaf/controllers/step"
	"sheaf.dev/sheaf/internal/placement"
)

// The first placement of a store waits for all shards, so that all of them share the groups. Groups that are placed
// before the last shard registers would have to move later. However, a shard that cannot start must not keep the others
// from serving.
const (
	// firstPlacementPause ends the wait when no new shard has registered for this duration.
	firstPlacementPause = 2 * time.Minute
	// firstPlacementMost is the maximum wait.
	firstPlacementMost = 15 * time.Minute
)

// firstPlacement describes how long, and for how many shards, the first placement of groups waits.
type firstPlacement struct {
	shards int32     // number of shards that have to be registered; 0 if the placement does not wait
	until  time.Time // end of the wait; zero if etcd does not hold the placement yet
	most   time.Time // the latest possible value of until
}

// decideFirst measures the wait from the last of three events: etcd received the placement, the last pool was created,
// and the last shard registered. The argument came is the time at which the last shard registered; it is zero if this
// operator has not read etcd yet.
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
	case came.IsZero(): // an operator that has just started does not know yet which shards are registered
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

// words describes the wait for the first placement. The result is empty if the placement does not wait.
func (f firstPlacement) words(view placement.View) string {
	if int(f.shards) <= len(view.Shards) || len(view.Groups) == 0 || view.Homeless() < len(view.Groups) {
		return ""
	}
	text := fmt.Sprintf(
		"the first placement of groups waits until %s registered, so that they share the groups; %s",
		step.All(f.shards, "shard is", "shards are"), step.Count(len(view.Shards), "is", "are"))
	if !f.until.IsZero() {
		text += fmt.Sprintf(
			". It goes on with those at %s, %v after the last of them came, or, while more come, at the latest at %s",
			f.until.UTC().Format(time.RFC3339), firstPlacementPause, f.most.UTC().Format(time.RFC3339))
	}
	return text
}

// arrivals records, for each store, when a new shard was last observed to have registered. It forgets this once the
// store has placed a group. The zero value is empty. Safe for concurrent use.
type arrivals struct {
	mu sync.Mutex
	of map[types.UID]*arrived // keyed by the UID of the store
}

type arrived struct {
	shards map[string]bool // shards that have been registered at least once
	last   time.Time
}

// note records the result of each read of etcd.
func (a *arrivals) note(store types.UID, view placement.View, now time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if view.Homeless() < len(view.Groups) { // some groups are placed, so the store no longer needs this record
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
	for shard := range view.Shards {
		if !known.shards[shard] {
			known.shards[shard], known.last = true, now
		}
	}
}

// last returns when the last new shard of a store was first observed as registered. It is zero if etcd has not been
// read yet.
func (a *arrivals) last(store types.UID) time.Time {
	a.mu.Lock()
	defer a.mu.Unlock()
	if known := a.of[store]; known != nil {
		return known.last
	}
	return time.Time{}
}

func (a *arrivals) forget(store types.UID) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.of, store)
}
