package v1alpha1

// Annotations of a ShardPool by which an administrator allows steps that cannot be undone.
const (
	// AnnotationForgetVolumes lists the UUIDs of lost volumes, separated by commas: a shard whose recorded volume
	// is one of them may start on another one.
	AnnotationForgetVolumes = "sheaf.dev/forget-volumes"
	// AnnotationDeleteWithGroups with the value true lets a pool be deleted while its store exists and needs it.
	AnnotationDeleteWithGroups = "sheaf.dev/delete-with-groups"
)

// AnnotationAllowNewEtcd on a RecordStore, with the store's UID as value, lets a managed etcd whose volume was lost
// form a new cluster. The placement is then rebuilt with sheaf recover placement; the operator removes the annotation.
const AnnotationAllowNewEtcd = "sheaf.dev/allow-new-etcd"
