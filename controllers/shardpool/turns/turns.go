// Package turns decides which shard of a store restarts next to get a changed pod template, and what delays a restart.
// It does no I/O and uses the observed state of all shards of the store.
package turns

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"sheaf.dev/sheaf/api/v1alpha1"
	"sheaf.dev/sheaf/client/recordv1"
	"sheaf.dev/sheaf/controllers/fleet"
	"sheaf.dev/sheaf/internal/placement"
)

// Reasons of condition Updated while pods differ from the wanted template.
const (
	ReasonUpdating = "Updating"     // the update continues without an administrator
	ReasonHeldUp   = "UpdateHeldUp" // the update continues after another problem is solved
)

// Turn describes a shard of the store as a candidate for the next restart.
type Turn struct {
	Name  string
	State v1alpha1.ShardState
	// Outdated is true if the shard's pod has to be recreated (see observed.Shard). It is false while the shard has to
	// wait until the gateways and etcd have the new image.
	Outdated bool
	Mine     bool      // the shard belongs to the pool that chooses
	Since    time.Time // when the shard's pod was created
	Begun    bool      // the StatefulSet has a newer template than the pod, so the restart has begun
	Report   *recordv1.ShardStatus
}

// Cost is the cost of restarting a shard, given its state.
type Cost int

// Costs. A restart with a higher cost makes more calls fail. CostUnknown is not part of this order.
const (
	CostUnknown Cost = iota // a restart would not help, or the state is unknown: the shard is never chosen
	CostNone                // the shard serves no groups
	CostSome                // the shard serves some of its groups, or its service is unknown
	CostAll                 // the shard serves all of its groups
)

// CostOf returns the cost of restarting a shard in this state. It handles every state.
func CostOf(state v1alpha1.ShardState) Cost {
	switch state {
	case v1alpha1.ShardServing, v1alpha1.ShardDraining:
		return CostAll
	case v1alpha1.ShardLoading, v1alpha1.ShardMemoryTooSmall, v1alpha1.ShardUnreachable:
		return CostSome
	case v1alpha1.ShardPending, v1alpha1.ShardFormatBlocked, v1alpha1.ShardFileSystemMismatch, v1alpha1.ShardForeign,
		v1alpha1.ShardDiskLost, v1alpha1.ShardDiskMissing,
		v1alpha1.ShardNoStorageClass, v1alpha1.ShardNoVolume, v1alpha1.ShardUnschedulable, v1alpha1.ShardImagePull,
		v1alpha1.ShardCrashLooping:
		return CostNone
	}
	return CostUnknown // Parked, NodeDown, NodeLost: there is no pod, or deleting it would not restart the shard
}

// steady reports whether a shard is neither starting nor unreachable, so that its set of serving groups will not change
// by itself.
func steady(state v1alpha1.ShardState) bool {
	return state != v1alpha1.ShardPending && state != v1alpha1.ShardLoading && state != v1alpha1.ShardUnreachable
}

// Choose returns the shard of this pool to restart next, or says what delays the restart. A shard that serves nothing
// may restart at any time. A shard that serves some of its groups may restart if no other shard is starting. A shard
// that serves all of its groups may restart only if all other shards of the store serve. Therefore such shards restart
// one at a time, and the restarts stop after the first shard that fails to start. The cheapest restart comes first and,
// among equals, the oldest pod. If parkedWell is true, shards that are parked on purpose delay nothing.
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
			// If two restarts have begun, for example because of a crash, the first one continues.
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
		return !steady(other)
	}
	return CostOf(other) != CostAll && (other != v1alpha1.ShardParked || !parkedWell)
}

// HoldReason returns the reason why no shard is restarted: other shards are starting, as is normal between two
// restarts, or a shard stays down.
func HoldReason(turns []Turn, parkedWell bool) string {
	for _, t := range turns {
		if steady(t.State) && holdsUp(CostAll, t.State, parkedWell) {
			return ReasonHeldUp
		}
	}
	return ReasonUpdating
}

// lagMax is the number of entries by which a copy may lag behind the newest one and still count as up to date.
const lagMax = 1000

// Needed returns a sentence that names the groups that would have no majority of up-to-date copies without a shard. The
// result is empty if there are none.
func Needed(view *fleet.Places, shard string, turns []Turn) string {
	applied, newest := map[string]map[string]uint64{}, map[string]uint64{}
	for _, t := range turns {
		if t.Report == nil {
			continue
		}
		applied[t.Name] = map[string]uint64{}
		for _, g := range t.Report.GetGroups() {
			if name := g.GetGroup(); g.GetState().Serves() {
				applied[t.Name][name] = g.GetAppliedIndex()
				newest[name] = max(newest[name], g.GetAppliedIndex())
			}
		}
	}
	var names []string
	for _, name := range view.Names() {
		g := view.Groups[name]
		voters := g.Voters()
		if !slices.ContainsFunc(voters, fleet.OnShard(shard)) {
			continue
		}
		well := view.There(g, func(m placement.Member) bool {
			index, serves := applied[m.Shard][name]
			return m.Shard == shard || !serves || index+lagMax < newest[name]
		})
		if well < placement.Majority(len(voters)) {
			names = append(names, name)
		}
	}
	if len(names) == 0 {
		return ""
	}
	return fmt.Sprintf("without it %s would have no majority of copies that are up to date", fleet.GroupWords(names))
}
