package step

import (
	"context"
	"fmt"
	"reflect"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"sheaf.dev/sheaf/api/v1alpha1"
)

// Read reads an object, and reports whether it exists. The argument what names the kind of the object in an error.
func Read(ctx context.Context, from client.Reader, what string, key client.ObjectKey,
	into client.Object) (there bool, err error) {
	err = from.Get(ctx, key, into)
	if err == nil || apierrors.IsNotFound(err) {
		return err == nil, nil
	}
	// The key of a cluster-scoped object has no namespace, so it begins with a slash.
	return false, fmt.Errorf("read %s %s: %w", what, strings.TrimPrefix(key.String(), "/"), err)
}

// IfUnchanged returns a patch with the changes that were made to an object after it was read. The API server refuses
// the patch if somebody else has changed the object since then.
func IfUnchanged(read client.Object) client.Patch {
	return client.MergeFromWithOptions(read, client.MergeFromWithOptimisticLock{})
}

// WriteMetadata changes the metadata of an object if the object has not changed since it was read. It keeps the local
// status, which the API server may not have yet.
func WriteMetadata[T client.Object](ctx context.Context, c client.Client, object T, change func(T)) error {
	changed := object.DeepCopyObject().(T)
	change(changed)
	if err := c.Patch(ctx, changed, IfUnchanged(object), client.FieldOwner(v1alpha1.FieldManager)); err != nil {
		return fmt.Errorf("change the metadata of %s %s: %w", reflect.TypeOf(object).Elem().Name(),
			client.ObjectKeyFromObject(object), err)
	}
	*metadataOf(object) = *metadataOf(changed)
	return nil
}

func metadataOf(object client.Object) *metav1.ObjectMeta {
	return object.(metav1.ObjectMetaAccessor).GetObjectMeta().(*metav1.ObjectMeta)
}

// AddFinalizer prevents the deletion of an object from completing until its dependent resources are released or
// deleted.
func AddFinalizer[T client.Object](ctx context.Context, c client.Client, object T) Outcome {
	if controllerutil.ContainsFinalizer(object, v1alpha1.Finalizer) {
		return Complete()
	}
	return Retry(WriteMetadata(ctx, c, object, func(o T) { controllerutil.AddFinalizer(o, v1alpha1.Finalizer) }))
}

// RemoveFinalizer allows the deletion of an object to complete. It succeeds if the object no longer exists.
func RemoveFinalizer[T client.Object](ctx context.Context, c client.Client, object T) error {
	return client.IgnoreNotFound(WriteMetadata(ctx, c, object, func(o T) {
		controllerutil.RemoveFinalizer(o, v1alpha1.Finalizer)
	}))
}

// Stale reports whether a write failed only because its input was outdated, or because the namespace is being deleted.
func Stale(err error) bool {
	return err != nil && (apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) || apierrors.IsConflict(err))
}

// Passing reports whether an error is expected to disappear by the next reconcile, because it is Stale or the object
// has just been deleted.
func Passing(err error) bool { return Stale(err) || apierrors.IsNotFound(err) }
