package recordstore

import (
	"context"
	"fmt"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"sheaf.dev/sheaf/api/v1alpha1"
)

// WriteMetadata changes the store's metadata where it is still as it was read. Its status stays as it is here, which
// the API server does not know yet.
func WriteMetadata(ctx context.Context, c client.Client, store *v1alpha1.RecordStore, change func(*v1alpha1.RecordStore)) error {
	changed := store.DeepCopy()
	change(changed)
	patch := client.MergeFromWithOptions(store.DeepCopy(), client.MergeFromWithOptimisticLock{})
	if err := c.Patch(ctx, changed, patch, client.FieldOwner(v1alpha1.FieldManager)); err != nil {
		return fmt.Errorf("change the metadata of store %s: %w", client.ObjectKeyFromObject(store), err)
	}
	store.ObjectMeta = changed.ObjectMeta
	return nil
}
