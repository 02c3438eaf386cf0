// Package diskset reconciles DiskSets. It creates a StorageClass and a PersistentVolume for each disk, assigns disks to
// claims, and wipes released disks.
package diskset

import (
	"context"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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
	"sheaf.dev/sheaf/controllers/fleet"
	"sheaf.dev/sheaf/controllers/step"
	"sheaf.dev/sheaf/internal/kube/workload"
)

// Permissions, separate from the type's comment because controller-gen ignores markers there.
//
// +kubebuilder:rbac:groups=sheaf.dev,resources=disksets,verbs=list;watch;patch
// +kubebuilder:rbac:groups=sheaf.dev,resources=disksets/status,verbs=patch
// +kubebuilder:rbac:groups=sheaf.dev,resources=recordstores;shardpools;shards,verbs=list;watch
// +kubebuilder:rbac:groups="",resources=persistentvolumes,verbs=list;watch;create;patch;delete
// +kubebuilder:rbac:groups="",resources=persistentvolumeclaims;nodes,verbs=list;watch
// +kubebuilder:rbac:groups=storage.k8s.io,resources=storageclasses,verbs=list;watch;create;patch;delete
// +kubebuilder:rbac:groups=events.k8s.io,resources=events,verbs=create;patch

// Reconciler creates the StorageClass and PersistentVolumes of DiskSets, and assigns disks to the claims of shards and
// of managed etcds. It runs with one worker. A disk is never assigned twice, because a volume is changed only if it has
// not changed since it was read.
type Reconciler struct {
	Client client.Client
	// Live reads objects that are not cached.
	Live   client.Reader
	Events events.EventRecorder
	// Image is the image of Sheaf for the Jobs that inspect and wipe disks. Namespace is the operator's own namespace,
	// in which these Jobs run. If either is empty, no disk is wiped, and only an administrator can release a new disk
	// for claims.
	Image, Namespace string
	// PullSecrets are the names of the Secrets in Namespace with which the Jobs pull Image.
	PullSecrets []string

	changed step.Pacer
}

// diskRun holds the state of one reconcile of a DiskSet.
type diskRun struct {
	set      *v1alpha1.DiskSet
	observed *observedDisks
	decided  decidedDisks
}

func (r *Reconciler) steps() []step.Step[diskRun] {
	return []step.Step[diskRun]{
		{Name: "finalizer", Do: func(ctx context.Context, run *diskRun) step.Outcome {
			return step.AddFinalizer(ctx, r.Client, run.set)
		}},
		{Name: "storage class", Do: r.storageClass},
		{Name: "gather", Do: r.gather},
		{Name: "decide", Do: r.decide},
		{Name: "act", Do: r.act},
		{Name: "judge", Do: r.judge},
	}
}

// Reconcile brings a DiskSet to the state that its spec describes.
func (r *Reconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	set := &v1alpha1.DiskSet{}
	if err := r.Client.Get(ctx, req.NamespacedName, set); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	if set.DeletionTimestamp != nil {
		return ctrl.Result{}, r.delete(ctx, set)
	}
	before := set.DeepCopy()
	run := &diskRun{set: set}
	out := step.Run(ctx, r.steps(), run)
	if apierrors.IsConflict(out.Err()) {
		return r.changed.Again(req), nil
	}
	r.changed.Done(req)
	set.Status.ObservedGeneration = set.Generation
	step.Summarize(&set.Status.Conditions, set.Generation, out,
		fmt.Sprintf("%s, %d free", step.Count(set.Status.Total, "disk", "disks"), set.Status.Free))
	if _, err := step.WriteStatus(ctx, r.Client, before, set); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	was := meta.FindStatusCondition(before.Status.Conditions, v1alpha1.ConditionStalled)
	if out.IsStalled() && (was == nil || was.Reason != out.Reason()) {
		step.Report(ctx, r.Events, set, step.News{Warning: true, Reason: out.Reason(), Action: "Reconcile",
			Message: out.Message()})
	}
	return out.Result()
}

// storageClass creates the StorageClass. It does not touch a class of that name that the operator did not create.
func (r *Reconciler) storageClass(ctx context.Context, run *diskRun) step.Outcome {
	var class storagev1.StorageClass
	there, err := step.Read(ctx, r.Client, "StorageClass", types.NamespacedName{Name: run.set.Name}, &class)
	if err != nil {
		return step.Retry(err)
	}
	if there && class.Labels[v1alpha1.LabelDiskSet] != run.set.Name {
		return step.Fail("StorageClassTaken", fmt.Sprintf(
			"a StorageClass %s is there that this DiskSet did not make: delete it, or give the DiskSet another name",
			run.set.Name))
	}
	_, err = step.Apply(ctx, r.Client, nil, workload.DiskClass(run.set))
	return step.Retry(err)
}

func (r *Reconciler) decide(_ context.Context, run *diskRun) step.Outcome {
	if len(run.set.Spec.Namespaces) == 0 { // the CRD refuses an empty list, but a later CRD may have admitted it
		return step.Fail("NamespacesMissing",
			"spec.namespaces is empty: name the namespaces whose stores may use the disks")
	}
	run.decided = decideDisks(run.observed)
	return step.Complete()
}

// act performs the decided writes. A conflict means that the cache was stale, so the next reconcile decides again. If
// one write is refused, the others are still performed.
func (r *Reconciler) act(ctx context.Context, run *diskRun) step.Outcome {
	var refused step.Notes
	for _, a := range run.decided.actions {
		if err := r.do(ctx, a); apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) {
			return step.Wait("Changed", fmt.Sprintf("a volume changed meanwhile: %v", err), step.PauseShort)
		} else if client.IgnoreNotFound(err) != nil {
			refused.Add(step.Retry(err))
		}
	}
	for _, n := range run.decided.said {
		step.Report(ctx, r.Events, run.set, n)
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
	return refused.With(step.Complete())
}

func (r *Reconciler) do(ctx context.Context, a diskAction) error {
	switch {
	case a.make != nil || a.unmake != nil:
		return r.makeOrUnmake(ctx, a)
	case a.create != nil:
		if err := r.Client.Create(ctx, a.create, client.FieldOwner(v1alpha1.FieldManager)); err != nil {
			return fmt.Errorf("create PersistentVolume %s: %w", a.create.Name, err)
		}
		step.LogNews(ctx, step.News{Reason: "VolumeCreated", Action: "Create", Object: a.create,
			Message: "made PersistentVolume " + a.create.Name})
	case a.remove != nil:
		here := client.Preconditions{UID: &a.remove.UID, ResourceVersion: &a.remove.ResourceVersion}
		if err := r.Client.Delete(ctx, a.remove, here); err != nil {
			return fmt.Errorf("delete PersistentVolume %s: %w", a.remove.Name, err)
		}
		step.LogNews(ctx, step.News{Reason: "VolumeDeleted", Action: "Delete", Object: a.remove,
			Message: "deleted PersistentVolume " + a.remove.Name})
	default:
		if err := r.Client.Patch(ctx, a.after.DeepCopy(), step.IfUnchanged(a.change),
			client.FieldOwner(v1alpha1.FieldManager)); err != nil {
			return fmt.Errorf("change PersistentVolume %s: %w", a.after.Name, err)
		}
		step.LogNews(ctx, step.News{Reason: "VolumeChanged", Action: "Change", Object: a.after,
			Message: changeWords(a.change, a.after)})
	}
	return nil
}

// changeWords returns a text that describes the changes of a volume.
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
	question := after.Annotations[workload.AnnotationWipeAsked]
	if question != before.Annotations[workload.AnnotationWipeAsked] {
		return fmt.Sprintf("PersistentVolume %s: whether to wipe %q is asked", after.Name, question)
	}
	return fmt.Sprintf("changed size, mount options or annotations of PersistentVolume %s", after.Name)
}

// judge returns the outcome of a reconcile. Its message says what an administrator has to do.
func (r *Reconciler) judge(_ context.Context, run *diskRun) step.Outcome {
	var troubles []string
	reason, wiping, looking := "", 0, 0
	for _, d := range run.decided.statuses {
		switch d.State {
		case v1alpha1.DiskWiping:
			wiping++
		case v1alpha1.DiskLooking:
			looking++
		case v1alpha1.DiskConflict, v1alpha1.DiskNodeMissing, v1alpha1.DiskFormatBlocked, v1alpha1.DiskWipeFailed,
			v1alpha1.DiskNotBlank, v1alpha1.DiskLookFailed:
			if reason == "" {
				reason = string(d.State)
			}
			troubles = append(troubles, fmt.Sprintf("%s on %s: %s", d.Device, d.Node, d.Message))
		}
	}
	var notes step.Notes
	if len(troubles) > 0 {
		notes.Add(step.Fail(reason, strings.Join(troubles, "; ")))
	}
	if wiping > 0 {
		notes.Add(step.Wait("Wiping", step.Count(wiping, "disk is", "disks are")+" being wiped", wipeEvery))
	}
	if looking > 0 {
		notes.Add(step.Wait("Looking", "Jobs look whether "+step.Count(looking, "disk is", "disks are")+" blank",
			// A Job whose pod does not start is not checked more often than other problems.
			step.PauseShort))
	}
	if len(notes) > 0 {
		return notes.With(step.Complete())
	}
	if len(run.decided.waiting) > 0 {
		return step.Wait("ClaimsWaiting", strings.Join(run.decided.waiting, "; ")+": add disks to spec.disks", step.PauseLong)
	}
	return step.Complete()
}

// delete deletes the StorageClass and the volumes without data. Volumes with data remain and keep their data.
func (r *Reconciler) delete(ctx context.Context, set *v1alpha1.DiskSet) error {
	if !controllerutil.ContainsFinalizer(set, v1alpha1.Finalizer) {
		return sayDeleting(ctx, r.Client, set)
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
		if standsInFor(pv) != "" || inspectedVolume(pv) != "" {
			if err := r.stopJob(ctx, run.observed, pv); err != nil {
				return err
			}
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
	there, err := step.Read(ctx, r.Client, "StorageClass", types.NamespacedName{Name: set.Name}, &class)
	if err != nil {
		return err
	}
	if there && class.Labels[v1alpha1.LabelDiskSet] == set.Name {
		if err := r.Client.Delete(ctx, &class); client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("delete StorageClass %s: %w", set.Name, err)
		}
	}
	if len(kept) > 0 {
		step.Report(ctx, r.Events, set, step.News{Warning: true, Reason: "VolumesKept", Action: "Delete",
			Message: "PersistentVolumes with data stay: " + strings.Join(kept, ", ")})
	}
	if err := step.RemoveFinalizer(ctx, r.Client, set); err != nil {
		return err
	}
	return sayDeleting(ctx, r.Client, set)
}

func sayDeleting(ctx context.Context, c client.Client, set *v1alpha1.DiskSet) error {
	return step.SayDeleting(ctx, c, set, func(s *v1alpha1.DiskSet) *[]metav1.Condition { return &s.Status.Conditions })
}

// SetupWithManager watches DiskSets, their volumes and classes, claims of stores and of bench Jobs, and the readiness
// of nodes.
func (r *Reconciler) SetupWithManager(mgr ctrl.Manager) error {
	byLabel := step.Requests(func(o client.Object) types.NamespacedName {
		return types.NamespacedName{Name: o.GetLabels()[v1alpha1.LabelDiskSet]}
	})
	byClass := step.Requests(func(claim *corev1.PersistentVolumeClaim) types.NamespacedName {
		return types.NamespacedName{Name: fleet.ClassOf(claim)}
	})
	all := handler.EnqueueRequestsFromMapFunc(func(ctx context.Context, _ client.Object) []reconcile.Request {
		var sets v1alpha1.DiskSetList
		if err := mgr.GetClient().List(ctx, &sets); err != nil {
			return nil // the cache has not started yet; once it has, every DiskSet is reconciled
		}
		var out []reconcile.Request
		for _, s := range sets.Items {
			out = append(out, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(&s)})
		}
		return out
	})
	return ctrl.NewControllerManagedBy(mgr).
		Named("diskset").
		For(&v1alpha1.DiskSet{}, builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		Watches(&corev1.PersistentVolume{}, byLabel).
		Watches(&storagev1.StorageClass{}, byLabel).
		Watches(&corev1.PersistentVolumeClaim{}, byClass).
		Watches(&corev1.Node{}, all, builder.WithPredicates(takesPods)).
		Watches(&v1alpha1.RecordStore{}, all, builder.WithPredicates(storeIdentified)).
		Watches(&v1alpha1.ShardPool{}, all, builder.WithPredicates(poolIsNew)).
		Watches(&v1alpha1.Shard{}, all, builder.WithPredicates(formatBlockedChanged)).
		WithOptions(controller.Options{RateLimiter: step.Failures()}).
		Complete(step.Counted(&v1alpha1.DiskSet{}, "diskset", r.Client, r))
}
