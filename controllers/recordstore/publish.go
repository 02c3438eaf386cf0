package recordstore

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"
	"sync"
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

// published records the content of a ConfigMap in another namespace, and when it was last read or written.
type published struct {
	bundle [sha256.Size]byte
	at     time.Time
}

// errConfigMapTaken means that the operator did not create the ConfigMap with this name for this store.
var errConfigMapTaken = errors.New("it was not made by the operator for this store")

// publishing maintains ConfigMaps with the authorities of a store in the namespaces of its callers.
type publishing struct {
	*writer
	live      client.Reader
	published *sync.Map // maps a ConfigMap to what was last published in it
	now       time.Time
}

// do maintains a ConfigMap with the store's authorities in each namespace of spec.tls.publishTo, and deletes the
// ConfigMaps in namespaces that were removed from the list. A namespace is recorded in the status before its ConfigMap
// is created. Therefore an operator that is stopped in between leaves no unrecorded ConfigMap behind.
func (p publishing) do(ctx context.Context, bundle []byte) step.Outcome {
	store, status := p.store, p.store.Status.TLS
	wanted := specTLS(store).PublishTo
	recorded := slices.Clone(status.Published)
	for _, namespace := range wanted {
		if !slices.Contains(recorded, namespace) {
			recorded = append(recorded, namespace)
		}
	}
	if len(recorded) > len(status.Published) {
		if err := p.commitPublished(ctx, recorded); err != nil {
			return step.Retry(err)
		}
	}
	var notes step.Notes
	status.Published = slices.DeleteFunc(recorded, func(namespace string) bool {
		if slices.Contains(wanted, namespace) {
			notes.Add(publishOutcome(store, namespace, p.publish(ctx, namespace, bundle)))
			return false
		}
		err := p.end(ctx, namespace)
		notes.Add(publishOutcome(store, namespace, err))
		return err == nil
	})
	return notes.With(step.Complete())
}

// publish creates or updates the ConfigMap in a namespace.
func (p publishing) publish(ctx context.Context, namespace string, bundle []byte) error {
	wanted := workload.PublishedMap(p.store, namespace, bundle)
	key := client.ObjectKeyFromObject(wanted)
	sum := sha256.Sum256(bundle)
	if was, ok := p.published.Load(key); ok {
		if was := was.(published); was.bundle == sum && p.now.Sub(was.at) < publishedLooksAgain {
			return nil
		}
	}
	var live corev1.ConfigMap
	err := p.live.Get(ctx, key, &live)
	switch {
	case err == nil && !workload.IsPublished(&live, p.store):
		return errConfigMapTaken
	case client.IgnoreNotFound(err) != nil:
		return err
	}
	if _, err := step.Apply(ctx, p.Client, nil, wanted); err != nil {
		return err
	}
	p.published.Store(key, published{sum, p.now})
	return nil
}

// end deletes the ConfigMap in a namespace if the operator has created it for this store. If the operator is no longer
// allowed to delete it, the ConfigMap remains and an event names it. Neither the store nor its deletion waits for this
// deletion.
func (p publishing) end(ctx context.Context, namespace string) error {
	key := client.ObjectKey{Namespace: namespace, Name: workload.Published(p.store)}
	p.published.Delete(key)
	var live corev1.ConfigMap
	err := p.live.Get(ctx, key, &live)
	if err == nil && workload.IsPublished(&live, p.store) {
		err = p.Delete(ctx, &live, client.Preconditions{UID: &live.UID})
	}
	if apierrors.IsForbidden(err) {
		step.Report(ctx, p.recorder, p.store, step.News{Reason: reasonMayNotPublish, Action: "Delete", Warning: true,
			Message: fmt.Sprintf("ConfigMap %s stays, as the operator may not delete it: delete it by hand", key)})
		return nil
	}
	return client.IgnoreNotFound(err)
}

// endAll deletes the ConfigMaps of a store that is being deleted.
func (p publishing) endAll(ctx context.Context) error {
	if p.store.Status.TLS == nil {
		return nil
	}
	var failed []error
	for _, namespace := range p.store.Status.TLS.Published {
		failed = append(failed, p.end(ctx, namespace))
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
