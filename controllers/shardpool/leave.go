package shardpool

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"sheaf.dev/sheaf/api/v1alpha1"
	"sheaf.dev/sheaf/controllers/fleet"
	"sheaf.dev/sheaf/controllers/shardpool/observed"
	"sheaf.dev/sheaf/controllers/shardpool/poolstatus"
	"sheaf.dev/sheaf/controllers/step"
	"sheaf.dev/sheaf/internal/placement"
)

// Reasons of a shard that is moving its groups to other shards.
const (
	reasonDraining     = "Draining"
	reasonNowhereToGo  = "NowhereToGo"
	reasonHoldsGroups  = "ShardHoldsGroups"
	reasonPlacementOff = "PlacementUnavailable"
)

// leaving empties shards of a pool, by moving their groups to other shards, and reports the progress.
type leaving struct {
	cached client.Reader
	pool   *v1alpha1.ShardPool
	places *places
}

// holds returns words for the groups that a shard still holds. The result is empty if the shard holds none and may be
// removed. The answer of etcd takes precedence. If etcd has answered, the shard's last report counts only while the
// shard runs, because the last report of a shard that is permanently gone would never change.
func holds(ctx context.Context, places *places, last v1alpha1.ShardStatus, pod *corev1.Pod) string {
	if !places.known() {
		if last.State == "" {
			return "what nobody has asked it for yet"
		}
		if last.Groups > 0 {
			return step.Count(last.Groups, "group", "groups")
		}
		return ""
	}
	view, err := places.look(ctx)
	if err != nil {
		return "what etcd knows, which was not asked"
	}
	if names := view.Holds(last.Name); len(names) > 0 {
		return step.Count(len(names), "group", "groups")
	}
	if last.Groups > 0 && pod != nil && pod.Status.PodIP != "" && fleet.Serving(last.State) {
		return step.Count(last.Groups, "group", "groups")
	}
	return ""
}

// leave asks the planner to empty a shard that has to be removed, and reports the progress. The argument groups is the
// number of groups that the shard last reported.
func (l leaving) leave(ctx context.Context, name string, groups int32) step.Outcome {
	if !l.places.known() {
		return step.Fail(reasonHoldsGroups, fmt.Sprintf(
			"shard %s is to be removed but holds %s, and stays: raise spec.shards again, or name an "+
				"empty shard in spec.remove", name, step.Count(groups, "group", "groups")))
	}
	if err := l.places.empty(ctx, name); err != nil {
		return step.Wait(reasonPlacementOff, fmt.Sprintf("shard %s is to be removed, but the placement cannot be read: %v",
			name, err), step.PauseShort)
	}
	return l.emptying(ctx, name, "is to be removed", "raise spec.shards again, or give the store other shards for them")
}

// emptying returns an outcome that says how many groups a shard still has to move to other shards, and what to do if
// no other shard can take them.
func (l leaving) emptying(ctx context.Context, name, what, undo string) step.Outcome {
	view, err := l.places.look(ctx)
	if err != nil {
		return step.Wait(reasonPlacementOff, fmt.Sprintf("shard %s %s, but etcd was not asked for its groups: %v", name, what,
			err), step.PauseShort)
	}
	held := view.Holds(name)
	stuck, why := view.Stuck(name)
	away := view.Undecided(func(m placement.Member) bool { return m.Shard == name && !view.IsHere(m) })
	if len(stuck)+len(away) > 0 {
		if later, out := l.judgedLater(ctx, view, len(stuck)); later {
			return out.Saying(fmt.Sprintf("shard %s %s, and holds %s: %s", name, what,
				step.Count(len(held), "group", "groups"), out.Message()))
		}
	}
	if len(stuck) > 0 {
		return stalledOfPlan(reasonNowhereToGo, fmt.Sprintf(
			"shard %s %s, and %d of its %s nowhere to go (%s): %s. They stay, and are served: %s",
			name, what, len(stuck), step.Count(len(held), "group has", "groups have"), fleet.GroupWords(stuck), why, undo))
	}
	if len(away) > 0 {
		return stalledOfPlan(reasonHoldsGroups, fmt.Sprintf(
			"shard %s %s, and it is away with copies that %s cannot do without: bring it back, so that it can "+
				"give them away", name, what, fleet.GroupWords(away)))
	}
	return step.Wait(reasonDraining, fmt.Sprintf("shard %s %s, and gives its groups away: %s left", name, what,
		step.Count(len(held), "is", "are")), step.PauseShort)
}

// stalledOfPlan returns a Fail outcome for a problem with the plan. It requests an early reconcile, because neither
// etcd nor the shards of other pools are watched.
func stalledOfPlan(reason, message string) step.Outcome {
	return step.Fail(reason, message).Again(step.PauseShort)
}

// judgedLater reports whether it is still too early to conclude that no other shard can take the groups, or that the
// groups are needed where they are. It is too early while the plan is older than the current spec, or while shards
// that could take the groups are still starting.
func (l leaving) judgedLater(ctx context.Context, view *fleet.Places, stuck int) (bool, step.Outcome) {
	pools, seen, err := fleet.ReadPools(ctx, l.cached, storeKey(l.pool))
	if err != nil {
		return true, step.Retry(err)
	}
	if misses := fleet.PlanMisses(l.places.store, pools); misses != "" {
		return true, step.Wait(reasonDraining, fmt.Sprintf("the placement is being planned for %s as it is now", misses),
			pausePlan)
	}
	if come := fleet.ShardsToCome(view, pools, seen); stuck > 0 && len(come) > 0 {
		return true, step.Wait(reasonDraining, fmt.Sprintf(
			"%s nowhere to go until more shards are there; on their way: %s",
			step.Count(stuck, "of them has", "of them have"), step.ShardWords(come)), step.PauseShort)
	}
	return false, step.Complete()
}

// drainsUnasked reports whether a shard is still draining although the spec no longer asks for it. The RecordStore
// controller first has to update the placement, from which the shard then learns of the change.
func drainsUnasked(pool *v1alpha1.ShardPool, found *poolstatus.Found) bool {
	if found.Seen == nil || pool.Spec.State == v1alpha1.PoolDrained {
		return false
	}
	return slices.ContainsFunc(found.Statuses, func(s v1alpha1.ShardStatus) bool {
		return s.State == v1alpha1.ShardDraining && !slices.Contains(found.Seen.Plan.Leave, s.Number)
	})
}

// drain reports the progress of draining a pool, and returns how many groups each shard still holds. The result held
// is nil if the pool is not drained or if etcd cannot be asked. The store's controller updates the placement.
func (l leaving) drain(ctx context.Context, shards []*observed.Shard, notes *step.Notes) (held map[string]int,
	out step.Outcome) {
	if l.pool.Spec.State != v1alpha1.PoolDrained || !l.places.known() {
		return nil, step.Complete()
	}
	held = map[string]int{}
	for _, o := range shards {
		view, err := l.places.look(ctx)
		if err != nil {
			return held, l.emptying(ctx, o.Name, "is to be drained", "")
		}
		if held[o.Name] = len(view.Holds(o.Name)); held[o.Name] > 0 {
			note(notes, l.emptying(ctx, o.Name, "is to be drained",
				"set spec.state to Active again, or give the store other shards for them"))
		}
	}
	return held, step.Complete()
}
