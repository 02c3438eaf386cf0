package recordstore

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"sheaf.dev/sheaf/api/v1alpha1"
	"sheaf.dev/sheaf/controllers/fleet"
	"sheaf.dev/sheaf/controllers/step"
	"sheaf.dev/sheaf/internal/kube/workload"
)

// etcdState returns EtcdNew if an empty member may form a new cluster, else EtcdExisting.
func etcdState(store *v1alpha1.RecordStore) string {
	allowed := store.Annotations[v1alpha1.AnnotationAllowNewEtcd]
	if !store.Status.PlacementInitialized || allowed != "" && allowed == store.Status.StoreUID {
		return workload.EtcdNew
	}
	return workload.EtcdExisting
}

// applyEtcd applies the objects of a managed etcd.
func (r *Reconciler) applyEtcd(ctx context.Context, run *storeRun) step.Outcome {
	store := run.store
	if store.Spec.Etcd.Managed == nil {
		return step.Complete()
	}
	if out := r.chooseEtcdImage(ctx, run); !out.IsComplete() {
		return out
	}
	set, err := r.etcdSet(run)
	if err != nil {
		return step.Retry(err)
	}
	if err := r.keepClaimSize(ctx, set); err != nil {
		return step.Retry(err)
	}
	return r.apply(ctx, store, workload.EtcdService(store), workload.EtcdMembersBudget(store), set)
}

// etcdSet returns the wanted StatefulSet. Members get certificates together with the wanted image. They keep their
// previous image until the gateways run the wanted one, and the previous image may not support certificates.
func (r *Reconciler) etcdSet(run *storeRun) (*appsv1.StatefulSet, error) {
	store := run.store
	if !run.etcdHasTLS && run.etcdImage != workload.ImageOf(store, r.Image) {
		store = store.DeepCopy()
		store.Status.TLS = nil
	}
	return workload.EtcdStatefulSet(store, run.etcdImage, etcdState(store))
}

// keepClaimSize keeps the claim template of an existing StatefulSet, which Kubernetes refuses to change.
func (r *Reconciler) keepClaimSize(ctx context.Context, set *appsv1.StatefulSet) error {
	var live appsv1.StatefulSet
	err := r.Client.Get(ctx, client.ObjectKeyFromObject(set), &live)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read StatefulSet %s: %w", client.ObjectKeyFromObject(set), err)
	}
	for n := range set.Spec.VolumeClaimTemplates {
		if n < len(live.Spec.VolumeClaimTemplates) {
			set.Spec.VolumeClaimTemplates[n].Spec.Resources = live.Spec.VolumeClaimTemplates[n].Spec.Resources
		}
	}
	return nil
}

// growEtcdClaims grows the claims of the members to the size in the spec. If their class does not allow growth, it
// reports that.
func (r *Reconciler) growEtcdClaims(ctx context.Context, run *storeRun) step.Outcome {
	store := run.store
	if store.Spec.Etcd.Managed == nil {
		return step.Complete()
	}
	want, refused := store.Spec.Etcd.Managed.Storage.Size, ""
	for n := range workload.EtcdMembers(store) {
		key := client.ObjectKey{Namespace: store.Namespace, Name: workload.ClaimTemplate + "-" +
			workload.EtcdMember(store.Name, n)}
		var claim corev1.PersistentVolumeClaim
		if err := r.Client.Get(ctx, key, &claim); apierrors.IsNotFound(err) {
			continue
		} else if err != nil {
			return step.Retry(fmt.Errorf("read claim %s: %w", key, err))
		}
		// An unbound claim cannot be changed.
		if claim.Status.Phase != corev1.ClaimBound || claim.DeletionTimestamp != nil ||
			claim.Spec.Resources.Requests.Storage().Cmp(want) >= 0 {
			continue
		}
		patch := step.IfUnchanged(claim.DeepCopy())
		claim.Spec.Resources.Requests[corev1.ResourceStorage] = want
		err := r.Client.Patch(ctx, &claim, patch, client.FieldOwner(v1alpha1.FieldManager))
		if apierrors.IsForbidden(err) || apierrors.IsInvalid(err) {
			refused = fmt.Sprintf(
				"spec.etcd.managed.storage.size asks for %s, and claim %s cannot grow: %v. Use a StorageClass with "+
					"allowVolumeExpansion, set it back, or leave it as it is: etcd runs on", want.String(), claim.Name, err)
		} else if err != nil {
			return step.Retry(fmt.Errorf("grow claim %s: %w", key, err))
		} else {
			step.Report(ctx, r.Events, store, step.News{Reason: "ClaimGrows", Action: "Grow", Object: &claim,
				Message: fmt.Sprintf("asked for %s in PersistentVolumeClaim %s of etcd", want.String(), claim.Name)})
		}
	}
	if refused != "" {
		step.SetFalse(&store.Status.Conditions, store.Generation, v1alpha1.ConditionVolumesGrown, "ResizeInfeasible", refused)
	} else {
		meta.RemoveStatusCondition(&store.Status.Conditions, v1alpha1.ConditionVolumesGrown)
	}
	return step.Complete()
}

// replaceEtcdPods deletes at most one pod of a managed etcd with an outdated template. It prefers a pod that does not
// run well, and deletes a ready pod only while all members are ready.
func (r *Reconciler) replaceEtcdPods(ctx context.Context, run *storeRun) step.Outcome {
	store := run.store
	if store.Spec.Etcd.Managed == nil {
		return step.Complete()
	}
	set, err := r.etcdSet(run)
	if err != nil {
		return step.Retry(err)
	}
	victim := etcdPodToReplace(run.etcdPods, set, r.now())
	if victim == nil {
		victim = run.staleMember(*set.Spec.Replicas, r.now())
	}
	if victim == nil {
		return step.Complete()
	}
	options := client.Preconditions{UID: &victim.UID}
	if err := r.Client.Delete(ctx, victim, options); err != nil && !apierrors.IsNotFound(err) &&
		!apierrors.IsConflict(err) {
		run.notes.Add(step.Retry(fmt.Errorf("delete pod %s: %w", client.ObjectKeyFromObject(victim), err)))
		return step.Complete()
	}
	step.Report(ctx, r.Events, store, step.News{Reason: "EtcdRestarts", Action: "Restart", Object: victim,
		Message: fmt.Sprintf("restarting etcd member %s for a changed pod template", victim.Name)})
	return step.Wait("EtcdUpdating", fmt.Sprintf("etcd member %s is restarted with its new template", victim.Name),
		step.PauseShort)
}

// staleMember returns a member that started with files older than its template announces, because the kubelet had not
// updated them yet. It returns nil if there is none or if another member is not ready.
func (run *storeRun) staleMember(members int32, now time.Time) *corev1.Pod {
	var stale *corev1.Pod
	ready := int32(0)
	for n := range run.etcdPods {
		pod := &run.etcdPods[n]
		if pod.DeletionTimestamp != nil || !fleet.PodReady(pod) {
			return nil
		}
		ready++
		if run.transport != nil && run.transport.stale[pod.Name] && now.Sub(pod.CreationTimestamp.Time) > blipMax {
			stale = pod
		}
	}
	if ready != members {
		return nil
	}
	return stale
}

// blipMax is how long a running etcd member may be unready before the operator treats it as a member that never
// becomes ready. A short disturbance that makes members unready must not restart them.
const blipMax = 2 * time.Minute

// etcdPodToReplace returns the pod to delete next, or nil. A pod with an outdated template is deleted if it does not
// run, or if all members are ready. A member that runs, or is about to run, need not learn that the cluster has
// formed; a member that ended by itself has to learn it.
func etcdPodToReplace(pods []corev1.Pod, set *appsv1.StatefulSet, now time.Time) *corev1.Pod {
	want := set.Spec.Template.Annotations
	pods = slices.Clone(pods)
	slices.SortFunc(pods, func(a, b corev1.Pod) int { return strings.Compare(a.Name, b.Name) })
	ready := int32(0)
	var outdated *corev1.Pod
	for n := range pods {
		pod := &pods[n]
		if !pod.DeletionTimestamp.IsZero() {
			return nil
		}
		if fleet.PodReady(pod) {
			ready++
		}
		old := pod.Annotations[workload.AnnotationTemplate] != want[workload.AnnotationTemplate]
		other := pod.Annotations[workload.AnnotationEtcdState] != want[workload.AnnotationEtcdState]
		if old && podStuck(pod, now) || other && podEnded(pod) {
			return pod
		}
		if old && outdated == nil {
			outdated = pod
		}
	}
	if ready == *set.Spec.Replicas {
		return outdated
	}
	return nil
}

// podStuck reports whether a pod does not run, or has run for long without becoming ready.
func podStuck(pod *corev1.Pod, now time.Time) bool {
	if fleet.PodReady(pod) {
		return false
	}
	running := false
	for _, c := range pod.Status.ContainerStatuses {
		running = running || c.State.Running != nil
	}
	if !running {
		return true
	}
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodReady {
			return now.Sub(c.LastTransitionTime.Time) > blipMax
		}
	}
	return false
}

// podEnded reports whether a pod's process has ended by itself and is not running now.
func podEnded(pod *corev1.Pod) bool {
	for _, c := range pod.Status.ContainerStatuses {
		if c.State.Running == nil && (c.State.Terminated != nil || c.LastTerminationState.Terminated != nil) {
			return true
		}
	}
	return false
}
