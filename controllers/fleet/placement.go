package fleet

import (
	"context"
	"errors"
	"time"

	"sheaf.dev/sheaf/api/v1alpha1"
	"sheaf.dev/sheaf/client/recordv1"
	"sheaf.dev/sheaf/internal/kube/workload"
	"sheaf.dev/sheaf/internal/placement"
)

// EtcdPatience is the time limit for one read from a store's etcd.
const EtcdPatience = 5 * time.Second

// Errors that the methods of a Placement return, besides those of package placement.
var (
	// ErrCopiesDiffer means that the store was created with a number of copies other than that of the spec.
	ErrCopiesDiffer = errors.New("the number of copies differs")
	// ErrVolumesIncomplete means that the shards that answer do not hold the whole store. Nothing was written.
	ErrVolumesIncomplete = errors.New("the volumes do not hold the whole store yet")
)

// Placement is the placement of one store in etcd. The context bounds each call.
type Placement interface {
	// Init creates the placement if etcd holds none. It returns placement.ErrOtherStore if etcd holds the placement of
	// another store. The first groups are placed when shardsMin shards are registered.
	Init(ctx context.Context, store *v1alpha1.RecordStore, shardsMin int32) error
	// Plan records the wanted state of each shard by name, writes the targets that the planner derives from it, and
	// returns the previous content of etcd. The first groups are placed when shardsMin shards are registered. Plan may
	// return ErrCopiesDiffer, or one of these errors of package placement: ErrPlacementLost, ErrOtherStore, ErrChanged,
	// ErrFrozen.
	Plan(ctx context.Context, store *v1alpha1.RecordStore, shardsMin int32,
		states map[string]v1alpha1.PoolState) (placement.Planned, error)
	// Look returns the current placement of all groups. It writes nothing.
	Look(ctx context.Context, store *v1alpha1.RecordStore) (placement.Planned, error)
	// Recover rebuilds the placement of a store from the volumes of these shards. An error that wraps
	// ErrVolumesIncomplete also describes what is missing.
	Recover(ctx context.Context, store *v1alpha1.RecordStore, shards []ShardAt) error
	// EtcdMembers returns the members of the etcd that holds the placement, as listed by a quorum of them.
	EtcdMembers(ctx context.Context) ([]EtcdMember, error)
}

// EtcdMember is a member of an etcd cluster, as seen by the other members.
type EtcdMember struct {
	PeerAddress string // host:port
	Trouble     string // why the member is unhealthy; empty if the member is healthy
}

// EtcdCredentials holds the contents of the Secret for an external etcd.
type EtcdCredentials struct{ CA, Cert, Key []byte }

// Placements opens placements. Connections are kept until Close.
type Placements interface {
	Open(key string, access workload.EtcdAccess, credentials EtcdCredentials) (Placement, error)
	// Close closes the connection of a store.
	Close(key string)
}

// ShardClient asks shards for their status. internal/operator implements it over AdminService.
type ShardClient interface {
	// Describe returns a shard's status, including its groups. It returns ErrVolumeSilent if the shard's disk hangs, and
	// ErrNoCredentials if the shard was not asked. Any other error means that the shard cannot be reached.
	Describe(ctx context.Context, shard ShardAt) (*recordv1.ShardStatus, error)
}

// ShardAt holds the address of a shard and the identity that must answer at that address. It is comparable.
type ShardAt struct {
	Store   string // namespace/name
	Name    string // name of the shard
	Address string // host:port for gRPC
	TLS     bool   // the shard accepts only TLS
}

// ErrVolumeSilent is returned instead of the status of a shard whose disk hangs without an error, because what the
// shard then reports about its groups is outdated.
var ErrVolumeSilent = errors.New("its disk does not answer")

// ErrNoCredentials means that a shard was not asked, because it accepts only TLS and the operator has no certificate
// for the store yet, for example just after the start of the operator.
var ErrNoCredentials = errors.New(
	"the operator has no certificate for this store yet: see condition Certificates of the RecordStore")

// ShardRegister updates the placement when shards are removed. internal/operator implements it over etcd.
type ShardRegister interface {
	// Empty asks the planner to put no groups on the shard, and to move the groups on it to other shards.
	Empty(ctx context.Context, store *v1alpha1.RecordStore, shard string) error
	// Look returns the current placement of all groups.
	Look(ctx context.Context, store *v1alpha1.RecordStore) (placement.Planned, error)
	// Forget removes the entries of a shard that is permanently gone. The error names the groups that still refer to
	// the shard.
	Forget(ctx context.Context, store *v1alpha1.RecordStore, shard string) error
}
