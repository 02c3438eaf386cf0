package fleet

import (
	"cmp"

	"sheaf.dev/sheaf/api/v1alpha1"
)

// ArchiveOf returns the RecordArchive that archives a store: the oldest one that names the store and is not being
// deleted. It returns nil if there is none. All archives must be in the store's namespace.
func ArchiveOf(archives []v1alpha1.RecordArchive, store string) (oldest *v1alpha1.RecordArchive) {
	for i := range archives {
		a := &archives[i]
		if a.Spec.StoreRef.Name != store || a.DeletionTimestamp != nil {
			continue
		}
		if oldest == nil || cmp.Or(a.CreationTimestamp.Compare(oldest.CreationTimestamp.Time),
			cmp.Compare(a.Name, oldest.Name)) < 0 {
			oldest = a
		}
	}
	return oldest
}
