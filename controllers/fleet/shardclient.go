package fleet

import (
	"context"
	"errors"
	"time"

	"sheaf.dev/sheaf/api/v1alpha1"
)

// ShardClient asks shards about themselves. internal/operator implements it over AdminService.
type ShardClient interface {
	// Describe asks a shard for a report. ErrVolumeSilent means that its disk hangs, and ErrNoCredentials that the shard
	// was not asked; any other error means that the shard cannot be reached.
	Describe(ctx context.Context, shard ShardAt) (*ShardReport, error)
}

// ShardAt says where to reach a shard and which shard must answer. It is comparable.
type ShardAt struct {
	Store   string // namespace/name
	Name    string // name of the shard
	Address string // host:port for gRPC
	TLS     bool   // the shard accepts no plaintext
}

// ShardReport is what a shard reports about itself.
type ShardReport struct {
	Name    string
	Version string
	// State is spelled as in v1alpha1. It is empty if the shard does not send it.
	State v1alpha1.ShardState
	// Message says what is wrong and what to do.
	Message string
	Volume  VolumeReport
	Memory  MemoryReport
	Load    LoadReport
	Groups  []GroupReport
	// Problems are sentences for people about problems that do not stop the shard from serving.
	Problems []string
}

// ErrVolumeSilent replaces the report of a shard whose disk hangs without an error. What such a shard reports about
// its groups is outdated.
var ErrVolumeSilent = errors.New("its disk does not answer")

// ErrNoCredentials means that a shard was not asked, because it accepts only TLS and the operator does not have its
// certificate for the store yet, as in the first moments after its start.
var ErrNoCredentials = errors.New(
	"the operator has no certificate for this store yet: see condition Certificates of the RecordStore")

// VolumeReport is the volume as the shard sees it.
type VolumeReport struct {
	UUID          string
	StoreUUID     string // from the superblock; empty: blank or unreadable
	FileSystem    string
	MountOptions  []string
	Source        string
	Rotational    *bool
	CapacityBytes int64
	FreeBytes     int64
	ReserveBytes  int64
}

// MemoryReport holds the memory that the shard needs and its limit; 0 means no limit.
type MemoryReport struct {
	NeedBytes  int64
	LimitBytes int64
}

// LoadReport is the progress of loading.
type LoadReport struct {
	BytesTotal, BytesDone int64
	BytesPerSecond        float64
	DeviceBytesPerSecond  float64 // measured on a sample before the load; 0: no sample was read
	ETA                   time.Duration
}

// GroupReport describes one replica of a group.
type GroupReport struct {
	Group string
	// State is Pending, Loading, Serving, Damaged, Failed or Unavailable.
	State       string
	Message     string
	Leader      bool
	Records     int64
	StoredBytes int64
	// AppliedIndex is the index of the last applied entry. It is used to compare copies.
	AppliedIndex uint64
	// Lost is true if the data is not on the shard's volume.
	Lost bool
	// CopyingBytes is how many bytes a copy that is being created still lacks.
	CopyingBytes int64
}

// Serves reports whether the replica answers calls.
func (g GroupReport) Serves() bool { return g.State == "Serving" || g.State == "Damaged" }

// ShardRegister updates the placement when shards are to be removed. internal/operator implements it over etcd.
type ShardRegister interface {
	// Empty asks the planner to put no groups on the shard, and to move the groups on it to other shards.
	Empty(ctx context.Context, store *v1alpha1.RecordStore, shard string) error
	// Look returns where groups are.
	Look(ctx context.Context, store *v1alpha1.RecordStore) (PlacementView, error)
	// Forget removes the entries of a shard that is gone for good. The error says which groups still refer to it.
	Forget(ctx context.Context, store *v1alpha1.RecordStore, shard string) error
}
