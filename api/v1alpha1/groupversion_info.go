// Package v1alpha1 holds the Kubernetes kinds of Sheaf: RecordStore (a store and its settings), ShardPool (the shards
// of a store), Shard (the observed state of one shard), DiskSet (raw disks that become volumes), RecordGrant (the
// rights of callers in a store), RecordTenant (the quotas of a part of a store), RecordArchive (the copy of a store in
// a bucket) and RecordBackup (a point in time of an archive).
//
// +kubebuilder:object:generate=true
// +groupName=sheaf.dev
package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// GroupVersion is the API group and version of these kinds.
var GroupVersion = schema.GroupVersion{Group: "sheaf.dev", Version: "v1alpha1"}

var (
	// SchemeBuilder collects the functions that add these kinds to a scheme.
	SchemeBuilder = runtime.NewSchemeBuilder(addKnownTypes)
	// AddToScheme adds these kinds to a scheme.
	AddToScheme = SchemeBuilder.AddToScheme
)

func addKnownTypes(scheme *runtime.Scheme) error {
	scheme.AddKnownTypes(GroupVersion,
		&RecordStore{}, &RecordStoreList{}, &ShardPool{}, &ShardPoolList{}, &Shard{}, &ShardList{}, &DiskSet{},
		&DiskSetList{},
		&RecordGrant{}, &RecordGrantList{}, &RecordTenant{}, &RecordTenantList{},
		&RecordArchive{}, &RecordArchiveList{}, &RecordBackup{}, &RecordBackupList{})
	metav1.AddToGroupVersion(scheme, GroupVersion)
	return nil
}
