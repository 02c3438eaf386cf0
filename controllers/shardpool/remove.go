package shardpool

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sheaf.dev/sheaf/api/v1alpha1"
	"sheaf.dev/sheaf/controllers/shardpool/observed"
	"sheaf.dev/sheaf/controllers/step"
	"sheaf.dev/sheaf/internal/kube/workload"
)

// removal removes shards from a pool: it deletes the StatefulSets of those that hold no groups.
type removal struct {
	writer
	seen   *observed.Pool
	places *places
	shards shardClient
}

// do empties the shards that have to be removed, and deletes those that are empty. It returns the numbers of the
// shards that seemed to be empty but could not be removed yet. The argument statuses contains the decided statuses of
// the shards that remain.
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
			return step.Wait(reasonPlacementOff, fmt.Sprintf("shard %s is to be removed, but the placement cannot be read: %v",
				name, err), step.PauseShort)
		}
	}
	set := r.seen.Sets[n]
	if pod := r.seen.Pods[n]; pod != nil && set != nil && set.DeletionTimestamp == nil && pod.DeletionTimestamp == nil &&
		pod.Status.PodIP != "" {
		// The known status may be outdated, because the shard may have received a group in the meantime.
		if report, err := r.shards.ask(ctx, pod); err == nil && len(report.GetGroups()) > 0 {
			return step.Wait(reasonHoldsGroups, fmt.Sprintf("shard %s is to be removed but holds %s", name,
				step.Count(len(report.GetGroups()), "group", "groups")), step.PauseShort)
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
	return step.Retry(r.removeClaim(ctx, r.seen.Claims[n],
		r.seen.Store.Spec.DeletionPolicy == v1alpha1.DeletionDelete))
}

// removeClaim deletes the claim of a shard that no longer exists. The claim may be nil. A claim with a volume is
// deleted only if withVolume is true. A claim without a volume is always deleted, because it holds no data and would
// request a disk from its class indefinitely.
func (h writer) removeClaim(ctx context.Context, claim *corev1.PersistentVolumeClaim, withVolume bool) error {
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

// lastStatus returns the status of a shard that has to be removed but cannot be removed yet.
func lastStatus(seen *observed.Pool, n int32) v1alpha1.ShardStatus {
	if last, ok := seen.Last[n]; ok {
		return last
	}
	return v1alpha1.ShardStatus{Name: workload.Shard(seen.Pool.Name, n), Number: n, State: v1alpha1.ShardPending}
}

// statusOf returns the decided status of shard n, or the zero value if there is none.
func statusOf(statuses []v1alpha1.ShardStatus, n int32) v1alpha1.ShardStatus {
	if i := slices.IndexFunc(statuses, func(s v1alpha1.ShardStatus) bool { return s.Number == n }); i >= 0 {
		return statuses[i]
	}
	return v1alpha1.ShardStatus{}
}
