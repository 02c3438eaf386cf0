// Package shardpool reconciles ShardPools: the StatefulSets and claims of shards, who may restart or leave when, and
// one Shard object each.
package shardpool

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"sheaf.dev/sheaf/api/v1alpha1"
	"sheaf.dev/sheaf/controllers/fleet"
	"sheaf.dev/sheaf/controllers/shardpool/observed"
	"sheaf.dev/sheaf/controllers/shardpool/poolstatus"
	"sheaf.dev/sheaf/controllers/step"
	"sheaf.dev/sheaf/controllers/trust"
	"sheaf.dev/sheaf/internal/kube/workload"
)

// pauseSteady is between looks at a pool in which all is well.
const pauseSteady = 30 * time.Second

// pausePlan is how long a pool waits before it looks whether its store has planned what the pool has just asked for.
const pausePlan = 2 * time.Second

// storeKey is the store that a pool belongs to.
func storeKey(pool *v1alpha1.ShardPool) types.NamespacedName {
	return types.NamespacedName{Namespace: pool.Namespace, Name: pool.Spec.StoreRef.Name}
}

// The rights that controller-gen collects. It does not see markers in the comment of a type.
//
// +kubebuilder:rbac:groups=sheaf.dev,resources=shardpools,verbs=list;watch;patch
// +kubebuilder:rbac:groups=sheaf.dev,resources=shardpools/status,verbs=patch
// +kubebuilder:rbac:groups=sheaf.dev,resources=shardpools/finalizers,verbs=update
// +kubebuilder:rbac:groups=sheaf.dev,resources=shards,verbs=list;watch;create;patch;delete
// +kubebuilder:rbac:groups=sheaf.dev,resources=shards/status,verbs=patch
// +kubebuilder:rbac:groups=sheaf.dev,resources=recordstores,verbs=get;list;watch
// +kubebuilder:rbac:groups=apps,resources=statefulsets,verbs=list;watch;create;patch;delete
// +kubebuilder:rbac:groups="",resources=services,verbs=list;watch;create;patch
// +kubebuilder:rbac:groups="",resources=pods,verbs=list;watch;patch;delete
// +kubebuilder:rbac:groups="",resources=persistentvolumeclaims,verbs=list;watch;patch;delete
// +kubebuilder:rbac:groups="",resources=persistentvolumes;nodes;namespaces,verbs=list;watch
// +kubebuilder:rbac:groups="",resources=secrets,verbs=get;create;patch;delete
// +kubebuilder:rbac:groups=cert-manager.io,resources=certificates,verbs=get;create;patch;delete
// +kubebuilder:rbac:groups="",resources=events,verbs=list
// +kubebuilder:rbac:groups=events.k8s.io,resources=events,verbs=create;patch
// +kubebuilder:rbac:groups=storage.k8s.io,resources=storageclasses,verbs=list;watch

// Reconciler makes and watches the shards of ShardPools.
type Reconciler struct {
	Client client.Client // reads from the cache
	// Live reads from the API server, for what must not be decided from a stale cache.
	Live   client.Reader
	Shards fleet.ShardClient
	// Trust makes the certificates of shards; nil: they have none.
	Trust    *trust.Keeper
	Register fleet.ShardRegister // nil: there is none; shards are removed by what they say alone
	Recorder events.EventRecorder
	// Image of the pods, where the store names none.
	Image string
	// Groups is what shards said of their groups, for stores to read; nil: nobody reads it.
	Groups *fleet.GroupBook
	// Now is the clock; nil: time.Now.
	Now func() time.Time

	choosing sync.Map // *sync.Mutex by the key of a store: held while a shard of that store is chosen and stopped
	written  sync.Map // time.Time of the last write of a status, by the UID of the pool or Shard
	changed  step.Pacer
}

// ForgetWrites makes the next write of each status due at once, also where only numbers have moved, as a restart of the
// operator does.
func (r *Reconciler) ForgetWrites() { r.written.Clear() }

// work is one reconcile of one pool: what was read, and what was found out. Its methods hand the parts of both to the
// operations that need them.
type work struct {
	r      *Reconciler
	pool   *v1alpha1.ShardPool // as it was read, with what this reconcile has written to its metadata
	store  *v1alpha1.RecordStore
	etcd   workload.EtcdAccess
	hand   hand
	shards asker
	seen   *observed.Pool
	places *places
	found  poolstatus.Found
}

func (w *work) placesOf(seen *observed.Pool) *places {
	return &places{register: w.r.Register, store: seen.Store, silent: seen.Silent}
}

// deletedPoolSteps is what a reconcile of a pool that is being deleted does.
var deletedPoolSteps = []step.Step[work]{{Name: "finalize", Do: func(ctx context.Context, w *work) step.Outcome {
	return w.finalize(ctx)
}}}

// poolSteps is what a reconcile does. A step after "decide" runs also where one before it has failed.
var poolSteps = []step.Step[work]{
	{Name: "finalizer", Do: func(ctx context.Context, w *work) step.Outcome {
		return step.AddFinalizer(ctx, w.r.Client, w.pool)
	}},
	{Name: "store", Do: findStore},
	{Name: "gather", Do: gather},
	{Name: "decide", Do: decide},
	noted("service", func(ctx context.Context, w *work) step.Outcome {
		return applyService(ctx, w.r.Client, w.store, w.pool)
	}),
	noted("certificates", func(ctx context.Context, w *work) step.Outcome {
		return ensureCertificates(ctx, w.r.Trust, w.seen)
	}),
	noted("sets", func(ctx context.Context, w *work) step.Outcome {
		return setWriter{hand: w.hand, seen: w.seen}.apply(ctx, &w.found.Notes)
	}),
	noted("remove", func(ctx context.Context, w *work) step.Outcome {
		removal := removal{hand: w.hand, seen: w.seen, places: w.places, shards: w.shards}
		kept, out := removal.do(ctx, w.found.Statuses, &w.found.Notes)
		for _, n := range kept {
			w.found.Statuses = append(w.found.Statuses, lastStatus(w.seen, n))
		}
		return out
	}),
	noted("drain", func(ctx context.Context, w *work) (out step.Outcome) {
		leaving := leaving{cached: w.r.Client, pool: w.pool, places: w.places}
		w.found.Held, out = leaving.drain(ctx, w.seen.Shards, &w.found.Notes)
		return out
	}),
	noted("replace", func(ctx context.Context, w *work) step.Outcome {
		return replaceDisks(ctx, w.hand, w.places, w.seen.Shards, w.found.Statuses)
	}),
	noted("replace as asked", func(ctx context.Context, w *work) step.Outcome {
		return replacing{hand: w.hand, seen: w.seen, places: w.places, notes: &w.found.Notes}.do(ctx)
	}),
	noted("claims", func(ctx context.Context, w *work) step.Outcome {
		growing := growing{hand: w.hand, shards: w.seen.Shards, notes: &w.found.Notes}
		out := growing.do(ctx)
		w.found.Growth = growing.found
		return out
	}),
	noted("update", func(ctx context.Context, w *work) step.Outcome {
		updating := updating{
			hand: w.hand, live: w.r.Live, seen: w.seen, statuses: w.found.Statuses, places: w.places, shards: w.shards,
			choosing: w.r.turnOf(w.store),
		}
		out := updating.do(ctx)
		w.found.Update = updating.found
		return out
	}),
	{Name: "summary", Do: func(_ context.Context, w *work) step.Outcome { return poolstatus.Summary(&w.found) }},
}

// noted is a step that does not stop the others.
func noted(name string, do func(context.Context, *work) step.Outcome) step.Step[work] {
	return step.Step[work]{Name: name, Do: func(ctx context.Context, w *work) step.Outcome {
		return note(&w.found.Notes, do(ctx, w))
	}}
}

// gather reads what there is of the pool.
func gather(ctx context.Context, w *work) step.Outcome {
	seen, err := readObjects(ctx, w.r.Client, w.pool)
	if err != nil {
		return step.Retry(err)
	}
	seen.Store, seen.Image = w.store, workload.ImageOf(w.store, w.r.Image)
	w.seen, w.places = seen, w.placesOf(seen)
	from := sources{cached: w.r.Client, live: w.r.Live, shards: w.shards, places: w.places, now: w.r.now()}
	if err := from.fill(ctx, seen, w.etcd); err != nil {
		return step.Retry(err)
	}
	return step.Complete()
}

// decide names the state of every shard.
func decide(_ context.Context, w *work) step.Outcome {
	said := map[string]*fleet.ShardReport{}
	for _, o := range w.seen.Shards {
		s := observed.Decide(o)
		w.found.Statuses = append(w.found.Statuses, s)
		said[o.Name] = nil // it was asked; one that does not serve says nothing of groups
		if fleet.Serving(s.State) {
			said[o.Name] = o.Report
		}
	}
	w.r.Groups.Note(storeKey(w.pool), w.pool.Name, said, w.r.now())
	w.found.Seen = w.seen
	return step.Complete()
}

// Reconcile implements reconcile.Reconciler.
func (r *Reconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	pool := &v1alpha1.ShardPool{}
	if err := r.Client.Get(ctx, req.NamespacedName, pool); err != nil {
		r.changed.Done(req)
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	w := &work{
		r: r, pool: pool,
		hand:   hand{Client: r.Client, recorder: r.Recorder, pool: pool},
		shards: asker{shards: r.Shards, store: storeKey(pool).String()},
	}
	steps := poolSteps
	if pool.DeletionTimestamp != nil {
		steps = deletedPoolSteps
	}
	out := step.Run(ctx, steps, w)
	if pool.DeletionTimestamp != nil && out.IsComplete() {
		r.written.Delete(pool.UID)
		r.Groups.Forget(storeKey(pool), pool.Name, r.now())
		return ctrl.Result{}, nil
	}
	if step.Stale(out.Err()) {
		return r.changed.Again(req), nil
	}
	switch err := w.writeStatuses(ctx, out); {
	case step.Passing(err), apierrors.IsAlreadyExists(err):
		log.FromContext(ctx).V(1).Info("the pool changed meanwhile", "reason", err.Error())
		return r.changed.Again(req), nil
	case err != nil:
		return ctrl.Result{}, err
	}
	r.changed.Done(req)
	result, err := out.Result()
	if err == nil {
		result.RequeueAfter = r.pause(pool, &w.found, result.RequeueAfter)
	}
	return result, err
}

// writeStatuses writes what was found of each shard, and then of the pool, where the reconcile ended with out.
func (w *work) writeStatuses(ctx context.Context, out step.Outcome) error {
	writer := statusWriter{Client: w.r.Client, written: &w.r.written, now: w.r.now()}
	status := poolstatus.Of(w.pool, &w.found, out)
	var failed error
	if w.found.Seen != nil {
		shards := shardWriter{statusWriter: writer, seen: w.seen, forget: func(ctx context.Context, shard string) error {
			return removeCertificates(ctx, w.r.Trust, w.seen, shard)
		}}
		all := poolstatus.ByNumber(w.found.Statuses)
		var changed []v1alpha1.ShardStatus
		changed, failed = shards.write(ctx, all)
		for _, s := range changed {
			w.hand.tellChange(ctx, w.seen.Last[s.Number].State, s)
		}
		if failed != nil && len(w.pool.Status.ShardStatuses) > v1alpha1.ShardStatusesMax {
			status.ShardStatuses = all // the list is cut only when each of its items is in an object Shard
		}
	}
	if step.Passing(failed) || apierrors.IsAlreadyExists(failed) {
		return failed
	}
	next := w.pool.DeepCopy()
	next.Status = status
	_, err := writeDue(ctx, writer, w.pool, next, w.pool.Status, status, fleet.ToldOfPool)
	return errors.Join(failed, err)
}

// pause gives how long the pool is left alone. asked: what the outcome of the steps asks for; 0: nothing.
// What is over in a moment is looked at soon.
func (r *Reconciler) pause(pool *v1alpha1.ShardPool, found *poolstatus.Found, asked time.Duration) time.Duration {
	if asked == 0 {
		asked = pauseSteady
	}
	if drainsUnasked(pool, found) {
		asked = min(asked, pausePlan)
	}
	if r.Groups.Unsettled(storeKey(pool)) {
		asked = min(asked, fleet.LeaderGrace)
	}
	return asked
}

func (r *Reconciler) now() time.Time {
	if r.Now != nil {
		return r.Now()
	}
	return time.Now()
}

// turnOf is held while a shard of the store is chosen and stopped.
func (r *Reconciler) turnOf(store *v1alpha1.RecordStore) *sync.Mutex {
	lock, _ := r.choosing.LoadOrStore(client.ObjectKeyFromObject(store), &sync.Mutex{})
	return lock.(*sync.Mutex)
}

// findStore waits for the store and its UID, which is in every shard's flags.
func findStore(ctx context.Context, w *work) step.Outcome {
	key := storeKey(w.pool)
	store := &v1alpha1.RecordStore{}
	err := w.r.Client.Get(ctx, key, store)
	switch {
	case apierrors.IsNotFound(err):
		return step.Wait("StoreNotFound", fmt.Sprintf(
			"there is no RecordStore %q in namespace %s: create it, or correct spec.storeRef in a new ShardPool", key.Name,
			key.Namespace), step.PauseLong)
	case err != nil:
		return step.Retry(fmt.Errorf("read RecordStore %s: %w", key.Name, err))
	case store.DeletionTimestamp != nil:
		return step.Wait("StoreDeleted", fmt.Sprintf("RecordStore %s is being deleted: delete this ShardPool too", key.Name),
			step.PauseLong)
	case store.Status.StoreUID == "":
		return step.Wait("StoreNotReady", fmt.Sprintf("RecordStore %s has no status.storeUID yet", key.Name), step.PauseLong)
	case w.r.Trust != nil && store.Status.TLS == nil, // not known yet whether shards speak TLS: the store says why
		store.Status.TLS != nil && store.Status.TLS.Transport == "": // a shard that started now would have no certificate
		return step.Wait("StoreNotReady", fmt.Sprintf("RecordStore %s has no authorities for certificates yet (condition %s)",
			key.Name, v1alpha1.ConditionCertificates), step.PauseShort)
	}
	w.store = store
	var secret *corev1.Secret
	if external := store.Spec.Etcd.External; external != nil && external.TLSSecretRef != nil {
		secret = &corev1.Secret{}
		at := types.NamespacedName{Namespace: w.pool.Namespace, Name: external.TLSSecretRef.Name}
		if err := w.r.Live.Get(ctx, at, secret); apierrors.IsNotFound(err) {
			return step.Wait("EtcdSecretMissing", fmt.Sprintf(
				"there is no Secret %q, which etcd.external.tlsSecretRef of RecordStore %s names: create it", at.Name, key.Name),
				step.PauseShort)
		} else if err != nil {
			return step.Retry(fmt.Errorf("read Secret %s: %w", at.Name, err))
		}
	}
	w.etcd = workload.EtcdAccessOf(store, secret)
	return step.Complete()
}

func applyService(ctx context.Context, c client.Client, store *v1alpha1.RecordStore,
	pool *v1alpha1.ShardPool) step.Outcome {
	wanted, live := workload.PoolService(store, pool), &corev1.Service{}
	if err := c.Get(ctx, client.ObjectKeyFromObject(wanted), live); client.IgnoreNotFound(err) != nil {
		return step.Retry(fmt.Errorf("read Service %s: %w", wanted.Name, err))
	}
	if owner := metav1.GetControllerOf(live); owner != nil && owner.UID != pool.UID {
		return step.Fail("NameTaken", fmt.Sprintf("Service %s belongs to %s %s: make this ShardPool with another name",
			wanted.Name, owner.Kind, owner.Name))
	}
	if _, err := step.Apply(ctx, c, pool, wanted); err != nil {
		return step.Retry(err)
	}
	return step.Complete()
}
