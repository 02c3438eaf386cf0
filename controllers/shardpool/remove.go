package shardpool

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sheaf.dev/sheaf/api/v1alpha1"
	"sheaf.dev/sheaf/controllers/shardpool/observed"
	"sheaf.dev/sheaf/controllers/step"
	"sheaf.dev/sheaf/internal/kube/workload"
)

// removal deletes the sets of shards that are to go and hold nothing.
type removal struct {
	hand
	seen   *observed.Pool
	places *places
	shards asker
}

// do empties the shards that are to go, and deletes those that are empty. kept are the numbers of shards that could not
// go yet, though they looked empty. statuses are what was decided of the shards that stay.
func (r removal) do(ctx context.Context, statuses []v1alpha1.ShardStatus, notes *step.Notes) (kept []int32,
	out step.Outcome) {
	leaving := leaving{cached: r.Client, pool: r.pool, places: r.places}
	for _, n := range r.seen.Plan.Leave {
		groups := statusOf(statuses, n).Groups
		if out := note(notes, leaving.leave(ctx, workload.Shard(r.pool.Name, n), groups)); !out.IsComplete() {
			return kept, out
		}
	}
	for _, n := range r.seen.Plan.Remove {
		out := r.removeShard(ctx, n)
		if !out.IsComplete() {
			kept = append(kept, n)
		}
		if out := note(notes, out); !out.IsComplete() {
			return kept, out
		}
	}
	return kept, step.Complete()
}

func (r removal) removeShard(ctx context.Context, n int32) step.Outcome {
	name := workload.Shard(r.pool.Name, n)
	if r.places.known() {
		if err := r.places.empty(ctx, name); err != nil {
			return step.Wait(reasonPlacementOff, fmt.Sprintf("shard %s is to be removed, but the placement cannot be told: %v",
				name, err), step.PauseShort)
		}
	}
	set := r.seen.Sets[n]
	if pod := r.seen.Pods[n]; pod != nil && set != nil && set.DeletionTimestamp == nil && pod.DeletionTimestamp == nil &&
		pod.Status.PodIP != "" {
		// What status says may be old: a group may have come since.
		if report, err := r.shards.ask(ctx, pod); err == nil && len(report.Groups) > 0 {
			return step.Wait(reasonHoldsGroups, fmt.Sprintf("shard %s is to be removed but holds %d groups", name,
				len(report.Groups)), step.PauseShort)
		}
	}
	if r.places.known() {
		if err := r.places.forget(ctx, name); err != nil {
			return step.Wait(reasonHoldsGroups, fmt.Sprintf("shard %s is to be removed, but the placement still needs it: %v",
				name, err), step.PauseShort)
		}
	}
	if err := r.removeSet(ctx, set, metav1.DeletePropagationBackground); err != nil {
		return step.Retry(err)
	}
	if err := r.removeClaim(ctx, r.seen.Claims[n],
		r.seen.Store.Spec.DeletionPolicy == v1alpha1.DeletionDelete); err != nil {
		return step.Retry(err)
	}
	return step.Complete()
}

// removeClaim deletes the claim of a shard that is gone; nil: there is none. One that has a volume is deleted only
// where withVolume says so. One that has none holds no data, and would ask its class for a disk for ever.
func (h hand) removeClaim(ctx context.Context, claim *corev1.PersistentVolumeClaim, withVolume bool) error {
	switch {
	case claim == nil:
		return nil
	case withVolume:
		what := "PersistentVolumeClaim " + claim.Name
		return h.remove(ctx, claim, what, step.News{Reason: "ClaimDeleted", Action: "Delete",
			Message: "deleted " + what + ", as deletionPolicy is Delete"})
	case claim.Spec.VolumeName == "":
		return h.removeUnbound(ctx, claim)
	}
	return nil
}

// lastStatus is what is said of a shard that was to go but cannot yet.
func lastStatus(seen *observed.Pool, n int32) v1alpha1.ShardStatus {
	if last, ok := seen.Last[n]; ok {
		return last
	}
	return v1alpha1.ShardStatus{Name: workload.Shard(seen.Pool.Name, n), Number: n, State: v1alpha1.ShardPending}
}

// statusOf is what was decided of shard n; the zero value: nothing was.
func statusOf(statuses []v1alpha1.ShardStatus, n int32) v1alpha1.ShardStatus {
	for _, s := range statuses {
		if s.Number == n {
			return s
		}
	}
	return v1alpha1.ShardStatus{}
}
