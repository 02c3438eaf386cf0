package recordstore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"sheaf.dev/sheaf/api/v1alpha1"
	"sheaf.dev/sheaf/controllers/fleet"
	"sheaf.dev/sheaf/controllers/step"
	"sheaf.dev/sheaf/internal/kube/workload"
)

// etcdObjects maintains the objects of a managed etcd.
type etcdObjects struct {
	*writer
	seen *observed
	now  time.Time
}

// apply applies the objects of a managed etcd.
func (e etcdObjects) apply(ctx context.Context) step.Outcome {
	store := e.store
	if store.Spec.Etcd.Managed == nil {
		return step.Complete()
	}
	if out := e.chooseImage(ctx); !out.IsComplete() {
		return out
	}
	set, err := e.set()
	if err != nil {
		return step.Retry(err)
	}
	if err := e.keepClaimSize(ctx, set); err != nil {
		return step.Retry(err)
	}
	return e.writer.apply(ctx, workload.EtcdService(store), workload.EtcdMembersBudget(store), set)
}

// chooseImage reads the members and decides which image they should run.
func (e etcdObjects) chooseImage(ctx context.Context) step.Outcome {
	store, seen := e.store, e.seen
	var pods corev1.PodList
	err := e.List(ctx, &pods, client.InNamespace(store.Namespace),
		client.MatchingLabels(workload.Selector(store.Name, workload.ContainerEtcd)))
	if err != nil {
		return step.Retry(fmt.Errorf("list the pods of etcd of store %s: %w", client.ObjectKeyFromObject(store), err))
	}
	seen.etcdPods = pods.Items
	var set appsv1.StatefulSet
	key := client.ObjectKey{Namespace: store.Namespace, Name: workload.Etcd(store.Name)}
	if _, err := step.Read(ctx, e, "StatefulSet", key, &set); err != nil {
		return step.Retry(err)
	}
	seen.etcdHasTLS = workload.MountsTLS(&set.Spec.Template.Spec)
	seen.etcdImage = etcdImage(seen.image, fleet.ImageOf(&set.Spec.Template.Spec), seen.etcdPods,
		seen.gatewayRuns(seen.image), e.now)
	return step.Complete()
}

// set returns the wanted StatefulSet. Members get certificates together with the wanted image, because they keep their
// previous image until the gateways run the wanted one, and the previous image may not support certificates.
func (e etcdObjects) set() (*appsv1.StatefulSet, error) {
	store, seen := e.store, e.seen
	if !seen.etcdHasTLS && seen.etcdImage != seen.image {
		store = store.DeepCopy()
		store.Status.TLS = nil
	}
	return workload.EtcdStatefulSet(store, seen.etcdImage, etcdState(store))
}

// keepClaimSize keeps the claim template of an existing StatefulSet, which Kubernetes refuses to change.
func (e etcdObjects) keepClaimSize(ctx context.Context, set *appsv1.StatefulSet) error {
	var live appsv1.StatefulSet
	there, err := step.Read(ctx, e, "StatefulSet", client.ObjectKeyFromObject(set), &live)
	if err != nil || !there {
		return err
	}
	for n := range set.Spec.VolumeClaimTemplates {
		if n < len(live.Spec.VolumeClaimTemplates) {
			set.Spec.VolumeClaimTemplates[n].Spec.Resources = live.Spec.VolumeClaimTemplates[n].Spec.Resources
		}
	}
	return nil
}

// growEtcdClaims grows the claims of the members to the size in the spec. It reports an error if their class does not
// allow growth.
func growEtcdClaims(ctx context.Context, w *writer) step.Outcome {
	store := w.store
	if store.Spec.Etcd.Managed == nil {
		return step.Complete()
	}
	want, refused := store.Spec.Etcd.Managed.Storage.Size, ""
	for n := range workload.EtcdMembers(store) {
		key := client.ObjectKey{Namespace: store.Namespace, Name: workload.PodClaim(workload.EtcdMember(store.Name, n))}
		var claim corev1.PersistentVolumeClaim
		there, err := step.Read(ctx, w, "claim", key, &claim)
		if err != nil {
			return step.Retry(err)
		}
		// An unbound claim cannot be changed.
		if !there || claim.Status.Phase != corev1.ClaimBound || claim.DeletionTimestamp != nil ||
			claim.Spec.Resources.Requests.Storage().Cmp(want) >= 0 {
			continue
		}
		patch := step.IfUnchanged(claim.DeepCopy())
		claim.Spec.Resources.Requests[corev1.ResourceStorage] = want
		err = w.Patch(ctx, &claim, patch, client.FieldOwner(v1alpha1.FieldManager))
		if apierrors.IsForbidden(err) || apierrors.IsInvalid(err) {
			refused = fmt.Sprintf(
				"spec.etcd.managed.storage.size asks for %s, and claim %s cannot grow: %v. Use a StorageClass with "+
					"allowVolumeExpansion, set it back, or leave it as it is: etcd runs on", want.String(), claim.Name, err)
		} else if err != nil {
			return step.Retry(fmt.Errorf("grow claim %s: %w", key, err))
		} else {
			w.tell(ctx, "ClaimGrows", "Grow", &claim, "asked for %s in PersistentVolumeClaim %s of etcd", want.String(),
				claim.Name)
		}
	}
	if refused != "" {
		sayFalse(store, v1alpha1.ConditionVolumesGrown, "ResizeInfeasible", refused)
	} else {
		meta.RemoveStatusCondition(&store.Status.Conditions, v1alpha1.ConditionVolumesGrown)
	}
	return step.Complete()
}

// replacePods deletes at most one etcd pod whose template is outdated. It prefers a pod that does not work properly,
// and deletes a ready pod only if all members are ready.
func (e etcdObjects) replacePods(ctx context.Context, notes *step.Notes) step.Outcome {
	seen := e.seen
	if e.store.Spec.Etcd.Managed == nil {
		return step.Complete()
	}
	set, err := e.set()
	if err != nil {
		return step.Retry(err)
	}
	victim := etcdPodToReplace(seen.etcdPods, set, e.now)
	if victim == nil {
		victim = seen.staleMember(*set.Spec.Replicas, e.now)
	}
	if victim == nil {
		return step.Complete()
	}
	options := client.Preconditions{UID: &victim.UID}
	if err := e.Delete(ctx, victim, options); err != nil && !apierrors.IsNotFound(err) &&
		!apierrors.IsConflict(err) {
		notes.Add(step.Retry(fmt.Errorf("delete pod %s: %w", client.ObjectKeyFromObject(victim), err)))
		return step.Complete()
	}
	e.tell(ctx, "EtcdRestarts", "Restart", victim, "restarting etcd member %s for a changed pod template", victim.Name)
	return step.Wait("EtcdUpdating", fmt.Sprintf("etcd member %s is restarted with its new template", victim.Name),
		step.PauseShort)
}

// memberReader reads the Kubernetes objects of the members of a managed etcd.
type memberReader struct {
	cached, live client.Reader
	store        *v1alpha1.RecordStore
}

// gather reads the state of the members of a managed etcd, with more detail for those that are unhealthy.
func (r memberReader) gather(ctx context.Context, seen *observed, now time.Time) step.Outcome {
	store := r.store
	if store.Spec.Etcd.Managed == nil {
		meta.RemoveStatusCondition(&store.Status.Conditions, v1alpha1.ConditionEtcdRedundant)
		return step.Complete()
	}
	for n := range workload.EtcdMembers(store) {
		o := &observedMember{Now: now, Name: workload.EtcdMember(store.Name, n)}
		for i := range seen.etcdPods {
			if seen.etcdPods[i].Name == o.Name {
				o.Pod = &seen.etcdPods[i]
			}
		}
		if !o.well() {
			if err := r.lookCloser(ctx, o); err != nil {
				return step.Retry(err)
			}
		}
		seen.members = append(seen.members, o)
	}
	seen.setEtcdRedundant()
	return step.Complete()
}

// lookCloser reads further objects that may explain why a member cannot start.
func (r memberReader) lookCloser(ctx context.Context, o *observedMember) error {
	store := r.store
	var claim corev1.PersistentVolumeClaim
	key := client.ObjectKey{Namespace: store.Namespace, Name: workload.PodClaim(o.Name)}
	there, err := step.Read(ctx, r.cached, "claim", key, &claim)
	if err != nil {
		return err
	}
	if there {
		o.Claim = &claim
		if err := errors.Join(r.classOf(ctx, o), r.cordonedOf(ctx, o)); err != nil {
			return err
		}
	}
	var about client.Object
	switch {
	case o.Pod == nil:
		var set appsv1.StatefulSet
		key := client.ObjectKey{Namespace: store.Namespace, Name: workload.Etcd(store.Name)}
		if there, err := step.Read(ctx, r.cached, "StatefulSet", key, &set); err != nil || !there {
			return err // a StatefulSet that was created just now may be missing in the cache
		}
		about = &set
	case o.Pod.Spec.NodeName != "" && o.Pod.Status.Phase == corev1.PodPending:
		about = o.Pod
	default:
		return nil
	}
	o.Events, err = step.Warnings(ctx, r.live, about)
	// A StatefulSet's events are about all of its pods and claims, so keep those about this member.
	if o.Pod == nil {
		o.Events = eventsAbout(o.Events, o.Name)
	}
	return err
}

// eventsAbout returns the events that name a member, or all events if none names it.
func eventsAbout(events []string, name string) []string {
	about := slices.DeleteFunc(slices.Clone(events), func(e string) bool { return !strings.Contains(e, name) })
	if len(about) == 0 {
		return events
	}
	return about
}

// classOf finds the StorageClass of the claim, and finds out whether that class exists.
func (r memberReader) classOf(ctx context.Context, o *observedMember) error {
	if name := o.Claim.Spec.StorageClassName; name != nil {
		o.ClassName = *name
		there, err := step.Read(ctx, r.cached, "StorageClass", types.NamespacedName{Name: *name}, &storagev1.StorageClass{})
		o.ClassMissing = !there
		return err
	}
	var classes storagev1.StorageClassList
	if err := r.cached.List(ctx, &classes); err != nil {
		return fmt.Errorf("list StorageClasses: %w", err)
	}
	for _, class := range classes.Items {
		if class.Annotations["storageclass.kubernetes.io/is-default-class"] == "true" {
			o.ClassName = class.Name
		}
	}
	return nil
}

// cordonedOf sets o.Cordoned if the member's pod is not scheduled yet and the node of its local volume is cordoned.
func (r memberReader) cordonedOf(ctx context.Context, o *observedMember) error {
	if o.Pod == nil || o.Pod.Spec.NodeName != "" || o.Claim.Spec.VolumeName == "" {
		return nil
	}
	var volume corev1.PersistentVolume
	if err := r.cached.Get(ctx, client.ObjectKey{Name: o.Claim.Spec.VolumeName}, &volume); err != nil {
		return client.IgnoreNotFound(err)
	}
	var node corev1.Node
	name := workload.DiskNode(&volume)
	if name == "" {
		return nil
	}
	if err := r.cached.Get(ctx, client.ObjectKey{Name: name}, &node); err != nil {
		return client.IgnoreNotFound(err)
	}
	if node.Spec.Unschedulable {
		o.Cordoned = name
	}
	return nil
}
