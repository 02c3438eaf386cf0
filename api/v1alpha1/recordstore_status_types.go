package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// RecordStoreStatus is what the operator observed about a store.
type RecordStoreStatus struct {
	// ObservedGeneration is the generation of the spec that this status describes.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// StoreUID identifies the data; each volume records it. It outlives this object: a new store adopts the data with
	// adoptStoreUID.
	// +optional
	StoreUID string `json:"storeUID,omitempty"`
	// PlacementInitialized is true once the placement was written to etcd; after that, the operator never creates it
	// again.
	// +optional
	PlacementInitialized bool `json:"placementInitialized,omitempty"`
	// Address of the gateway inside the cluster, host:port.
	// +optional
	Address string `json:"address,omitempty"`
	// Image that all gateways and all members of etcd ran when the operator last observed them. Shards get a new image
	// only after gateways and etcd run it.
	// +optional
	Image string `json:"image,omitempty"`
	// Groups counts groups by state.
	// +optional
	Groups GroupCounts `json:"groups,omitzero"`
	// Shards counts shards of all pools.
	// +optional
	Shards ShardCounts `json:"shards,omitzero"`
	// Planned says for which specs the last plan of the placement was made; later changes are not in the plan yet.
	// +optional
	Planned *Planned `json:"planned,omitempty"`
	// Version that the shards run, as text: one version, or several separated by commas during an update.
	// +optional
	Version string `json:"version,omitempty"`
	// Records is the number of records in all groups, without their further copies, as last reported by the leaders.
	// +optional
	Records int64 `json:"records,omitempty"`
	// StoredBytes of all copies of all groups on their volumes, as reported last.
	// +optional
	StoredBytes int64 `json:"storedBytes,omitempty"`
	// Load as text, such as "62% 1.9GiB/s (87% of the device) ETA 2m"; empty when nothing loads.
	// +optional
	Load string `json:"load,omitempty"`
	// TLS is what the operator observed about the certificates.
	// +optional
	TLS *TLSStatus `json:"tls,omitempty"`
	// Restore says how far the restore of the store is. It is absent if the spec has no restore.
	// +optional
	Restore *RestoreStatus `json:"restore,omitempty"`
	// Conditions: Ready, Available, Reconciling, Stalled, EtcdReady, EtcdRedundant, PlacementReady, GatewayReady,
	// Certificates, GrantsInForce, IssuersReady, Loaded, SpaceAvailable, VolumesReady, Restored...
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=32
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// RestoreStatus says how far the restore of a store is.
type RestoreStatus struct {
	// Time as of which the store is restored, in RFC 3339. It does not change after the restore has begun.
	// +optional
	Time string `json:"time,omitempty"`
	// Groups is the number of groups of the archive at that time, including those that cannot be restored.
	// +optional
	Groups int32 `json:"groups,omitempty"`
	// WaitingGroups is the number of groups that no shard has restored yet. It is absent while it is not known.
	// +optional
	WaitingGroups *int32 `json:"waitingGroups,omitempty"`
	// RefusedGroups is the number of groups that cannot be restored from the archive.
	// +optional
	RefusedGroups int32 `json:"refusedGroups,omitempty"`
}

// Planned says for which specs a plan of the placement was made.
type Planned struct {
	// Generation of the RecordStore.
	Generation int64 `json:"generation"`
	// Pools of the store, each with its generation.
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=256
	Pools []PlannedPool `json:"pools,omitempty"`
}

// PlannedPool is a pool as a plan of the placement saw it.
type PlannedPool struct {
	// Name of the ShardPool.
	Name string `json:"name"`
	// Generation of its spec.
	Generation int64 `json:"generation"`
}

// GroupCounts counts groups by state.
type GroupCounts struct {
	// Total is the number of groups that exist.
	Total int32 `json:"total"`
	// Serving is the number of groups that serve. A group with several copies serves while a majority of its copies
	// serves and one of them leads.
	Serving int32 `json:"serving"`
	// Loading is the number of groups that are loading.
	Loading int32 `json:"loading"`
	// Degraded is the number of groups that have fewer copies than requested, or no leader. Groups with lost data are not
	// counted. With several copies, most degraded groups serve nevertheless, and are also counted as Serving.
	Degraded int32 `json:"degraded"`
	// Damaged is the number of groups in which some entries answer DATA_LOSS. They serve undamaged records; sheaf group
	// verify lists the damaged ones.
	Damaged int32 `json:"damaged"`
	// DataLost is the number of groups whose copies are all on lost volumes. Bring one of these volumes back, or restore
	// the records from a backup.
	DataLost int32 `json:"dataLost"`
	// Moving is the number of groups of which a copy is being created, or is on another shard than it should be.
	Moving int32 `json:"moving"`
	// NotWell lists the first 20 groups with a problem.
	// +optional
	// +listType=map
	// +listMapKey=group
	// +kubebuilder:validation:MaxItems=20
	NotWell []GroupTrouble `json:"notWell,omitempty"`
}

// GroupTrouble is a group with a problem.
type GroupTrouble struct {
	// Group is the name of the group.
	Group string `json:"group"`
	// Shard that reports the problem.
	// +optional
	Shard string `json:"shard,omitempty"`
	// State of the group.
	State string `json:"state"`
	// Message says what is wrong and what to do.
	// +optional
	Message string `json:"message,omitempty"`
}

// ShardCounts counts shards.
type ShardCounts struct {
	// Total is the number of shards that the specs of all pools request.
	Total int32 `json:"total"`
	// Serving is the number of shards that serve.
	Serving int32 `json:"serving"`
	// Loading is the number of shards that are loading.
	Loading int32 `json:"loading"`
	// Updated is the number of shards whose pods run the wanted template.
	Updated int32 `json:"updated"`
}
