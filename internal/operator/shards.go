package operator

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"sheaf.dev/sheaf/api/v1alpha1"
	"sheaf.dev/sheaf/client/recordv1"
	"sheaf.dev/sheaf/controllers/fleet"
	"sheaf.dev/sheaf/internal/kube/workload"
	"sheaf.dev/sheaf/internal/placement"
)

// describeTimeout is the time limit for all requests to one shard.
const describeTimeout = 5 * time.Second

// Shards asks shards over AdminService. Safe for concurrent use. The caller must call Close.
type Shards struct{ connections }

// NewShards returns a Shards without connections. If keys is nil, TLS is not used.
func NewShards(keys *Keys) *Shards {
	return &Shards{connections{now: time.Now, keys: keys, open: map[wayTo]*connection{}}}
}

// Close closes all connections. No further requests are possible.
func (s *Shards) Close() { s.close() }

// Describe asks one shard for its report. It never speaks plaintext to a shard that accepts only TLS.
func (s *Shards) Describe(ctx context.Context, shard fleet.ShardAt) (*recordv1.ShardStatus, error) {
	ctx, cancel := context.WithTimeout(ctx, describeTimeout)
	defer cancel()
	for {
		conn, kept, err := s.to(shard)
		if err != nil {
			return nil, fmt.Errorf("shard at %s: %w", shard.Address, err)
		}
		report, err := describeOver(ctx, conn)
		switch {
		case errors.Is(err, fleet.ErrVolumeSilent):
			return nil, err
		case err != nil:
			s.drop(conn)
			// The process at this address may have restarted, or another process may have the address now.
			if code := status.Code(err); kept && ctx.Err() == nil && (code == codes.Unavailable || code == codes.Canceled) {
				continue
			}
			return nil, fmt.Errorf("shard at %s: %w", shard.Address, err)
		}
		return report, nil
	}
}

// describeOver asks a shard for its report over a given connection.
func describeOver(ctx context.Context, conn grpc.ClientConnInterface) (*recordv1.ShardStatus, error) {
	admin := recordv1.NewAdminServiceClient(conn)
	shards, err := admin.ListShards(ctx, &recordv1.ListShardsRequest{})
	if err != nil {
		return nil, err
	}
	if len(shards.GetShards()) != 1 {
		return nil, fmt.Errorf("it reported %d shards instead of itself", len(shards.GetShards()))
	}
	shard := shards.GetShards()[0]
	if shard.GetVolumeSilent() { // its report about its groups is outdated then
		return nil, fmt.Errorf("%w: %s", fleet.ErrVolumeSilent, strings.Join(shard.GetProblems(), "; "))
	}
	groups, err := recordv1.AllGroups(ctx, admin, &recordv1.ListGroupsRequest{})
	if err != nil {
		return nil, err
	}
	return &recordv1.ShardStatus{Shard: shard, Groups: groups.GetGroups()}, nil
}

// Register updates the placement when shards are to be removed.
type Register struct{ Placements *Placements }

// Empty asks the planner to place no group on a shard.
func (r Register) Empty(ctx context.Context, store *v1alpha1.RecordStore, shard string) error {
	p, id, err := r.of(store)
	if err != nil {
		return err
	}
	return p.store.SetShardState(ctx, id, shard, placement.Draining)
}

// Look returns where groups are.
func (r Register) Look(ctx context.Context, store *v1alpha1.RecordStore) (placement.Planned, error) {
	p, _, err := r.of(store)
	if err != nil {
		return placement.Planned{}, err
	}
	return p.Look(ctx, store)
}

// Forget removes the entries of a shard that is gone for good. It fails while the shard holds a group or is the target
// of one. For a shard that still runs and is about to be stopped, Forget keeps the record that no group may be placed
// on the shard.
func (r Register) Forget(ctx context.Context, store *v1alpha1.RecordStore, shard string) error {
	p, id, err := r.of(store)
	if err != nil {
		return err
	}
	view, err := p.store.ViewOf(ctx, id)
	if err != nil {
		return err
	}
	if _, alive := view.Shards[shard]; !alive {
		return p.store.ForgetShard(ctx, id, shard)
	}
	if err := view.AllKnown(); err != nil {
		return err
	}
	if names := view.Holds(shard); len(names) > 0 {
		return fmt.Errorf("%w: group %s is on shard %s, or is wanted there", placement.ErrShardHoldsGroups, names[0], shard)
	}
	return nil
}

// of returns the connection that the store's own controller has opened.
func (r Register) of(store *v1alpha1.RecordStore) (*placed, uuid.UUID, error) {
	id, err := uidOf(store)
	if err != nil {
		return nil, id, err
	}
	key := client.ObjectKeyFromObject(store).String()
	r.Placements.mu.Lock()
	p := r.Placements.open[key]
	r.Placements.mu.Unlock()
	if p != nil {
		return p, id, nil
	}
	if access := workload.EtcdAccessOf(store, nil); access.Secret == "" && len(access.Endpoints) > 0 {
		opened, err := r.Placements.Open(key, access, fleet.EtcdCredentials{})
		if err != nil {
			return nil, id, err
		}
		if p, ok := opened.(*placed); ok {
			return p, id, nil
		}
	}
	return nil, id, errors.New("the store's etcd is not connected yet: it is tried again")
}
