// Package turns says which shard of a store is restarted next for a changed pod template, and what holds a restart up:
// pure, from what was seen of all shards of the store.
package turns

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"sheaf.dev/sheaf/api/v1alpha1"
	"sheaf.dev/sheaf/controllers/fleet"
)

// Reasons of condition Updated while pods differ from the wanted template.
const (
	ReasonUpdating = "Updating"     // it goes on by itself
	ReasonHeldUp   = "UpdateHeldUp" // it goes on when something else is well again
)

// Turn is a shard of the store as the choice of the next restart sees it.
type Turn struct {
	Name     string
	State    v1alpha1.ShardState
	Outdated bool      // it runs another template than is wanted, or an older one
	Mine     bool      // of the pool that chooses
	Since    time.Time // its pod was made
	Begun    bool      // its set has a newer template than its pod: its restart has begun
	Report   *fleet.ShardReport
}

// Cost of restarting a shard that is in some state.
type Cost int

// Costs, the higher the more is lost meanwhile.
const (
	CostUnknown Cost = iota // it is not known whether it serves: never restarted while others are in doubt too
	CostNone                // it serves nothing
	CostSome                // it serves in part
	CostAll                 // it serves
)

// CostOf a restart of a shard in this state; total over the states.
func CostOf(state v1alpha1.ShardState) Cost {
	switch state {
	case v1alpha1.ShardServing, v1alpha1.ShardDraining:
		return CostAll
	case v1alpha1.ShardLoading, v1alpha1.ShardMemoryTooSmall, v1alpha1.ShardUnreachable:
		return CostSome
	case v1alpha1.ShardPending, v1alpha1.ShardFormatBlocked, v1alpha1.ShardFileSystemMismatch, v1alpha1.ShardForeign,
		v1alpha1.ShardDiskLost,
		v1alpha1.ShardNoStorageClass, v1alpha1.ShardNoVolume, v1alpha1.ShardUnschedulable, v1alpha1.ShardImagePull,
		v1alpha1.ShardCrashLooping:
		return CostNone
	}
	return CostUnknown // Parked, NodeDown, NodeLost: there is no pod, or deleting it would not restart it
}

// settled says that a shard is not on its way up: what it serves will not change by itself.
func settled(state v1alpha1.ShardState) bool {
	return state != v1alpha1.ShardPending && state != v1alpha1.ShardLoading && state != v1alpha1.ShardUnreachable
}

// Choose names the shard of this pool to restart next, or says what holds the restart up. Shards that serve nothing
// lose nothing; one that serves in part goes when no other is on its way up; one that serves goes only when all others
// of the store serve: so one at a time, and none after the first that does not come up. Oldest first. parkedWell: a
// shard that is parked on purpose holds nothing up.
func Choose(turns []Turn, parkedWell bool) (name, heldUpBy string) {
	outdated := slices.DeleteFunc(slices.Clone(turns), func(t Turn) bool {
		return !t.Outdated || !t.Mine || CostOf(t.State) == CostUnknown
	})
	slices.SortFunc(outdated, func(a, b Turn) int {
		return cmp.Or(cmp.Compare(CostOf(a.State), CostOf(b.State)), a.Since.Compare(b.Since), cmp.Compare(a.Name, b.Name))
	})
	for _, t := range outdated {
		blocker := ""
		for _, other := range turns {
			if other.Name == t.Name {
				continue
			}
			if holdsUp(CostOf(t.State), other.State, parkedWell) {
				blocker = fmt.Sprintf("shard %s is %s", other.Name, other.State)
				break
			}
			// Where two have begun, as after a crash, the first goes on.
			if other.Begun && CostOf(t.State) != CostNone && (!t.Begun || t.Name >= other.Name) {
				blocker = fmt.Sprintf("shard %s is about to be restarted", other.Name)
				break
			}
		}
		if blocker == "" {
			return t.Name, ""
		}
		heldUpBy = cmp.Or(heldUpBy, blocker)
	}
	return "", heldUpBy
}

func holdsUp(c Cost, other v1alpha1.ShardState, parkedWell bool) bool {
	switch c {
	case CostNone:
		return false
	case CostSome:
		return !settled(other)
	}
	return CostOf(other) != CostAll && (other != v1alpha1.ShardParked || !parkedWell)
}

// HoldReason is why no shard is restarted: others are on their way up, as between any two restarts, or one of them
// stays down.
func HoldReason(turns []Turn, parkedWell bool) string {
	for _, t := range turns {
		if settled(t.State) && holdsUp(CostAll, t.State, parkedWell) {
			return ReasonHeldUp
		}
	}
	return ReasonUpdating
}
