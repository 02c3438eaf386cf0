package shardpool

import (
	"context"
	"fmt"

	"golang.org/x/sync/errgroup"

	"sheaf.dev/sheaf/controllers/fleet"
	"sheaf.dev/sheaf/controllers/step"

	appsv1 "k8s.io/api/apps/v1"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"sheaf.dev/sheaf/api/v1alpha1"
	"sheaf.dev/sheaf/internal/workload"
)

// writesAtOnce bounds the writes of one pool that are on their way to the API server.
const writesAtOnce = 16

// applySets makes the StatefulSets as they are to be, but for pod templates of shards that run: those follow one shard
// at a time, so that what is wrong with a template cannot reach a second shard, not even when a pod is replaced
// meanwhile.
//
// Sets are written some at a time: the answer to one write takes as long as the API server is busy, and a thousand such
// waits one after the other kept a new pool from its status and its first placement for minutes.
func (w *poolWork) applySets(ctx context.Context) step.Outcome {
	outs := make([][2]step.Outcome, len(w.shards))
	var group errgroup.Group
	group.SetLimit(writesAtOnce)
	for i, o := range w.shards {
		group.Go(func() error {
			outs[i][0] = w.applySet(ctx, o)
			if outs[i][0].IsComplete() {
				outs[i][1] = w.tellPod(ctx, o)
			}
			return nil
		})
	}
	_ = group.Wait()           // outcomes hold the errors
	for _, out := range outs { // in the order of the shards, so that a pool's condition names the same one each time
		for _, out := range out {
			if out := w.note(out); !out.IsComplete() {
				return out
			}
		}
	}
	return step.Complete()
}

func (w *poolWork) applySet(ctx context.Context, o *observedShard) step.Outcome {
	wanted := w.wanted[o.Number]
	if o.Refused != "" {
		return step.Complete() // its state says so
	}
	if o.Set == nil {
		if _, err := step.Apply(ctx, w.Client, w.pool, wanted); err != nil {
			return step.Retry(err)
		}
		w.tell(ctx, "ShardCreated", "Create", wanted, "made StatefulSet %s", o.Name)
		return step.Complete()
	}
	if o.Set.DeletionTimestamp != nil {
		return step.Wait("SetReplaced", fmt.Sprintf("StatefulSet %s is being deleted, and made again then; its pod stays", o.Name), step.PauseShort)
	}
	if owner := metav1.GetControllerOf(o.Set); owner != nil && owner.UID != w.pool.UID {
		return step.Fail("NameTaken", fmt.Sprintf("StatefulSet %s belongs to %s %s: delete that, or list %d in spec.remove", o.Name, owner.Kind, owner.Name, o.Number))
	}
	wanted.Spec.VolumeClaimTemplates[0].Spec.Resources.Requests[corev1.ResourceStorage] = templateSize(o.Set)
	keepsImage := w.store.Status.Image != "" && w.store.Status.Image != w.image() && fleet.ImageOf(&o.Set.Spec.Template.Spec) != w.image()
	runs := o.Pod != nil && o.Pod.Annotations[workload.AnnotationTemplate] == o.Template // the set alone was changed, by somebody else
	if setTemplate(o.Set) == o.Template || runs || o.Pod == nil && !keepsImage {
		if _, err := step.Apply(ctx, w.Client, w.pool, wanted); err != nil {
			return step.Retry(err)
		}
		return step.Complete()
	}
	return w.patchSet(ctx, o, wanted)
}

// setTemplate is the hash of the template that a set has.
func setTemplate(set *appsv1.StatefulSet) string {
	return set.Spec.Template.Annotations[workload.AnnotationTemplate]
}

// patchSet changes what does not wait for the shard's turn.
func (w *poolWork) patchSet(ctx context.Context, o *observedShard, wanted *appsv1.StatefulSet) step.Outcome {
	set := o.Set.DeepCopy()
	set.Spec.Replicas = wanted.Spec.Replicas
	step.Annotate(&set.Spec.Template.Annotations, workload.AnnotationVolume, wanted.Spec.Template.Annotations[workload.AnnotationVolume])
	step.Annotate(&set.Annotations, workload.AnnotationDeletionPolicy, wanted.Annotations[workload.AnnotationDeletionPolicy])
	if equality.Semantic.DeepEqual(o.Set, set) {
		return step.Complete()
	}
	if err := w.Client.Patch(ctx, set, client.MergeFrom(o.Set), client.FieldOwner(v1alpha1.FieldManager)); err != nil {
		return step.Retry(fmt.Errorf("patch StatefulSet %s: %w", o.Name, err))
	}
	return step.Complete()
}

// tellPod gives a running pod the UUID of its volume, so that its container, when it starts again, knows it.
func (w *poolWork) tellPod(ctx context.Context, o *observedShard) step.Outcome {
	uuid := o.Last.Volume.UUID // recorded: what is in no status yet could be another one after a crash
	if o.Pod == nil || o.Pod.DeletionTimestamp != nil || uuid == "" || o.Pod.Annotations[workload.AnnotationVolume] != "" {
		return step.Complete()
	}
	pod := o.Pod.DeepCopy()
	step.Annotate(&pod.Annotations, workload.AnnotationVolume, uuid)
	if err := w.Client.Patch(ctx, pod, client.MergeFrom(o.Pod), client.FieldOwner(v1alpha1.FieldManager)); client.IgnoreNotFound(err) != nil {
		return step.Retry(fmt.Errorf("annotate Pod %s: %w", pod.Name, err))
	}
	return step.Complete()
}

// statusOf is what was decided of shard n.
func (w *poolWork) statusOf(n int32) v1alpha1.ShardStatus {
	for _, s := range w.statuses {
		if s.Number == n {
			return s
		}
	}
	return v1alpha1.ShardStatus{}
}

// removeShards deletes the sets of shards that are to go and hold nothing.
func (w *poolWork) removeShards(ctx context.Context) step.Outcome {
	for _, n := range w.plan.Leave {
		if out := w.note(w.leave(ctx, n)); !out.IsComplete() {
			return out
		}
	}
	for _, n := range w.plan.Remove {
		out := w.removeShard(ctx, n)
		if out.Err() != nil {
			w.keep(n)
		}
		if out := w.note(out); !out.IsComplete() {
			return out
		}
	}
	return step.Complete()
}

func (w *poolWork) removeShard(ctx context.Context, n int32) step.Outcome {
	name := workload.Shard(w.pool.Name, n)
	if w.Register != nil {
		if err := w.Register.Empty(ctx, w.store, name); err != nil {
			w.keep(n)
			return step.Wait("PlacementUnavailable", fmt.Sprintf("shard %s is to be removed, but the placement cannot be told: %v", name, err), step.PauseShort)
		}
	}
	set := w.sets[n]
	if pod := w.pods[n]; pod != nil && set != nil && set.DeletionTimestamp == nil && pod.DeletionTimestamp == nil && pod.Status.PodIP != "" {
		// What status says may be old: a group may have come since.
		if report, err := w.ask(ctx, pod); err == nil && len(report.Groups) > 0 {
			w.keep(n)
			return step.Wait("ShardHoldsGroups", fmt.Sprintf("shard %s is to be removed but holds %d groups", name, len(report.Groups)), step.PauseShort)
		}
	}
	if w.Register != nil {
		if err := w.Register.Forget(ctx, w.store, name); err != nil {
			w.keep(n)
			return step.Wait("ShardHoldsGroups", fmt.Sprintf("shard %s is to be removed, but the placement still needs it: %v", name, err), step.PauseShort)
		}
	}
	if err := w.deleteSet(ctx, set, metav1.DeletePropagationBackground); err != nil {
		return step.Retry(err)
	}
	claim := w.claims[n]
	switch {
	case w.store.Spec.DeletionPolicy == v1alpha1.DeletionDelete:
		if err := w.deleteClaim(ctx, claim); err != nil {
			return step.Retry(err)
		}
	case claim != nil && claim.Spec.VolumeName == "" && claim.DeletionTimestamp == nil:
		// It holds no data, and would ask its class for a disk for ever.
		if err := w.remakeClaim(ctx, claim); err != nil {
			return step.Retry(err)
		}
	}
	return step.Complete()
}

// keep leaves a shard in status that was to go but cannot yet.
func (w *poolWork) keep(n int32) {
	if last, ok := w.last[n]; ok {
		w.statuses = append(w.statuses, last)
		return
	}
	w.statuses = append(w.statuses, v1alpha1.ShardStatus{Name: workload.Shard(w.pool.Name, n), Number: n, State: v1alpha1.ShardPending})
}

// deleteSet deletes the very set that was seen.
func (w *poolWork) deleteSet(ctx context.Context, set *appsv1.StatefulSet, propagation metav1.DeletionPropagation) error {
	if set == nil || set.DeletionTimestamp != nil {
		return nil
	}
	err := w.Client.Delete(ctx, set, client.Preconditions{UID: &set.UID}, client.PropagationPolicy(propagation))
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("delete StatefulSet %s: %w", set.Name, err)
	}
	w.tell(ctx, "SetDeleted", "Delete", set, "deleted StatefulSet %s (%s)", set.Name, propagation)
	return nil
}

func (w *poolWork) deleteClaim(ctx context.Context, claim *corev1.PersistentVolumeClaim) error {
	if claim == nil || claim.DeletionTimestamp != nil {
		return nil
	}
	err := w.Client.Delete(ctx, claim, client.Preconditions{UID: &claim.UID})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("delete PersistentVolumeClaim %s: %w", claim.Name, err)
	}
	w.tell(ctx, "ClaimDeleted", "Delete", claim, "deleted PersistentVolumeClaim %s, as deletionPolicy is Delete", claim.Name)
	return nil
}
