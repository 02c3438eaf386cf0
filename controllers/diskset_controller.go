package controllers

import (
	"context"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"sheaf.dev/sheaf/api/v1alpha1"
	"sheaf.dev/sheaf/internal/workload"
)

// Rights, apart from the type's comment: controller-gen does not see those that stand in one.
//
// +kubebuilder:rbac:groups=sheaf.dev,resources=disksets,verbs=list;watch;patch
// +kubebuilder:rbac:groups=sheaf.dev,resources=disksets/status,verbs=patch
// +kubebuilder:rbac:groups=sheaf.dev,resources=recordstores;shardpools;shards,verbs=list;watch
// +kubebuilder:rbac:groups="",resources=persistentvolumes,verbs=list;watch;create;patch;delete
// +kubebuilder:rbac:groups="",resources=persistentvolumeclaims;nodes,verbs=list;watch
// +kubebuilder:rbac:groups=storage.k8s.io,resources=storageclasses,verbs=list;watch;create;patch;delete
// +kubebuilder:rbac:groups=events.k8s.io,resources=events,verbs=create;patch

// DiskSetReconciler makes the StorageClass and PersistentVolumes of DiskSets, and gives disks to claims of shards and
// of managed etcds.
// One worker: a disk is never given twice, as a volume is only changed where it is still as it was read.
type DiskSetReconciler struct {
	Client client.Client
	Events events.EventRecorder

	changed pacer
}

// diskRun is one reconcile of one DiskSet.
type diskRun struct {
	set      *v1alpha1.DiskSet
	observed *observedDisks
	decided  decidedDisks
}

func (r *DiskSetReconciler) steps() []Step[diskRun] {
	return []Step[diskRun]{
		{"finalizer", r.finalizer},
		{"storage class", r.storageClass},
		{"gather", r.gather},
		{"decide", r.decide},
		{"act", r.act},
		{"judge", r.judge},
	}
}

// Reconcile makes a DiskSet as its spec says.
func (r *DiskSetReconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	set := &v1alpha1.DiskSet{}
	if err := r.Client.Get(ctx, req.NamespacedName, set); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	if set.DeletionTimestamp != nil {
		return ctrl.Result{}, r.delete(ctx, set)
	}
	before := set.DeepCopy()
	run := &diskRun{set: set}
	out := Run(ctx, r.steps(), run)
	if apierrors.IsConflict(out.err) {
		return r.changed.again(req), nil
	}
	r.changed.done(req)
	set.Status.ObservedGeneration = set.Generation
	Summarize(&set.Status.Conditions, set.Generation, out, fmt.Sprintf("%d disks, %d free", set.Status.Total, set.Status.Free))
	if _, err := WriteStatus(ctx, r.Client, before, set); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	if out.IsStalled() && !stalledBefore(before, out) {
		tell(ctx, r.Events, set, news{warning: true, reason: out.Reason(), action: "Reconcile", message: out.Message()})
	}
	return out.Result()
}

// stalledBefore says whether the same was said already.
func stalledBefore(before *v1alpha1.DiskSet, out Outcome) bool {
	for _, c := range before.Status.Conditions {
		if c.Type == v1alpha1.ConditionStalled {
			return c.Reason == out.Reason()
		}
	}
	return false
}

func (r *DiskSetReconciler) finalizer(ctx context.Context, run *diskRun) Outcome {
	if controllerutil.ContainsFinalizer(run.set, v1alpha1.Finalizer) {
		return Complete()
	}
	patch := client.MergeFromWithOptions(run.set.DeepCopy(), client.MergeFromWithOptimisticLock{})
	controllerutil.AddFinalizer(run.set, v1alpha1.Finalizer)
	if err := r.Client.Patch(ctx, run.set, patch, client.FieldOwner(v1alpha1.FieldManager)); err != nil {
		return Retry(fmt.Errorf("add the finalizer to DiskSet %s: %w", run.set.Name, err))
	}
	return Complete()
}

// storageClass makes the class; one of that name that is not ours is left alone.
func (r *DiskSetReconciler) storageClass(ctx context.Context, run *diskRun) Outcome {
	var class storagev1.StorageClass
	err := r.Client.Get(ctx, types.NamespacedName{Name: run.set.Name}, &class)
	if err == nil && class.Labels[v1alpha1.LabelDiskSet] != run.set.Name {
		return Fail("StorageClassTaken", fmt.Sprintf(
			"a StorageClass %s is there that this DiskSet did not make: delete it, or give the DiskSet another name", run.set.Name))
	}
	if err != nil && !apierrors.IsNotFound(err) {
		return Retry(fmt.Errorf("read StorageClass %s: %w", run.set.Name, err))
	}
	if _, err := Apply(ctx, r.Client, nil, workload.DiskClass(run.set)); err != nil {
		return Retry(err)
	}
	return Complete()
}

func (r *DiskSetReconciler) decide(_ context.Context, run *diskRun) Outcome {
	run.decided = decideDisks(run.observed)
	return Complete()
}

// act writes. A conflict means that the cache was behind: the next reconcile decides anew. A volume that is refused does not
// stop the others.
func (r *DiskSetReconciler) act(ctx context.Context, run *diskRun) Outcome {
	var refused notes
	for _, a := range run.decided.actions {
		if err := r.do(ctx, a); apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) {
			return Wait("Changed", fmt.Sprintf("a volume changed meanwhile: %v", err), PauseShort)
		} else if client.IgnoreNotFound(err) != nil {
			refused.add(Retry(err))
		}
	}
	status := &run.set.Status
	status.Disks, status.Total, status.Free, status.Bound = run.decided.statuses, 0, 0, 0
	for _, d := range status.Disks {
		status.Total++
		switch d.State {
		case v1alpha1.DiskFree:
			status.Free++
		case v1alpha1.DiskBound, v1alpha1.DiskFormatBlocked, v1alpha1.DiskRemoved:
			status.Bound++
		}
	}
	return refused.with(Complete())
}

func (r *DiskSetReconciler) do(ctx context.Context, a diskAction) error {
	switch {
	case a.create != nil:
		if err := r.Client.Create(ctx, a.create, client.FieldOwner(v1alpha1.FieldManager)); err != nil {
			return fmt.Errorf("create PersistentVolume %s: %w", a.create.Name, err)
		}
		logNews(ctx, news{reason: "VolumeCreated", action: "Create", object: a.create, message: "made PersistentVolume " + a.create.Name})
	case a.remove != nil:
		here := client.Preconditions{UID: &a.remove.UID, ResourceVersion: &a.remove.ResourceVersion}
		if err := r.Client.Delete(ctx, a.remove, here); err != nil {
			return fmt.Errorf("delete PersistentVolume %s: %w", a.remove.Name, err)
		}
		logNews(ctx, news{reason: "VolumeDeleted", action: "Delete", object: a.remove, message: "deleted PersistentVolume " + a.remove.Name})
	default:
		patch := client.MergeFromWithOptions(a.change, client.MergeFromWithOptimisticLock{})
		if err := r.Client.Patch(ctx, a.after.DeepCopy(), patch, client.FieldOwner(v1alpha1.FieldManager)); err != nil {
			return fmt.Errorf("change PersistentVolume %s: %w", a.after.Name, err)
		}
		logNews(ctx, news{reason: "VolumeChanged", action: "Change", object: a.after, message: changeWords(a.change, a.after)})
	}
	return nil
}

// changeWords say what is changed in a volume.
func changeWords(before, after *corev1.PersistentVolume) string {
	holder := func(pv *corev1.PersistentVolume) string {
		if ref := pv.Spec.ClaimRef; ref != nil {
			return ref.Namespace + "/" + ref.Name
		}
		return "nobody"
	}
	if from, to := holder(before), holder(after); from != to {
		return fmt.Sprintf("PersistentVolume %s was for %s, and is now for %s", after.Name, from, to)
	}
	return fmt.Sprintf("changed size or mount options of PersistentVolume %s", after.Name)
}

// judge says what a person has to do.
func (r *DiskSetReconciler) judge(_ context.Context, run *diskRun) Outcome {
	var troubles []string
	reason := ""
	for _, d := range run.decided.statuses {
		switch d.State {
		case v1alpha1.DiskConflict, v1alpha1.DiskNodeMissing, v1alpha1.DiskFormatBlocked:
			if reason == "" {
				reason = string(d.State)
			}
			troubles = append(troubles, fmt.Sprintf("%s on %s: %s", d.Device, d.Node, d.Message))
		}
	}
	if len(troubles) > 0 {
		return Fail(reason, strings.Join(troubles, "; "))
	}
	if len(run.decided.waiting) > 0 {
		return Wait("ClaimsWaiting", strings.Join(run.decided.waiting, "; ")+": add disks to spec.disks", PauseLong)
	}
	return Complete()
}

// delete takes away the class and what holds no data; volumes that do stay, and keep it.
func (r *DiskSetReconciler) delete(ctx context.Context, set *v1alpha1.DiskSet) error {
	if !controllerutil.ContainsFinalizer(set, v1alpha1.Finalizer) {
		return nil
	}
	run := &diskRun{set: set}
	if out := r.gather(ctx, run); !out.IsComplete() {
		_, err := out.Result()
		return err
	}
	var kept []string
	for n := range run.observed.volumes {
		pv := &run.observed.volumes[n]
		if pv.Labels[v1alpha1.LabelDiskSet] != set.Name {
			continue
		}
		if ref := pv.Spec.ClaimRef; ref != nil && ref.UID != "" {
			kept = append(kept, pv.Name)
			continue
		}
		if err := r.do(ctx, diskAction{remove: pv}); client.IgnoreNotFound(err) != nil {
			return err
		}
	}
	var class storagev1.StorageClass
	if err := r.Client.Get(ctx, types.NamespacedName{Name: set.Name}, &class); err == nil && class.Labels[v1alpha1.LabelDiskSet] == set.Name {
		if err := r.Client.Delete(ctx, &class); client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("delete StorageClass %s: %w", set.Name, err)
		}
	} else if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("read StorageClass %s: %w", set.Name, err)
	}
	if len(kept) > 0 {
		tell(ctx, r.Events, set, news{warning: true, reason: "VolumesKept", action: "Delete",
			message: "PersistentVolumes with data stay: " + strings.Join(kept, ", ")})
	}
	patch := client.MergeFromWithOptions(set.DeepCopy(), client.MergeFromWithOptimisticLock{})
	controllerutil.RemoveFinalizer(set, v1alpha1.Finalizer)
	return client.IgnoreNotFound(r.Client.Patch(ctx, set, patch, client.FieldOwner(v1alpha1.FieldManager)))
}

// SetupWithManager watches DiskSets, their volumes and classes, claims of stores and of bench Jobs, and the readiness of nodes.
func (r *DiskSetReconciler) SetupWithManager(mgr ctrl.Manager) error {
	byLabel := handler.EnqueueRequestsFromMapFunc(func(_ context.Context, o client.Object) []reconcile.Request {
		return setRequest(o.GetLabels()[v1alpha1.LabelDiskSet])
	})
	byClass := handler.EnqueueRequestsFromMapFunc(func(_ context.Context, o client.Object) []reconcile.Request {
		if claim, ok := o.(*corev1.PersistentVolumeClaim); ok {
			return setRequest(classOf(claim))
		}
		return nil
	})
	all := handler.EnqueueRequestsFromMapFunc(func(ctx context.Context, _ client.Object) []reconcile.Request {
		var sets v1alpha1.DiskSetList
		if err := mgr.GetClient().List(ctx, &sets); err != nil {
			return nil // the cache is not there yet: the sets come by themselves
		}
		var out []reconcile.Request
		for _, s := range sets.Items {
			out = append(out, setRequest(s.Name)...)
		}
		return out
	})
	return ctrl.NewControllerManagedBy(mgr).
		Named("diskset").
		For(&v1alpha1.DiskSet{}, builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		Watches(&corev1.PersistentVolume{}, byLabel).
		Watches(&storagev1.StorageClass{}, byLabel).
		Watches(&corev1.PersistentVolumeClaim{}, byClass).
		Watches(&corev1.Node{}, all, builder.WithPredicates(readinessChanged())).
		Watches(&v1alpha1.RecordStore{}, all, builder.WithPredicates(storeIdentified())).
		Watches(&v1alpha1.ShardPool{}, all, builder.WithPredicates(poolIsNew())).
		Watches(&v1alpha1.Shard{}, all, builder.WithPredicates(formatBlockedChanged())).
		WithOptions(controller.Options{RateLimiter: failures()}).
		Complete(counted(&v1alpha1.DiskSet{}, "diskset", r.Client, r))
}

func setRequest(name string) []reconcile.Request {
	if name == "" {
		return nil
	}
	return []reconcile.Request{{NamespacedName: types.NamespacedName{Name: name}}}
}
