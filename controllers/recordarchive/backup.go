package recordarchive

import (
	"context"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"sheaf.dev/sheaf/api/v1alpha1"
	"sheaf.dev/sheaf/controllers/step"
	"sheaf.dev/sheaf/internal/status/archiving"
)

// Permissions. A RecordBackup has a finalizer, because its point has to be removed from the bucket.
//
// +kubebuilder:rbac:groups=sheaf.dev,resources=recordbackups,verbs=list;watch;patch
// +kubebuilder:rbac:groups=sheaf.dev,resources=recordbackups/status,verbs=patch

// Reasons of the conditions of a RecordBackup.
const (
	reasonArchiveUnknown = "ArchiveUnknown"
	reasonPointPending   = "PointPending"
	reasonPointFailed    = "PointFailed"
	reasonExpired        = "Expired"
	reasonDeleting       = "Deleting"
)

// NamedPoints holds what the pods of archives have last reported about the points of RecordBackups. The controller of
// RecordArchives writes it, and that of RecordBackups reads it. Safe for concurrent use.
type NamedPoints struct {
	mu     sync.Mutex
	points map[types.UID]map[string]archiving.NamedPoint // by the UID of the RecordArchive, and by name
	news   func(ctx context.Context, archive types.NamespacedName, points []string)
}

// listen makes news be called with the names of the points about which something else was reported.
func (n *NamedPoints) listen(news func(ctx context.Context, archive types.NamespacedName, points []string)) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.news = news
}

// set replaces what is known about the points of an archive. If report is nil, nothing is known.
func (n *NamedPoints) set(ctx context.Context, archive *v1alpha1.RecordArchive, report *archiving.Report) {
	if changed, news := n.replace(archive.UID, report); len(changed) > 0 && news != nil {
		news(ctx, client.ObjectKeyFromObject(archive), changed)
	}
}

// replace does the part of set that needs the mutex. It returns the points about which the report says something else.
func (n *NamedPoints) replace(archive types.UID, report *archiving.Report) (changed []string,
	news func(context.Context, types.NamespacedName, []string)) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if report == nil || report.Upkeep == nil {
		delete(n.points, archive)
		return nil, nil
	}
	points := map[string]archiving.NamedPoint{}
	for _, p := range report.Upkeep.Named {
		if !reflect.DeepEqual(p, n.points[archive][p.Name]) {
			changed = append(changed, p.Name)
		}
		points[p.Name] = p
	}
	if n.points == nil {
		n.points = map[types.UID]map[string]archiving.NamedPoint{}
	}
	n.points[archive] = points
	return changed, n.news
}

// get returns what is known about a point. It is zero if nothing is known.
func (n *NamedPoints) get(archive types.UID, point string) archiving.NamedPoint {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.points[archive][point]
}

// backupPoint returns the name of the point of a RecordBackup. It contains a part of the UID, because a point that was
// dropped keeps its name for a day or longer.
func backupPoint(b *v1alpha1.RecordBackup) string {
	name := strings.TrimRight(b.Name[:min(len(b.Name), 54)], "-.")
	return name + "-" + string(b.UID[:min(len(b.UID), 8)])
}

// backupEnd returns when the ttl of a RecordBackup ends, or zero.
func backupEnd(b *v1alpha1.RecordBackup) time.Time {
	if b.Spec.TTL == nil {
		return time.Time{}
	}
	return b.CreationTimestamp.Add(b.Spec.TTL.Duration)
}

// isOver reports whether the ttl of a RecordBackup has ended.
func isOver(b *v1alpha1.RecordBackup, now time.Time) bool {
	end := backupEnd(b)
	return !end.IsZero() && !now.Before(end)
}

// wantedPoints returns the points of an archive that its pod has to make or to drop: those whose outcome is not known
// yet, the oldest RecordBackups first.
func wantedPoints(all []v1alpha1.RecordBackup, archive string, now time.Time) (points []archiving.WantedPoint) {
	all = slices.DeleteFunc(slices.Clone(all), func(b v1alpha1.RecordBackup) bool {
		return b.Spec.ArchiveRef.Name != archive || isOver(&b, now)
	})
	slices.SortFunc(all, func(a, b v1alpha1.RecordBackup) int {
		if c := a.CreationTimestamp.Compare(b.CreationTimestamp.Time); c != 0 {
			return c
		}
		return strings.Compare(a.Name, b.Name)
	})
	for i := range all {
		b := &all[i]
		switch {
		case len(points) == archiving.WantedPointsMax:
			return points
		case b.DeletionTimestamp != nil && controllerutil.ContainsFinalizer(b, v1alpha1.Finalizer):
			points = append(points, archiving.WantedPoint{Name: backupPoint(b), Drop: true})
		case b.DeletionTimestamp == nil && b.Status.Time == nil && controllerutil.ContainsFinalizer(b, v1alpha1.Finalizer):
			points = append(points, archiving.WantedPoint{Name: backupPoint(b), Until: backupEnd(b)})
		}
	}
	return points
}

// BackupReconciler reconciles RecordBackups. The pod of the archive makes and drops their points.
type BackupReconciler struct {
	Client   client.Client // reads from the cache
	Recorder events.EventRecorder
	Named    *NamedPoints
	Now      step.Clock
}

// Reconcile brings a RecordBackup to the state that its spec describes, and writes its status.
func (r *BackupReconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	b := &v1alpha1.RecordBackup{}
	if err := r.Client.Get(ctx, req.NamespacedName, b); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	archive := &v1alpha1.RecordArchive{}
	key := types.NamespacedName{Namespace: b.Namespace, Name: b.Spec.ArchiveRef.Name}
	there, err := step.Read(ctx, r.Client, "RecordArchive", key, archive)
	if err != nil {
		return ctrl.Result{}, err
	}
	if !there {
		archive = nil
	}
	var is archiving.NamedPoint
	if there {
		is = r.Named.get(archive.UID, backupPoint(b))
	}
	before, now := b.DeepCopy(), r.Now.Time()
	if b.DeletionTimestamp != nil {
		return r.remove(ctx, b, archive, is, now)
	}
	out := step.AddFinalizer(ctx, r.Client, b)
	if out.Err() != nil {
		return out.Result()
	}
	before.ObjectMeta = b.ObjectMeta
	out = decideBackup(b, archive, is, now)
	step.Summarize(&b.Status.Conditions, b.Generation, out, "the point is kept")
	if _, err := step.WriteStatus(ctx, r.Client, before, b); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	return out.Result()
}

// decideBackup updates the status of a RecordBackup that is not being deleted, apart from its conditions. The argument
// archive is nil if there is none.
func decideBackup(b *v1alpha1.RecordBackup, archive *v1alpha1.RecordArchive, is archiving.NamedPoint,
	now time.Time) step.Outcome {
	s := &b.Status
	s.ObservedGeneration, s.Point = b.Generation, backupPoint(b)
	if end := backupEnd(b); !end.IsZero() {
		s.Until = new(metav1.NewTime(end))
	}
	if s.Time == nil && is.Time != nil && !is.Dropped && is.Error == "" {
		s.Time = new(metav1.NewTime(*is.Time))
	}
	switch {
	case isOver(b, now):
		return step.Fail(reasonExpired, "the ttl has ended, and the point is not kept any more: delete this RecordBackup")
	case s.Time != nil:
		out := step.Complete()
		if s.Until != nil {
			return out.Again(min(s.Until.Sub(now), time.Hour))
		}
		return out
	case archive == nil:
		return step.Fail(reasonArchiveUnknown, fmt.Sprintf("there is no RecordArchive %s in this namespace: make it, or "+
			"delete this RecordBackup", b.Spec.ArchiveRef.Name))
	case is.Error != "":
		return step.Wait(reasonPointFailed, "the point could not be made, and is tried again: "+is.Error, step.PauseShort)
	}
	return step.Wait(reasonPointPending, fmt.Sprintf("the pod of RecordArchive %s makes the point within two minutes of "+
		"hearing of it", archive.Name), step.PauseShort)
}

// remove lets a RecordBackup go when its point is gone, has ended, or can be removed by nobody.
func (r *BackupReconciler) remove(ctx context.Context, b *v1alpha1.RecordBackup, archive *v1alpha1.RecordArchive,
	is archiving.NamedPoint, now time.Time) (ctrl.Result, error) {
	switch {
	case !controllerutil.ContainsFinalizer(b, v1alpha1.Finalizer):
		return ctrl.Result{}, step.SayDeleting(ctx, r.Client, b,
			func(b *v1alpha1.RecordBackup) *[]metav1.Condition { return &b.Status.Conditions })
	case archive == nil:
		step.Report(ctx, r.Recorder, b, step.News{Warning: true, Reason: "PointRemains", Action: "Delete",
			Message: fmt.Sprintf("there is no RecordArchive %s any more, so point %s stays in the bucket: remove it with "+
				"sheaf-archive point delete", b.Spec.ArchiveRef.Name, backupPoint(b))})
		return ctrl.Result{}, step.RemoveFinalizer(ctx, r.Client, b)
	case is.Dropped, isOver(b, now):
		return ctrl.Result{}, step.RemoveFinalizer(ctx, r.Client, b)
	}
	before := b.DeepCopy()
	why := "its pod has not said so yet"
	if is.Error != "" {
		why = is.Error
	}
	out := step.Wait(reasonDeleting, fmt.Sprintf("the pod of RecordArchive %s removes point %s: %s. To leave the point "+
		"in the bucket, remove finalizer %s from this object", archive.Name, backupPoint(b), why, v1alpha1.Finalizer),
		step.PauseShort)
	step.Summarize(&b.Status.Conditions, b.Generation, out, "")
	if _, err := step.WriteStatus(ctx, r.Client, before, b); err != nil && !apierrors.IsNotFound(err) {
		return ctrl.Result{}, err
	}
	return out.Result()
}

// backupsOf requests a reconcile of those RecordBackups of an archive that the function wanted selects.
func (r *BackupReconciler) backupsOf(ctx context.Context, archive types.NamespacedName,
	wanted func(b *v1alpha1.RecordBackup) bool) (all []reconcile.Request) {
	var list v1alpha1.RecordBackupList
	if err := r.Client.List(ctx, &list, client.InNamespace(archive.Namespace)); err != nil {
		log.FromContext(ctx).Error(err, "list RecordBackups")
		return nil
	}
	for i := range list.Items {
		if b := &list.Items[i]; b.Spec.ArchiveRef.Name == archive.Name && wanted(b) {
			all = append(all, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(b)})
		}
	}
	return all
}

// hear requests a reconcile of a RecordBackup as soon as something else is known about its point. Without it, the
// RecordBackup would wait for its next look.
func (r *BackupReconciler) hear(_ context.Context,
	queue workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
	r.Named.listen(func(ctx context.Context, archive types.NamespacedName, points []string) {
		for _, request := range r.backupsOf(ctx, archive, func(b *v1alpha1.RecordBackup) bool {
			return slices.Contains(points, backupPoint(b))
		}) {
			queue.Add(request)
		}
	})
	return nil
}

// SetupWithManager watches RecordBackups, the archives that they name, and what is known about their points.
func (r *BackupReconciler) SetupWithManager(mgr ctrl.Manager) error {
	ofArchive := handler.EnqueueRequestsFromMapFunc(func(ctx context.Context, o client.Object) []reconcile.Request {
		return r.backupsOf(ctx, client.ObjectKeyFromObject(o), func(*v1alpha1.RecordBackup) bool { return true })
	})
	return ctrl.NewControllerManagedBy(mgr).
		Named("recordbackup").
		For(&v1alpha1.RecordBackup{}, builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		Watches(&v1alpha1.RecordArchive{}, ofArchive, builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		WatchesRawSource(source.Func(r.hear)).
		WithOptions(controller.Options{MaxConcurrentReconciles: 2, RateLimiter: step.Failures()}).
		Complete(step.Counted(&v1alpha1.RecordBackup{}, "recordbackup", r.Client, r))
}
