// Package shardpool reconciles ShardPools. It manages the StatefulSets and claims of the shards and one Shard object
// for each of them, and decides when a shard may restart or be removed.
package shardpool

import (
	"context"
	"errors"
	"fmt"
	"slices"
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
	"sheaf.dev/sheaf/client/recordv1"
	"sheaf.dev/sheaf/controllers/fleet"
	"sheaf.dev/sheaf/controllers/shardpool/observed"
	"sheaf.dev/sheaf/controllers/shardpool/poolstatus"
	"sheaf.dev/sheaf/controllers/step"
	"sheaf.dev/sheaf/controllers/trust"
	"sheaf.dev/sheaf/internal/kube/workload"
)

// pauseSteady is the time between reconciles of a healthy pool.
const pauseSteady = 30 * time.Second

// pauseCredentials is the time between two attempts to ask a pool's shards while the operator lacks a certificate for
// the store. If this lasts longer than credentialsGrace, the pool's status says that the operator cannot ask the
// shards.
const (
	pauseCredentials = time.Second
	credentialsGrace = time.Minute
)

// pausePlan is the time until a pool checks again whether its store has made a plan for the pool's latest changes.
const pausePlan = 2 * time.Second

func storeKey(pool *v1alpha1.ShardPool) types.NamespacedName {
	return types.NamespacedName{Namespace: pool.Namespace, Name: pool.Spec.StoreRef.Name}
}

// Permissions. They are separate from the comment of the type, because controller-gen ignores markers there.
//
// +kubebuilder:rbac:groups=sheaf.dev,resources=shardpools,verbs=list;watch;patch
// +kubebuilder:rbac:groups=sheaf.dev,resources=shardpools/status,verbs=patch
// +kubebuilder:rbac:groups=sheaf.dev,resources=shardpools/finalizers,verbs=update
// +kubebuilder:rbac:groups=sheaf.dev,resources=shards,verbs=list;watch;create;patch;delete
// +kubebuilder:rbac:groups=sheaf.dev,resources=shards/status,verbs=patch
// +kubebuilder:rbac:groups=sheaf.dev,resources=recordstores,verbs=get;list;watch
// +kubebuilder:rbac:groups=sheaf.dev,resources=recordarchives,verbs=list;watch
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

// Reconciler creates and monitors the shards of ShardPools.
type Reconciler struct {
	Client client.Client // reads from the cache
	// Live reads from the API server. It is for decisions that a stale cache could make wrong.
	Live   client.Reader
	Shards fleet.ShardClient
	// Trust creates the certificates of shards. If it is nil, shards have no certificates.
	Trust *trust.Keeper
	// Register reads and updates the placement. If it is nil, the removal of shards depends only on the shards' own
	// reports.
	Register fleet.ShardRegister
	Recorder events.EventRecorder
	// Image is the default image of a store's pods, used if the store's spec names none.
	Image string
	// Groups receives the shards' reports about their groups, for the RecordStore controller. If it is nil, the
	// reports are not recorded.
	Groups *fleet.GroupBook
	Now    step.Clock

	// choosing maps the key of a store to a *sync.Mutex, which is held while a shard of that store is chosen and
	// stopped.
	choosing sync.Map
	// written maps the UID of a pool or Shard to the time.Time of the last write of its status.
	written sync.Map
	changed step.Pacer
	// lacking maps the UID of a pool to the time.Time since which the operator has lacked the certificate that it
	// needs to query the shards.
	lacking sync.Map
}

// ForgetWrites makes the next write of each status due immediately, even if only numbers have changed. A restart of the
// operator has the same effect.
func (r *Reconciler) ForgetWrites() { r.written.Clear() }

// work holds the inputs and the findings of one reconcile of a pool. Its methods pass parts of them to the operations
// that need them.
type work struct {
	r      *Reconciler
	pool   *v1alpha1.ShardPool // the pool as it was read, with the metadata that this reconcile has written since
	store  *v1alpha1.RecordStore
	etcd   workload.EtcdAccess
	writer writer
	shards shardClient
	seen   *observed.Pool
	places *places
	found  poolstatus.Found
}

func (w *work) placesOf(seen *observed.Pool) *places {
	return &places{register: w.r.Register, store: seen.Store, silent: seen.Silent}
}

// deletedPoolSteps are the steps for a pool that is being deleted.
var deletedPoolSteps = []step.Step[work]{{Name: "finalize", Do: func(ctx context.Context, w *work) step.Outcome {
	return w.finalize(ctx)
}}}

// poolSteps are the steps of a reconcile. The steps after "decide" run even if an earlier step has failed.
var poolSteps = []step.Step[work]{
	{Name: "finalizer", Do: func(ctx context.Context, w *work) step.Outcome {
		return step.AddFinalizer(ctx, w.r.Client, w.pool)
	}},
	{Name: "store", Do: findStore},
	{Name: "gather", Do: gather},
	{Name: "decide", Do: decide},
	noted("number", checkNumber),
	noted("service", func(ctx context.Context, w *work) step.Outcome {
		return applyService(ctx, w.r.Client, w.store, w.pool)
	}),
	noted("certificates", func(ctx context.Context, w *work) step.Outcome {
		return ensureCertificates(ctx, w.r.Trust, w.seen)
	}),
	noted("sets", func(ctx context.Context, w *work) step.Outcome {
		return setWriter{writer: w.writer, seen: w.seen}.apply(ctx, &w.found.Notes)
	}),
	noted("remove", func(ctx context.Context, w *work) step.Outcome {
		removal := removal{writer: w.writer, seen: w.seen, places: w.places, shards: w.shards}
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
		return replaceDisks(ctx, w.writer, w.places, w.seen.Shards, w.found.Statuses)
	}),
	noted("replace as asked", func(ctx context.Context, w *work) step.Outcome {
		return diskReplacer{writer: w.writer, seen: w.seen, places: w.places, notes: &w.found.Notes}.do(ctx)
	}),
	noted("claims", func(ctx context.Context, w *work) step.Outcome {
		growing := volumeGrower{writer: w.writer, shards: w.seen.Shards, notes: &w.found.Notes}
		out := growing.do(ctx)
		w.found.Growth = growing.found
		return out
	}),
	noted("update", func(ctx context.Context, w *work) step.Outcome {
		updating := podUpdater{
			writer: w.writer, live: w.r.Live, seen: w.seen, statuses: w.found.Statuses, places: w.places, shards: w.shards,
			choosing: w.r.turnOf(w.store),
		}
		out := updating.do(ctx)
		w.found.Update = updating.found
		return out
	}),
	{Name: "summary", Do: func(_ context.Context, w *work) step.Outcome { return poolstatus.Summary(&w.found) }},
}

// noted returns a step whose outcome is recorded instead of stopping the steps that follow. Only a temporary error
// ends the reconcile (see the function note).
func noted(name string, do func(context.Context, *work) step.Outcome) step.Step[work] {
	return step.Step[work]{Name: name, Do: func(ctx context.Context, w *work) step.Outcome {
		return note(&w.found.Notes, do(ctx, w))
	}}
}

// checkNumber reports an invalid number of shards. The operator then neither creates nor removes shards.
func checkNumber(_ context.Context, w *work) step.Outcome {
	n := fleet.WantedShards(w.pool)
	if fleet.ValidShards(n) {
		return step.Complete()
	}
	return step.Fail("ShardsInvalid", fmt.Sprintf(
		"spec.shards is %d: give a number from 0 to %d. Until then the pool keeps the shards that it has", n,
		fleet.ShardsMax))
}

// gather reads the state of the pool.
func gather(ctx context.Context, w *work) step.Outcome {
	seen, err := readObjects(ctx, w.r.Client, w.pool)
	if err != nil {
		return step.Retry(err)
	}
	seen.Store, seen.Image = w.store, workload.ImageOf(w.store, w.r.Image)
	if seen.HoldBytes, err = holdBytes(ctx, w.r.Client, w.store); err != nil {
		return step.Retry(err)
	}
	w.seen, w.places = seen, w.placesOf(seen)
	from := sources{cached: w.r.Client, live: w.r.Live, shards: w.shards, places: w.places, now: w.r.Now.Time()}
	if err := from.fill(ctx, seen, w.etcd); err != nil {
		return step.Retry(err)
	}
	if w.r.lacksCredentials(w.pool, seen.Shards, w.r.Now.Time()) {
		return step.Retry(fleet.ErrNoCredentials)
	}
	return step.Complete()
}

// lacksCredentials reports whether a shard was not asked because the operator does not have a certificate for the store
// yet, and whether this has lasted only for a short time, as is normal after a start. The status then keeps the
// findings of the previous operator process.
func (r *Reconciler) lacksCredentials(pool *v1alpha1.ShardPool, shards []*observed.Shard, now time.Time) bool {
	lacks := slices.ContainsFunc(shards, func(o *observed.Shard) bool {
		return errors.Is(o.ReportErr, fleet.ErrNoCredentials)
	})
	if !lacks {
		r.lacking.Delete(pool.UID)
		return false
	}
	since, _ := r.lacking.LoadOrStore(pool.UID, now)
	return now.Sub(since.(time.Time)) < credentialsGrace
}

// decide determines the state of every shard.
func decide(_ context.Context, w *work) step.Outcome {
	said := map[string]*recordv1.ShardStatus{}
	for _, o := range w.seen.Shards {
		s := observed.Decide(o)
		w.found.Statuses = append(w.found.Statuses, s)
		said[o.Name] = nil // the shard was asked; unless it serves, it reports no groups
		if fleet.Serving(s.State) {
			said[o.Name] = o.Report
		}
	}
	w.r.Groups.Note(storeKey(w.pool), w.pool.Name, said, w.r.Now.Time())
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
		writer: writer{Client: r.Client, recorder: r.Recorder, pool: pool},
		shards: shardClient{shards: r.Shards, store: storeKey(pool).String()},
	}
	steps := poolSteps
	if pool.DeletionTimestamp != nil {
		steps = deletedPoolSteps
	}
	out := step.Run(ctx, steps, w)
	if pool.DeletionTimestamp != nil && out.IsComplete() {
		r.written.Delete(pool.UID)
		r.lacking.Delete(pool.UID)
		r.Groups.Forget(storeKey(pool), pool.Name, r.Now.Time())
		return ctrl.Result{}, step.SayDeleting(ctx, r.Client, pool, func(p *v1alpha1.ShardPool) *[]metav1.Condition {
			return &p.Status.Conditions
		})
	}
	switch {
	case step.Stale(out.Err()):
		return r.changed.Again(req), nil
	case errors.Is(out.Err(), fleet.ErrNoCredentials):
		return ctrl.Result{RequeueAfter: pauseCredentials}, nil
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

// writeStatuses writes the status of each shard, and then that of the pool. The argument out is the outcome of the
// reconcile.
func (w *work) writeStatuses(ctx context.Context, out step.Outcome) error {
	writer := statusWriter{Client: w.r.Client, written: &w.r.written, now: w.r.Now.Time()}
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
			w.writer.reportChange(ctx, w.seen.Last[s.Number].State, s)
		}
		if failed != nil && len(w.pool.Status.ShardStatuses) > v1alpha1.ShardStatusesMax {
			// Some Shards were not written, so keep all statuses: the list may be truncated only if every shard has a Shard
			// object.
			status.ShardStatuses = all
		}
	}
	if step.Passing(failed) || apierrors.IsAlreadyExists(failed) {
		return failed
	}
	next := w.pool.DeepCopy()
	next.Status = status
	_, err := writeDue(ctx, writer, w.pool, next, w.pool.Status, status, fleet.UrgentOfPool)
	return errors.Join(failed, err)
}

// pause returns the time until the pool's next reconcile. The argument asked is the time that the outcome of the
// steps asks for, or 0 if it asks for none. The pause is shorter if a condition is about to change.
func (r *Reconciler) pause(pool *v1alpha1.ShardPool, found *poolstatus.Found, asked time.Duration) time.Duration {
	if asked == 0 {
		asked = pauseSteady
	}
	if drainsUnasked(pool, found) {
		asked = min(asked, pausePlan)
	}
	if r.Groups.ElectionPending(storeKey(pool)) {
		asked = min(asked, fleet.LeaderGrace)
	}
	return asked
}

// turnOf returns the mutex that is held while a shard of the store is chosen and stopped.
func (r *Reconciler) turnOf(store *v1alpha1.RecordStore) *sync.Mutex {
	lock, _ := r.choosing.LoadOrStore(client.ObjectKeyFromObject(store), &sync.Mutex{})
	return lock.(*sync.Mutex)
}

// findStore waits for the store and its UID, which is part of every shard's flags.
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
	case store.Spec.Etcd.Managed != nil && workload.EtcdMembers(store) == 0: // the store's status says what is wrong
		return step.Wait("StoreNotReady", fmt.Sprintf("RecordStore %s has no valid spec.etcd.managed.members", key.Name),
			step.PauseLong)
	// It is not known yet whether shards use TLS; the store's status says why.
	case w.r.Trust != nil && store.Status.TLS == nil,
		store.Status.TLS != nil && store.Status.TLS.Transport == "": // a shard that starts now would get no certificate
		return step.Wait("StoreNotReady", fmt.Sprintf("RecordStore %s has no authorities for certificates yet (condition %s)",
			key.Name, v1alpha1.ConditionCertificates), step.PauseShort)
	}
	w.store = store
	w.shards.tls = store.Status.TLS != nil && store.Status.TLS.Transport == v1alpha1.TransportRequired
	secret, out := fleet.ReadEtcdSecret(ctx, w.r.Live, store)
	// If the Secret exists but is incomplete, the pool continues and the store reports what is missing.
	if secret == nil && !out.IsComplete() {
		return out.Saying(fmt.Sprintf("RecordStore %s: %s", key.Name, out.Message()))
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
	_, err := step.Apply(ctx, c, pool, wanted)
	return step.Retry(err)
}
