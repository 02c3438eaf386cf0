// Package shardpool reconciles ShardPools: the StatefulSets and claims of shards, who may restart or leave when, and
// one Shard object each.
package shardpool

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"sheaf.dev/sheaf/controllers/fleet"
	"sheaf.dev/sheaf/controllers/step"
	"sheaf.dev/sheaf/controllers/trust"

	appsv1 "k8s.io/api/apps/v1"

	corev1 "k8s.io/api/core/v1"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"

	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"sheaf.dev/sheaf/api/v1alpha1"
	"sheaf.dev/sheaf/internal/workload"
)

// pauseSteady is between looks at a pool in which all is well.
const pauseSteady = 30 * time.Second

// pausePlan is until the store has made its plan for what was asked for just now.
const pausePlan = 2 * time.Second

// storeKey is the store that a pool belongs to.
func storeKey(pool *v1alpha1.ShardPool) types.NamespacedName {
	return types.NamespacedName{Namespace: pool.Namespace, Name: pool.Spec.StoreRef.Name}
}

// Rights, apart from the type's comment: controller-gen does not see those that stand in one.
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

	turns   sync.Map // of a store's key: *sync.Mutex, held while a shard of the store is chosen and stopped
	written sync.Map // of the UID of a pool or Shard: time.Time of the last write of its status
	changed step.Pacer
}

// ForgetWrites makes the next write of each status due at once, also where only numbers have moved, as a restart of the
// operator does.
func (r *Reconciler) ForgetWrites() { r.written.Clear() }

// poolWork is one reconcile of one pool.
type poolWork struct {
	*Reconciler
	pool   *v1alpha1.ShardPool // status is filled in as things are found out
	before *v1alpha1.ShardPool // as it was read
	store  *v1alpha1.RecordStore
	etcd   workload.EtcdAccess

	sets   map[int32]*appsv1.StatefulSet
	wanted map[int32]*appsv1.StatefulSet
	pods   map[int32]*corev1.Pod
	claims map[int32]*corev1.PersistentVolumeClaim
	plan   fleet.NumbersPlan
	shards []*observedShard // in order of their numbers, as statuses

	objects map[int32]*v1alpha1.Shard      // as they were read
	last    map[int32]v1alpha1.ShardStatus // of all shards, as they were seen last
	silent  map[string]bool                // shards of the namespace whose disk did not answer
	// misnamed are Shards that name the pool and are not called after it and a number: somebody has made them.
	misnamed []*v1alpha1.Shard

	view    *fleet.PlacementView // nil: not asked yet
	viewErr error
	held    map[string]int // of a drained pool: groups that shards still have, as etcd says; nil: not asked

	decided  bool
	statuses []v1alpha1.ShardStatus
	growth   growth
	update   updateWords
	notes    step.Notes // of steps that did not stop the others
}

// poolSteps is what a reconcile does. Behind the decision no step waits for another one.
var poolSteps = []step.Step[poolWork]{
	poolStep("finalizer", (*poolWork).addFinalizer),
	poolStep("store", (*poolWork).findStore),
	poolStep("gather", (*poolWork).gather),
	poolStep("decide", (*poolWork).decide),
	notedStep("service", (*poolWork).applyService),
	notedStep("certificates", (*poolWork).ensureCertificates),
	notedStep("sets", (*poolWork).applySets),
	notedStep("remove", (*poolWork).removeShards),
	notedStep("drain", (*poolWork).drainPool),
	notedStep("replace", (*poolWork).replaceDisks),
	notedStep("replace as asked", (*poolWork).replaceAsked),
	notedStep("claims", (*poolWork).growClaims),
	notedStep("update", (*poolWork).restartOne),
	poolStep("summary", (*poolWork).summary),
}

func poolStep(name string, do func(*poolWork, context.Context) step.Outcome) step.Step[poolWork] {
	return step.Step[poolWork]{Name: name, Do: func(ctx context.Context, w *poolWork) step.Outcome { return do(w, ctx) }}
}

// notedStep is a step that does not stop the others.
func notedStep(name string, do func(*poolWork, context.Context) step.Outcome) step.Step[poolWork] {
	return poolStep(name, func(w *poolWork, ctx context.Context) step.Outcome { return w.note(do(w, ctx)) })
}

// deletedPoolSteps is what a reconcile of a pool that is being deleted does.
var deletedPoolSteps = []step.Step[poolWork]{
	poolStep("finalize", (*poolWork).finalize),
}

// Reconcile implements reconcile.Reconciler.
func (r *Reconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	pool := &v1alpha1.ShardPool{}
	if err := r.Client.Get(ctx, req.NamespacedName, pool); err != nil {
		r.changed.Done(req)
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	w := &poolWork{Reconciler: r, before: pool, pool: pool.DeepCopy()}
	steps := poolSteps
	if pool.DeletionTimestamp != nil {
		steps = deletedPoolSteps
	}
	out := step.Run(ctx, steps, w)
	if pool.DeletionTimestamp != nil && out.IsComplete() {
		r.written.Delete(pool.UID)
		for _, shard := range w.objects {
			r.written.Delete(shard.UID)
		}
		r.Groups.Forget(storeKey(pool), pool.Name, w.now())
		return ctrl.Result{}, nil
	}
	if w.ending(out.Err()) {
		return r.changed.Again(req), nil
	}
	w.conditions(out)
	err := w.writeShards(ctx)
	if err != nil && len(w.before.Status.ShardStatuses) > v1alpha1.ShardStatusesMax {
		w.pool.Status.ShardStatuses = w.statuses // a whole list is not cut before its items are in Shards
	}
	if !w.passes(err) {
		err = errors.Join(err, w.writeStatus(ctx))
	}
	if err != nil {
		if w.passes(err) {
			log.FromContext(ctx).V(1).Info("the pool changed meanwhile", "reason", err.Error())
			return r.changed.Again(req), nil
		}
		return ctrl.Result{}, err
	}
	r.changed.Done(req)
	result, err := out.Result()
	if err == nil {
		result.RequeueAfter = w.pause(result.RequeueAfter)
	}
	return result, err
}

// pause until the next look, where the outcome asks for this one. What passes in a moment is looked at soon.
func (w *poolWork) pause(asked time.Duration) time.Duration {
	if asked == 0 {
		asked = pauseSteady
	}
	if w.drainsUnasked() {
		asked = min(asked, pausePlan)
	}
	if w.Groups.Unsettled(storeKey(w.pool)) {
		asked = min(asked, fleet.LeaderGrace)
	}
	return asked
}

// ending says whether the error only says that the namespace is being deleted, or that the cache was behind.
func (w *poolWork) ending(err error) bool {
	return err != nil && (apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) || apierrors.IsConflict(err))
}

// passes says whether a write failed in a way that is over at the next look.
func (w *poolWork) passes(err error) bool { return w.ending(err) || staleWrite(err) }

func (w *poolWork) now() time.Time {
	if w.Now != nil {
		return w.Now()
	}
	return time.Now()
}

// note keeps how a step went that does not stop the ones behind it. What passes by itself ends the reconcile
// nevertheless: it is done again at once.
func (w *poolWork) note(out step.Outcome) step.Outcome {
	if w.ending(out.Err()) {
		return out
	}
	w.notes.Add(out)
	return step.Complete()
}

func (w *poolWork) addFinalizer(ctx context.Context) step.Outcome {
	for _, finalizer := range w.pool.Finalizers {
		if finalizer == v1alpha1.Finalizer {
			return step.Complete()
		}
	}
	before := w.pool.DeepCopy()
	w.pool.Finalizers = append(w.pool.Finalizers, v1alpha1.Finalizer)
	if err := w.Client.Patch(ctx, w.pool, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})); err != nil {
		return step.Retry(fmt.Errorf("add the finalizer to ShardPool %s: %w", w.pool.Name, err))
	}
	w.before = w.pool.DeepCopy()
	return step.Complete()
}

// findStore waits for the store and its UID, which is in every shard's flags.
func (w *poolWork) findStore(ctx context.Context) step.Outcome {
	key := types.NamespacedName{Namespace: w.pool.Namespace, Name: w.pool.Spec.StoreRef.Name}
	store := &v1alpha1.RecordStore{}
	err := w.Client.Get(ctx, key, store)
	switch {
	case apierrors.IsNotFound(err):
		return step.Wait("StoreNotFound", fmt.Sprintf("there is no RecordStore %q in namespace %s: create it, or correct spec.storeRef in a new ShardPool", key.Name, key.Namespace), step.PauseLong)
	case err != nil:
		return step.Retry(fmt.Errorf("read RecordStore %s: %w", key.Name, err))
	case store.DeletionTimestamp != nil:
		return step.Wait("StoreDeleted", fmt.Sprintf("RecordStore %s is being deleted: delete this ShardPool too", key.Name), step.PauseLong)
	case store.Status.StoreUID == "":
		return step.Wait("StoreNotReady", fmt.Sprintf("RecordStore %s has no status.storeUID yet", key.Name), step.PauseLong)
	case w.Trust != nil && store.Status.TLS == nil, // what a shard is to speak is not recorded, or cannot be (RecordStore says so)
		store.Status.TLS != nil && store.Status.TLS.Transport == "": // a shard that started now would have no certificate
		return step.Wait("StoreNotReady", fmt.Sprintf("RecordStore %s has no authorities for certificates yet (condition %s)", key.Name, v1alpha1.ConditionCertificates), step.PauseShort)
	}
	w.store = store
	var secret *corev1.Secret
	if external := store.Spec.Etcd.External; external != nil && external.TLSSecretRef != nil {
		secret = &corev1.Secret{}
		at := types.NamespacedName{Namespace: w.pool.Namespace, Name: external.TLSSecretRef.Name}
		if err := w.Live.Get(ctx, at, secret); apierrors.IsNotFound(err) {
			return step.Wait("EtcdSecretMissing", fmt.Sprintf("there is no Secret %q, which etcd.external.tlsSecretRef of RecordStore %s names: create it", at.Name, key.Name), step.PauseShort)
		} else if err != nil {
			return step.Retry(fmt.Errorf("read Secret %s: %w", at.Name, err))
		}
	}
	w.etcd = workload.EtcdAccessOf(store, secret)
	return step.Complete()
}

func (w *poolWork) applyService(ctx context.Context) step.Outcome {
	wanted, live := workload.PoolService(w.store, w.pool), &corev1.Service{}
	if err := w.Client.Get(ctx, client.ObjectKeyFromObject(wanted), live); client.IgnoreNotFound(err) != nil {
		return step.Retry(fmt.Errorf("read Service %s: %w", wanted.Name, err))
	}
	if owner := metav1.GetControllerOf(live); owner != nil && owner.UID != w.pool.UID {
		return step.Fail("NameTaken", fmt.Sprintf("Service %s belongs to %s %s: make this ShardPool with another name", wanted.Name, owner.Kind, owner.Name))
	}
	if _, err := step.Apply(ctx, w.Client, w.pool, wanted); err != nil {
		return step.Retry(err)
	}
	return step.Complete()
}

// writeStatus writes the pool's status where that is due, and only on what was read.
func (w *poolWork) writeStatus(ctx context.Context) error {
	since := step.PauseNumbers
	if at, ok := w.written.Load(w.pool.UID); ok {
		since = w.now().Sub(at.(time.Time))
	}
	if !step.WriteDue(w.before.Status, w.pool.Status, fleet.ToldOfPool, since) {
		return nil
	}
	patch := client.MergeFromWithOptions(w.before, client.MergeFromWithOptimisticLock{})
	if err := w.Client.Status().Patch(ctx, w.pool, patch, client.FieldOwner(step.ManagerOfStatus)); err != nil {
		return fmt.Errorf("write the status of ShardPool %s: %w", w.pool.Name, err)
	}
	w.written.Store(w.pool.UID, w.now())
	return nil
}

// tellChange tells of a shard whose state has changed: in the log in any case, by an event where a person has to look
// at it, or no longer.
func (w *poolWork) tellChange(ctx context.Context, before v1alpha1.ShardState, s v1alpha1.ShardStatus) {
	n := step.News{Reason: string(s.State), Action: "Observe", Object: step.ShardObject(w.pool, s.Name)}
	switch {
	case s.State == before:
	case fleet.NeedsPerson(s.State):
		n.Warning, n.Message = true, fmt.Sprintf("shard %s: %s", s.Name, s.Message)
		step.Tell(ctx, w.Recorder, w.pool, n)
	case fleet.NeedsPerson(before):
		n.Message = fmt.Sprintf("shard %s is no longer %s", s.Name, before)
		step.Tell(ctx, w.Recorder, w.pool, n)
	default:
		n.Message = fmt.Sprintf("shard %s is %s%s", s.Name, s.State, colon(s.Message))
		step.LogNews(ctx, n)
	}
}

// colon puts a colon before a text that is not empty.
func colon(text string) string {
	if text == "" {
		return ""
	}
	return ": " + text
}

// tell says news of a pool.
func (w *poolWork) tell(ctx context.Context, reason, action string, object client.Object, format string, args ...any) {
	step.Tell(ctx, w.Recorder, w.pool, step.News{Reason: reason, Action: action, Object: object, Message: fmt.Sprintf(format, args...)})
}
