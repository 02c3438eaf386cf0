package controllers

import (
	"context"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"sheaf.dev/sheaf/api/v1alpha1"
	"sheaf.dev/sheaf/internal/workload"
)

// +kubebuilder:rbac:groups=sheaf.dev,resources=recordstores,verbs=get;list;watch;update;patch
// +kubebuilder:rbac:groups=sheaf.dev,resources=recordstores/status,verbs=get;patch;update
// +kubebuilder:rbac:groups=sheaf.dev,resources=recordstores/finalizers,verbs=update
// +kubebuilder:rbac:groups=sheaf.dev,resources=shardpools,verbs=get;list;watch
// +kubebuilder:rbac:groups=apps,resources=statefulsets;deployments,verbs=get;list;watch;create;patch;update;delete
// +kubebuilder:rbac:groups=policy,resources=poddisruptionbudgets,verbs=get;list;watch;create;patch;update;delete
// +kubebuilder:rbac:groups="",resources=services,verbs=get;list;watch;create;patch;update;delete
// +kubebuilder:rbac:groups="",resources=pods,verbs=get;list;watch;delete
// +kubebuilder:rbac:groups="",resources=persistentvolumeclaims,verbs=get;list;watch;delete
// +kubebuilder:rbac:groups="",resources=secrets,verbs=get
// +kubebuilder:rbac:groups=events.k8s.io,resources=events,verbs=create;patch
// +kubebuilder:rbac:groups=coordination.k8s.io,resources=leases,verbs=get;create;update

// RecordStoreReconciler keeps a store's etcd, gateway, budgets and placement right.
type RecordStoreReconciler struct {
	Client client.Client
	// Secrets reads Secrets without caching them.
	Secrets    client.Reader
	Events     events.EventRecorder
	Placements Placements
	// Image of shards, gateways and etcd, where a store names none.
	Image string
}

// placementTimeout bounds one look at etcd.
const placementTimeout = 5 * time.Second

// storeRun is what one reconcile of a store has gathered.
type storeRun struct {
	store     *v1alpha1.RecordStore
	pools     []v1alpha1.ShardPool
	access    workload.EtcdAccess
	secrets   EtcdCredentials
	etcdPods  []corev1.Pod
	gateway   *appsv1.Deployment
	state     PlacementState
	hasState  bool
	placement Placement
}

// Reconcile makes a store as its spec says.
func (r *RecordStoreReconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	var store v1alpha1.RecordStore
	if err := r.Client.Get(ctx, req.NamespacedName, &store); err != nil {
		if apierrors.IsNotFound(err) {
			r.Placements.Close(req.String())
			return ctrl.Result{}, nil
		}
		return ctrl.Result{}, err
	}
	if !store.DeletionTimestamp.IsZero() {
		return r.delete(ctx, &store)
	}
	before := store.DeepCopy()
	run := &storeRun{store: &store}
	out := Run(ctx, r.steps(), run)
	r.summarize(run, out)
	changed, err := WriteStatus(ctx, r.Client, before, &store)
	if err != nil {
		return ctrl.Result{}, err
	}
	if changed {
		r.tell(before, &store)
	}
	if out.IsComplete() {
		return ctrl.Result{RequeueAfter: r.pause(run)}, nil
	}
	return out.Result()
}

// steps of a store, in their order. Objects come before what depends on etcd: a gateway that serves goes on doing so
// while etcd is away.
func (r *RecordStoreReconciler) steps() []Step[storeRun] {
	return []Step[storeRun]{
		{"finalizer", r.finalizer},
		{"identity", r.identity},
		{"supported", r.supported},
		{"pools", r.gatherPools},
		{"secret", r.gatherSecret},
		{"etcd objects", r.applyEtcd},
		{"gateway objects", r.applyGateway},
		{"budgets", r.applyBudgets},
		{"etcd pods", r.replaceEtcdPods},
		{"etcd ready", r.awaitEtcd},
		{"placement", r.initPlacement},
		{"plan", r.plan},
		{"pools ready", r.awaitPools},
		{"gateway ready", r.awaitGateway},
	}
}

// pause until the next look where nothing changes: at etcd, which is not watched.
func (r *RecordStoreReconciler) pause(run *storeRun) time.Duration {
	if run.state.Changed || len(run.state.Silent) > 0 || run.state.Homeless > 0 {
		return PauseShort
	}
	return 3 * PauseShort
}

// SetupWithManager watches stores, what they own, and the pools that refer to them.
func (r *RecordStoreReconciler) SetupWithManager(mgr ctrl.Manager) error {
	return ctrl.NewControllerManagedBy(mgr).
		Named("recordstore").
		For(&v1alpha1.RecordStore{}, builder.WithPredicates(predicate.Or(
			predicate.GenerationChangedPredicate{}, predicate.AnnotationChangedPredicate{}))).
		Owns(&appsv1.StatefulSet{}).
		Owns(&appsv1.Deployment{}).
		Owns(&corev1.Service{}, builder.WithPredicates(predicate.ResourceVersionChangedPredicate{})).
		Owns(&policyv1.PodDisruptionBudget{}, builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		Watches(&v1alpha1.ShardPool{}, handler.EnqueueRequestsFromMapFunc(storeOfPool)).
		Complete(r)
}

// storeOfPool is the store that a pool refers to.
func storeOfPool(_ context.Context, o client.Object) []reconcile.Request {
	pool, ok := o.(*v1alpha1.ShardPool)
	if !ok {
		return nil
	}
	return []reconcile.Request{{NamespacedName: client.ObjectKey{Namespace: pool.Namespace, Name: pool.Spec.StoreRef.Name}}}
}
