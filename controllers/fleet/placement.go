package fleet

import (
	"context"
	"errors"
	"time"

	"sheaf.dev/sheaf/api/v1alpha1"
	"sheaf.dev/sheaf/internal/kube/workload"
)

// EtcdPatience bounds one look at the etcd of a store.
const EtcdPatience = 5 * time.Second

// Errors of a Placement.
var (
	// ErrPlacementLost: etcd is empty for a store that exists.
	ErrPlacementLost = errors.New("etcd has lost the placement of this store")
	// ErrOtherStore: etcd holds another store under this name.
	ErrOtherStore = errors.New("etcd holds another store")
	// ErrEtcdRolledBack: etcd holds an older state of the store than was seen before. Nothing is done on its word.
	ErrEtcdRolledBack = errors.New("etcd was set back")
	// ErrPlacementChanged: somebody else wrote in between; the next reconcile decides anew.
	ErrPlacementChanged = errors.New("the placement changed meanwhile")
	// ErrCopiesDiffer: the store was made with another number of copies.
	ErrCopiesDiffer = errors.New("the number of copies differs")
	// ErrVolumesIncomplete: the shards that answer do not hold all of the store; nothing was written.
	ErrVolumesIncomplete = errors.New("the volumes do not hold the whole store yet")
)

// PlacementSpec is what is fixed about a store when its placement is made.
type PlacementSpec struct {
	StoreUID  string
	Routing   v1alpha1.RoutingMode
	Groups    int32 // Hash
	GroupsMax int32 // Named; 0: the default
	Copies    int32
	ShardsMin int32 // the first placement waits until so many shards are alive
}

// PlacementState is what etcd says of a store.
type PlacementState struct {
	View     PlacementView     // before anything was written
	Groups   int32             // that exist
	Missing  int32             // of Hash routing, made on the next call
	Alive    map[string]bool   // shards that are registered
	Silent   map[string]string // group -> one of its shards that is not registered, where too few are for it to serve
	Homeless int32             // groups that no shard has made yet
	Unplaced map[string]string // group -> why it cannot be placed now
	Changed  bool              // something was written
	Targets  int32             // groups whose target was written
}

// Placement is one store's placement in etcd. Calls are bounded by their context.
type Placement interface {
	// Init makes the placement where etcd holds none, and fails with ErrOtherStore where it holds another store's.
	Init(ctx context.Context, spec PlacementSpec) error
	// Plan says what is wanted of shards by name, writes the targets that the planner then wants, and tells what is
	// there. Errors: ErrPlacementLost, ErrOtherStore, ErrCopiesDiffer, ErrPlacementChanged, ErrEtcdRolledBack.
	Plan(ctx context.Context, spec PlacementSpec, states map[string]v1alpha1.PoolState) (PlacementState, error)
	// Look tells where groups are, and writes nothing.
	Look(ctx context.Context, spec PlacementSpec) (PlacementView, error)
	// Recover rebuilds the placement of a store from the volumes of these shards. ErrVolumesIncomplete says what is
	// missing.
	Recover(ctx context.Context, spec PlacementSpec, shards []ShardAt) error
	// EtcdMembers are those of the etcd that holds the placement, as a quorum of them says.
	EtcdMembers(ctx context.Context) ([]EtcdMember, error)
}

// EtcdMember is a member of an etcd, as the others know it.
type EtcdMember struct {
	PeerAddress string // host:port
	Trouble     string // why it is not well; empty: it is
}

// EtcdCredentials are the contents of the Secret of an external etcd.
type EtcdCredentials struct{ CA, Cert, Key []byte }

// Placements opens placements. Connections are kept until Close.
type Placements interface {
	Open(key string, access workload.EtcdAccess, credentials EtcdCredentials) (Placement, error)
	// Close lets go of the connection of a store.
	Close(key string)
}

// PlacementSpecOf is what is fixed about the placement of a store. shardsMin are to be registered before its first
// groups are placed.
func PlacementSpecOf(store *v1alpha1.RecordStore, shardsMin int32) PlacementSpec {
	groups := store.Spec.Groups
	spec := PlacementSpec{
		StoreUID: store.Status.StoreUID, Routing: groups.Routing,
		Copies: max(store.Spec.Replication.Copies, 1), ShardsMin: shardsMin,
	}
	if groups.Count != nil {
		spec.Groups = *groups.Count
	}
	if groups.Max != nil {
		spec.GroupsMax = *groups.Max
	}
	return spec
}
