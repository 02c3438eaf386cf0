package v1alpha1

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// RecordStore says what is stored: how record ids map to groups, how many copies there are, how long versions are kept,
// and which etcd holds the placement. ShardPools that refer to it say where its groups are stored.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:shortName=recstore,categories=sheaf
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Status",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].reason`
// +kubebuilder:printcolumn:name="Available",type=string,JSONPath=`.status.conditions[?(@.type=="Available")].status`
// +kubebuilder:printcolumn:name="Groups",type=integer,JSONPath=`.status.groups.total`
// +kubebuilder:printcolumn:name="Serving",type=integer,JSONPath=`.status.groups.serving`
// +kubebuilder:printcolumn:name="Shards",type=integer,JSONPath=`.status.shards.total`
// +kubebuilder:printcolumn:name="Load",type=string,JSONPath=`.status.load`
// +kubebuilder:printcolumn:name="Records",type=integer,JSONPath=`.status.records`,priority=1
// +kubebuilder:printcolumn:name="Copies",type=integer,JSONPath=`.spec.replication.copies`,priority=1
// +kubebuilder:printcolumn:name="Etcd",type=string,priority=1,JSONPath=`.status.conditions[?(@.type=="EtcdRedundant")].message`
// +kubebuilder:printcolumn:name="Version",type=string,JSONPath=`.status.version`,priority=1
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:validation:XValidation:rule="!has(self.spec.etcd) || !has(self.spec.etcd.managed) || !has(self.spec.etcd.managed.storage) || !has(self.spec.etcd.managed.storage.size) || !has(oldSelf.spec.etcd) || !has(oldSelf.spec.etcd.managed) || !has(oldSelf.spec.etcd.managed.storage) || !has(oldSelf.spec.etcd.managed.storage.size) || !isQuantity(self.spec.etcd.managed.storage.size) || !isQuantity(oldSelf.spec.etcd.managed.storage.size) || quantity(self.spec.etcd.managed.storage.size).compareTo(quantity(oldSelf.spec.etcd.managed.storage.size)) >= 0 || has(oldSelf.status) && has(oldSelf.status.conditions) && oldSelf.status.conditions.exists(c, c.type == 'VolumesGrown' && c.status == 'False')",fieldPath=".spec.etcd.managed.storage.size",message="size can only grow, as volumes do: put back the old size. It can be lowered while condition VolumesGrown is False"
// +kubebuilder:validation:XValidation:rule="!has(self.spec.audit) || self.spec.audit.mode == 'None' || !has(self.spec.tls) || self.spec.tls.mode != 'Disabled'",fieldPath=".spec.audit",message="audit needs TLS, without which nobody is known and nothing is refused: set spec.tls.mode to Required or Optional, or remove audit"
// +kubebuilder:validation:XValidation:rule="self.metadata.name.size() <= 40",message="metadata.name must be at most 40 characters: names of pods and services are made from it"
// +kubebuilder:validation:XValidation:rule="self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')",message="metadata.name must begin with a letter and hold only a-z, 0-9 and -: a Service is named after it"
type RecordStore struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitzero"`
	// Spec describes the wanted store.
	// +required
	Spec RecordStoreSpec `json:"spec"`
	// Status is what the operator observed about the store; the operator writes it. A new object has a default status,
	// which says that the operator has not seen the object yet.
	// +optional
	// +kubebuilder:default={conditions: {{type: "Ready", status: "Unknown", reason: "Pending", message: "Waiting for the operator. Where this stays, see whether it runs and watches this namespace", lastTransitionTime: "1970-01-01T00:00:00Z"}, {type: "Reconciling", status: "True", reason: "Pending", message: "Waiting for the operator. Where this stays, see whether it runs and watches this namespace", lastTransitionTime: "1970-01-01T00:00:00Z"}}}
	Status RecordStoreStatus `json:"status,omitzero"`
}

// RecordStoreList is a list of RecordStores.
// +kubebuilder:object:root=true
type RecordStoreList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitzero"`
	Items           []RecordStore `json:"items"`
}

// RecordStoreSpec describes the wanted store.
// +kubebuilder:validation:XValidation:rule="has(self.adoptStoreUID) == has(oldSelf.adoptStoreUID) && (!has(self.adoptStoreUID) || self.adoptStoreUID == oldSelf.adoptStoreUID)",message="adoptStoreUID cannot be changed: make a new RecordStore with it",fieldPath=".adoptStoreUID"
// +kubebuilder:validation:XValidation:rule="has(self.restore) == has(oldSelf.restore) && (!has(self.restore) || self.restore == oldSelf.restore)",message="restore cannot be changed: make a new RecordStore with it",fieldPath=".restore"
// +kubebuilder:validation:XValidation:rule="!has(self.restore) || !has(self.adoptStoreUID)",message="give restore or adoptStoreUID, not both: a store begins with the data of volumes or with those of an archive",fieldPath=".restore"
// +kubebuilder:validation:XValidation:rule="!has(self.restore) || !has(self.restore.groups) || self.groups.routing == 'Named'",message="with routing Hash, each group has a part of all ids: remove restore.groups to restore the whole store",fieldPath=".restore.groups"
type RecordStoreSpec struct {
	// Groups says how record ids map to groups. Cannot be changed.
	// +required
	Groups Groups `json:"groups"`
	// Replication says how many copies of each group there are.
	// +optional
	// +kubebuilder:default={copies:1}
	Replication Replication `json:"replication,omitzero"`
	// Retention says how long superseded versions are kept.
	// +optional
	// +kubebuilder:default={versions:1}
	Retention Retention `json:"retention,omitzero"`
	// Compaction says when the space of superseded versions is freed. If free space is low, a shard compacts earlier. A
	// change restarts one shard at a time.
	// +optional
	Compaction Compaction `json:"compaction,omitzero"`
	// Views says how much history the shards keep for views, which clients open to read the same records for days. A
	// change restarts one shard at a time.
	// +optional
	Views Views `json:"views,omitzero"`
	// Etcd holds the placement. It is run by the operator (managed) or by somebody else (external).
	// +optional
	// +kubebuilder:default={managed:{members:3}}
	Etcd Etcd `json:"etcd,omitzero"`
	// Gateway routes calls to shards. If a node stops answering, its gateways are replaced after 10 s. Gateways are
	// spread over nodes: the numbers of gateways on two nodes that could run them differ by at most one.
	// +optional
	// +kubebuilder:default={replicas:2}
	Gateway Gateway `json:"gateway,omitzero"`
	// NetworkPolicy says who may reach the store's pods, if the cluster's network plugin supports NetworkPolicies.
	// +optional
	// +kubebuilder:default={mode:Managed}
	NetworkPolicy NetworkPolicy `json:"networkPolicy,omitzero"`
	// TLS says how connections are protected. By default, they use TLS with certificates from the operator; but a store
	// that served before Sheaf supported TLS uses plaintext by default (status.tls.default).
	// +optional
	TLS *TLS `json:"tls,omitempty"`
	// Access says who may call the store, in addition to callers with certificates and ServiceAccounts. It has no effect
	// if TLS is off, because callers are then unknown.
	// +optional
	Access *Access `json:"access,omitempty"`
	// Audit writes an audit log of calls. By default, none is written. An audit log is not possible if TLS is off,
	// because callers are then unknown. A change restarts gateways and shards.
	// +optional
	Audit *Audit `json:"audit,omitempty"`
	// Tracing sends traces of calls to an OpenTelemetry collector. By default, none are sent. A change restarts gateways
	// and shards.
	// +optional
	Tracing *Tracing `json:"tracing,omitempty"`
	// Image of shards, gateway and etcd. The default is the operator's. A change restarts one shard at a time.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=512
	// +kubebuilder:validation:XValidation:rule="self.matches('^[A-Za-z0-9]([A-Za-z0-9._:/@+-]*[A-Za-z0-9])?$')",message="image must be an image's name, such as example.org/sheaf:v1: remove spaces and other characters"
	Image string `json:"image,omitempty"`
	// ImagePullPolicy of that image.
	// +optional
	// +kubebuilder:validation:Enum=Always;IfNotPresent;Never
	// +kubebuilder:default=IfNotPresent
	ImagePullPolicy corev1.PullPolicy `json:"imagePullPolicy,omitempty"`
	// ImagePullSecrets for that image.
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=4
	// +kubebuilder:validation:XValidation:rule="self.all(s, s.name.size() <= 253 && s.name.matches('^[a-z0-9.-]+$'))",message="imagePullSecrets[].name must be the name of a Secret of this namespace"
	ImagePullSecrets []corev1.LocalObjectReference `json:"imagePullSecrets,omitempty"`
	// DeletionPolicy says what happens to the claims (and with them the data) when the store is deleted: Retain keeps
	// them, Delete deletes the claims. PersistentVolumes follow their own reclaim policy, which is Retain for those of
	// a DiskSet.
	// +optional
	// +kubebuilder:default=Retain
	DeletionPolicy DeletionPolicy `json:"deletionPolicy,omitempty"`
	// AdoptStoreUID makes this store adopt the data of a deleted store: give the UID from the deleted store's status,
	// which its volumes also record.
	// +optional
	// +kubebuilder:validation:MaxLength=36
	// +kubebuilder:validation:XValidation:rule="self.matches('^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$')",message="adoptStoreUID must be the storeUID that the status of the old RecordStore showed, such as 6a204bd8-9a53-4a6e-8a38-6a4c1e6f0d5b; sheaf inspect reads it from a volume"
	AdoptStoreUID string `json:"adoptStoreUID,omitempty"`
	// Restore makes this store begin with the records that an archive had at some time, instead of without records. The
	// archived store need not exist any more, and the new one does not follow it. Cannot be changed.
	// +optional
	Restore *Restore `json:"restore,omitempty"`
}

// Restore says which archive a new store is restored from, and as of when. groups.routing and groups.count must be
// those of the archived store.
// +kubebuilder:validation:XValidation:rule="!has(self.credentialsSecretRef) || !has(self.serviceAccountName)",fieldPath=".serviceAccountName",message="give credentialsSecretRef or serviceAccountName, not both: remove one of them"
// +kubebuilder:validation:XValidation:rule="!has(self.time) || !has(self.point)",fieldPath=".point",message="give time or point, not both: remove one of them"
type Restore struct {
	// URL of the archive, as in spec.url of a RecordArchive: s3://BUCKET/PATH, gs://BUCKET/PATH or
	// azblob://CONTAINER/PATH, with options after a ?. It contains no credentials.
	// +required
	// +kubebuilder:validation:MaxLength=1024
	// +kubebuilder:validation:XValidation:rule="self.matches('^(s3|gs|azblob)://[A-Za-z0-9._-]+(/[A-Za-z0-9._/-]*)?([?][!-~]*)?$')",message="url must be s3://BUCKET/PATH, gs://BUCKET/PATH or azblob://CONTAINER/PATH, with options behind a ?, and without a user or a key"
	URL string `json:"url"`
	// CredentialsSecretRef names a Secret of this namespace with the credentials of the bucket, with the same keys as in
	// a RecordArchive. The account must be allowed to list and read objects, and to create those in the folder use. If
	// both this field and serviceAccountName are absent, the bucket must accept the pod without credentials.
	// +optional
	CredentialsSecretRef *ArchiveSecretReference `json:"credentialsSecretRef,omitempty"`
	// ServiceAccountName is the ServiceAccount of the pod that reads the archive, by which the cloud identifies the pod.
	// Its name must be sheaf-archive, or begin with sheaf-archive-. The pod gets no token for the Kubernetes API.
	// +optional
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:XValidation:rule="self.matches('^sheaf-archive(-[a-z0-9]([a-z0-9-]*[a-z0-9])?)?$')",message="serviceAccountName must be sheaf-archive, or begin with sheaf-archive-: the operator may use no other ServiceAccount"
	ServiceAccountName string `json:"serviceAccountName,omitempty"`
	// Encryption names the keys of an encrypted archive, as in a RecordArchive. The keys are only used to read.
	// +optional
	Encryption *ArchiveEncryption `json:"encryption,omitempty"`
	// StoreUID is the UUID of the archived store, which is the name of its folder at the URL. It is status.storeUID of
	// the archived RecordStore; sheaf-archive list shows it.
	// +required
	// +kubebuilder:validation:MaxLength=36
	// +kubebuilder:validation:XValidation:rule="self.matches('^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$')",message="storeUID must be the UUID of the archived store, such as 6a204bd8-9a53-4a6e-8a38-6a4c1e6f0d5b: sheaf-archive list URL shows it"
	StoreUID string `json:"storeUID"`
	// Time as of which the store is restored, in UTC or with an offset, such as 2026-11-01T12:00:00Z. If both time and
	// point are absent, each group is restored as it was last archived when the restore begins.
	// +optional
	// +kubebuilder:validation:MaxLength=40
	// +kubebuilder:validation:XValidation:rule="self.matches('^(19[7-9][0-9]|20[0-9]{2}|21[0-9]{2})-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}([.][0-9]{1,9})?(Z|[+-][0-9]{2}:[0-9]{2})$')",message="time must be a time such as 2026-11-01T12:00:00Z"
	Time string `json:"time,omitempty"`
	// Point is the name of a point of the archive as of which the store is restored; sheaf-archive point list shows the
	// points.
	// +optional
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:XValidation:rule="self.matches('^[a-z0-9][a-z0-9.-]*$')",message="point must be the name of a point of the archive: a-z, 0-9, - and ., beginning with a letter or digit"
	Point string `json:"point,omitempty"`
	// Partly begins the restore although some groups cannot be restored. These groups are not served until a person gives
	// up their restore, and then begin empty. By default, such a restore does not begin.
	// +optional
	Partly bool `json:"partly,omitempty"`
	// Groups names the only groups of the archived store that are restored, if its routing is Named. Other groups are not
	// part of the new store; a first write creates them, as in any store. By default, all groups are restored.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=100
	// +kubebuilder:validation:items:MaxLength=253
	// +kubebuilder:validation:items:Pattern=`^[a-zA-Z0-9_-][a-zA-Z0-9._-]*$`
	Groups []string `json:"groups,omitempty"`
	// First names groups that each shard restores before its other groups, in this order. With routing Hash, the names
	// are the numbers from 0 to groups.count - 1. A name that no group of the archive has, and a group that cannot be
	// restored at the moment, hold up no other group.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=100
	// +kubebuilder:validation:items:MaxLength=253
	// +kubebuilder:validation:items:Pattern=`^[a-zA-Z0-9_-][a-zA-Z0-9._-]*$`
	First []string `json:"first,omitempty"`
	// Writes says from when on a restored group accepts writes. Redundant: once a majority of its copies has joined, so
	// that an acknowledged write is on as many volumes as in any other group; until then the group can be read, and writes
	// answer GROUP_LOADING. AtOnce: as soon as its first copy serves; a write is then on a single volume until the other
	// copies have joined. With one copy (replication.copies), there is no difference.
	// +optional
	// +kubebuilder:default=Redundant
	Writes RestoredWrites `json:"writes,omitempty"`
}

// RestoredWrites says from when on restored groups accept writes.
// +kubebuilder:validation:Enum=Redundant;AtOnce
type RestoredWrites string

// These are the values of RestoredWrites.
const (
	WritesRedundant RestoredWrites = "Redundant"
	WritesAtOnce    RestoredWrites = "AtOnce"
)

// RoutingMode says how a record's group is chosen.
// +kubebuilder:validation:Enum=Hash;Named
type RoutingMode string

// Routing modes.
const (
	// RoutingHash spreads ids over a fixed number of groups.
	RoutingHash RoutingMode = "Hash"
	// RoutingNamed lets the caller name the group.
	RoutingNamed RoutingMode = "Named"
)

// Groups says how record ids map to groups.
// +kubebuilder:validation:XValidation:rule="self.routing != 'Hash' || has(self.count)",fieldPath=".count",message="routing Hash needs groups.count: the number of groups, which cannot be changed later; 64 to 256 for each shard expected is a good choice"
// +kubebuilder:validation:XValidation:rule="self.routing != 'Named' || !has(self.count)",fieldPath=".count",message="routing Named has no groups.count: remove it; groups.max limits how many can be made"
// +kubebuilder:validation:XValidation:rule="self.routing != 'Hash' || !has(self.max)",fieldPath=".max",message="routing Hash has no groups.max: remove it"
// +kubebuilder:validation:XValidation:rule="self.routing == oldSelf.routing",fieldPath=".routing",message="groups.routing cannot be changed: make a new RecordStore and copy the records with sheaf export and sheaf import"
// +kubebuilder:validation:XValidation:rule="has(self.count) == has(oldSelf.count) && (!has(self.count) || self.count == oldSelf.count)",fieldPath=".count",message="groups.count cannot be changed: make a new RecordStore and copy the records with sheaf export and sheaf import"
type Groups struct {
	// Routing is Hash (ids are spread over count groups) or Named (the caller names the group).
	// +required
	Routing RoutingMode `json:"routing"`
	// Count is the number of groups in Hash routing, 1 to 65536.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65536
	Count *int32 `json:"count,omitempty"`
	// Max limits the number of groups in Named routing, 1 to 100000. The default is 100000. Once it is reached, no put
	// creates a group.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=100000
	Max *int32 `json:"max,omitempty"`
}

// Replication says how many copies of each group there are, and how far apart.
// +kubebuilder:validation:XValidation:rule="self.copies == oldSelf.copies",fieldPath=".copies",message="replication.copies cannot be changed: make a new RecordStore and copy the records with sheaf export and sheaf import"
type Replication struct {
	// Copies of each group: 1, 3 or 5. Cannot be changed.
	// +optional
	// +kubebuilder:default=1
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=5
	// +kubebuilder:validation:XValidation:rule="self % 2 == 1",message="copies must be odd (1, 3 or 5): a majority decides, and an even number adds cost but no safety"
	Copies int32 `json:"copies,omitempty"`
	// TopologyKey is the node label whose values are failure domains: two copies are never in the same one. Only the
	// labels of a node's name, zone and region are possible, because pods cannot read others.
	// +optional
	// +kubebuilder:default="kubernetes.io/hostname"
	// +kubebuilder:validation:Enum="kubernetes.io/hostname";"topology.kubernetes.io/zone";"topology.kubernetes.io/region"
	TopologyKey string `json:"topologyKey,omitempty"`
}

// Retention says how long superseded versions are kept. A version is kept if either rule keeps it.
type Retention struct {
	// Versions is the number of versions of each record to keep, 1 to 1000, including the newest.
	// +optional
	// +kubebuilder:default=1
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1000
	Versions int32 `json:"versions,omitempty"`
	// MinAge keeps a version for at least this time, such as 24h, after it was superseded.
	// +optional
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]{1,6}(ms|s|m|h)){1,4}$') && duration(self) >= duration('0s') && duration(self) <= duration('87600h')",message="minAge must be a duration from 0s to 87600h, such as 90s, 15m or 24h"
	MinAge *metav1.Duration `json:"minAge,omitempty"`
}

// Compaction says when a shard compacts a group automatically: when both this percentage and this many bytes of the
// group are superseded.
// +kubebuilder:validation:MinProperties=1
type Compaction struct {
	// SupersededPercent is the part of a group's stored bytes that must be superseded, 1 to 100. The default is 50. It
	// limits how much space a group takes: with 50, at most twice the space that it needs, plus a segment. With 20, it
	// takes at most a quarter more than it needs, plus a segment, but each record is rewritten more often.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=100
	SupersededPercent *int32 `json:"supersededPercent,omitempty"`
	// MinSuperseded is how much of a group must be superseded, from 1Mi to 1Ti. The default is 64Mi. On a small volume
	// the limit is lower: an eighth of the volume, divided by the number of its groups.
	// +optional
	// +kubebuilder:validation:Schemaless
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="isQuantity(self) && quantity(self).compareTo(quantity('1Mi')) >= 0 && quantity(self).compareTo(quantity('1Ti')) <= 0",message="minSuperseded must be a number with a unit, from 1Mi to 1Ti, such as 16Mi"
	MinSuperseded *resource.Quantity `json:"minSuperseded,omitempty"`
	// BytesPerSecond is the rate at which a shard compacts, from 1Mi to 1Ti. The default is 64Mi. A shard compacts faster
	// if superseded bytes accumulate faster than that.
	// +optional
	// +kubebuilder:validation:Schemaless
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="isQuantity(self) && quantity(self).compareTo(quantity('1Mi')) >= 0 && quantity(self).compareTo(quantity('1Ti')) <= 0",message="bytesPerSecond must be a number with a unit, from 1Mi to 1Ti, such as 64Mi"
	BytesPerSecond *resource.Quantity `json:"bytesPerSecond,omitempty"`
}

// Views says how much history the shards keep for views. Beyond it, the oldest view breaks, and reads of it fail with
// VIEW_EXPIRED. A write is never refused or delayed for a view.
// +kubebuilder:validation:MinProperties=1
type Views struct {
	// MaxHeld is how many superseded bytes each shard keeps for views, for all its groups together, from 64Mi to 1Pi. The
	// default is 10 % of the shard's volume.
	// +optional
	// +kubebuilder:validation:Schemaless
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="isQuantity(self) && quantity(self).compareTo(quantity('64Mi')) >= 0 && quantity(self).compareTo(quantity('1Pi')) <= 0",message="maxHeld must be a number with a unit, from 64Mi to 1Pi, such as 20Gi"
	MaxHeld *resource.Quantity `json:"maxHeld,omitempty"`
}

// Etcd says who runs the etcd that holds the placement.
// +kubebuilder:validation:XValidation:rule="has(self.managed) != has(self.external)",message="exactly one of etcd.managed and etcd.external must be set"
// +kubebuilder:validation:XValidation:rule="has(self.managed) == has(oldSelf.managed)",message="etcd cannot be changed between managed and external: make a new RecordStore with adoptStoreUID"
type Etcd struct {
	// Managed etcd, run by the operator from the same image.
	// +optional
	Managed *ManagedEtcd `json:"managed,omitempty"`
	// External etcd, run by somebody else.
	// +optional
	External *ExternalEtcd `json:"external,omitempty"`
}

// ManagedEtcd is an etcd run by the operator.
// +kubebuilder:validation:XValidation:rule="self.members == oldSelf.members",message="etcd.managed.members cannot be changed in this version"
type ManagedEtcd struct {
	// Members is the number of members, 1 or 3.
	// +optional
	// +kubebuilder:default=3
	// +kubebuilder:validation:Enum=1;3
	Members int32 `json:"members,omitempty"`
	// Storage of each member.
	// +optional
	// +kubebuilder:default={size:"2Gi"}
	Storage EtcdStorage `json:"storage,omitzero"`
	// SnapshotEvery is how often a member writes a snapshot next to its data; the last three are kept.
	// +optional
	// +kubebuilder:default="1h"
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]{1,6}(ms|s|m|h)){1,4}$') && duration(self) >= duration('1m') && duration(self) <= duration('168h')",message="snapshotEvery must be a duration from 1m to 168h, such as 90s, 15m or 24h"
	SnapshotEvery *metav1.Duration `json:"snapshotEvery,omitempty"`
	PodOptions    `json:",inline"`
}

// EtcdStorage is the volume of a member of etcd.
// +kubebuilder:validation:XValidation:rule="has(self.storageClassName) == has(oldSelf.storageClassName) && (!has(self.storageClassName) || self.storageClassName == oldSelf.storageClassName)",fieldPath=".storageClassName",message="storageClassName cannot be changed: a claim keeps its class"
type EtcdStorage struct {
	// StorageClassName of the claims. The default is the cluster's default class.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="!format.dns1123Subdomain().validate(self).hasValue()",message="storageClassName must be the name of a StorageClass: kubectl get storageclasses shows them"
	StorageClassName *string `json:"storageClassName,omitempty"`
	// Size of the volume, from 64Mi to 4Pi. Can grow where the class allows it; a size to which the volume could not
	// grow (condition VolumesGrown) can be lowered again.
	// +optional
	// +kubebuilder:default="2Gi"
	// +kubebuilder:validation:Schemaless
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="isQuantity(self) && quantity(self).compareTo(quantity('64Mi')) >= 0 && quantity(self).compareTo(quantity('4Pi')) <= 0",message="size must be a number with a unit, from 64Mi to 4Pi, such as 500Gi"
	Size resource.Quantity `json:"size,omitzero"`
}

// ExternalEtcd is an etcd run by somebody else.
// +kubebuilder:validation:XValidation:rule="!has(self.tlsSecretRef) || self.endpoints.all(e, e.startsWith('https:'))",fieldPath=".tlsSecretRef",message="tlsSecretRef needs endpoints that begin with https: change the endpoints, or remove tlsSecretRef"
// +kubebuilder:validation:XValidation:rule="has(self.tlsSecretRef) || !self.endpoints.exists(e, e.startsWith('https:'))",fieldPath=".endpoints",message="endpoints that begin with https need tlsSecretRef: name a Secret with ca.crt, the certificates of the authority that signed etcd's; the image of Sheaf has none of its own"
// +kubebuilder:validation:XValidation:rule="self.prefix == oldSelf.prefix",fieldPath=".prefix",message="prefix cannot be changed: the placement lives below it"
type ExternalEtcd struct {
	// Endpoints, such as https://etcd-0.example:2379; https needs tlsSecretRef.
	// +required
	// +listType=set
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=9
	// +kubebuilder:validation:items:MaxLength=512
	// +kubebuilder:validation:items:XValidation:rule="self.matches('^https?://([A-Za-z0-9.-]+|[[][0-9A-Fa-f:.]+[]]):[0-9]{1,5}$')",message="an endpoint is http or https, a host and a port, without a path, such as https://etcd-0.example:2379"
	// +kubebuilder:validation:XValidation:rule="self.all(e, e.startsWith('https:')) || self.all(e, e.startsWith('http:'))",message="endpoints must be all https or all http: change those that differ"
	Endpoints []string `json:"endpoints"`
	// TLSSecretRef names a Secret of this namespace with ca.crt, and with tls.crt and tls.key if etcd requires a client
	// certificate.
	// +optional
	// +kubebuilder:validation:XValidation:rule="self.name.size() <= 253 && self.name.matches('^[a-z0-9]([a-z0-9.-]*[a-z0-9])?$')",fieldPath=".name",message="tlsSecretRef.name must be the name of a Secret of this namespace"
	TLSSecretRef *corev1.LocalObjectReference `json:"tlsSecretRef,omitempty"`
	// Prefix of the keys, such as /teams/a. The default is /sheaf. The keys of a store begin with the prefix, its
	// namespace and its name. Cannot be changed.
	// +optional
	// +kubebuilder:default=""
	// +kubebuilder:validation:MaxLength=128
	// +kubebuilder:validation:XValidation:rule="self.matches('^(/[A-Za-z0-9._-]+)*$')",message="prefix must be a path of letters, digits and . _ -, such as /teams/a, without a / at its end"
	Prefix string `json:"prefix"`
}

// Gateway is the Deployment that routes calls to shards.
type Gateway struct {
	// Replicas of the gateway, 0 to 100. With 0 only direct clients work.
	// +optional
	// +kubebuilder:default=2
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=100
	Replicas *int32 `json:"replicas,omitempty"`
	// ServiceType of the gateway's Service.
	// +optional
	// +kubebuilder:default=ClusterIP
	// +kubebuilder:validation:Enum=ClusterIP;LoadBalancer;NodePort
	ServiceType corev1.ServiceType `json:"serviceType,omitempty"`
	// ServiceAnnotations of the gateway's Service, for example for a cloud load balancer.
	// +optional
	// +kubebuilder:validation:MaxProperties=32
	// +kubebuilder:validation:XValidation:rule="self.all(k, !format.qualifiedName().validate(k).hasValue())",message="a name of an annotation is letters, digits and - _ ., at most 63, with a domain and / before it where wanted"
	ServiceAnnotations map[string]string `json:"serviceAnnotations,omitempty"`
	// RecordsHTTP makes the gateways serve reads of records over HTTP on port 7602, which the Service then has, too. TLS,
	// tokens and grants are those of the gRPC port. See docs/http.md.
	// +optional
	RecordsHTTP bool `json:"recordsHTTP,omitempty"`
	PodOptions  `json:",inline"`
}

// DeletionPolicy says what happens to the claims when a store is deleted.
// +kubebuilder:validation:Enum=Retain;Delete
type DeletionPolicy string

// Deletion policies.
const (
	// DeletionRetain keeps the claims, and with them the data.
	DeletionRetain DeletionPolicy = "Retain"
	// DeletionDelete deletes the claims.
	DeletionDelete DeletionPolicy = "Delete"
)
