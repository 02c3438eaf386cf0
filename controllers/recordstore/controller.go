// Package recordstore reconciles RecordStores: it runs etcd and the gateways, makes the first placement, updates the
// plan, and writes the status of the whole store.
package recordstore

import (
	"cmp"
	"context"
	"fmt"
	"sync"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"sheaf.dev/sheaf/api/v1alpha1"
	"sheaf.dev/sheaf/controllers/fleet"
	"sheaf.dev/sheaf/controllers/step"
	"sheaf.dev/sheaf/controllers/trust"
	"sheaf.dev/sheaf/internal/kube/workload"
)

// Permissions. Reads from caches need list and watch; reads that bypass the caches need get. A test compares the
// permissions with the requests of the controllers. Leases and events of the core API are for leader election among
// the operator's pods.
//
// +kubebuilder:rbac:groups=sheaf.dev,resources=recordstores,verbs=get;list;watch;patch
// +kubebuilder:rbac:groups=sheaf.dev,resources=recordstores/status,verbs=patch
// +kubebuilder:rbac:groups=sheaf.dev,resources=recordstores/finalizers,verbs=update
// +kubebuilder:rbac:groups=sheaf.dev,resources=shardpools;shards,verbs=list;watch
// +kubebuilder:rbac:groups=apps,resources=statefulsets,verbs=list;watch;create;patch;delete
// +kubebuilder:rbac:groups=apps,resources=deployments,verbs=list;watch;create;patch
// +kubebuilder:rbac:groups=policy,resources=poddisruptionbudgets,verbs=list;watch;create;patch
// +kubebuilder:rbac:groups=networking.k8s.io,resources=networkpolicies,verbs=list;watch;create;patch;delete
// +kubebuilder:rbac:groups="",resources=services,verbs=list;watch;create;patch
// +kubebuilder:rbac:groups="",resources=pods,verbs=list;watch;delete
// +kubebuilder:rbac:groups="",resources=persistentvolumeclaims,verbs=list;watch;patch;delete
// +kubebuilder:rbac:groups="",resources=configmaps,verbs=get;create;patch;delete
// +kubebuilder:rbac:groups="",resources=secrets,verbs=get;create;patch;delete
// +kubebuilder:rbac:groups=cert-manager.io,resources=certificates,verbs=get;create;patch;delete
// +kubebuilder:rbac:groups=events.k8s.io,resources=events,verbs=create;patch
// +kubebuilder:rbac:groups=coordination.k8s.io,resources=leases,verbs=get;create;update
// +kubebuilder:rbac:groups="",resources=events,verbs=create

// Reconciler maintains a store's etcd, gateways, disruption budgets and placement.
type Reconciler struct {
	Client client.Client // reads from the cache
	// Live reads from the API server. It is for Secrets, which are not cached, and for decisions that a stale cache
	// could make wrong.
	Live       client.Reader
	Events     events.EventRecorder
	Placements fleet.Placements
	// Groups holds what shards reported about their groups, as the controller of pools recorded it; nil: it is not
	// recorded.
	Groups *fleet.GroupBook
	// Grants holds whether processes use the newest grant table; nil: they are not asked.
	Grants *fleet.GrantBook
	// Trust makes certificates; nil: stores have none.
	Trust *trust.Keeper
	// Transports asks processes which certificates they use. It is required if Trust is set.
	Transports fleet.TransportClient
	// Credentials receives the credentials with which the operator talks to stores; nil: they are not needed.
	Credentials fleet.Credentials
	// Image is the image of shards, gateways and etcd for a store that names none.
	Image string
	// Namespace is the namespace of the operator's own pods, which connect to etcd. If it is empty, it is unknown,
	// and no NetworkPolicies are made.
	Namespace string
	// Now is the clock; nil: time.Now.
	Now func() time.Time

	written    sync.Map // by store UID: time.Time of the last write of its status
	transports sync.Map // by store UID: the last *reportedTransport
	spoken     sync.Map // by store UID: *spoken, the inputs of the operator's credentials
	published  sync.Map // by ConfigMap: what was published
	arrived    arrivals
	changed    step.Pacer
}

func (r *Reconciler) now() time.Time {
	if r.Now != nil {
		return r.Now()
	}
	return time.Now()
}

// storeRun holds what one reconcile of a store has gathered.
type storeRun struct {
	store     *v1alpha1.RecordStore
	pools     []v1alpha1.ShardPool
	observed  fleet.Observed // the shards of these pools
	hasPools  bool
	first     firstPlacement
	access    workload.EtcdAccess
	secrets   fleet.EtcdCredentials
	etcdPods  []corev1.Pod
	etcdImage string
	// etcdHasTLS is true if the current StatefulSet gives the members certificates.
	etcdHasTLS bool
	members    []*observedMember // the members of a managed etcd
	gateway    *appsv1.Deployment
	trouble    string // ": " and the reason why a gateway does not run; empty: none is known
	state      fleet.PlacementState
	hasState   bool
	reported   fleet.GroupSum // what shards reported about the groups of the store
	keeps      bool           // too early for another write of numbers
	placement  fleet.Placement
	transport  *reportedTransport
	source     *trust.Found // the source of the certificates; nil: the operator
	notes      step.Notes   // outcomes of steps that did not stop the others
}

// Reconcile brings a store to the state that its spec describes.
func (r *Reconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	var store v1alpha1.RecordStore
	if err := r.Client.Get(ctx, req.NamespacedName, &store); err != nil {
		if apierrors.IsNotFound(err) {
			r.Placements.Close(req.String())
			if r.Credentials != nil {
				r.Credentials.Forget(req.String())
			}
			r.changed.Done(req)
			storeSeries.forget(req.NamespacedName)
			return ctrl.Result{}, nil
		}
		return ctrl.Result{}, err
	}
	if !store.DeletionTimestamp.IsZero() {
		return r.delete(ctx, &store)
	}
	before := store.DeepCopy()
	run := &storeRun{store: &store}
	out := step.Run(ctx, r.steps(), run)
	if step.Passing(out.Err()) {
		return r.changed.Again(req), nil
	}
	out = run.notes.With(out)
	r.summarize(run, out)
	storeSeries.observe(run)
	changed, err := r.writeStatus(ctx, before, &store)
	if step.Passing(err) {
		return r.changed.Again(req), nil
	}
	r.changed.Done(req)
	if err != nil {
		return ctrl.Result{}, err
	}
	if changed {
		r.written.Store(store.UID, r.now())
		r.tell(ctx, before, &store)
	}
	if out.IsComplete() {
		out = out.Again(r.pause(run))
	}
	if run.reported.ElectionPending {
		out = out.Again(min(cmp.Or(out.After(), fleet.LeaderGrace), fleet.LeaderGrace))
	}
	if run.transportChanges() { // the reconcile polls the processes, which cannot be watched
		out = out.Again(min(cmp.Or(out.After(), step.PauseShort), step.PauseShort))
	}
	if run.lacksMembers() { // only the members' readiness is watched, not its reason
		out = out.Again(min(out.After(), step.PauseShort))
	}
	return out.Result()
}

// steps returns the steps of a store in order. Objects come before the steps that need etcd, because a gateway that
// serves keeps serving while etcd is unavailable. Steps that write objects do not wait for each other.
func (r *Reconciler) steps() []step.Step[storeRun] {
	return []step.Step[storeRun]{
		{Name: "finalizer", Do: r.finalizer},
		{Name: "members", Do: checkMembers},
		{Name: "identity", Do: r.identity},
		{Name: "pools", Do: r.gatherPools},
		{Name: "secret", Do: r.gatherSecret},
		{Name: "certificates", Do: r.certificatesFirst},
		{Name: "gateway objects", Do: noted(r.applyGateway)},
		{Name: "etcd objects", Do: noted(r.applyEtcd)}, // their image follows that of the gateway
		{Name: "budgets", Do: noted(r.applyBudgets)},
		{Name: "network policies", Do: noted(r.applyFences)},
		{Name: "etcd claims", Do: noted(r.growEtcdClaims)},
		{Name: "etcd pods", Do: r.replaceEtcdPods},
		{Name: "etcd members", Do: r.gatherMembers},
		{Name: "etcd ready", Do: r.awaitEtcd},
		{Name: "placement", Do: r.initPlacement},
		{Name: "plan", Do: r.plan},
		{Name: "budgets again", Do: noted(r.applyBudgets)}, // now with the copies that etcd knows
		{Name: "pools ready", Do: r.awaitPools},
		{Name: "copies", Do: r.awaitCopies},
		{Name: "gateway ready", Do: awaitGateway},
		{Name: "etcd members ready", Do: r.awaitMembers},
	}
}

// checkMembers reports a number of members that no etcd may have. Nothing of the store is changed then, because the
// operator cannot know which members the etcd has.
func checkMembers(_ context.Context, run *storeRun) step.Outcome {
	m := run.store.Spec.Etcd.Managed
	if m == nil || workload.ValidEtcdMembers(m.Members) {
		return step.Complete()
	}
	return step.Fail("EtcdMembersInvalid", fmt.Sprintf("spec.etcd.managed.members is %d: this version of the operator "+
		"knows 1 and 3, and changes nothing of the store. Use a later version, or make another store", m.Members))
}

// noted wraps a step so that its failure does not stop the others. A temporary error still ends the reconcile, which is
// then repeated immediately.
func noted(do func(context.Context, *storeRun) step.Outcome) func(context.Context, *storeRun) step.Outcome {
	return func(ctx context.Context, run *storeRun) step.Outcome {
		out := do(ctx, run)
		if step.Passing(out.Err()) {
			return out
		}
		run.notes.Add(out)
		return step.Complete()
	}
}

// writeStatus writes the changed fields of the status if the store has not changed since it was read. Otherwise a
// result from an old state could overwrite a newer one, or the status of a new store with the same name.
func (r *Reconciler) writeStatus(ctx context.Context, before, store *v1alpha1.RecordStore) (bool, error) {
	if equality.Semantic.DeepEqual(before.Status, store.Status) {
		return false, nil
	}
	was := store.DeepCopy()
	was.Status, was.ResourceVersion = *before.Status.DeepCopy(), "" // so that the version is in the patch
	return step.WriteStatus(ctx, r.Client, was, store)
}

// pause returns the time until the next reconcile if no watched object changes. Etcd has to be polled because it is
// not watched.
func (r *Reconciler) pause(run *storeRun) time.Duration {
	if run.state.Changed || run.store.Status.Groups.Moving > 0 || run.store.Spec.Groups.Routing == v1alpha1.RoutingNamed {
		return run.movePause() // the first put of a new group waits until it is placed
	}
	if len(run.state.Silent) > 0 || run.state.Homeless > 0 {
		return step.PauseShort
	}
	return 3 * step.PauseShort
}

// movePause returns the time between two waves of moves. Each reconcile makes etcd list all groups, so stores with
// more groups pause longer.
func (run *storeRun) movePause() time.Duration {
	return min(2*time.Second+time.Duration(run.state.Groups/4096)*time.Second, step.PauseShort)
}

// SetupWithManager watches stores, the objects that they own, and the pools that refer to them.
func (r *Reconciler) SetupWithManager(mgr ctrl.Manager) error {
	return ctrl.NewControllerManagedBy(mgr).
		Named("recordstore").
		For(&v1alpha1.RecordStore{}, builder.WithPredicates(predicate.Or(
			predicate.GenerationChangedPredicate{}, predicate.AnnotationChangedPredicate{}))).
		Owns(&appsv1.StatefulSet{}).
		Owns(&appsv1.Deployment{}).
		Owns(&corev1.Service{}, builder.WithPredicates(predicate.ResourceVersionChangedPredicate{})).
		Owns(&networkingv1.NetworkPolicy{}, builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		Owns(&policyv1.PodDisruptionBudget{}, builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		Watches(&v1alpha1.ShardPool{}, handler.EnqueueRequestsFromMapFunc(storeOfPool)).
		Watches(&v1alpha1.Shard{}, storeOfShard, builder.WithPredicates(shardReports)).
		// An etcd that does not answer delays only its own store.
		WithOptions(controller.Options{MaxConcurrentReconciles: 4, RateLimiter: step.Failures()}).
		Complete(step.Counted(&v1alpha1.RecordStore{}, "recordstore", r.Client, r))
}

// storeOfPool returns a request for the store that a pool refers to.
func storeOfPool(_ context.Context, o client.Object) []reconcile.Request {
	pool, ok := o.(*v1alpha1.ShardPool)
	if !ok {
		return nil
	}
	return []reconcile.Request{{NamespacedName: client.ObjectKey{Namespace: pool.Namespace,
		Name: pool.Spec.StoreRef.Name}}}
}

// pauseShards is how long changes of Shards are collected before their store is reconciled. At a start, all Shards
// change.
const pauseShards = time.Second

// storeOfShard requests a reconcile of the store that a Shard's label names. A pool is written after its Shards and
// immediately requests a reconcile, but the cache may have received the pool before the Shards.
var storeOfShard = handler.Funcs{
	CreateFunc: func(_ context.Context, e event.CreateEvent, q shardQueue) { askStoreOf(e.Object, q) },
	UpdateFunc: func(_ context.Context, e event.UpdateEvent, q shardQueue) { askStoreOf(e.ObjectNew, q) },
	DeleteFunc: func(_ context.Context, e event.DeleteEvent, q shardQueue) { askStoreOf(e.Object, q) },
}

type shardQueue = workqueue.TypedRateLimitingInterface[reconcile.Request]

func askStoreOf(shard client.Object, queue shardQueue) {
	if store := shard.GetLabels()[v1alpha1.LabelStore]; store != "" {
		at := client.ObjectKey{Namespace: shard.GetNamespace(), Name: store}
		queue.AddAfter(reconcile.Request{NamespacedName: at}, pauseShards)
	}
}

// shardReports passes a Shard if the part of its status that UrgentOfShard returns has changed.
var shardReports = predicate.Funcs{
	UpdateFunc: func(e event.UpdateEvent) bool {
		before, ok := e.ObjectOld.(*v1alpha1.Shard)
		after, ok2 := e.ObjectNew.(*v1alpha1.Shard)
		return !ok || !ok2 || step.WriteDue(before.Status, after.Status, fleet.UrgentOfShard, 0)
	},
}
