package recordstore

import (
	"context"
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"sheaf.dev/sheaf/api/v1alpha1"
	"sheaf.dev/sheaf/controllers/step"
	"sheaf.dev/sheaf/internal/kube/workload"
)

// delete releases a store that is being deleted. The objects that the store owns are deleted with it. Claims are kept
// unless the deletion policy is Delete: then this function deletes the claims of etcd, and the pools delete those of
// the shards. Claims without a volume are always deleted, because they hold no data and would request a disk from
// their class indefinitely. The function does not wait for any object to disappear, because the deletion of the
// namespace could delay that.
func (r *Reconciler) delete(ctx context.Context, w *writer) (ctrl.Result, error) {
	store := w.store
	r.Placements.Close(client.ObjectKeyFromObject(store).String())
	r.arrived.forget(store.UID)
	r.transports.Delete(store.UID)
	r.spoken.Delete(store.UID)
	if r.Trust != nil {
		r.Trust.Forget(store)
	}
	if !controllerutil.ContainsFinalizer(store, v1alpha1.Finalizer) {
		return ctrl.Result{}, w.sayDeleting(ctx)
	}
	if err := (publishing{writer: w, live: r.Live, published: &r.published}).endAll(ctx); err != nil {
		return ctrl.Result{}, err
	}
	// If the store is deleted before its pools, the pools find the deletion policy in their StatefulSets.
	err := w.deleteEtcdClaims(ctx, store.Spec.DeletionPolicy == v1alpha1.DeletionDelete)
	if apierrors.IsConflict(err) { // a claim was bound to a volume in the meantime
		return r.changed.Again(ctrl.Request{NamespacedName: client.ObjectKeyFromObject(store)}), nil
	}
	if err != nil {
		return ctrl.Result{}, err
	}
	err = step.RemoveFinalizer(ctx, w.Client, store)
	// A conflict means that the cache is stale. Retry, because there may be no watched change that starts another
	// reconcile.
	if apierrors.IsConflict(err) {
		return r.changed.Again(ctrl.Request{NamespacedName: client.ObjectKeyFromObject(store)}), nil
	}
	if err == nil {
		err = w.sayDeleting(ctx)
	}
	return ctrl.Result{}, err
}

func (w *writer) sayDeleting(ctx context.Context) error {
	return step.SayDeleting(ctx, w.Client, w.store, func(s *v1alpha1.RecordStore) *[]metav1.Condition {
		return &s.Status.Conditions
	})
}

// etcdClaimsMax is the number of members whose claims delete looks for. A later version of Sheaf may have created more
// members than this version does; etcd recommends at most 7.
const etcdClaimsMax int32 = 9

// deleteEtcdClaims deletes the claims of a managed etcd, either all or only those without a volume. It deletes their
// StatefulSet first, which would otherwise create them again.
func (w *writer) deleteEtcdClaims(ctx context.Context, all bool) error {
	store := w.store
	var claims []*corev1.PersistentVolumeClaim
	members := int32(0)
	if store.Spec.Etcd.Managed != nil {
		members = etcdClaimsMax
	}
	for n := range members {
		claim := &corev1.PersistentVolumeClaim{}
		key := client.ObjectKey{Namespace: store.Namespace, Name: workload.PodClaim(workload.EtcdMember(store.Name, n))}
		there, err := step.Read(ctx, w, "claim", key, claim)
		if err != nil {
			return err
		}
		if there && (all || claim.Spec.VolumeName == "") && claim.DeletionTimestamp == nil {
			claims = append(claims, claim)
		}
	}
	if len(claims) == 0 && !all {
		return nil
	}
	set := &appsv1.StatefulSet{}
	set.Namespace, set.Name = store.Namespace, workload.Etcd(store.Name)
	if err := w.Delete(ctx, set, client.PropagationPolicy("Background")); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("delete StatefulSet %s: %w", client.ObjectKeyFromObject(set), err)
	}
	why := "deletionPolicy is Delete"
	if !all {
		why = "it has no volume"
	}
	for _, claim := range claims {
		here := client.Preconditions{UID: &claim.UID}
		if !all { // delete the claim only if it still has no volume
			here.ResourceVersion = &claim.ResourceVersion
		}
		if err := w.Delete(ctx, claim, here); client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("delete claim %s: %w", client.ObjectKeyFromObject(claim), err)
		} else if err == nil {
			w.tell(ctx, "ClaimDeleted", "Delete", claim, "deleted PersistentVolumeClaim %s of etcd, as %s", claim.Name, why)
		}
	}
	return nil
}
