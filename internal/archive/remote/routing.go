package remote

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"google.golang.org/grpc"

	"sheaf.dev/sheaf/client/recordv1"
)

// Routing returns the addresses of the shards that have groups, as a gateway of the store knows them now. It is for
// Options.Shards.
func Routing(ctx context.Context, gateway grpc.ClientConnInterface) ([]string, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := recordv1.NewRoutingServiceClient(gateway).WatchRouting(ctx,
		&recordv1.WatchRoutingRequest{InParts: true})
	if err != nil {
		return nil, fmt.Errorf("asking a gateway for the shards: %w", err)
	}
	all := map[string]bool{}
	for more := true; more; {
		part, err := stream.Recv()
		if err != nil {
			return nil, fmt.Errorf("asking a gateway for the shards: %w", err)
		}
		for _, g := range part.GetGroups() {
			for _, address := range append(g.GetAddresses(), g.GetLeaderAddress()) {
				if address != "" {
					all[address] = true
				}
			}
		}
		more = part.GetMore()
	}
	return slices.Sorted(maps.Keys(all)), nil
}
