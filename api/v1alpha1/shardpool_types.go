package v1alpha1

import (
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// ShardPool is a set of shards with the same storage class, file system, medium, residency and resources. Each
// shard is a pod with a volume of its own.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:subresource:scale:specpath=.spec.shards,statuspath=.status.shards,selectorpath=.status.selector
// +kubebuilder:resource:shortName=shpool,categories=sheaf
// +kubebuilder:printcolumn:name="Store",type=string,JSONPath=`.spec.storeRef.name`
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Status",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].reason`
// +kubebuilder:printcolumn:name="Shards",type=integer,JSONPath=`.spec.shards`
// +kubebuilder:printcolumn:name="Serving",type=integer,JSONPath=`.status.serving`
// +kubebuilder:printcolumn:name="FS",type=string,JSONPath=`.spec.fileSystem.type`
// +kubebuilder:printcolumn:name="Residency",type=string,JSONPath=`.spec.residency`
// +kubebuilder:printcolumn:name="Load",type=string,JSONPath=`.status.load`
// +kubebuilder:printcolumn:name="Records",type=integer,JSONPath=`.status.records`,priority=1
// +kubebuilder:printcolumn:name="Nodes",type=string,JSONPath=`.status.nodes`,priority=1
// +kubebuilder:printcolumn:name="Version",type=string,JSONPath=`.status.version`,priority=1
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:validation:XValidation:rule="!isQuantity(self.spec.storage.size) || !isQuantity(oldSelf.spec.storage.size) || quantity(self.spec.storage.size).compareTo(quantity(oldSelf.spec.storage.size)) >= 0 || has(oldSelf.status) && has(oldSelf.status.conditions) && oldSelf.status.conditions.exists(c, c.type == 'VolumesGrown' && c.status == 'False')",fieldPath=".spec.storage.size",message="size can only grow, as volumes do: put back the old size. It can be lowered while condition VolumesGrown is False"
// +kubebuilder:validation:XValidation:rule="!has(self.spec.remove) || has(self.status) && has(self.status.observedGeneration) || self.spec.remove.all(n, n < (has(self.spec.shards) ? self.spec.shards : 1) + (has(self.spec.remove) ? self.spec.remove.size() : 0))",fieldPath=".spec.remove",message="remove names a shard that a new pool does not get: its shards are numbered from 0, without those of remove. Take the number out"
// +kubebuilder:validation:XValidation:rule="!has(self.spec.remove) || !has(self.status) || !has(self.status.highestNumber) || self.spec.remove.all(n, n <= self.status.highestNumber || n < (has(self.spec.shards) ? self.spec.shards : 1) + (has(self.spec.remove) ? self.spec.remove.size() : 0) || has(oldSelf.spec.remove) && n in oldSelf.spec.remove)",fieldPath=".spec.remove",message="remove names a shard that is not there: its number is above status.highestNumber. kubectl get shards shows those there are; take the number out"
// +kubebuilder:validation:XValidation:rule="!has(self.spec.parked) || has(self.status) && has(self.status.observedGeneration) || self.spec.parked.all(n, n < (has(self.spec.shards) ? self.spec.shards : 1) + (has(self.spec.remove) ? self.spec.remove.size() : 0))",fieldPath=".spec.parked",message="parked names a shard that a new pool does not get: its shards are numbered from 0, without those of remove. Take the number out"
// +kubebuilder:validation:XValidation:rule="!has(self.spec.parked) || !has(self.status) || !has(self.status.highestNumber) || self.spec.parked.all(n, n <= self.status.highestNumber || n < (has(self.spec.shards) ? self.spec.shards : 1) + (has(self.spec.remove) ? self.spec.remove.size() : 0) || has(oldSelf.spec.parked) && n in oldSelf.spec.parked)",fieldPath=".spec.parked",message="parked names a shard that is not there: its number is above status.highestNumber. kubectl get shards shows those there are; take the number out"
// +kubebuilder:validation:XValidation:rule="!self.metadata.name.endsWith('-etcd') && !self.metadata.name.endsWith('-gateway')",message="metadata.name must not end in -etcd or -gateway: Services of RecordStores are named so. Choose another name"
// +kubebuilder:validation:XValidation:rule="self.metadata.name.size() <= 45",message="metadata.name must be at most 45 characters: names of StatefulSets and pods are made from it"
// +kubebuilder:validation:XValidation:rule="self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')",message="metadata.name must begin with a letter and hold only a-z, 0-9 and -: a Service is named after it"
type ShardPool struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitzero"`
	// Spec describes the wanted pool.
	// +required
	Spec ShardPoolSpec `json:"spec"`
	// Status is what the operator observed about the pool; the operator writes it. A new object has a default status,
	// which says that the operator has not seen the object yet.
	// +optional
	// +kubebuilder:default={shards: 0, serving: 0, updated: 0, conditions: {{type: "Ready", status: "Unknown", reason: "Pending", message: "Waiting for the operator. Where this stays, see whether it runs and watches this namespace", lastTransitionTime: "1970-01-01T00:00:00Z"}, {type: "Reconciling", status: "True", reason: "Pending", message: "Waiting for the operator. Where this stays, see whether it runs and watches this namespace", lastTransitionTime: "1970-01-01T00:00:00Z"}}}
	Status ShardPoolStatus `json:"status,omitzero"`
}

// ShardPoolList is a list of ShardPools.
// +kubebuilder:object:root=true
type ShardPoolList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitzero"`
	Items           []ShardPool `json:"items"`
}

// ShardPoolSpec describes the wanted pool.
// +kubebuilder:validation:XValidation:rule="self.residency != 'Resident' || (has(self.resources) && has(self.resources.limits) && 'memory' in self.resources.limits)",message="residency Resident needs resources.limits.memory: the shards hold their data in memory and check the need against it before they load",fieldPath=".resources"
// +kubebuilder:validation:XValidation:rule="!has(oldSelf.fileSystem) || has(self.fileSystem)",message="fileSystem cannot be removed once it is set: put it back"
// +kubebuilder:validation:XValidation:rule="!has(oldSelf.fileSystem) || !has(self.fileSystem) || self.fileSystem.type == oldSelf.fileSystem.type",fieldPath=".fileSystem.type",message="fileSystem.type cannot be changed: add a second pool with the new file system, and drain this one (state: Drained)"
// +kubebuilder:validation:XValidation:rule="!has(self.replace) || !has(self.remove) || !self.replace.exists(n, n in self.remove)",fieldPath=".replace",message="a number cannot be in replace and in remove: a shard that is to go needs no other volume"
type ShardPoolSpec struct {
	// StoreRef names the RecordStore, in this namespace, whose groups the shards store. Cannot be changed.
	// +required
	// +kubebuilder:validation:XValidation:rule="self.name == oldSelf.name",fieldPath=".name",message="storeRef cannot be changed: make a new ShardPool"
	StoreRef StoreReference `json:"storeRef"`
	// Shards is the wanted number of shards, 0 to 1000. Shard n is the StatefulSet <pool>-<n>.
	// +optional
	// +kubebuilder:default=1
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=1000
	Shards *int32 `json:"shards,omitempty"`
	// Remove lists numbers of shards. If there are more shards than wanted, these are emptied and removed first. No new
	// shard gets one of these numbers. A number that you add must belong to a shard that exists or that the field shards
	// could create: it is at most status.highestNumber, or less than the sum of shards and the length of this list.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=1000
	// +kubebuilder:validation:items:Minimum=0
	// +kubebuilder:validation:items:Maximum=100000
	Remove []int32 `json:"remove,omitempty"`
	// Parked lists numbers of shards whose pod is stopped, for example while a disk is replaced. Their volumes are
	// kept. As with remove, a number that you add must belong to a shard that exists or could be created.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=1000
	// +kubebuilder:validation:items:Minimum=0
	// +kubebuilder:validation:items:Maximum=100000
	Parked []int32 `json:"parked,omitempty"`
	// Replace lists numbers of shards whose volume is given up. Each time you add a number, this happens once: the claim
	// is deleted, the shard gets another volume of the StorageClass, and its copies are created again on it. Only one
	// shard is replaced at a time, and only when every group on it has a majority of its copies elsewhere. A store with
	// one copy of each group refuses a replacement (condition Stalled, reason ReplaceRefused).
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:Minimum=0
	// +kubebuilder:validation:items:Maximum=100000
	Replace []int32 `json:"replace,omitempty"`
	// State of the pool. An Active pool accepts groups; a Cordoned pool keeps its groups and accepts no new ones; a
	// Drained pool moves its groups to other pools.
	// +optional
	// +kubebuilder:default=Active
	State PoolState `json:"state,omitempty"`
	// Medium of the volumes: SSD (deep queue), HDD (one reader) or Auto (as the kernel reports).
	// +optional
	// +kubebuilder:default=Auto
	Medium Medium `json:"medium,omitempty"`
	// Residency says what a shard keeps in memory: with Resident, the data; with Index, only ids and offsets.
	// +optional
	// +kubebuilder:default=Index
	Residency Residency `json:"residency,omitempty"`
	// Storage of each shard.
	// +required
	Storage Storage `json:"storage"`
	// FileSystem that each volume must have. It is checked before a shard serves. If it is absent, the file system is
	// only reported.
	// +optional
	FileSystem *FileSystem `json:"fileSystem,omitempty"`
	PodOptions `json:",inline"`
	// Update says how pods follow a change of their template.
	// +optional
	// +kubebuilder:default={mode:OneByOne}
	Update Update `json:"update,omitzero"`
}

// StoreReference names a RecordStore of the same namespace.
type StoreReference struct {
	// Name of the RecordStore.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=40
	// +kubebuilder:validation:XValidation:rule="self.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')",message="name must be that of a RecordStore of this namespace: kubectl get recordstores shows them"
	Name string `json:"name"`
}

// PoolState says whether a pool accepts groups.
// +kubebuilder:validation:Enum=Active;Cordoned;Drained
type PoolState string

// States of a pool.
const (
	// PoolActive means that the pool accepts groups.
	PoolActive PoolState = "Active"
	// PoolCordoned means that the pool keeps its groups and accepts no new ones.
	PoolCordoned PoolState = "Cordoned"
	// PoolDrained means that the pool moves its groups to other pools.
	PoolDrained PoolState = "Drained"
)

// Residency says what a shard keeps in memory.
// +kubebuilder:validation:Enum=Index;Resident
type Residency string

// Values of Residency.
const (
	// ResidencyIndex keeps ids and offsets in memory, and reads data through the page cache.
	ResidencyIndex Residency = "Index"
	// ResidencyResident keeps the data in memory.
	ResidencyResident Residency = "Resident"
)

// Storage is the volume of each shard.
// +kubebuilder:validation:XValidation:rule="self.storageClassName == oldSelf.storageClassName",fieldPath=".storageClassName",message="storageClassName cannot be changed: a claim keeps its class. Add a second pool with the new class, and drain this one (state: Drained)"
type Storage struct {
	// StorageClassName of the claims: the name of a DiskSet, or any class whose volumes are file systems.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="!format.dns1123Subdomain().validate(self).hasValue()",message="storageClassName must be the name of a StorageClass: kubectl get storageclasses shows them"
	StorageClassName string `json:"storageClassName"`
	// Size of each volume, from 64Mi to 4Pi, such as 500Gi. Can grow where the class allows it; a size to which the
	// volume could not grow (condition VolumesGrown) can be lowered again.
	// +required
	// +kubebuilder:validation:Schemaless
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="isQuantity(self) && quantity(self).compareTo(quantity('64Mi')) >= 0 && quantity(self).compareTo(quantity('4Pi')) <= 0",message="size must be a number with a unit, from 64Mi to 4Pi, such as 500Gi"
	Size resource.Quantity `json:"size"`
}

// UpdateMode says how pods follow a change of their template.
// +kubebuilder:validation:Enum=OneByOne;Paused
type UpdateMode string

// Update modes.
const (
	// UpdateOneByOne restarts one shard at a time and waits until it has loaded.
	UpdateOneByOne UpdateMode = "OneByOne"
	// UpdatePaused restarts no shard.
	UpdatePaused UpdateMode = "Paused"
)

// Update says how pods follow a change of their template.
type Update struct {
	// Mode: OneByOne restarts one shard of the store at a time and waits until it has loaded; Paused restarts none.
	// +optional
	// +kubebuilder:default=OneByOne
	Mode UpdateMode `json:"mode,omitempty"`
}

// ShardPoolStatus is what the operator observed about a pool.
type ShardPoolStatus struct {
	// ObservedGeneration is the generation of the spec that this status describes.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// Shards is the number of shards that exist (StatefulSets), for the scale subresource.
	Shards int32 `json:"shards"`
	// Selector of the pods, for the scale subresource.
	// +optional
	Selector string `json:"selector,omitempty"`
	// HighestNumber is the highest number of a shard that exists. It is absent while there is no shard.
	// +optional
	HighestNumber *int32 `json:"highestNumber,omitempty"`
	// Serving is the number of shards that serve.
	Serving int32 `json:"serving"`
	// Updated is the number of shards whose pods run the wanted template.
	Updated int32 `json:"updated"`
	// Nodes that the shards are on, as text, such as "n1, n2 and 3 more".
	// +optional
	Nodes string `json:"nodes,omitempty"`
	// Version that the shards run, as text: one version, or several separated by commas during an update.
	// +optional
	Version string `json:"version,omitempty"`
	// Load as text, such as "62% 1.9GiB/s (87% of the device) ETA 2m"; empty when nothing loads.
	// +optional
	Load string `json:"load,omitempty"`
	// Device is the read rate of a disk of the pool's StorageClass, as last measured by a Job that ran `sheaf-bench
	// layouts` in this namespace (config/samples/bench-job.yaml). It is absent if no Job has measured the rate.
	// +optional
	Device *DeviceRate `json:"device,omitempty"`
	// Groups counts the copies of groups on this pool's shards by their state.
	// +optional
	Groups GroupCounts `json:"groups,omitzero"`
	// Records in the groups that this pool's shards lead, as last reported.
	// +optional
	Records int64 `json:"records,omitempty"`
	// StoredBytes of the copies on this pool's shards, as last reported.
	// +optional
	StoredBytes int64 `json:"storedBytes,omitempty"`
	// States counts the shards in each state, the worst state first. States that no shard is in are left out.
	// +optional
	// +listType=map
	// +listMapKey=state
	// +kubebuilder:validation:MaxItems=32
	States []ShardStateCount `json:"states,omitempty"`
	// ShardStatuses has the worst 20 shards, in the order of their numbers. The worst are those that need a person,
	// then those that are still working towards their state, then the others. A pool of at most 20 shards has all of
	// them here. `kubectl get shards` shows all shards of any pool.
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=2000
	ShardStatuses []ShardStatus `json:"shardStatuses,omitempty"`
	// Conditions: Ready, Reconciling, Stalled, Loaded, FileSystemMatches, MemoryFits, VolumesReady, SpaceAvailable,
	// EtcdReady, Updated...
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=32
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// ShardStateCount is the number of a pool's shards that are in one state.
type ShardStateCount struct {
	// State of these shards.
	State ShardState `json:"state"`
	// Shards is the number of shards in this state.
	Shards int32 `json:"shards"`
}

// DeviceRate is the read rate of a disk, as a Job measured it.
type DeviceRate struct {
	// ReadBytesPerSecond of a sequential read that bypasses the page cache.
	ReadBytesPerSecond int64 `json:"readBytesPerSecond"`
	// FileSystem through which the disk was read.
	// +optional
	FileSystem string `json:"fileSystem,omitempty"`
	// PersistentVolume that was measured.
	// +optional
	PersistentVolume string `json:"persistentVolume,omitempty"`
	// Pod of the Job.
	Pod string `json:"pod"`
	// MeasuredAt is when that pod ended.
	MeasuredAt metav1.Time `json:"measuredAt"`
}

// ShardState is the state of a shard.
type ShardState string

// States of a shard.
const (
	// ShardPending means that the shard has no running pod; the message says why.
	ShardPending ShardState = "Pending"
	// ShardLoading means that the shard is reading its groups. It already serves those that it has read.
	ShardLoading ShardState = "Loading"
	// ShardServing means that the shard has loaded all its groups.
	ShardServing ShardState = "Serving"
	// ShardDraining means that the shard is moving its groups to other shards.
	ShardDraining ShardState = "Draining"
	// ShardParked means that the shard has no pod, because spec.parked of the pool lists it.
	ShardParked ShardState = "Parked"
	// ShardNodeDown means that the shard's node does not report; the data stays where it is.
	ShardNodeDown ShardState = "NodeDown"
	// ShardNodeLost means that the shard's node was deleted or has the out-of-service taint.
	ShardNodeLost ShardState = "NodeLost"
	// ShardDiskLost means that the shard's volume is lost, or that it is blank or unreadable although it held data.
	ShardDiskLost ShardState = "DiskLost"
	// ShardDiskMissing means that the node does not have the shard's device, or that the device has no size.
	ShardDiskMissing ShardState = "DiskMissing"
	// ShardForeign means that the shard has the volume of another store or shard.
	ShardForeign ShardState = "Foreign"
	// ShardFormatBlocked means that the kubelet refuses to format the shard's device, because it is not blank.
	ShardFormatBlocked ShardState = "FormatBlocked"
	// ShardFileSystemMismatch means that the shard's volume does not have the requested file system or mount options.
	ShardFileSystemMismatch ShardState = "FileSystemMismatch"
	// ShardMemoryTooSmall means that the shard's memory limit is lower than the memory that its groups need.
	ShardMemoryTooSmall ShardState = "MemoryTooSmall"
	// ShardNoStorageClass means that the shard waits for a StorageClass that does not exist.
	ShardNoStorageClass ShardState = "NoStorageClass"
	// ShardNoVolume means that the shard waits for a PersistentVolume, because none is free or none fits.
	ShardNoVolume ShardState = "NoVolume"
	// ShardUnschedulable means that no node can take the shard's pod.
	ShardUnschedulable ShardState = "Unschedulable"
	// ShardImagePull means that an image of the shard's pod cannot be pulled.
	ShardImagePull ShardState = "ImagePull"
	// ShardCrashLooping means that a container of the shard exits again and again.
	ShardCrashLooping ShardState = "CrashLooping"
	// ShardUnreachable means that the shard's pod runs but does not answer.
	ShardUnreachable ShardState = "Unreachable"
)

// ShardStatus is what the operator observed about one shard.
//
// The numbers of records, bytes and leaders and the progress of a load may be 30 s old, because the operator updates
// them at most every 30 s.
type ShardStatus struct {
	// Name of the shard and its StatefulSet: <pool>-<n>.
	Name string `json:"name"`
	// Number of the shard in its pool.
	Number int32 `json:"number"`
	// State of the shard.
	State ShardState `json:"state"`
	// Message says what is wrong and what to do; empty if nothing is wrong.
	// +optional
	Message string `json:"message,omitempty"`
	// Node of the pod.
	// +optional
	Node string `json:"node,omitempty"`
	// Volume as the shard reported it.
	// +optional
	Volume *VolumeStatus `json:"volume,omitempty"`
	// PodReady is true while the kubelet finds the shard's pod ready: the process answers on its node, even if the
	// operator cannot reach it.
	// +optional
	PodReady bool `json:"podReady,omitempty"`
	// Groups is the number of groups of which this shard has a replica.
	// +optional
	Groups int32 `json:"groups,omitempty"`
	// ServingGroups is the number of these groups that the shard serves.
	// +optional
	ServingGroups int32 `json:"servingGroups,omitempty"`
	// LeadingGroups is the number of these groups that the shard leads now.
	// +optional
	LeadingGroups int32 `json:"leadingGroups,omitempty"`
	// DamagedGroups is the number of these groups with entries that answer DATA_LOSS.
	// +optional
	DamagedGroups int32 `json:"damagedGroups,omitempty"`
	// LostGroups is the number of these groups whose data is on a lost volume.
	// +optional
	LostGroups int32 `json:"lostGroups,omitempty"`
	// Records in the groups that this shard leads, as last reported.
	// +optional
	Records int64 `json:"records,omitempty"`
	// StoredBytes of this shard's copies of groups, as last reported.
	// +optional
	StoredBytes int64 `json:"storedBytes,omitempty"`
	// LoadPercent is the part of the bytes to load that has been loaded, 0 to 100.
	// +optional
	LoadPercent int32 `json:"loadPercent,omitempty"`
	// Load as text, such as "62% 1.9GiB/s (87% of the device) ETA 2m".
	// +optional
	Load string `json:"load,omitempty"`
	// LoadBytesPerSecond is the rate of the present or last load, in steps of 5 %. It is absent if the load had less than
	// 64 MiB, which is too little to measure a rate.
	// +optional
	LoadBytesPerSecond int64 `json:"loadBytesPerSecond,omitempty"`
	// LoadDevicePercent is the rate of the load as a percentage of the device's rate. The device's rate is status.device
	// if a Job has measured it, and otherwise comes from a sample that the shard took before it loaded. A percentage
	// above 100 means that part of the data came from the page cache.
	// +optional
	LoadDevicePercent int32 `json:"loadDevicePercent,omitempty"`
	// MemoryNeedBytes is the memory that the shard needs, as computed before loading.
	// +optional
	MemoryNeedBytes int64 `json:"memoryNeedBytes,omitempty"`
	// MemoryLimitBytes is the memory limit of the shard. It is 0 if there is no limit.
	// +optional
	MemoryLimitBytes int64 `json:"memoryLimitBytes,omitempty"`
	// Updated is true when the pod runs the wanted template.
	// +optional
	Updated bool `json:"updated,omitempty"`
	// Version of the binary.
	// +optional
	Version string `json:"version,omitempty"`
}

// VolumeStatus describes a shard's volume.
type VolumeStatus struct {
	// UUID from the volume's superblock. A shard whose UUID was recorded here never starts on another volume.
	// +optional
	UUID string `json:"uuid,omitempty"`
	// Claim is the name of the PersistentVolumeClaim.
	// +optional
	Claim string `json:"claim,omitempty"`
	// PersistentVolume that the claim is bound to.
	// +optional
	PersistentVolume string `json:"persistentVolume,omitempty"`
	// Source that is mounted, such as a device.
	// +optional
	Source string `json:"source,omitempty"`
	// FileSystem as mounted: ext2, ext3, ext4, xfs, btrfs...
	// +optional
	FileSystem string `json:"fileSystem,omitempty"`
	// MountOptions as mounted.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=128
	MountOptions []string `json:"mountOptions,omitempty"`
	// Rotational as the kernel reports it; absent if it is unknown.
	// +optional
	Rotational *bool `json:"rotational,omitempty"`
	// CapacityBytes of the file system.
	// +optional
	CapacityBytes int64 `json:"capacityBytes,omitempty"`
	// FreeBytes of the file system, in steps of 5 % of the capacity.
	// +optional
	FreeBytes int64 `json:"freeBytes,omitempty"`
	// Silent is true while the shard reports that its disk hangs without returning an error: copies on it count as
	// missing.
	// +optional
	Silent bool `json:"silent,omitempty"`
}
