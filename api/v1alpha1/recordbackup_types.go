package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// RecordBackup keeps a point in time of an archive, with everything that the store acknowledged before the
// RecordBackup was made. It stays readable until the RecordBackup is deleted or its ttl ends, whatever the archive is
// told to keep. It copies no data. A backup is restored by spec.restore of a new RecordStore.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:shortName=rbackup,categories=sheaf
// +kubebuilder:printcolumn:name="Archive",type=string,JSONPath=`.spec.archiveRef.name`
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Point",type=string,JSONPath=`.status.point`
// +kubebuilder:printcolumn:name="Time",type=date,JSONPath=`.status.time`
// +kubebuilder:printcolumn:name="Until",type=string,JSONPath=`.status.until`,priority=1
// +kubebuilder:printcolumn:name="Trouble",type=string,JSONPath=`.status.conditions[?(@.type=="Stalled")].message`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type RecordBackup struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitzero"`
	// Spec says of which archive, and for how long.
	// +required
	Spec RecordBackupSpec `json:"spec"`
	// Status says whether the point exists; the operator writes it. A new object has a default status, which says that
	// the operator has not seen the object yet.
	// +optional
	// +kubebuilder:default={conditions: {{type: "Ready", status: "Unknown", reason: "Pending", message: "Waiting for the operator. Where this stays, see whether it runs", lastTransitionTime: "1970-01-01T00:00:00Z"}, {type: "Reconciling", status: "True", reason: "Pending", message: "Waiting for the operator. Where this stays, see whether it runs", lastTransitionTime: "1970-01-01T00:00:00Z"}}}
	Status RecordBackupStatus `json:"status,omitzero"`
}

// RecordBackupList is a list of RecordBackups.
// +kubebuilder:object:root=true
type RecordBackupList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitzero"`
	Items           []RecordBackup `json:"items"`
}

// RecordBackupSpec says of which archive a point is kept, and for how long. It cannot be changed.
// +kubebuilder:validation:XValidation:rule="has(self.ttl) == has(oldSelf.ttl)",fieldPath=".ttl",message="ttl cannot be changed: make a new RecordBackup"
type RecordBackupSpec struct {
	// ArchiveRef names the RecordArchive, in this namespace. Cannot be changed.
	// +required
	// +kubebuilder:validation:XValidation:rule="self.name == oldSelf.name",fieldPath=".name",message="archiveRef cannot be changed: make a new RecordBackup"
	ArchiveRef ArchiveReference `json:"archiveRef"`
	// TTL is how long the point is kept after the RecordBackup was created, such as 2160h. Without it, the point is kept
	// until the RecordBackup is deleted. Cannot be changed.
	// +optional
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]{1,6}(ms|s|m|h)){1,4}$') && duration(self) >= duration('1h') && duration(self) <= duration('876000h')",message="ttl must be a duration from 1h to 876000h, such as 2160h"
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="ttl cannot be changed: make a new RecordBackup"
	TTL *metav1.Duration `json:"ttl,omitempty"`
}

// ArchiveReference names a RecordArchive of the same namespace.
type ArchiveReference struct {
	// Name of the RecordArchive.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="self.matches('^[a-z0-9]([a-z0-9.-]*[a-z0-9])?$')",message="name must be that of a RecordArchive of this namespace"
	Name string `json:"name"`
}

// RecordBackupStatus says whether the point exists.
type RecordBackupStatus struct {
	// ObservedGeneration is the generation of the spec that this status describes.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// Point is the name of the point in the archive, for spec.restore.point of a RecordStore. It is that of the
	// RecordBackup, shortened if necessary, and a part of its UID, so that a RecordBackup that is made again gets
	// another point.
	// +optional
	Point string `json:"point,omitempty"`
	// Time is the point in time. It is absent until the point exists.
	// +optional
	Time *metav1.Time `json:"time,omitempty"`
	// Until is when the ttl ends. Without a ttl it is absent.
	// +optional
	Until *metav1.Time `json:"until,omitempty"`
	// Conditions: Ready, Reconciling, Stalled.
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=32
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}
