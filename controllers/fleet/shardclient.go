package fleet

import (
	"context"
	"errors"

	"sheaf.dev/sheaf/api/v1alpha1"
	"sheaf.dev/sheaf/client/recordv1"
	"sheaf.dev/sheaf/internal/placement"
)

// ShardClient asks shards about themselves. internal/operator implements it over AdminService.
type ShardClient interface {
	// Describe asks a shard about itself: its row and its groups. ErrVolumeSilent means that its disk hangs, and
	// ErrNoCredentials that the shard was not asked; any other error means that the shard cannot be reached.
	Describe(ctx context.Context, shard ShardAt) (*recordv1.ShardStatus, error)
}

// ShardAt says where to reach a shard and which shard must answer. It is comparable.
type ShardAt struct {
	Store   string // namespace/name
	Name    string // name of the shard
	Address string // host:port for gRPC
	TLS     bool   // the shard accepts no plaintext
}

// ErrVolumeSilent replaces the report of a shard whose disk hangs without an error. What such a shard reports about
// its groups is outdated.
var ErrVolumeSilent = errors.New("its disk does not answer")

// ErrNoCredentials means that a shard was not asked, because it accepts only TLS and the operator does not have its
// certificate for the store yet, as in the first moments after its start.
var ErrNoCredentials = errors.New(
	"the operator has no certificate for this store yet: see condition Certificates of the RecordStore")

// ShardRegister updates the placement when shards are to be removed. internal/operator implements it over etcd.
type ShardRegister interface {
	// Empty asks the planner to put no groups on the shard, and to move the groups on it to other shards.
	Empty(ctx context.Context, store *v1alpha1.RecordStore, shard string) error
	// Look returns where groups are.
	Look(ctx context.Context, store *v1alpha1.RecordStore) (placement.Planned, error)
	// Forget removes the entries of a shard that is gone for good. The error says which groups still refer to it.
	Forget(ctx context.Context, store *v1alpha1.RecordStore, shard string) error
}
