package recordstore

import (
	"cmp"
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"sheaf.dev/sheaf/api/v1alpha1"
	"sheaf.dev/sheaf/controllers/step"
	"sheaf.dev/sheaf/internal/kube/workload"
)

// writer writes to the API server for one store, and reports its actions. Its client reads from the cache.
//
// The method finish writes the status once, when all steps have ended. Facts that have to be recorded before an action
// are written earlier, by the methods whose names begin with commit.
type writer struct {
	client.Client
	recorder events.EventRecorder // if nil, reports go only to the log
	// store owns the objects that writer writes. Its status is the new one.
	store *v1alpha1.RecordStore
	// written is the status on the API server.
	written v1alpha1.RecordStoreStatus
}

// tell reports an action or a change of the store.
func (w *writer) tell(ctx context.Context, reason, action string, object client.Object, format string, args ...any) {
	step.Report(ctx, w.recorder, w.store, step.News{Reason: reason, Action: action, Object: object,
		Message: fmt.Sprintf(format, args...)})
}

// apply applies objects that the store owns. If the API server refuses one object, the others are still applied.
func (w *writer) apply(ctx context.Context, objects ...client.Object) step.Outcome {
	var troubles step.Notes
	for _, o := range objects {
		_, err := step.Apply(ctx, w.Client, w.store, o)
		switch {
		case err == nil:
		case !step.Passing(err) && (apierrors.IsInvalid(err) || apierrors.IsForbidden(err) || apierrors.IsBadRequest(err)):
			troubles.Add(step.Fail("ObjectRefused", fmt.Sprintf(
				"the API server refuses an object of this store: %v. Correct what it names in spec, "+
					"or delete the object of that name where another owns it", err)))
		default:
			troubles.Add(step.Retry(err))
		}
	}
	return troubles.With(step.Complete())
}

// commitIdentity records the UID of the store and the meaning of an absent spec.tls before any object contains them.
// Otherwise, an operator that is stopped after it has created such an object would choose different values when it
// starts again.
func (w *writer) commitIdentity(ctx context.Context, tls *v1alpha1.TLSStatus) error {
	err := w.commit(ctx, func(s *v1alpha1.RecordStoreStatus) {
		s.TLS = tls
		s.StoreUID = cmp.Or(s.StoreUID, w.store.Spec.AdoptStoreUID, string(w.store.UID))
		s.Address = workload.GatewayHost(w.store)
	})
	if err == nil { // if the CRD is of an earlier version, the API server has dropped status.tls
		w.store.Status = *w.written.DeepCopy()
	}
	return err
}

// commitTransport records the next step of a change of certificates, before any process is given new files.
func (w *writer) commitTransport(ctx context.Context) error {
	return w.commit(ctx, func(s *v1alpha1.RecordStoreStatus) { s.TLS = w.store.Status.TLS.DeepCopy() })
}

// commitPublished records namespaces before their ConfigMaps are created, so that an operator that is stopped in
// between leaves no ConfigMap behind that nobody deletes.
func (w *writer) commitPublished(ctx context.Context, namespaces []string) error {
	return w.commit(ctx, func(s *v1alpha1.RecordStoreStatus) { s.TLS.Published = namespaces })
}

// commitPlacement records that the placement was created, before the first group exists. Therefore an etcd that loses
// its data later is never mistaken for a new one.
func (w *writer) commitPlacement(ctx context.Context) error {
	err := w.commit(ctx, func(s *v1alpha1.RecordStoreStatus) { s.PlacementInitialized = true })
	w.store.Status.PlacementInitialized = err == nil
	return err
}

// commit writes a part of the status immediately. The method finish writes the other findings of the steps.
func (w *writer) commit(ctx context.Context, change func(*v1alpha1.RecordStoreStatus)) error {
	next := w.store.DeepCopy()
	next.Status = *w.written.DeepCopy()
	change(&next.Status)
	if _, err := w.write(ctx, next); err != nil {
		return err
	}
	w.store.ResourceVersion, w.written = next.ResourceVersion, *next.Status.DeepCopy()
	return nil
}

// finish writes the status at the end of a reconcile, and reports whether it differs from the one on the API server.
func (w *writer) finish(ctx context.Context) (changed bool, err error) { return w.write(ctx, w.store) }

// write writes the changed fields of a status if the store has not changed since it was read. Without this condition, a
// result from an old state could overwrite a newer one, or the status of a new store with the same name.
func (w *writer) write(ctx context.Context, next *v1alpha1.RecordStore) (changed bool, err error) {
	if equality.Semantic.DeepEqual(w.written, next.Status) {
		return false, nil
	}
	was := next.DeepCopy()
	// Without a version in the old object, the patch contains the version that was read. The API server then refuses the
	// patch if the store has changed since.
	was.Status, was.ResourceVersion = *w.written.DeepCopy(), ""
	return step.WriteStatus(ctx, w.Client, was, next)
}

// reportChanges reports the changes of the status after it was written.
func (w *writer) reportChanges(ctx context.Context, before *v1alpha1.RecordStore) {
	for _, c := range w.store.Status.Conditions {
		old := meta.FindStatusCondition(before.Status.Conditions, c.Type)
		if old != nil && old.Status == c.Status && old.Reason == c.Reason {
			continue
		}
		// Pending means that the condition was never determined before.
		if old != nil && old.Status == metav1.ConditionUnknown && old.Reason == v1alpha1.ReasonPending {
			old = nil
		}
		if old == nil && c.Status == metav1.ConditionFalse {
			continue // a condition that is False from the start is not a change for the worse
		}
		// Some conditions share a reason, such as Ready. The action distinguishes their events.
		step.Report(ctx, w.recorder, w.store, step.News{Warning: worthWarning(c, starting(before)), Reason: c.Reason,
			Action:  "Observe" + c.Type,
			Message: fmt.Sprintf("%s is %s: %s", c.Type, c.Status, step.Tail(c.Message, 900))})
	}
}
