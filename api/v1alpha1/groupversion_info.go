// Package v1alpha1 holds the Kubernetes kinds of Sheaf: RecordStore (what is stored), ShardPool (where), Shard (what
// was seen of one shard of a pool), DiskSet (which raw disks of which nodes become volumes), RecordGrant (who may do
// what in a store) and RecordTenant (how much of it a tenant may use).
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
		&RecordGrant{}, &RecordGrantList{}, &RecordTenant{}, &RecordTenantList{})
	metav1.AddToGroupVersion(scheme, GroupVersion)
	return nil
}
