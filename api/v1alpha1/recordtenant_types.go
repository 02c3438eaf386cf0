package v1alpha1

import (
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// RecordTenant limits what all callers together may store and do in the groups whose names begin with a prefix, in a
// store with Named routing. It grants no access: RecordGrants do that.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:shortName=rtenant,categories=sheaf
// +kubebuilder:printcolumn:name="Store",type=string,JSONPath=`.spec.storeRef.name`
// +kubebuilder:printcolumn:name="Prefix",type=string,JSONPath=`.spec.prefix`
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Stored",type=string,JSONPath=`.spec.quotas.storedBytes`
// +kubebuilder:printcolumn:name="Records",type=integer,JSONPath=`.spec.quotas.records`,priority=1
// +kubebuilder:printcolumn:name="Groups",type=integer,JSONPath=`.spec.quotas.groups`,priority=1
// +kubebuilder:printcolumn:name="Calls/s",type=integer,JSONPath=`.spec.quotas.callsPerSecond`,priority=1
// +kubebuilder:printcolumn:name="Bytes/s",type=string,JSONPath=`.spec.quotas.bytesPerSecond`,priority=1
// +kubebuilder:printcolumn:name="Table",type=integer,JSONPath=`.status.tableVersion`,priority=1
// +kubebuilder:printcolumn:name="Trouble",type=string,JSONPath=`.status.conditions[?(@.type=="Stalled")].message`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type RecordTenant struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitzero"`
	// Spec says which groups are limited, and how.
	// +required
	Spec RecordTenantSpec `json:"spec"`
	// Status says whether the tenant's quotas are in force; the operator writes it. A new object has a default status,
	// which says that the operator has not seen the object yet.
	// +optional
	// +kubebuilder:default={conditions: {{type: "Ready", status: "Unknown", reason: "Pending", message: "Waiting for the operator. Where this stays, see whether it runs", lastTransitionTime: "1970-01-01T00:00:00Z"}, {type: "Reconciling", status: "True", reason: "Pending", message: "Waiting for the operator. Where this stays, see whether it runs", lastTransitionTime: "1970-01-01T00:00:00Z"}}}
	Status RecordTenantStatus `json:"status,omitzero"`
}

// RecordTenantList is a list of RecordTenants.
// +kubebuilder:object:root=true
type RecordTenantList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitzero"`
	Items           []RecordTenant `json:"items"`
}

// RecordTenantSpec says which groups are a tenant's, and what may be done there.
type RecordTenantSpec struct {
	// StoreRef names the RecordStore, in this namespace, which must have Named routing. Cannot be changed.
	// +required
	// +kubebuilder:validation:XValidation:rule="self.name == oldSelf.name",fieldPath=".name",message="storeRef cannot be changed: make a new RecordTenant"
	StoreRef StoreReference `json:"storeRef"`
	// Prefix of the names of the tenant's groups. If one RecordTenant's prefix begins with that of another
	// RecordTenant of the same store, the younger of the two has no effect, and its status says so. Cannot be changed,
	// because the stored records would then belong to another tenant.
	// +required
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="prefix cannot be changed: make a new RecordTenant"
	Prefix GrantGroupText `json:"prefix"`
	// Quotas apply to all groups of the tenant together.
	// +required
	Quotas TenantQuotas `json:"quotas"`
}

// TenantQuotas says what a tenant may use. An absent quota means no limit, except for groups.
// +kubebuilder:validation:XValidation:rule="has(self.storedBytes) || has(self.records) || has(self.groups) || has(self.callsPerSecond) || has(self.bytesPerSecond) || has(self.callsAtOnce)",message="give one quota at least: storedBytes, records, groups, callsPerSecond, bytesPerSecond or callsAtOnce"
type TenantQuotas struct {
	// StoredBytes is how much the groups of the tenant may store, such as 500Gi, counted for one copy and without
	// superseded versions. Above this limit, puts are refused; reads and deletes are not.
	// +optional
	// +kubebuilder:validation:XValidation:rule="isQuantity(self) && quantity(self).compareTo(quantity('1Mi')) >= 0 && quantity(self).compareTo(quantity('1Ei')) <= 0",message="storedBytes must be a number with a unit, from 1Mi to 1Ei, such as 500Gi"
	StoredBytes *resource.Quantity `json:"storedBytes,omitempty"`
	// Records is how many records the groups of the tenant may hold. Puts of further records are refused.
	// +optional
	// +kubebuilder:validation:Minimum=1
	Records *int64 `json:"records,omitempty"`
	// Groups is how many groups the tenant may have, including empty ones. The default is 1,000, because the number of
	// the store's groups is limited, too. Above this limit, no group is created; existing groups are served.
	// +optional
	// +kubebuilder:validation:Minimum=1
	Groups *int64 `json:"groups,omitempty"`
	// CallsPerSecond is how many calls may begin in a second. Each message of a batch counts as one call.
	// +optional
	// +kubebuilder:validation:Minimum=1
	CallsPerSecond *int64 `json:"callsPerSecond,omitempty"`
	// BytesPerSecond is how much data of records may be written and read in a second, such as 100Mi.
	// +optional
	// +kubebuilder:validation:XValidation:rule="isQuantity(self) && quantity(self).compareTo(quantity('1Ki')) >= 0 && quantity(self).compareTo(quantity('1Ti')) <= 0",message="bytesPerSecond must be a number with a unit, from 1Ki to 1Ti, such as 100Mi"
	BytesPerSecond *resource.Quantity `json:"bytesPerSecond,omitempty"`
	// CallsAtOnce is how many calls may be in progress, including open streams. Each shard that leads groups of the
	// tenant allows at least one.
	// +optional
	// +kubebuilder:validation:Minimum=1
	CallsAtOnce *int64 `json:"callsAtOnce,omitempty"`
}

// RecordTenantStatus says whether a tenant's quotas are in force.
type RecordTenantStatus struct {
	// ObservedGeneration is the generation of the spec that this status describes.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// TableVersion is the version of the store's table that contains this tenant; shards apply the table within
	// seconds.
	// +optional
	TableVersion int64 `json:"tableVersion,omitempty"`
	// Conditions: Ready, Reconciling, Stalled; Compiled is True when the tenant is in the store's table.
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=32
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}
