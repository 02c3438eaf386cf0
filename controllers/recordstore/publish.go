package recordstore

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"sheaf.dev/sheaf/api/v1alpha1"
	"sheaf.dev/sheaf/controllers/step"
	"sheaf.dev/sheaf/internal/kube/workload"
)

// Reasons why authorities are not published.
const (
	reasonNamespaceMissing = "NamespaceMissing"
	reasonMayNotPublish    = "MayNotPublish"
	reasonConfigMapTaken   = "ConfigMapTaken"
)

// publishedLooksAgain is the time after which a published ConfigMap is read again, because somebody may have changed or
// deleted it.
const publishedLooksAgain = 10 * time.Minute

// published records what a ConfigMap in another namespace contained when it was last read or written, and when that
// was.
type published struct {
	bundle [sha256.Size]byte
	at     time.Time
}

// errConfigMapTaken means that the ConfigMap with this name belongs to somebody else.
var errConfigMapTaken = errors.New("it was not made by the operator for this store")

// publishAuthorities maintains a ConfigMap with the store's authorities in each namespace of spec.tls.publishTo, and
// deletes the ConfigMaps in namespaces that were removed from the list. A namespace is recorded in the status before
// its ConfigMap is created. Thus an operator that ends in between leaves no unrecorded ConfigMap behind.
func (r *Reconciler) publishAuthorities(ctx context.Context, run *storeRun, bundle []byte) step.Outcome {
	store, status := run.store, run.store.Status.TLS
	wanted := specTLS(store).PublishTo
	before := store.DeepCopy()
	known := len(status.Published)
	for _, namespace := range wanted {
		if !slices.Contains(status.Published, namespace) {
			status.Published = append(status.Published, namespace)
		}
	}
	if len(status.Published) > known {
		if _, err := r.writeStatus(ctx, before, store); err != nil {
			return step.Retry(err)
		}
	}
	var notes step.Notes
	status.Published = slices.DeleteFunc(slices.Clone(status.Published), func(namespace string) bool {
		if slices.Contains(wanted, namespace) {
			notes.Add(publishOutcome(store, namespace, r.publish(ctx, store, namespace, bundle)))
			return false
		}
		err := r.unpublish(ctx, store, namespace)
		notes.Add(publishOutcome(store, namespace, err))
		return err == nil
	})
	return notes.With(step.Complete())
}

// publish creates or updates the ConfigMap in a namespace.
func (r *Reconciler) publish(ctx context.Context, store *v1alpha1.RecordStore, namespace string, bundle []byte) error {
	wanted := workload.PublishedMap(store, namespace, bundle)
	key := client.ObjectKeyFromObject(wanted)
	sum := sha256.Sum256(bundle)
	if was, ok := r.published.Load(key); ok {
		if was := was.(published); was.bundle == sum && r.now().Sub(was.at) < publishedLooksAgain {
			return nil
		}
	}
	var live corev1.ConfigMap
	err := r.Live.Get(ctx, key, &live)
	switch {
	case err == nil && !workload.IsPublished(&live, store):
		return errConfigMapTaken
	case client.IgnoreNotFound(err) != nil:
		return err
	}
	if _, err := step.Apply(ctx, r.Client, nil, wanted); err != nil {
		return err
	}
	r.published.Store(key, published{sum, r.now()})
	return nil
}

// unpublish deletes the ConfigMap in a namespace if the operator has made it for this store. If the operator is no
// longer allowed to delete it, the ConfigMap remains and an event names it. Neither the store nor its deletion waits
// for that.
func (r *Reconciler) unpublish(ctx context.Context, store *v1alpha1.RecordStore, namespace string) error {
	key := client.ObjectKey{Namespace: namespace, Name: workload.Published(store)}
	r.published.Delete(key)
	var live corev1.ConfigMap
	err := r.Live.Get(ctx, key, &live)
	if err == nil && workload.IsPublished(&live, store) {
		err = r.Client.Delete(ctx, &live, client.Preconditions{UID: &live.UID})
	}
	if apierrors.IsForbidden(err) {
		step.Report(ctx, r.Events, store, step.News{Reason: reasonMayNotPublish, Action: "Delete", Warning: true,
			Message: fmt.Sprintf("ConfigMap %s stays, as the operator may not delete it: delete it by hand", key)})
		return nil
	}
	return client.IgnoreNotFound(err)
}

// unpublishAll deletes the ConfigMaps of a store that is being deleted.
func (r *Reconciler) unpublishAll(ctx context.Context, store *v1alpha1.RecordStore) error {
	if store.Status.TLS == nil {
		return nil
	}
	var failed []error
	for _, namespace := range store.Status.TLS.Published {
		failed = append(failed, r.unpublish(ctx, store, namespace))
	}
	return errors.Join(failed...)
}

// publishOutcome converts the result for one namespace to an outcome.
func publishOutcome(store *v1alpha1.RecordStore, namespace string, err error) step.Outcome {
	at := fmt.Sprintf("ConfigMap %s/%s", namespace, workload.Published(store))
	switch {
	case err == nil:
		return step.Complete()
	case errors.Is(err, errConfigMapTaken):
		return step.Fail(reasonConfigMapTaken, fmt.Sprintf(
			"%s: %v, and is left alone. Delete it, or take the namespace out of spec.tls.publishTo", at, err))
	case apierrors.IsNotFound(err) || apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause):
		return step.Wait(reasonNamespaceMissing, fmt.Sprintf(
			"namespace %s of spec.tls.publishTo does not exist, or is being deleted: make it, or take it out of the list",
			namespace), step.PauseLong)
	case apierrors.IsForbidden(err):
		return step.Fail(reasonMayNotPublish, fmt.Sprintf(
			"the operator may not keep %s (%v): add the namespace to watchNamespaces of the chart sheaf-operator, or take it "+
				"out of spec.tls.publishTo", at, err))
	}
	return step.Retry(fmt.Errorf("%s: %w", at, err))
}
