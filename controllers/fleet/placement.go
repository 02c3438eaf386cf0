package fleet

import (
	"context"
	"errors"
	"time"

	"sheaf.dev/sheaf/api/v1alpha1"
	"sheaf.dev/sheaf/internal/kube/workload"
)

// EtcdPatience is the time limit of one read of a store's etcd.
const EtcdPatience = 5 * time.Second

// Errors that the methods of a Placement return.
var (
	// ErrPlacementLost means that etcd is empty although the store exists.
	ErrPlacementLost = errors.New("etcd has lost the placement of this store")
	// ErrOtherStore means that etcd holds another store under this name.
	ErrOtherStore = errors.New("etcd holds another store")
	// ErrEtcdRolledBack means that etcd holds an older state of the store than one that was observed before. Nothing
	// may be decided from that state.
	ErrEtcdRolledBack = errors.New("etcd was set back")
	// ErrPlacementChanged means that another client changed the placement after Plan had read it. The next reconcile
	// decides again.
	ErrPlacementChanged = errors.New("the placement changed meanwhile")
	// ErrCopiesDiffer means that the store was created with a number of copies other than that of the spec.
	ErrCopiesDiffer = errors.New("the number of copies differs")
	// ErrVolumesIncomplete means that the shards that answer do not hold the whole store. Nothing was written.
	ErrVolumesIncomplete = errors.New("the volumes do not hold the whole store yet")
)

// PlacementSpec holds the properties of a store that become fixed when its placement is created.
type PlacementSpec struct {
	StoreUID  string
	Routing   v1alpha1.RoutingMode
	Groups    int32 // for Hash routing
	GroupsMax int32 // for Named routing; 0: the default
	Copies    int32
	ShardsMin int32 // the first placement waits until this many shards are alive
}

// PlacementState is the state of a store in etcd.
type PlacementState struct {
	View    PlacementView   // as it was before Plan wrote anything
	Groups  int32           // groups that exist
	Missing int32           // groups of Hash routing that the next call creates
	Alive   map[string]bool // the registered shards
	// Silent maps each group that has too few registered shards to serve to one of its shards that is not registered.
	Silent   map[string]string
	Homeless int32             // groups that no shard has created yet
	Unplaced map[string]string // group -> why it cannot be placed now
	Changed  bool              // Plan wrote something
	Targets  int32             // number of groups whose target was written
}

// Placement is the placement of one store in etcd. The context bounds each call.
type Placement interface {
	// Init creates the placement if etcd holds none. It returns ErrOtherStore if etcd holds the placement of another
	// store.
	Init(ctx context.Context, spec PlacementSpec) error
	// Plan records the wanted state of each shard by name, writes the targets that the planner derives from it, and
	// returns what etcd held before. It may return ErrPlacementLost, ErrOtherStore, ErrCopiesDiffer,
	// ErrPlacementChanged or ErrEtcdRolledBack.
	Plan(ctx context.Context, spec PlacementSpec, states map[string]v1alpha1.PoolState) (PlacementState, error)
	// Look returns where groups are, and writes nothing.
	Look(ctx context.Context, spec PlacementSpec) (PlacementView, error)
	// Recover rebuilds the placement of a store from the volumes of these shards. If it returns ErrVolumesIncomplete,
	// the error says what is missing.
	Recover(ctx context.Context, spec PlacementSpec, shards []ShardAt) error
	// EtcdMembers returns the members of the etcd that holds the placement, as a quorum of them knows them.
	EtcdMembers(ctx context.Context) ([]EtcdMember, error)
}

// EtcdMember is a member of an etcd cluster, as the other members know it.
type EtcdMember struct {
	PeerAddress string // host:port
	Trouble     string // why it is unhealthy; empty: it is healthy
}

// EtcdCredentials holds the contents of the Secret for an external etcd.
type EtcdCredentials struct{ CA, Cert, Key []byte }

// Placements opens placements. Connections are kept until Close.
type Placements interface {
	Open(key string, access workload.EtcdAccess, credentials EtcdCredentials) (Placement, error)
	// Close closes the connection of a store.
	Close(key string)
}

// PlacementSpecOf returns the fixed properties of a store's placement. shardsMin shards have to be registered before
// the first groups are placed.
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
