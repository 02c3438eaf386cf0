package fleet

import (
	"context"
	"errors"
	"time"

	"sheaf.dev/sheaf/api/v1alpha1"
)

// ShardClient asks shards about themselves. cmd/sheaf-operator implements it over AdminService.
type ShardClient interface {
	// Describe asks a shard. Any error means that it cannot be reached; ErrVolumeSilent that its disk hangs.
	Describe(ctx context.Context, shard ShardAt) (*ShardReport, error)
}

// ShardAt says where a shard is asked, and who has to answer. Comparable.
type ShardAt struct {
	Store   string // namespace/name
	Name    string // of the shard
	Address string // host:port for gRPC
}

// ShardReport is what a shard says of itself.
type ShardReport struct {
	Name    string
	Version string
	// State as v1alpha1 spells it; empty from a shard that does not send it.
	State v1alpha1.ShardState
	// Message says what is wrong and what to do.
	Message string
	Volume  VolumeReport
	Memory  MemoryReport
	Load    LoadReport
	Groups  []GroupReport
	// Problems are sentences for people about what does not stop the shard from serving.
	Problems []string
}

// ErrVolumeSilent is in place of the report of a shard whose disk lets it wait without an error: what it says of its
// groups is old.
var ErrVolumeSilent = errors.New("its disk does not answer")

// VolumeReport is the volume as the shard sees it.
type VolumeReport struct {
	UUID          string
	StoreUUID     string // of the superblock; empty: blank or unreadable
	FileSystem    string
	MountOptions  []string
	Source        string
	Rotational    *bool
	CapacityBytes int64
	FreeBytes     int64
	ReserveBytes  int64
}

// MemoryReport is need and limit; 0 is no limit.
type MemoryReport struct {
	NeedBytes  int64
	LimitBytes int64
}

// LoadReport is the progress of loading.
type LoadReport struct {
	BytesTotal, BytesDone int64
	BytesPerSecond        float64
	DeviceBytesPerSecond  float64 // of a sample that the shard read before; 0: it took none
	ETA                   time.Duration
}

// GroupReport is one replica.
type GroupReport struct {
	Group string
	// State is Pending, Loading, Serving, Damaged, Failed or Unavailable.
	State       string
	Message     string
	Leader      bool
	Records     int64
	StoredBytes int64
	// AppliedIndex is that of the last entry applied: by it copies are compared.
	AppliedIndex uint64
	// Lost: the data are not on the shard's volume.
	Lost bool
	// CopyingBytes are still to come of a copy that is being made.
	CopyingBytes int64
}

// Serves says whether the replica answers calls.
func (g GroupReport) Serves() bool { return g.State == "Serving" || g.State == "Damaged" }

// ShardRegister tells the placement about shards that are to go. cmd/sheaf-operator implements it over etcd.
type ShardRegister interface {
	// Empty asks the planner to put no group on the shard, and to move those that are there to others.
	Empty(ctx context.Context, store *v1alpha1.RecordStore, shard string) error
	// Look tells where groups are.
	Look(ctx context.Context, store *v1alpha1.RecordStore) (PlacementView, error)
	// Forget removes what is known of a shard that is gone for good. The error says which groups still name it.
	Forget(ctx context.Context, store *v1alpha1.RecordStore, shard string) error
}
