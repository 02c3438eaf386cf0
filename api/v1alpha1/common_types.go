package v1alpha1

// Labels and annotations of the objects that the operator creates.
const (
	// LabelStore names the RecordStore an object belongs to.
	LabelStore = "sheaf.dev/store"
	// LabelPool names the ShardPool an object belongs to.
	LabelPool = "sheaf.dev/pool"
	// LabelShard is the number of the shard in its pool.
	LabelShard = "sheaf.dev/shard"
	// LabelComponent is shard, gateway, etcd or bench.
	LabelComponent = "app.kubernetes.io/component"
	// LabelClient marks pods that may call the shards of a store directly (spec.networkPolicy). Its value is the name
	// of the RecordStore.
	LabelClient = "sheaf.dev/client"
	// LabelDiskSet names the DiskSet a PersistentVolume or StorageClass belongs to.
	LabelDiskSet = "sheaf.dev/diskset"
)

// Labels that a person puts on the claim and the pods of a Job that measures a StorageClass
// (config/samples/bench-job.yaml). The operator sees only objects that it created and objects with these labels.
const (
	// LabelName with NameSheaf is on all pods and claims of Sheaf.
	LabelName = "app.kubernetes.io/name"
	// NameSheaf is the value of LabelName.
	NameSheaf = "sheaf"
	// ComponentBench is the value of LabelComponent.
	ComponentBench = "bench"
)

// FieldManager is the operator's name in server-side apply.
const FieldManager = "sheaf-operator"

// Finalizer keeps an object of one of Sheaf's kinds in the API until the operator has released or deleted everything
// that belongs to it.
const Finalizer = "sheaf.dev/finalizer"

// ReasonPending is the default reason of the conditions Ready and Reconciling, which the CRDs set. It means that the
// operator has not seen the object yet.
const ReasonPending = "Pending"

// Condition types. Ready, Reconciling and Stalled follow kstatus: Ready is Unknown or False while work is in progress;
// Reconciling and Stalled are present only while they are True.
const (
	// ConditionReady is True when everything that the spec asks for exists and serves.
	ConditionReady = "Ready"
	// ConditionAvailable is True while every group serves and a gateway answers, regardless of work in progress. It is
	// Unknown while the operator cannot reach shards that may serve the remaining groups.
	ConditionAvailable = "Available"
	// ConditionReconciling is True while the operator works towards the spec.
	ConditionReconciling = "Reconciling"
	// ConditionStalled is True when the operator cannot continue without a person; the message says what to do.
	ConditionStalled = "Stalled"
	// ConditionLoaded is True when every shard has loaded all its groups.
	ConditionLoaded = "Loaded"
	// ConditionRedundant is True when every group has all its copies.
	ConditionRedundant = "Redundant"
	// ConditionSpaceAvailable is False when a volume is full or nearly full.
	ConditionSpaceAvailable = "SpaceAvailable"
	// ConditionEtcdReady is True when etcd answers.
	ConditionEtcdReady = "EtcdReady"
	// ConditionEtcdRedundant is True when every member of a managed etcd serves and votes. Otherwise the message says how
	// many members do, and names each other member with its problem, such as "2 of 3; quotes-etcd-1: why".
	ConditionEtcdRedundant = "EtcdRedundant"
	// ConditionGatewayReady is True when at least one gateway is ready.
	ConditionGatewayReady = "GatewayReady"
	// ConditionPlacementReady is True when the placement in etcd belongs to this store.
	ConditionPlacementReady = "PlacementReady"
	// ConditionFileSystemMatches is False when the file system of a volume is not the requested one; the message names
	// both.
	ConditionFileSystemMatches = "FileSystemMatches"
	// ConditionMemoryFits is False when a memory limit is lower than the memory that is needed; the message gives both.
	ConditionMemoryFits = "MemoryFits"
	// ConditionVolumesReady is False when a volume is missing, foreign, lost, or cannot be formatted.
	ConditionVolumesReady = "VolumesReady"
	// ConditionVolumesGrown is False while a volume is smaller than the requested size; the reason says whether it can
	// grow.
	ConditionVolumesGrown = "VolumesGrown"
	// ConditionCertificates is False when certificates of a store are missing, wrong or about to expire; the message
	// says which, and what to do. While an authority changes, it is True, and the message says how far the change is.
	ConditionCertificates = "Certificates"
	// ConditionUpdated is True when every pod runs the wanted template.
	ConditionUpdated = "Updated"
	// ConditionCompiled is True when a grant or a tenant is in the table that gateways and shards of its store use.
	ConditionCompiled = "Compiled"
	// ConditionIssuersReady is False when the keys of an issuer of spec.access cannot be read, or when an issuer would
	// make the table of grants invalid. If keys cannot be read, those that were read last remain in use.
	ConditionIssuersReady = "IssuersReady"
	// ConditionInForce is True when every gateway and shard uses a table that has the grant. It is False when a process
	// has used an older table for 5 s (the message names the process), when the store accepts plaintext, and when the
	// grant is not in the table. It is Unknown when the table could not be written for 5 s.
	ConditionInForce = "InForce"
	// ConditionGrantsInForce has the same meaning as InForce, but for all grants of a store, including deleted ones.
	ConditionGrantsInForce = "GrantsInForce"
	// ConditionArchiving is True while a process archives a store. While it cannot, it is False, with the reason that the
	// bucket gave.
	ConditionArchiving = "Archiving"
	// ConditionArchiveCurrent is True while everything acknowledged up to a short time ago is in objects that the bucket
	// has acknowledged.
	ConditionArchiveCurrent = "ArchiveCurrent"
	// ConditionRestoreProven is True if the newest drill of the archive has proven that it can be restored, and False if
	// it has found differences. Archives without a drill do not have it.
	ConditionRestoreProven = "RestoreProven"
	// ConditionRestored is True when every group of a store with spec.restore was restored from the archive. While groups
	// wait, it is False, with the reason Restoring or with the reason why the restore makes no progress.
	ConditionRestored = "Restored"
	// ConditionDrained is True when no shard of a drained pool holds a group.
	ConditionDrained = "Drained"
)

// LabelValue is the value of a label: at most 63 letters, digits and - _ .
// +kubebuilder:validation:MaxLength=63
// +kubebuilder:validation:Pattern=`^([A-Za-z0-9]([A-Za-z0-9_.-]*[A-Za-z0-9])?)?$`
type LabelValue string

// FileSystemType is a file system that Sheaf runs on.
// +kubebuilder:validation:Enum=ext4;xfs;btrfs
type FileSystemType string

// File systems that Sheaf runs on.
const (
	Ext4  FileSystemType = "ext4"
	XFS   FileSystemType = "xfs"
	Btrfs FileSystemType = "btrfs"
)

// Medium is the kind of device below a volume.
// +kubebuilder:validation:Enum=SSD;HDD;Auto
type Medium string

// Kinds of devices.
const (
	// SSD means that many reads of the device are in flight at a time.
	SSD Medium = "SSD"
	// HDD means that the device has a single reader, which reads one segment after another.
	HDD Medium = "HDD"
	// AutoMedium uses the medium that the kernel reports for the device.
	AutoMedium Medium = "Auto"
)

// FileSystem is the file system that a volume must have.
type FileSystem struct {
	// Type of the file system: ext4, xfs or btrfs.
	// +required
	Type FileSystemType `json:"type"`
	// MountOptions that the volume must be mounted with, such as noatime. Each is one option, without commas.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=128
	// +kubebuilder:validation:items:XValidation:rule="self.matches('^[A-Za-z0-9_.:=+/-]+$')",message="a mount option holds letters, digits and _ . : = + / - only: list each option as an item of its own, without commas or spaces"
	// +kubebuilder:validation:items:XValidation:rule="self != 'ro'",message="mount option ro would make the volume read-only: remove it, shards write"
	MountOptions []string `json:"mountOptions,omitempty"`
}
