package shardpool

import (
	"context"
	"fmt"
	"slices"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"sheaf.dev/sheaf/api/v1alpha1"
	"sheaf.dev/sheaf/controllers/fleet"
	"sheaf.dev/sheaf/controllers/step"
	"sheaf.dev/sheaf/internal/workload"
)

// Reasons of a shard that gives its groups away.
const (
	reasonDraining     = "Draining"
	reasonNowhereToGo  = "NowhereToGo"
	reasonHoldsGroups  = "ShardHoldsGroups"
	reasonPlacementOff = "PlacementUnavailable"
)

// look asks etcd where groups are, once in a reconcile. False: nobody knows; the step says why.
func (w *poolWork) look(ctx context.Context) (*fleet.PlacementView, bool) {
	if w.view == nil && w.viewErr == nil && w.Register != nil {
		view, err := w.Register.Look(ctx, w.store)
		view.Silence(w.silent)
		w.view, w.viewErr = &view, err
	}
	return w.view, w.view != nil && w.viewErr == nil
}

// holds says what a shard holds; empty: nothing, so that it may go. Where etcd can be asked, that counts, and what the
// shard said last only while it runs: of one that is gone for good it would stay for ever.
func (w *poolWork) holds(ctx context.Context, last v1alpha1.ShardStatus) string {
	if w.Register == nil {
		if last.State == "" {
			return "what nobody has asked it for yet"
		}
		if last.Groups > 0 {
			return fmt.Sprintf("%d groups", last.Groups)
		}
		return ""
	}
	view, known := w.look(ctx)
	if !known {
		return "what etcd knows, which was not asked"
	}
	if names := view.Holds(last.Name); len(names) > 0 {
		return fmt.Sprintf("%d groups", len(names))
	}
	if pod := w.pods[last.Number]; last.Groups > 0 && pod != nil && pod.Status.PodIP != "" && fleet.Serving(last.State) {
		return fmt.Sprintf("%d groups", last.Groups)
	}
	return ""
}

// leave asks the planner to empty a shard that is to go, and says how far that is.
func (w *poolWork) leave(ctx context.Context, n int32) step.Outcome {
	name := workload.Shard(w.pool.Name, n)
	if w.Register == nil {
		return step.Fail(reasonHoldsGroups, fmt.Sprintf("shard %s is to be removed but holds %d groups, and stays: raise spec.shards again, or name an "+
			"empty shard in spec.remove", name, w.statusOf(n).Groups))
	}
	if err := w.Register.Empty(ctx, w.store, name); err != nil {
		return step.Wait(reasonPlacementOff, fmt.Sprintf("shard %s is to be removed, but the placement cannot be told: %v", name, err), step.PauseShort)
	}
	return w.emptying(ctx, name, "is to be removed", "raise spec.shards again, or give the store other shards for them")
}

// emptying says how far a shard is with giving its groups away, and what to do where they have nowhere to go.
func (w *poolWork) emptying(ctx context.Context, name, what, undo string) step.Outcome {
	view, known := w.look(ctx)
	if !known {
		return step.Wait(reasonPlacementOff, fmt.Sprintf("shard %s %s, but etcd was not asked for its groups: %v", name, what, w.viewErr), step.PauseShort)
	}
	held := view.Holds(name)
	stuck, why := view.Stuck(name)
	away := view.Undecided(func(c fleet.CopyPlace) bool { return c.Shard == name && !c.Here })
	if len(stuck)+len(away) > 0 {
		if later, out := w.judgedLater(ctx, view, len(stuck)); later {
			out = out.Saying(fmt.Sprintf("shard %s %s, and holds %d groups: %s", name, what, len(held), out.Message()))
			return out
		}
	}
	if len(stuck) > 0 {
		return stalledOfPlan(reasonNowhereToGo, fmt.Sprintf("shard %s %s, and %d of its %d groups have nowhere to go (%s): %s. They stay, and are served: %s",
			name, what, len(stuck), len(held), fleet.GroupWords(stuck), why, undo))
	}
	if len(away) > 0 {
		return stalledOfPlan(reasonHoldsGroups, fmt.Sprintf("shard %s %s, and it is away with copies that %s cannot do without: bring it back, so that it can "+
			"give them away", name, what, fleet.GroupWords(away)))
	}
	return step.Wait(reasonDraining, fmt.Sprintf("shard %s %s, and gives its groups away: %d are left", name, what, len(held)), step.PauseShort)
}

// stalledOfPlan is Fail of what is judged by the plan. Neither etcd nor the shards of other pools are watched: it is
// looked at again soon.
func stalledOfPlan(reason, message string) step.Outcome {
	out := step.Fail(reason, message)
	out = out.Again(step.PauseShort)
	return out
}

// judgedLater says whether it is too early to say that groups have nowhere to go, or are needed where they are: the
// plan is older than what is asked for, or shards are on their way that may take them.
func (w *poolWork) judgedLater(ctx context.Context, view *fleet.PlacementView, stuck int) (bool, step.Outcome) {
	var list v1alpha1.ShardPoolList
	if err := w.Client.List(ctx, &list, client.InNamespace(w.pool.Namespace)); err != nil {
		return true, step.Retry(fmt.Errorf("list ShardPools: %w", err))
	}
	var pools []v1alpha1.ShardPool
	for _, pool := range list.Items {
		if pool.Spec.StoreRef.Name == w.pool.Spec.StoreRef.Name {
			pools = append(pools, pool)
		}
	}
	if misses := fleet.PlanMisses(w.store, pools); misses != "" {
		return true, step.Wait(reasonDraining, fmt.Sprintf("the placement is being planned for %s as it is now", misses), pausePlan)
	}
	seen, err := fleet.ReadSeen(ctx, w.Client, pools, client.InNamespace(w.pool.Namespace))
	if err != nil {
		return true, step.Retry(err)
	}
	if come := fleet.ShardsToCome(view, pools, seen); stuck > 0 && len(come) > 0 {
		return true, step.Wait(reasonDraining, fmt.Sprintf("%d of them have nowhere to go until more shards are there; on their way: %s", stuck, step.ShardWords(come)), step.PauseShort)
	}
	return false, step.Complete()
}

// drainsUnasked says whether a shard says that it gives its groups away, though nobody asks that of it any more: the
// placement is told by the store, and the shard by that.
func (w *poolWork) drainsUnasked() bool {
	if w.pool.DeletionTimestamp != nil || w.pool.Spec.State == v1alpha1.PoolDrained {
		return false
	}
	for _, s := range w.statuses {
		if s.State == v1alpha1.ShardDraining && !slices.Contains(w.plan.Leave, s.Number) {
			return true
		}
	}
	return false
}

// drainPool says how far the shards of a drained pool are. The store's controller has told the placement.
func (w *poolWork) drainPool(ctx context.Context) step.Outcome {
	if w.pool.Spec.State != v1alpha1.PoolDrained || w.Register == nil {
		return step.Complete()
	}
	w.held = map[string]int{}
	for _, o := range w.shards {
		view, known := w.look(ctx)
		if !known {
			return w.note(w.emptying(ctx, o.Name, "is to be drained", ""))
		}
		if w.held[o.Name] = len(view.Holds(o.Name)); w.held[o.Name] > 0 {
			w.note(w.emptying(ctx, o.Name, "is to be drained", "set spec.state to Active again, or give the store other shards for them"))
		}
	}
	return step.Complete()
}
