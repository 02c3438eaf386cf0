package operator

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"sheaf.dev/sheaf/client/recordv1"
	"sheaf.dev/sheaf/controllers/fleet"
)

// describeTimeout is the time limit for all requests to one shard.
const describeTimeout = 5 * time.Second

// Shards sends requests to shards over AdminService. It is safe for concurrent use. The caller must call Close.
type Shards struct{ connections }

// NewShards returns a Shards without connections. If keys is nil, TLS is not used.
func NewShards(keys *Keys) *Shards {
	return &Shards{connections{now: time.Now, keys: keys, open: map[wayTo]*connection{}}}
}

// Describe requests a shard's report. It never uses plaintext with a shard that accepts only TLS.
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
			// The process at this address may have restarted, or another process may have received the address.
			if code := status.Code(err); kept && ctx.Err() == nil && (code == codes.Unavailable || code == codes.Canceled) {
				continue
			}
			return nil, fmt.Errorf("shard at %s: %w", shard.Address, err)
		}
		return report, nil
	}
}

// describeOver requests a shard's report over a given connection.
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
	if shard.GetVolumeSilent() { // while the disk does not respond, the report about the groups is outdated
		return nil, fmt.Errorf("%w: %s", fleet.ErrVolumeSilent, strings.Join(shard.GetProblems(), "; "))
	}
	groups, err := recordv1.AllGroups(ctx, admin, &recordv1.ListGroupsRequest{})
	if err != nil {
		return nil, err
	}
	return &recordv1.ShardStatus{Shard: shard, Groups: groups.GetGroups()}, nil
}
