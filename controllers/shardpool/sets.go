package shardpool

import (
	"context"
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"sheaf.dev/sheaf/api/v1alpha1"
	"sheaf.dev/sheaf/controllers/fleet"
	"sheaf.dev/sheaf/controllers/shardpool/observed"
	"sheaf.dev/sheaf/controllers/step"
	"sheaf.dev/sheaf/internal/base/parallel"
	"sheaf.dev/sheaf/internal/kube/workload"
)

// writesAtOnce is the maximum number of concurrent writes to the API server for one pool.
const writesAtOnce = 16

// setWriter writes the StatefulSets of a pool.
type setWriter struct {
	writer
	seen *observed.Pool
}

// apply updates the StatefulSets to the wanted state, except for the pod templates of running shards. Pod templates of
// running shards change one shard at a time, so that an error in a template cannot affect a second shard, even if a pod
// is replaced in the meantime.
//
// Several StatefulSets are written concurrently. A busy API server is slow to answer each write; a thousand writes in
// sequence once delayed a new pool's status and first placement for minutes.
func (w setWriter) apply(ctx context.Context, notes *step.Notes) step.Outcome {
	outs := make([][2]step.Outcome, len(w.seen.Shards))
	parallel.Times(len(outs), writesAtOnce, func(i int) {
		outs[i][0] = w.applyOne(ctx, w.seen.Shards[i])
		if outs[i][0].IsComplete() {
			outs[i][1] = w.reportPod(ctx, w.seen.Shards[i])
		}
	})
	for _, out := range outs { // keeps the order of the shards, so that the pool's condition always names the same shard
		for _, out := range out {
			if out := note(notes, out); !out.IsComplete() {
				return out
			}
		}
	}
	return step.Complete()
}

func (w setWriter) applyOne(ctx context.Context, o *observed.Shard) step.Outcome {
	if o.Refused != "" {
		return step.Complete() // the status of the shard says why it is not created
	}
	if o.Set == nil {
		if _, err := step.Apply(ctx, w.Client, w.pool, o.Wanted); err != nil {
			return step.Retry(err)
		}
		w.tell(ctx, "ShardCreated", "Create", o.Wanted, "made StatefulSet %s", o.Name)
		return step.Complete()
	}
	if o.Set.DeletionTimestamp != nil {
		return step.Wait("SetReplaced", fmt.Sprintf("StatefulSet %s is being deleted, and made again then; its pod stays",
			o.Name), step.PauseShort)
	}
	if owner := metav1.GetControllerOf(o.Set); owner != nil && owner.UID != w.pool.UID {
		return step.Fail("NameTaken", fmt.Sprintf("StatefulSet %s belongs to %s %s: delete that, or list %d in spec.remove",
			o.Name, owner.Kind, owner.Name, o.Number))
	}
	storeImage := w.seen.Store.Status.Image
	keepsImage := storeImage != "" && storeImage != w.seen.Image &&
		fleet.ImageOf(&o.Set.Spec.Template.Spec) != w.seen.Image
	// The pod already has the wanted template, but the StatefulSet does not, because somebody else has changed it.
	runs := o.Pod != nil && o.Pod.Annotations[workload.AnnotationTemplate] == o.Template
	if setTemplate(o.Set) == o.Template || runs || o.Pod == nil && !keepsImage {
		_, err := step.Apply(ctx, w.Client, w.pool, o.Wanted)
		return step.Retry(err)
	}
	return w.patch(ctx, o)
}

// setTemplate returns the hash of the pod template of a StatefulSet.
func setTemplate(set *appsv1.StatefulSet) string {
	return set.Spec.Template.Annotations[workload.AnnotationTemplate]
}

// patch changes the parts of a StatefulSet that need not wait for the shard's turn to restart.
func (w setWriter) patch(ctx context.Context, o *observed.Shard) step.Outcome {
	set := o.Set.DeepCopy()
	set.Spec.Replicas = o.Wanted.Spec.Replicas
	step.Annotate(&set.Spec.Template.Annotations, workload.AnnotationVolume,
		o.Wanted.Spec.Template.Annotations[workload.AnnotationVolume])
	step.Annotate(&set.Annotations, workload.AnnotationDeletionPolicy,
		o.Wanted.Annotations[workload.AnnotationDeletionPolicy])
	if equality.Semantic.DeepEqual(o.Set, set) {
		return step.Complete()
	}
	if err := w.Patch(ctx, set, client.MergeFrom(o.Set), client.FieldOwner(v1alpha1.FieldManager)); err != nil {
		return step.Retry(fmt.Errorf("patch StatefulSet %s: %w", o.Name, err))
	}
	return step.Complete()
}

// reportPod annotates a running pod with the UUID of its volume, so that its container receives the UUID when it
// restarts.
func (w setWriter) reportPod(ctx context.Context, o *observed.Shard) step.Outcome {
	// Use only a UUID that is recorded in the status, because an unrecorded one could turn out differently after a crash.
	uuid := o.Last.Volume.UUID
	if o.Pod == nil || o.Pod.DeletionTimestamp != nil || uuid == "" || o.Pod.Annotations[workload.AnnotationVolume] != "" {
		return step.Complete()
	}
	pod := o.Pod.DeepCopy()
	step.Annotate(&pod.Annotations, workload.AnnotationVolume, uuid)
	if err := w.Patch(ctx, pod, client.MergeFrom(o.Pod), client.FieldOwner(v1alpha1.FieldManager)); client.IgnoreNotFound(
		err) != nil {
		return step.Retry(fmt.Errorf("annotate Pod %s: %w", pod.Name, err))
	}
	return step.Complete()
}

// removeSet deletes exactly the StatefulSet that was observed. The argument set may be nil.
func (h writer) removeSet(ctx context.Context, set *appsv1.StatefulSet, propagation metav1.DeletionPropagation) error {
	if set == nil {
		return nil
	}
	news := step.News{Reason: "SetDeleted", Action: "Delete", Message: fmt.Sprintf("deleted StatefulSet %s (%s)", set.Name,
		propagation)}
	return h.remove(ctx, set, "StatefulSet "+set.Name, news, client.PropagationPolicy(propagation))
}
