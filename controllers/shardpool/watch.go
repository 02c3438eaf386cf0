package shardpool

import (
	"context"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"sheaf.dev/sheaf/api/v1alpha1"
	"sheaf.dev/sheaf/controllers/fleet"
	"sheaf.dev/sheaf/controllers/step"
)

// SetupWithManager registers the controller and the kinds that it watches.
func (r *Reconciler) SetupWithManager(mgr ctrl.Manager) error {
	poolOfLabel := step.Requests(func(o client.Object) types.NamespacedName {
		return types.NamespacedName{Namespace: o.GetNamespace(), Name: o.GetLabels()[v1alpha1.LabelPool]}
	})
	spec := predicate.Or[client.Object](predicate.GenerationChangedPredicate{}, predicate.AnnotationChangedPredicate{},
		predicate.LabelChangedPredicate{})
	return ctrl.NewControllerManagedBy(mgr).
		Named("shardpool").
		For(&v1alpha1.ShardPool{}, builder.WithPredicates(spec)).
		Owns(&appsv1.StatefulSet{}).
		Owns(&corev1.Service{}).
		Owns(&v1alpha1.Shard{}, builder.WithPredicates(shardTouched)).
		Watches(&corev1.Pod{}, poolOfLabel).
		Watches(&corev1.PersistentVolumeClaim{}, poolOfLabel).
		Watches(&v1alpha1.RecordStore{}, handler.EnqueueRequestsFromMapFunc(r.poolsOfStore),
			builder.WithPredicates(storeChanged)).
		Watches(&v1alpha1.RecordArchive{}, handler.EnqueueRequestsFromMapFunc(r.poolsOfArchive),
			builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		Watches(&corev1.Node{}, handler.EnqueueRequestsFromMapFunc(r.poolsOfNode), builder.WithPredicates(nodeChanged)).
		WithOptions(controller.Options{MaxConcurrentReconciles: 4, RateLimiter: step.Failures()}).
		Complete(step.Counted(&v1alpha1.ShardPool{}, "shardpool", r.Client, r))
}

func (r *Reconciler) poolsOfStore(ctx context.Context, store client.Object) []reconcile.Request {
	return r.pools(ctx, []client.ListOption{client.InNamespace(store.GetNamespace())},
		func(pool *v1alpha1.ShardPool) bool { return pool.Spec.StoreRef.Name == store.GetName() })
}

func (r *Reconciler) poolsOfArchive(ctx context.Context, o client.Object) []reconcile.Request {
	archive, ok := o.(*v1alpha1.RecordArchive)
	if !ok {
		return nil
	}
	return r.pools(ctx, []client.ListOption{client.InNamespace(archive.Namespace)},
		func(pool *v1alpha1.ShardPool) bool { return pool.Spec.StoreRef.Name == archive.Spec.StoreRef.Name })
}

func (r *Reconciler) poolsOfNode(ctx context.Context, node client.Object) []reconcile.Request {
	var shards v1alpha1.ShardList
	if err := r.Client.List(ctx, &shards); err != nil {
		log.FromContext(ctx).Error(err, "list Shards")
		return nil
	}
	return r.pools(ctx, nil, func(pool *v1alpha1.ShardPool) bool {
		for _, s := range v1alpha1.ShardsOf(pool, shards.Items) {
			if s.Node == node.GetName() || s.Node == node.GetLabels()[corev1.LabelHostname] {
				return true
			}
		}
		return false
	})
}

func (r *Reconciler) pools(ctx context.Context, in []client.ListOption,
	wanted func(*v1alpha1.ShardPool) bool) []reconcile.Request {
	var pools v1alpha1.ShardPoolList
	if err := r.Client.List(ctx, &pools, in...); err != nil {
		log.FromContext(ctx).Error(err, "list ShardPools")
		return nil
	}
	var requests []reconcile.Request
	for i := range pools.Items {
		if wanted(&pools.Items[i]) {
			requests = append(requests, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(&pools.Items[i])})
		}
	}
	return requests
}

// storeChanged is a predicate that passes changes of a store's spec, UID, image, deletion, planned generations and
// wanted certificates, and the loss and return of its etcd or placement. The rest of the store's status is derived
// from the pools.
var storeChanged = step.Changed(func(s *v1alpha1.RecordStore) any {
	var certificates any // nil if the shards have no certificates
	if tls := s.Status.TLS; tls != nil {
		certificates = []any{tls.Phase, tls.Bundle, tls.WithoutImage}
	}
	return []any{s.Generation, s.Status.StoreUID, s.Status.Image, s.Status.Planned, certificates,
		s.DeletionTimestamp.IsZero(), etcdTroubleOf(s) == nil}
})

// shardTouched is a predicate that passes a Shard that is deleted, or whose labels or owner somebody else changed.
// Changes of its status come from the pool's own reconcile, and the next reconcile corrects changes by others.
var shardTouched = predicate.Funcs{
	CreateFunc: func(event.CreateEvent) bool { return false },
	UpdateFunc: func(e event.UpdateEvent) bool {
		return !equality.Semantic.DeepEqual(e.ObjectOld.GetLabels(), e.ObjectNew.GetLabels()) ||
			!equality.Semantic.DeepEqual(e.ObjectOld.GetOwnerReferences(), e.ObjectNew.GetOwnerReferences())
	},
}

// nodeChanged is a predicate that passes only changes of readiness and taints, because nodes report every few seconds.
var nodeChanged = step.Changed(func(n *corev1.Node) any { return []any{fleet.NodeReady(n), n.Spec.Taints} })
