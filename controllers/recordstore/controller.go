// Package recordstore reconciles RecordStores: it runs etcd and the gateways, creates the first placement, updates the
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
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
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
// the operator's pods, in the operator's own namespace.
//
// +kubebuilder:rbac:groups=sheaf.dev,resources=recordstores,verbs=get;list;watch;patch
// +kubebuilder:rbac:groups=sheaf.dev,resources=recordstores/status,verbs=patch
// +kubebuilder:rbac:groups=sheaf.dev,resources=recordstores/finalizers,verbs=update
// +kubebuilder:rbac:groups=sheaf.dev,resources=shardpools;shards,verbs=list;watch
// +kubebuilder:rbac:groups=apps,resources=statefulsets,verbs=list;watch;create;patch;delete
// +kubebuilder:rbac:groups=apps,resources=deployments,verbs=list;watch;create;patch;delete
// +kubebuilder:rbac:groups=policy,resources=poddisruptionbudgets,verbs=list;watch;create;patch
// +kubebuilder:rbac:groups=networking.k8s.io,resources=networkpolicies,verbs=list;watch;create;patch;delete
// +kubebuilder:rbac:groups="",resources=services,verbs=list;watch;create;patch;delete
// +kubebuilder:rbac:groups="",resources=pods,verbs=list;watch;delete
// +kubebuilder:rbac:groups="",resources=persistentvolumeclaims,verbs=list;watch;patch;delete
// +kubebuilder:rbac:groups="",resources=configmaps,verbs=get;create;patch;delete
// +kubebuilder:rbac:groups="",resources=secrets,verbs=get;create;patch;delete
// +kubebuilder:rbac:groups=cert-manager.io,resources=certificates,verbs=get;create;patch;delete
// +kubebuilder:rbac:groups=events.k8s.io,resources=events,verbs=create;patch
// +kubebuilder:rbac:groups=coordination.k8s.io,resources=leases,namespace=sheaf-system,verbs=get;create;update
// +kubebuilder:rbac:groups="",resources=events,namespace=sheaf-system,verbs=create

// Reconciler maintains a store's etcd, gateways, disruption budgets and placement.
type Reconciler struct {
	Client client.Client // reads from the cache
	// Live reads from the API server. It is for Secrets, which are not cached, and for decisions that a stale cache
	// could make wrong.
	Live       client.Reader
	Events     events.EventRecorder
	Placements fleet.Placements
	// Groups holds the reports of shards about their groups, which the controller of pools records. If it is nil, there
	// are no reports.
	Groups *fleet.GroupBook
	// Grants holds the findings of the controller of grants about grant tables and issuers. If it is nil, there are
	// none.
	Grants *fleet.GrantBook
	// Trust creates certificates. If it is nil, stores have no certificates.
	Trust *trust.Keeper
	// Transports asks processes which certificates they use. It is required if Trust is set.
	Transports trust.TransportClient
	// Credentials receives the credentials with which the operator connects to stores. If it is nil, they are not passed
	// on.
	Credentials trust.Credentials
	// Sources asks the sources of restores. If it is nil, they are not asked, and no restore begins.
	Sources Sources
	// Image is the image of shards, gateways and etcd for a store whose spec names no image.
	Image string
	// ArchiveImage is the image of sheaf-archive, which serves an archive to a store that is restored.
	ArchiveImage string
	// Namespace is the namespace of the operator's own pods, which connect to etcd. If it is empty, the namespace is
	// unknown, and no NetworkPolicies are created.
	Namespace string
	Now       step.Clock

	written    sync.Map // maps a store's UID to the time.Time of the last write of its status
	transports sync.Map // maps a store's UID to the last *reportedTransport
	spoken     sync.Map // maps a store's UID to the *spoken of the operator's current credentials
	published  sync.Map // maps a ConfigMap to what was published in it
	arrived    arrivals
	changed    step.Pacer
}

// work is one reconcile of one store. Its methods and storeSteps pass each operation only the parts of work that the
// operation needs.
type work struct {
	r   *Reconciler
	now time.Time
	*writer
	seen      *observed
	secrets   fleet.EtcdCredentials // the credentials for an external etcd
	placement fleet.Placement
	notes     step.Notes // outcomes of steps that did not stop the others
}

// storeSteps are the steps of a reconcile in order. Objects come before the steps that need etcd, because a gateway
// that serves keeps serving while etcd is unavailable. Steps that write objects do not wait for each other.
var storeSteps = []step.Step[work]{
	{Name: "finalizer", Do: func(ctx context.Context, w *work) step.Outcome {
		return step.AddFinalizer(ctx, w.Client, w.store)
	}},
	{Name: "members", Do: func(_ context.Context, w *work) step.Outcome { return checkMembers(w.store) }},
	{Name: "identity", Do: func(ctx context.Context, w *work) step.Outcome {
		return identify(ctx, w.writer, w.r.Live, w.r.Trust != nil, w.seen.image, w.now)
	}},
	{Name: "pools", Do: func(ctx context.Context, w *work) step.Outcome {
		at, _ := w.r.written.Load(w.store.UID)
		written, _ := at.(time.Time) // zero if this operator has not written the status yet
		w.seen.keeps = w.now.Sub(written) < step.PauseShort
		return gatherPools(ctx, w.Client, w.seen, w.r.Groups, w.r.arrived.last(w.store.UID), w.now)
	}},
	{Name: "secret", Do: func(ctx context.Context, w *work) (out step.Outcome) {
		w.seen.access, w.secrets, out = gatherSecret(ctx, w.r.Live, w.store)
		return out
	}},
	{Name: "certificates", Do: func(ctx context.Context, w *work) step.Outcome {
		return w.transportFirst(w.certificates().do(ctx))
	}},
	noted("restore source", func(ctx context.Context, w *work) step.Outcome { return w.restoring().run(ctx) }),
	noted("gateway objects", func(ctx context.Context, w *work) step.Outcome {
		return applyGateway(ctx, w.writer, w.seen)
	}),
	// Etcd gets a new image only after the gateways.
	noted("etcd objects", func(ctx context.Context, w *work) step.Outcome {
		return etcdObjects{w.writer, w.seen, w.now}.apply(ctx)
	}),
	noted("budgets", func(ctx context.Context, w *work) step.Outcome { return applyBudgets(ctx, w.writer, w.seen) }),
	noted("network policies", func(ctx context.Context, w *work) step.Outcome {
		return applyFences(ctx, w.writer, w.r.Namespace)
	}),
	noted("etcd claims", func(ctx context.Context, w *work) step.Outcome { return growEtcdClaims(ctx, w.writer) }),
	{Name: "etcd pods", Do: func(ctx context.Context, w *work) step.Outcome {
		return etcdObjects{w.writer, w.seen, w.now}.replacePods(ctx, &w.notes)
	}},
	{Name: "etcd members", Do: func(ctx context.Context, w *work) step.Outcome {
		return memberReader{w.Client, w.r.Live, w.store}.gather(ctx, w.seen, w.now)
	}},
	{Name: "etcd ready", Do: func(ctx context.Context, w *work) (out step.Outcome) {
		w.placement, out = openPlacement(ctx, w.r.Placements, w.seen, w.secrets)
		return out
	}},
	{Name: "placement", Do: func(ctx context.Context, w *work) step.Outcome {
		return placing{w.writer, w.seen, w.placement}.init(ctx, w.r.Live)
	}},
	{Name: "plan", Do: func(ctx context.Context, w *work) step.Outcome {
		return placing{w.writer, w.seen, w.placement}.plan(ctx, &w.r.arrived, w.now)
	}},
	noted("restore", func(ctx context.Context, w *work) step.Outcome { return w.restoring().settle(ctx) }),
	// Apply the budgets again, now that the step plan has read from etcd where the copies are.
	noted("budgets again", func(ctx context.Context, w *work) step.Outcome { return applyBudgets(ctx, w.writer, w.seen) }),
	awaits("restored", (*observed).awaitRestored),
	awaits("pools ready", (*observed).awaitPools),
	awaits("copies", (*observed).awaitCopies),
	awaits("gateway ready", (*observed).awaitGateway),
	awaits("etcd members ready", (*observed).awaitMembers),
}

// noted returns a step whose failure does not stop the others. A temporary error still ends the reconcile, which is
// then repeated immediately.
func noted(name string, do func(context.Context, *work) step.Outcome) step.Step[work] {
	return step.Step[work]{Name: name, Do: func(ctx context.Context, w *work) step.Outcome {
		return w.note(do(ctx, w))
	}}
}

func (w *work) note(out step.Outcome) step.Outcome {
	if step.Passing(out.Err()) {
		return out
	}
	w.notes.Add(out)
	return step.Complete()
}

// transportFirst stops the remaining steps until it is known whether the store uses TLS, because otherwise a process
// could start with the wrong transport.
func (w *work) transportFirst(out step.Outcome) step.Outcome {
	out = w.note(out)
	if w.r.Trust == nil || !out.IsComplete() {
		return out
	}
	status := w.store.Status.TLS
	if status == nil || status.Bundle == "" && status.WithoutImage == "" {
		return w.notes.With(step.Complete())
	}
	return step.Complete()
}

// certificates returns the operation that creates and checks the certificates of the store.
func (w *work) certificates() *certificates {
	return &certificates{writer: w.writer, seen: w.seen, live: w.r.Live, trust: w.r.Trust, transports: w.r.Transports,
		credentials: w.r.Credentials, last: &w.r.transports, spoken: &w.r.spoken, now: w.now,
		publishing: publishing{writer: w.writer, live: w.r.Live, published: &w.r.published, now: w.now}}
}

// restoring returns the operation that runs the source of a restore.
func (w *work) restoring() restoring {
	return restoring{writer: w.writer, seen: w.seen, live: w.r.Live, sources: w.r.Sources, trust: w.r.Trust,
		image: w.r.ArchiveImage}
}

// awaits returns a step that only decides, from what the reconcile has observed, whether the store is ready.
func awaits(name string, decide func(*observed) step.Outcome) step.Step[work] {
	return step.Step[work]{Name: name, Do: func(_ context.Context, w *work) step.Outcome { return decide(w.seen) }}
}

// checkMembers reports an invalid number of members. In this case, the operator does not change any part of the
// store, because it cannot know which members the etcd has.
func checkMembers(store *v1alpha1.RecordStore) step.Outcome {
	m := store.Spec.Etcd.Managed
	if m == nil || workload.ValidEtcdMembers(m.Members) {
		return step.Complete()
	}
	return step.Fail("EtcdMembersInvalid", fmt.Sprintf("spec.etcd.managed.members is %d: this version of the operator "+
		"knows 1 and 3, and changes nothing of the store. Use a later version, or make another store", m.Members))
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
	now := r.Now.Time()
	w := &work{r: r, now: now,
		writer: &writer{Client: r.Client, recorder: r.Events, store: &store, written: *store.Status.DeepCopy()},
		seen:   &observed{store: &store, image: workload.ImageOf(&store, r.Image)}}
	if !store.DeletionTimestamp.IsZero() {
		return r.delete(ctx, w.writer)
	}
	before := store.DeepCopy()
	out := step.Run(ctx, storeSteps, w)
	if step.Passing(out.Err()) {
		return r.changed.Again(req), nil
	}
	out = w.notes.With(out)
	w.seen.summarize(r.Grants, out)
	storeSeries.observe(w.seen)
	changed, err := w.finish(ctx)
	if step.Passing(err) {
		return r.changed.Again(req), nil
	}
	r.changed.Done(req)
	if err != nil {
		return ctrl.Result{}, err
	}
	if changed {
		r.written.Store(store.UID, now)
		w.reportChanges(ctx, before)
	}
	return w.seen.again(out).Result()
}

// again sets the pause until the next reconcile. A pause is necessary because some inputs of a reconcile cannot be
// watched.
func (seen *observed) again(out step.Outcome) step.Outcome {
	if out.IsComplete() {
		out = out.Again(seen.pause())
	}
	if seen.reported.ElectionPending {
		out = out.Again(min(cmp.Or(out.After(), fleet.LeaderGrace), fleet.LeaderGrace))
	}
	changing := seen.transport != nil && (seen.store.Status.TLS.Phase != v1alpha1.TLSReady || seen.transport.changes)
	if changing { // processes cannot be watched, so they have to be polled
		out = out.Again(min(cmp.Or(out.After(), step.PauseShort), step.PauseShort))
	}
	well := seen.etcdWell()
	// A member may become ready without a change of any watched object.
	if well > len(seen.members)/2 && well < len(seen.members) {
		out = out.Again(min(out.After(), step.PauseShort))
	}
	return out
}

// pause returns the time until the next reconcile if no watched object changes. Etcd has to be polled because it is
// not watched.
func (seen *observed) pause() time.Duration {
	named := seen.store.Spec.Groups.Routing == v1alpha1.RoutingNamed
	if seen.places.Writes() > 0 || seen.store.Status.Groups.Moving > 0 || named {
		return seen.movePause() // the first put to a new group has to wait for the reconcile that places the group
	}
	if len(seen.places.Silent()) > 0 || seen.places.Homeless() > 0 {
		return step.PauseShort
	}
	return 3 * step.PauseShort
}

// movePause returns the time between two waves of moves. Each reconcile makes etcd list all groups, so stores with
// more groups pause longer.
func (seen *observed) movePause() time.Duration {
	return min(2*time.Second+time.Duration(seen.store.Status.Groups.Total/4096)*time.Second, step.PauseShort)
}

// SetupWithManager watches stores, the objects that they own, and the pools that refer to them.
func (r *Reconciler) SetupWithManager(mgr ctrl.Manager) error {
	storeOfPool := step.Requests(func(pool *v1alpha1.ShardPool) types.NamespacedName {
		return types.NamespacedName{Namespace: pool.Namespace, Name: pool.Spec.StoreRef.Name}
	})
	return ctrl.NewControllerManagedBy(mgr).
		Named("recordstore").
		For(&v1alpha1.RecordStore{}, builder.WithPredicates(predicate.Or(
			predicate.GenerationChangedPredicate{}, predicate.AnnotationChangedPredicate{}))).
		Owns(&appsv1.StatefulSet{}).
		Owns(&appsv1.Deployment{}).
		Owns(&corev1.Service{}, builder.WithPredicates(predicate.ResourceVersionChangedPredicate{})).
		Owns(&networkingv1.NetworkPolicy{}, builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		Owns(&policyv1.PodDisruptionBudget{}, builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		Watches(&v1alpha1.ShardPool{}, storeOfPool).
		Watches(&v1alpha1.Shard{}, storeOfShard, builder.WithPredicates(shardReports)).
		// An etcd that does not answer delays only its own store.
		WithOptions(controller.Options{MaxConcurrentReconciles: 4, RateLimiter: step.Failures()}).
		Complete(step.Counted(&v1alpha1.RecordStore{}, "recordstore", r.Client, r))
}

// pauseShards is how long changes of Shards are collected before their store is reconciled. At a start, all Shards
// change.
const pauseShards = time.Second

// storeOfShard requests a reconcile of the store that the label of a Shard names. A change of the pool also requests
// one, but when it does, the cache may not contain the changed Shards yet.
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
var shardReports = step.Changed(func(s *v1alpha1.Shard) v1alpha1.ShardStatus { return fleet.UrgentOfShard(s.Status) })
