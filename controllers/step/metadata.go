package step

import (
	"context"
	"fmt"
	"reflect"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"sheaf.dev/sheaf/api/v1alpha1"
)

// IfUnchanged is a patch of what differs from an object as it was read; the API server refuses it where the object was
// changed since.
func IfUnchanged(read client.Object) client.Patch {
	return client.MergeFromWithOptions(read, client.MergeFromWithOptimisticLock{})
}

// WriteMetadata changes the metadata of an object where it is still as it was read. Its status stays as it is here,
// which the API server may not know yet.
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

// AddFinalizer keeps an object until what belongs to it was dealt with.
func AddFinalizer[T client.Object](ctx context.Context, c client.Client, object T) Outcome {
	if controllerutil.ContainsFinalizer(object, v1alpha1.Finalizer) {
		return Complete()
	}
	if err := WriteMetadata(ctx, c, object, func(o T) { controllerutil.AddFinalizer(o, v1alpha1.Finalizer) }); err != nil {
		return Retry(err)
	}
	return Complete()
}

// RemoveFinalizer lets an object go that is being deleted. One that is gone already is no error.
func RemoveFinalizer[T client.Object](ctx context.Context, c client.Client, object T) error {
	return client.IgnoreNotFound(WriteMetadata(ctx, c, object, func(o T) {
		controllerutil.RemoveFinalizer(o, v1alpha1.Finalizer)
	}))
}
