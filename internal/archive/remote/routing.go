package remote

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"

	"github.com/google/uuid"
	"google.golang.org/grpc"

	"sheaf.dev/sheaf/client/recordv1"
)

// Routing returns the addresses of the shards that have groups, as a gateway of the store currently knows them. It is
// intended for Options.Shards.
func Routing(ctx context.Context, gateway grpc.ClientConnInterface) ([]string, error) {
	all := map[string]bool{}
	err := eachPart(ctx, gateway, func(part *recordv1.WatchRoutingResponse) {
		for _, g := range part.GetGroups() {
			for _, address := range append(g.GetAddresses(), g.GetLeaderAddress()) {
				if address != "" {
					all[address] = true
				}
			}
		}
	})
	return slices.Sorted(maps.Keys(all)), err
}

// Store describes the store that is archived.
type Store struct {
	UUID    uuid.UUID
	Routing string // "hash" or "named"
	Groups  int    // with "hash": the number of groups; otherwise 0
}

// errIncomplete means that the number of groups is not known yet.
var errIncomplete = errors.New(
	"the gateway does not know the shards of all groups yet: try again when the store is ready")

// Describe asks a gateway which store it serves.
func Describe(ctx context.Context, gateway grpc.ClientConnInterface) (s Store, err error) {
	var ranges []*recordv1.GroupRoute
	var parsed error
	err = eachPart(ctx, gateway, func(part *recordv1.WatchRoutingResponse) {
		s.UUID, parsed = uuid.Parse(part.GetStoreUuid())
		if s.Routing = "named"; part.GetMode() == recordv1.RoutingMode_ROUTING_MODE_HASH {
			s.Routing = "hash"
			ranges = append(ranges, part.GetGroups()...)
		}
	})
	switch {
	case err != nil:
		return Store{}, err
	case parsed != nil:
		return Store{}, fmt.Errorf("the gateway says that the store is %w", parsed)
	case s.Routing == "hash" && !coverAll(ranges):
		return Store{}, errIncomplete
	}
	s.Groups = len(ranges)
	return s, nil
}

// coverAll reports whether the key ranges of the given groups leave no gap, which means that there are no other
// groups.
func coverAll(groups []*recordv1.GroupRoute) bool {
	slices.SortFunc(groups, func(a, b *recordv1.GroupRoute) int {
		if a.GetKeyFirst() < b.GetKeyFirst() {
			return -1
		}
		return 1
	})
	next := uint64(0)
	for i, g := range groups {
		if g.GetKeyFirst() != next || g.GetKeyLast() < next {
			return false
		}
		if g.GetKeyLast() == math.MaxUint64 {
			return i == len(groups)-1
		}
		next = g.GetKeyLast() + 1
	}
	return false
}

// eachPart passes each part of a gateway's routing table to take.
func eachPart(ctx context.Context, gateway grpc.ClientConnInterface, take func(*recordv1.WatchRoutingResponse)) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := recordv1.NewRoutingServiceClient(gateway).WatchRouting(ctx,
		&recordv1.WatchRoutingRequest{InParts: true})
	if err != nil {
		return fmt.Errorf("asking a gateway for the shards: %w", err)
	}
	for more := true; more; {
		part, err := stream.Recv()
		if err != nil {
			return fmt.Errorf("asking a gateway for the shards: %w", err)
		}
		take(part)
		more = part.GetMore()
	}
	return nil
}
