package shardpool

import (
	"cmp"
	"context"
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"sheaf.dev/sheaf/api/v1alpha1"
	"sheaf.dev/sheaf/controllers/shardpool/observed"
	"sheaf.dev/sheaf/controllers/shardpool/poolstatus"
	"sheaf.dev/sheaf/controllers/step"
	"sheaf.dev/sheaf/internal/kube/workload"
)

// claimGrowth is the action for one claim.
type claimGrowth int

const (
	claimFits claimGrowth = iota
	claimGrows
	claimInfeasible
	claimPatch
	claimForbidden
	claimRemake
)

// decideGrowth decides the action for one claim. expandable is true if its StorageClass allows volume expansion.
func decideGrowth(claim *corev1.PersistentVolumeClaim, wanted resource.Quantity, expandable bool) (claimGrowth,
	string) {
	if claim == nil || claim.DeletionTimestamp != nil {
		return claimFits, ""
	}
	requested, has := claim.Spec.Resources.Requests[corev1.ResourceStorage], claim.Status.Capacity[corev1.ResourceStorage]
	if requested.Cmp(wanted) < 0 {
		switch {
		case claim.Status.Phase != corev1.ClaimBound:
			// The API refuses changes of an unbound claim, and deleting such a claim loses no data.
			return claimRemake, fmt.Sprintf("claim %s, which is not bound, is created again with %s", claim.Name,
				wanted.String())
		case !expandable && has.Cmp(wanted) >= 0:
			return claimFits, "" // a volume can be larger than its claim asked for, for example if it is a whole disk
		case !expandable:
			return claimForbidden, fmt.Sprintf("volume of claim %s has %s, asked for are %s", claim.Name, has.String(),
				wanted.String())
		}
		return claimPatch, fmt.Sprintf("claim %s grows from %s to %s", claim.Name, requested.String(), wanted.String())
	}
	if claim.Status.Phase != corev1.ClaimBound || has.Cmp(wanted) >= 0 {
		return claimFits, ""
	}
	if words := infeasible(claim); words != "" {
		return claimInfeasible, fmt.Sprintf("claim %s stays at %s, asked for are %s: %s", claim.Name, has.String(),
			requested.String(), words)
	}
	return claimGrows, fmt.Sprintf("claim %s grows from %s to %s", claim.Name, has.String(), requested.String())
}

// localGrowth returns the instruction for a local disk, which only an administrator can enlarge. For other volumes, the
// result is empty.
func localGrowth(volume *corev1.PersistentVolume) string {
	if volume == nil || volume.Spec.Local == nil {
		return ""
	}
	where := fmt.Sprintf("spec.capacity of PersistentVolume %s", volume.Name)
	if set := volume.Labels[v1alpha1.LabelDiskSet]; set != "" {
		where = fmt.Sprintf("its size in DiskSet %s", set)
	}
	return fmt.Sprintf(
		". It is local: make disk %s of node %s larger, and then %s: the kubelet makes the file system larger. Where the "+
			"disk cannot grow, add a second pool with larger disks and drain this one (state: Drained)", volume.Spec.Local.Path,
		workload.DiskNode(volume), where)
}

// infeasible says why a volume cannot grow. The result is empty while no component reports a reason.
func infeasible(claim *corev1.PersistentVolumeClaim) string {
	words := ""
	for _, c := range claim.Status.Conditions {
		switch c.Type {
		case corev1.PersistentVolumeClaimControllerResizeError, corev1.PersistentVolumeClaimNodeResizeError:
			if c.Status == corev1.ConditionTrue {
				words = c.Message
			}
		}
	}
	switch claim.Status.AllocatedResourceStatuses[corev1.ResourceStorage] {
	case corev1.PersistentVolumeClaimControllerResizeInfeasible, corev1.PersistentVolumeClaimNodeResizeInfeasible:
		return cmp.Or(words, "the storage driver says that it cannot be done")
	}
	return words
}

// volumeGrower expands the volumes of shards, and then updates the claim templates of their StatefulSets. A claim
// template is immutable, so the StatefulSet is deleted without its pod and created again.
type volumeGrower struct {
	writer
	shards []*observed.Shard
	notes  *step.Notes
	found  poolstatus.Growth // the worst result of all claims
}

// do checks each claim and stores the result in found.
func (g *volumeGrower) do(ctx context.Context) step.Outcome {
	wanted := g.pool.Spec.Storage.Size
	expandable, known := false, false
	for _, o := range g.shards {
		if o.Claim != nil && !known {
			requested := o.Claim.Spec.Resources.Requests[corev1.ResourceStorage]
			if requested.Cmp(wanted) < 0 {
				var err error
				if expandable, err = g.expandable(ctx, o.Claim); err != nil {
					return step.Retry(err)
				}
				known = true
			}
		}
		what, words := decideGrowth(o.Claim, wanted, expandable)
		if what == claimPatch || what == claimGrows {
			words += localGrowth(o.Volume)
		}
		if what == claimPatch {
			if err := g.patchClaim(ctx, o.Claim); err != nil {
				if out := note(g.notes, step.Retry(err)); !out.IsComplete() {
					return out
				}
				continue
			}
		}
		g.found = worseGrowth(g.found, what, words, g.pool.Spec.Storage.StorageClassName)
		if what == claimPatch || what == claimForbidden {
			continue
		}
		if out := note(g.notes, g.replaceSet(ctx, o)); !out.IsComplete() {
			return out
		}
		if size := templateSize(o.Set); what == claimRemake && size.Cmp(wanted) >= 0 {
			if err := g.removeUnbound(ctx, o.Claim); err != nil {
				g.notes.Add(step.Retry(err))
			}
		}
	}
	return g.found.Outcome()
}

// worseGrowth returns the worse of the previous result and the result for one more claim. The argument class is the
// StorageClass of the pool.
func worseGrowth(before poolstatus.Growth, what claimGrowth, words, class string) poolstatus.Growth {
	next := poolstatus.Growth{Message: words}
	switch what {
	case claimFits:
		return before
	case claimForbidden:
		next.Reason, next.Stalled = "ResizeInfeasible", true
		next.Message += fmt.Sprintf(
			". StorageClass %q does not allow volumes to grow: set allowVolumeExpansion there if its driver can. Otherwise set "+
				"spec.storage.size back, or add a second pool with larger volumes and drain this one (state: Drained)",
			class)
	case claimInfeasible:
		next.Reason, next.Stalled = "ResizeInfeasible", true
		next.Message += ". Free some space in the storage, set spec.storage.size back, or add a second pool and drain this " +
			"one (state: Drained)"
	default:
		next.Reason = "Resizing"
	}
	if before.Reason == "" || next.Stalled && !before.Stalled {
		return next
	}
	return before
}

func (g *volumeGrower) expandable(ctx context.Context, claim *corev1.PersistentVolumeClaim) (bool, error) {
	name := g.pool.Spec.Storage.StorageClassName
	if claim.Spec.StorageClassName != nil {
		name = *claim.Spec.StorageClassName
	}
	class, err := readClass(ctx, g, name)
	return class != nil && class.AllowVolumeExpansion != nil && *class.AllowVolumeExpansion, err
}

func (g *volumeGrower) patchClaim(ctx context.Context, claim *corev1.PersistentVolumeClaim) error {
	grown := claim.DeepCopy()
	grown.Spec.Resources.Requests[corev1.ResourceStorage] = g.pool.Spec.Storage.Size
	if err := g.Patch(ctx, grown, step.IfUnchanged(claim), client.FieldOwner(v1alpha1.FieldManager)); err != nil {
		return fmt.Errorf("grow PersistentVolumeClaim %s: %w", claim.Name, err)
	}
	g.tell(ctx, "ClaimGrows", "Grow", claim, "asked for %s in PersistentVolumeClaim %s", g.pool.Spec.Storage.Size.String(),
		claim.Name)
	return nil
}

// removeUnbound deletes a claim without a volume. Its StatefulSet creates the claim again if it still exists.
func (h writer) removeUnbound(ctx context.Context, claim *corev1.PersistentVolumeClaim) error {
	what := fmt.Sprintf("PersistentVolumeClaim %s, which is not bound", claim.Name)
	news := step.News{Reason: "ClaimDeleted", Action: "Delete", Message: "deleted " + what}
	return h.remove(ctx, claim, what, news, client.Preconditions{UID: &claim.UID, ResourceVersion: &claim.ResourceVersion})
}

// replaceSet deletes a StatefulSet whose claim template differs from the wanted one, and keeps its pod. The next
// reconcile creates the StatefulSet again. While a changed pod template waits for the shard's turn to restart, the
// StatefulSet is kept, because a new one would apply the template too early.
func (g *volumeGrower) replaceSet(ctx context.Context, o *observed.Shard) step.Outcome {
	if o.Set == nil || o.Set.DeletionTimestamp != nil || setTemplate(o.Set) != o.Template {
		return step.Complete()
	}
	size := templateSize(o.Set)
	if size.Cmp(g.pool.Spec.Storage.Size) >= 0 {
		return step.Complete()
	}
	if err := g.removeSet(ctx, o.Set, metav1.DeletePropagationOrphan); err != nil {
		return step.Retry(err)
	}
	return step.Wait("SetReplaced", fmt.Sprintf("StatefulSet %s is recreated for its larger claim; its pod stays", o.Name),
		step.PauseShort)
}

// templateSize returns the size in the claim template of a StatefulSet.
func templateSize(set *appsv1.StatefulSet) resource.Quantity {
	if set == nil || len(set.Spec.VolumeClaimTemplates) == 0 {
		return resource.Quantity{}
	}
	return set.Spec.VolumeClaimTemplates[0].Spec.Resources.Requests[corev1.ResourceStorage]
}
