package controllers

import (
	"context"
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"sheaf.dev/sheaf/api/v1alpha1"
	"sheaf.dev/sheaf/internal/workload"
)

// delete lets go of a store. Objects that it owns go with it; claims stay, or are deleted where the policy says so: those
// of etcd here, those of shards by their pools. It waits for nothing that a deletion of the namespace could hold up.
func (r *RecordStoreReconciler) delete(ctx context.Context, store *v1alpha1.RecordStore) (ctrl.Result, error) {
	r.Placements.Close(client.ObjectKeyFromObject(store).String())
	if !controllerutil.ContainsFinalizer(store, v1alpha1.Finalizer) {
		return ctrl.Result{}, nil
	}
	if store.Spec.DeletionPolicy == v1alpha1.DeletionDelete {
		// The pools read the policy from their StatefulSets when the store is gone first.
		if err := r.deleteEtcdClaims(ctx, store); err != nil {
			return ctrl.Result{}, err
		}
	}
	err := r.writeMetadata(ctx, store, func(store *v1alpha1.RecordStore) { controllerutil.RemoveFinalizer(store, v1alpha1.Finalizer) })
	if apierrors.IsConflict(err) { // the cache is behind: a change of the store brings it here again, or else this does
		return r.changed.again(ctrl.Request{NamespacedName: client.ObjectKeyFromObject(store)}), nil
	}
	return ctrl.Result{}, client.IgnoreNotFound(err)
}

func (r *RecordStoreReconciler) deleteEtcdClaims(ctx context.Context, store *v1alpha1.RecordStore) error {
	set := &appsv1.StatefulSet{}
	set.Namespace, set.Name = store.Namespace, workload.Etcd(store.Name)
	if err := r.Client.Delete(ctx, set, client.PropagationPolicy("Background")); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("delete StatefulSet %s: %w", client.ObjectKeyFromObject(set), err)
	}
	for n := range workload.EtcdMembers(store) {
		claim := &corev1.PersistentVolumeClaim{}
		claim.Namespace, claim.Name = store.Namespace, workload.ClaimTemplate+"-"+workload.EtcdMember(store.Name, n)
		if err := r.Client.Delete(ctx, claim); err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("delete claim %s: %w", client.ObjectKeyFromObject(claim), err)
		} else if err == nil {
			tell(ctx, r.Events, store, news{reason: "ClaimDeleted", action: "Delete", object: claim,
				message: fmt.Sprintf("deleted PersistentVolumeClaim %s of etcd, as deletionPolicy is Delete", claim.Name)})
		}
	}
	return nil
}
