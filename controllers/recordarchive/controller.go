// Package recordarchive reconciles RecordArchives. It runs the pod that copies a store into a bucket, and reports up
// to which time the store is archived.
package recordarchive

import (
	"context"
	"crypto/sha256"
	"fmt"
	"net"
	"strconv"
	"sync"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"sheaf.dev/sheaf/api/v1alpha1"
	"sheaf.dev/sheaf/controllers/fleet"
	"sheaf.dev/sheaf/controllers/step"
	"sheaf.dev/sheaf/controllers/trust"
	"sheaf.dev/sheaf/internal/kube/workload"
	"sheaf.dev/sheaf/internal/security/identity"
	"sheaf.dev/sheaf/internal/status/archiving"
)

// Permissions. A RecordArchive needs no finalizer, because its Deployment and the Secret with its certificate are
// deleted together with it, and its bucket is kept.
//
// +kubebuilder:rbac:groups=sheaf.dev,resources=recordarchives;recordstores,verbs=list;watch
// +kubebuilder:rbac:groups=sheaf.dev,resources=shardpools;recordgrants;recordtenants,verbs=list;watch
// +kubebuilder:rbac:groups=sheaf.dev,resources=recordarchives/status,verbs=patch
// +kubebuilder:rbac:groups=sheaf.dev,resources=recordarchives/finalizers,verbs=update
// +kubebuilder:rbac:groups=apps,resources=deployments,verbs=list;watch;create;patch
// +kubebuilder:rbac:groups=batch,resources=jobs,verbs=get;create;delete
// +kubebuilder:rbac:groups="",resources=pods,verbs=list;watch
// +kubebuilder:rbac:groups="",resources=configmaps,verbs=get;create;patch
// +kubebuilder:rbac:groups="",resources=secrets,verbs=get;create;patch;delete
// +kubebuilder:rbac:groups=cert-manager.io,resources=certificates,verbs=get;create;patch;delete
// +kubebuilder:rbac:groups=events.k8s.io,resources=events,verbs=create;patch

// askTime is how long the operator waits for the report of a pod.
const askTime = 3 * time.Second

// Archives asks the pods of archives. internal/operator implements it.
type Archives interface {
	// Report asks the archiver whose HTTP port is at host:port for its report. Any error means that the archiver gave no
	// report.
	Report(ctx context.Context, address string) (*archiving.Report, error)
}

// Reconciler runs the archives of stores.
type Reconciler struct {
	Client client.Client // reads from the cache
	// Live reads from the API server. It is for Secrets, which are not cached.
	Live     client.Reader
	Recorder events.EventRecorder // if nil, events are only logged
	Archives Archives
	// Trust creates the certificates of archivers. If it is nil, archivers have none.
	Trust *trust.Keeper
	// Image is the image of the pod for a RecordArchive that names none. If it is empty, each has to name one.
	Image string
	Now   step.Clock

	// Named receives what the pods report about the points of RecordBackups. If it is nil, nobody is told.
	Named *NamedPoints

	facts   appliedFacts
	written sync.Map // maps the UID of an archive to the time.Time of the last write of its status
}

// ForgetWrites makes the next write of each status due immediately, even if only numbers have changed.
func (r *Reconciler) ForgetWrites() { r.written.Clear() }

// work is one reconcile of one archive.
type work struct {
	r     *Reconciler
	seen  *observed
	notes step.Notes // outcomes of steps that failed or had to wait without stopping the following steps
}

// The steps in mayRun decide whether the archive may run at all. If one of the steps in makesPod fails, the operator
// still asks the pod that is running.
var (
	mayRun = []step.Step[work]{
		{Name: "store", Do: func(ctx context.Context, w *work) step.Outcome { return readStore(ctx, w.r.Client, w.seen) }},
		{Name: "alone", Do: func(ctx context.Context, w *work) step.Outcome { return alone(ctx, w.r.Client, w.seen) }},
	}
	makesPod = []step.Step[work]{
		{Name: "image", Do: func(_ context.Context, w *work) step.Outcome { return image(w.seen, w.r.Image) }},
		{Name: "schedule", Do: func(_ context.Context, w *work) step.Outcome { return pointsSchedule(w.seen) }},
		{Name: "credentials", Do: func(ctx context.Context, w *work) step.Outcome {
			return readCredentials(ctx, w.r.Live, w.seen)
		}},
		{Name: "keys", Do: func(ctx context.Context, w *work) step.Outcome { return readKeys(ctx, w.r.Live, w.seen) }},
		{Name: "certificate", Do: func(ctx context.Context, w *work) step.Outcome {
			return ensureCertificate(ctx, w.r.Trust, w.seen)
		}},
		{Name: "deployment", Do: func(ctx context.Context, w *work) step.Outcome {
			return applyDeployment(ctx, w.r.Client, w.seen, w.r.Image)
		}},
		{Name: "facts", Do: func(ctx context.Context, w *work) step.Outcome {
			return applyFacts(ctx, w.r.Client, w.seen, &w.r.facts)
		}},
	}
	asksPod = []step.Step[work]{
		{Name: "objects", Do: func(ctx context.Context, w *work) step.Outcome {
			return readObjects(ctx, w.r.Client, w.seen)
		}},
		{Name: "report", Do: func(ctx context.Context, w *work) step.Outcome { return ask(ctx, w.r.Archives, w.seen) }},
		{Name: "drill", Do: func(ctx context.Context, w *work) step.Outcome {
			return ensureDrill(ctx, w.r.Client, w.r.Live, w.seen, w.r.Image)
		}},
	}
)

// readStore reads the store of an archive.
func readStore(ctx context.Context, cached client.Reader, seen *observed) step.Outcome {
	store := &v1alpha1.RecordStore{}
	key := types.NamespacedName{Namespace: seen.archive.Namespace, Name: seen.archive.Spec.StoreRef.Name}
	there, err := step.Read(ctx, cached, "RecordStore", key, store)
	switch {
	case err != nil:
		return step.Retry(err)
	case !there || store.DeletionTimestamp != nil:
		return step.Fail(reasonStoreUnknown, fmt.Sprintf(
			"there is no RecordStore %s in this namespace: make it, or make a RecordArchive of another one", key.Name))
	case store.Status.StoreUID == "" || !store.Status.PlacementInitialized:
		return step.Wait("StoreStarts", "the RecordStore has no placement yet", step.PauseShort)
	}
	seen.store = store
	return step.Complete()
}

// alone fails if an older RecordArchive already archives the store.
func alone(ctx context.Context, cached client.Reader, seen *observed) step.Outcome {
	var all v1alpha1.RecordArchiveList
	if err := cached.List(ctx, &all, client.InNamespace(seen.archive.Namespace)); err != nil {
		return step.Retry(fmt.Errorf("list RecordArchives: %w", err))
	}
	first := fleet.ArchiveOf(all.Items, seen.store.Name)
	if first != nil && first.UID != seen.archive.UID {
		return step.Fail(reasonStoreHasArchive, fmt.Sprintf(
			"RecordArchive %s archives this store, and a store has one archive: delete one of the two", first.Name))
	}
	return step.Complete()
}

// image fails if neither the archive nor the operator names an image for the pod.
func image(seen *observed, fallback string) step.Outcome {
	if workload.ArchiveImage(seen.archive, fallback) == "" {
		return step.Fail(reasonNoImage, "the operator has no image of sheaf-archive: set spec.image, or the operator's "+
			"--archive-image (value archive.image of the chart sheaf-operator)")
	}
	return step.Complete()
}

// readCredentials reads which keys of the Secret with credentials the pod uses, and a hash of their values.
func readCredentials(ctx context.Context, live client.Reader, seen *observed) (out step.Outcome) {
	seen.credentials, out = fleet.ReadBucketSecret(ctx, live, seen.archive.Namespace,
		seen.archive.Spec.CredentialsSecretRef, "spec.credentialsSecretRef")
	return out
}

// readKeys checks the encryption keys of the archive, and reads a hash of them.
func readKeys(ctx context.Context, live client.Reader, seen *observed) (out step.Outcome) {
	seen.keysHash, out = fleet.ReadKeysSecret(ctx, live, seen.archive.Namespace, seen.archive.Spec.Encryption,
		"spec.encryption")
	return out
}

// ensureCertificate creates and renews the certificate of the archiver. If keeper is nil, the archiver has no
// certificate.
func ensureCertificate(ctx context.Context, keeper *trust.Keeper, seen *observed) step.Outcome {
	store := seen.store
	issued := trust.Issue(ctx, keeper, store, "the archiver", func(of identity.Store) []trust.Leaf {
		return []trust.Leaf{trust.ArchiveLeaf(of, store, seen.archive)}
	})
	if keeper == nil || !workload.HasTLS(store) || !issued.IsComplete() {
		return issued
	}
	if keeper.Pairs(store.Namespace, workload.ArchiveTLS(store.Name)) == [sha256.Size]byte{} {
		return step.Fail(fleet.ReasonSecretMissing, fmt.Sprintf("there is no Secret %sarchive with the certificate of the "+
			"archiver, which spec.tls.provided of RecordStore %s asks for: make it", store.Spec.TLS.Provided.SecretPrefix,
			store.Name))
	}
	return issued
}

// applyDeployment applies the Deployment of the archive.
func applyDeployment(ctx context.Context, c client.Client, seen *observed, image string) step.Outcome {
	d := workload.ArchiveDeployment(workload.ArchiveInput{Store: seen.store, Archive: seen.archive, Image: image,
		Credentials: seen.credentials.Keys, CredentialsHash: seen.credentials.Hash,
		KeysHash: seen.keysHash})
	_, err := step.Apply(ctx, c, seen.archive, d)
	if err != nil && !step.Passing(err) && (apierrors.IsInvalid(err) || apierrors.IsForbidden(err)) {
		return step.Fail("ObjectRefused", fmt.Sprintf("the API server refuses the Deployment of this archive: %v. Correct "+
			"what it names in spec, or delete the Deployment of that name where another owns it", err))
	}
	return step.Retry(err)
}

// readObjects reads the Deployment and the newest pod of the archive.
func readObjects(ctx context.Context, cached client.Reader, seen *observed) step.Outcome {
	d := &appsv1.Deployment{}
	key := types.NamespacedName{Namespace: seen.archive.Namespace, Name: workload.Archive(seen.store.Name)}
	there, err := step.Read(ctx, cached, "Deployment", key, d)
	if err != nil {
		return step.Retry(err)
	}
	if !there || !metav1.IsControlledBy(d, seen.archive) {
		return step.Complete()
	}
	seen.deployment = d
	var pods corev1.PodList
	if err := cached.List(ctx, &pods, client.InNamespace(key.Namespace),
		client.MatchingLabels(workload.Selector(seen.store.Name, workload.ContainerArchive))); err != nil {
		return step.Retry(fmt.Errorf("list the pods of the archive of store %s: %w", seen.store.Name, err))
	}
	seen.pod = fleet.NewestPod(pods.Items)
	return step.Complete()
}

// ask asks the pod for its report.
func ask(ctx context.Context, archives Archives, seen *observed) step.Outcome {
	if !seen.runs() {
		return step.Complete()
	}
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	address := net.JoinHostPort(seen.pod.Status.PodIP, strconv.Itoa(workload.PortArchiveHTTP))
	seen.report, seen.silent = archives.Report(ctx, address)
	if r := seen.report; r != nil && r.Store != "" && r.Store != seen.store.Status.StoreUID {
		seen.report, seen.silent = nil, fmt.Errorf("it reports about store %s", r.Store) // another pod now has this address
	}
	return step.Complete()
}

// Reconcile brings an archive to the state that its spec describes, and writes its status.
func (r *Reconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	archive := &v1alpha1.RecordArchive{}
	if err := r.Client.Get(ctx, req.NamespacedName, archive); err != nil {
		if apierrors.IsNotFound(err) {
			series.forget(req.NamespacedName)
		}
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	if archive.DeletionTimestamp != nil {
		series.forget(req.NamespacedName)
		return ctrl.Result{}, step.SayDeleting(ctx, r.Client, archive,
			func(a *v1alpha1.RecordArchive) *[]metav1.Condition { return &a.Status.Conditions })
	}
	before := archive.DeepCopy()
	w := &work{r: r, seen: &observed{archive: archive, now: r.Now.Time()}}
	out := step.Run(ctx, mayRun, w)
	switch {
	case out.Err() != nil:
		return out.Result()
	case !out.IsComplete():
		w.seen.refuse(out)
	default:
		out = w.run(ctx)
		if out.Err() != nil && step.Passing(out.Err()) {
			return out.Result()
		}
		out = w.seen.summarize(out)
	}
	if r.Named != nil {
		r.Named.set(ctx, archive, w.seen.report)
	}
	series.observe(archive)
	if err := r.write(ctx, before, archive, w.seen.now); err != nil {
		return ctrl.Result{}, err
	}
	return out.Result()
}

// run creates the pod of an archive, and asks it for its report.
func (w *work) run(ctx context.Context) step.Outcome {
	w.notes.Add(step.Run(ctx, makesPod, w))
	w.notes.Add(step.Run(ctx, asksPod, w))
	return w.notes.With(step.Complete())
}

// write writes the status if that is due, and reports changes of conditions.
func (r *Reconciler) write(ctx context.Context, before, after *v1alpha1.RecordArchive, now time.Time) error {
	at, _ := r.written.Load(after.UID)
	last, _ := at.(time.Time)
	if !step.WriteDue(before.Status, after.Status, told, now.Sub(last)) {
		return nil
	}
	changed, err := step.WriteStatus(ctx, r.Client, before, after)
	if err != nil || !changed {
		return client.IgnoreNotFound(err)
	}
	r.written.Store(after.UID, now)
	for _, kind := range []string{v1alpha1.ConditionArchiving, v1alpha1.ConditionArchiveCurrent,
		v1alpha1.ConditionRestoreProven} {
		is := meta.FindStatusCondition(after.Status.Conditions, kind)
		was := meta.FindStatusCondition(before.Status.Conditions, kind)
		if is == nil || is.Status == metav1.ConditionUnknown || was == nil && is.Status == metav1.ConditionFalse ||
			was != nil && was.Status == is.Status && was.Reason == is.Reason {
			continue
		}
		step.Report(ctx, r.Recorder, after, step.News{Warning: was != nil && was.Status == metav1.ConditionTrue,
			Reason: is.Reason, Action: "Observe" + kind,
			Message: fmt.Sprintf("%s is %s: %s", kind, is.Status, step.Tail(is.Message, 900))})
	}
	return nil
}

// SetupWithManager watches archives, their Deployments, and the stores that they name.
func (r *Reconciler) SetupWithManager(mgr ctrl.Manager) error {
	// When a RecordArchive changes, another one of the same store may have to start or stop archiving.
	siblings := handler.EnqueueRequestsFromMapFunc(func(ctx context.Context, o client.Object) []reconcile.Request {
		a, ok := o.(*v1alpha1.RecordArchive)
		if !ok {
			return nil
		}
		return r.archivesOf(ctx, a.Namespace, a.Spec.StoreRef.Name)
	})
	ofStore := handler.EnqueueRequestsFromMapFunc(func(ctx context.Context, o client.Object) []reconcile.Request {
		return r.archivesOf(ctx, o.GetNamespace(), o.GetName())
	})
	ofBackup := handler.EnqueueRequestsFromMapFunc(func(_ context.Context, o client.Object) []reconcile.Request {
		b, ok := o.(*v1alpha1.RecordBackup)
		if !ok {
			return nil
		}
		return []reconcile.Request{{NamespacedName: types.NamespacedName{Namespace: b.Namespace,
			Name: b.Spec.ArchiveRef.Name}}}
	})
	return ctrl.NewControllerManagedBy(mgr).
		Named("recordarchive").
		For(&v1alpha1.RecordArchive{}, builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		Owns(&appsv1.Deployment{}).
		Watches(&v1alpha1.RecordBackup{}, ofBackup, builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		Watches(&v1alpha1.RecordArchive{}, siblings, builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		Watches(&v1alpha1.RecordStore{}, ofStore, builder.WithPredicates(storeChanged)).
		WithOptions(controller.Options{MaxConcurrentReconciles: 4, RateLimiter: step.Failures()}).
		Complete(step.Counted(&v1alpha1.RecordArchive{}, "recordarchive", r.Client, r))
}

// archivesOf requests a reconcile of each archive of a store.
func (r *Reconciler) archivesOf(ctx context.Context, namespace, store string) (requests []reconcile.Request) {
	var all v1alpha1.RecordArchiveList
	if err := r.Client.List(ctx, &all, client.InNamespace(namespace)); err != nil {
		log.FromContext(ctx).Error(err, "list RecordArchives")
		return nil
	}
	for i := range all.Items {
		if all.Items[i].Spec.StoreRef.Name == store {
			requests = append(requests, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(&all.Items[i])})
		}
	}
	return requests
}

// storeChanged passes only those changes to a store that affect its archive's pod.
var storeChanged = step.Changed(func(s *v1alpha1.RecordStore) any {
	var certificates any // nil if the archiver has no certificate
	if tls := s.Status.TLS; tls != nil {
		certificates = []any{tls.Phase, tls.Bundle, tls.WithoutImage}
	}
	return []any{s.Generation, s.Status.StoreUID, s.Status.PlacementInitialized, certificates,
		s.DeletionTimestamp.IsZero()}
})
