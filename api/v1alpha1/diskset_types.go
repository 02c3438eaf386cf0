package v1alpha1

import (
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// DiskSet says which raw disks of which nodes become volumes, and with which file system. It creates a StorageClass of
// its own name and one PersistentVolume per disk. It is cluster-scoped and for administrators: a local volume can
// expose any device of a node.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Cluster,shortName=dset,categories=sheaf
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="FS",type=string,JSONPath=`.spec.fileSystem.type`
// +kubebuilder:printcolumn:name="Disks",type=integer,JSONPath=`.status.total`
// +kubebuilder:printcolumn:name="Free",type=integer,JSONPath=`.status.free`
// +kubebuilder:printcolumn:name="Bound",type=integer,JSONPath=`.status.bound`
// +kubebuilder:printcolumn:name="Trouble",type=string,JSONPath=`.status.conditions[?(@.type=="Stalled")].message`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:validation:XValidation:rule="self.metadata.name.size() <= 63",message="metadata.name must be at most 63 characters: labels carry it"
type DiskSet struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitzero"`
	// Spec says which disks to use, and how.
	// +required
	Spec DiskSetSpec `json:"spec"`
	// Status is what the operator observed about the disks; the operator writes it. A new object has a default status,
	// which says that the operator has not seen the object yet.
	// +optional
	// +kubebuilder:default={total: 0, free: 0, bound: 0, conditions: {{type: "Ready", status: "Unknown", reason: "Pending", message: "Waiting for the operator. Where this stays, see whether it runs", lastTransitionTime: "1970-01-01T00:00:00Z"}, {type: "Reconciling", status: "True", reason: "Pending", message: "Waiting for the operator. Where this stays, see whether it runs", lastTransitionTime: "1970-01-01T00:00:00Z"}}}
	Status DiskSetStatus `json:"status,omitzero"`
}

// DiskSetList is a list of DiskSets.
// +kubebuilder:object:root=true
type DiskSetList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitzero"`
	Items           []DiskSet `json:"items"`
}

// DiskSetSpec says which disks belong to a set, and how to use them.
// +kubebuilder:validation:XValidation:rule="has(self.allowUnstablePaths) && self.allowUnstablePaths || self.disks.all(d, d.device.startsWith('/dev/disk/by-id/'))",message="disks[].device must be a path below /dev/disk/by-id/: other names can mean another disk after a reboot. allowUnstablePaths: true allows them, for tests",fieldPath=".disks"
type DiskSetSpec struct {
	// FileSystem that the kubelet creates on each blank disk. A disk that is not blank is never formatted. Cannot be
	// changed.
	// +required
	// +kubebuilder:validation:XValidation:rule="self.type == oldSelf.type",message="fileSystem.type cannot be changed: make a second DiskSet with other disks",fieldPath=".type"
	FileSystem FileSystem `json:"fileSystem"`
	// Namespaces whose stores may use the disks.
	// +required
	// +listType=set
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=63
	// +kubebuilder:validation:items:XValidation:rule="self.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?$')",message="a namespace's name holds a-z, 0-9 and - only: write it as kubectl get namespaces shows it"
	Namespaces []string `json:"namespaces"`
	// Disks of the set. Each becomes one PersistentVolume.
	// +required
	// +listType=map
	// +listMapKey=node
	// +listMapKey=device
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=512
	Disks []Disk `json:"disks"`
	// AllowUnstablePaths allows devices outside /dev/disk/by-id/, such as loop devices in tests.
	// +optional
	AllowUnstablePaths bool `json:"allowUnstablePaths,omitempty"`
}

// Disk is one raw disk of one node.
type Disk struct {
	// Node is the value of the node's label kubernetes.io/hostname, which is usually the node's name.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:XValidation:rule="self.matches('^[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$')",message="node must be the value of a node's label kubernetes.io/hostname: kubectl get nodes -L kubernetes.io/hostname shows it"
	Node string `json:"node"`
	// Device is the path of a raw block device on that node, below /dev/disk/by-id/.
	// +required
	// +kubebuilder:validation:MaxLength=512
	// +kubebuilder:validation:XValidation:rule="self.matches('^(/[!-.0-~]+)+$') && self.startsWith('/dev/') && !self.contains('..') && !self.contains('/./')",message="device must be the path of a block device below /dev/, without spaces, .. or empty parts, such as /dev/disk/by-id/nvme-eui.0025385b"
	Device string `json:"device"`
	// Size of the disk, from 64Mi to 4Pi. Can only grow.
	// +required
	// +kubebuilder:validation:Schemaless
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="isQuantity(self) && quantity(self).compareTo(quantity('64Mi')) >= 0 && quantity(self).compareTo(quantity('4Pi')) <= 0",message="size must be a number with a unit, from 64Mi to 4Pi, such as 500Gi"
	// +kubebuilder:validation:XValidation:rule="!isQuantity(self) || !isQuantity(oldSelf) || quantity(self).compareTo(quantity(oldSelf)) >= 0",message="size can only grow: put back the old size"
	Size resource.Quantity `json:"size"`
	// Medium of the disk.
	// +optional
	// +kubebuilder:default=Auto
	Medium Medium `json:"medium,omitempty"`
}

// DiskState is the state of a disk.
type DiskState string

// States of a disk.
const (
	// DiskFree means that the disk can be given to a claim. Either it is blank, or a person has released it.
	DiskFree DiskState = "Free"
	// DiskLooking means that a Job inspects the disk, because a claim may get a new disk only if it is known to be blank.
	DiskLooking DiskState = "Looking"
	// DiskLookFailed means that the disk could not be inspected.
	DiskLookFailed DiskState = "LookFailed"
	// DiskNotBlank means that the disk already held a file system, a partition table or other data when it was added to
	// the DiskSet. No claim gets the disk until a person has it wiped, or releases it with its content.
	DiskNotBlank DiskState = "NotBlank"
	// DiskReserved means that the disk is meant for a claim that is not bound yet.
	DiskReserved DiskState = "Reserved"
	// DiskBound means that the disk holds the volume of a claim.
	DiskBound DiskState = "Bound"
	// DiskReleased means that the disk still holds the data of a claim that was deleted.
	DiskReleased DiskState = "Released"
	// DiskFormatBlocked means that the kubelet did not format the disk, because it is not blank.
	DiskFormatBlocked DiskState = "FormatBlocked"
	// DiskConflict means that another DiskSet or PersistentVolume uses the disk.
	DiskConflict DiskState = "Conflict"
	// DiskNodeMissing means that the disk's node does not exist.
	DiskNodeMissing DiskState = "NodeMissing"
	// DiskRemoved means that the disk is no longer in the spec, but that its volume is still bound.
	DiskRemoved DiskState = "Removed"
	// DiskWiping means that a Job is wiping the disk, which a person has requested and confirmed. The disk is free after
	// that.
	DiskWiping DiskState = "Wiping"
	// DiskWipeFailed means that the disk could not be wiped.
	DiskWipeFailed DiskState = "WipeFailed"
)

// DiskSetStatus is what the operator observed about a set of disks.
type DiskSetStatus struct {
	// ObservedGeneration is the generation of the spec that this status describes.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// Total is the number of disks.
	Total int32 `json:"total"`
	// Free is the number of disks in the state Free.
	Free int32 `json:"free"`
	// Bound is the number of disks whose volume is bound to a claim: those in the states Bound, FormatBlocked and Removed.
	Bound int32 `json:"bound"`
	// Disks has one item per disk, in the order of the spec.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=2048
	Disks []DiskStatus `json:"disks,omitempty"`
	// Conditions: Ready, Reconciling, Stalled.
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=32
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// DiskStatus is what the operator observed about one disk.
type DiskStatus struct {
	// Node of the disk.
	Node string `json:"node"`
	// Device path of the disk.
	Device string `json:"device"`
	// State of the disk.
	State DiskState `json:"state"`
	// PersistentVolume of the disk.
	// +optional
	PersistentVolume string `json:"persistentVolume,omitempty"`
	// Claim that holds the disk, as namespace/name.
	// +optional
	Claim string `json:"claim,omitempty"`
	// Message says what is wrong and what to do; empty if nothing is wrong.
	// +optional
	Message string `json:"message,omitempty"`
}
