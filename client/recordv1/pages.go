package recordv1

import (
	"context"

	"google.golang.org/grpc"
)

// pageSize is the number of groups or shards that AllGroups and AllShards request at a time. It is the servers' limit.
const pageSize = 1000

// all requests every page of a listing, starting at the page that token identifies, and returns the rows of all of
// them. The function ask requests one page, and returns its rows and the token of the next page.
func all[R any](token string, name func(R) string, ask func(token string) (rows []R, next string, err error)) ([]R,
	error) {
	var out []R
	listed := map[string]bool{} // names on earlier pages
	for {
		rows, next, err := ask(token)
		if err != nil {
			return nil, err
		}
		before := len(out)
		for _, row := range rows {
			// A server that does not support pages returns all rows. Such a server may respond if the newer server that sent
			// the earlier pages has stopped in the meantime.
			if !listed[name(row)] {
				out = append(out, row)
			}
		}
		if token = next; token == "" {
			return out, nil
		}
		for _, row := range out[before:] {
			listed[name(row)] = true
		}
	}
}

// AllGroups requests all pages of a group listing, beginning with in.PageToken. It uses its own page size instead of
// the request's. It returns all rows in one response of unlimited size. If the request for any page fails, AllGroups
// returns the error and no rows.
func AllGroups(ctx context.Context, from AdminServiceClient, in *ListGroupsRequest, options ...grpc.CallOption) (
	*ListGroupsResponse, error) {
	groups, err := all(in.GetPageToken(), (*Group).GetGroup, func(token string) ([]*Group, string, error) {
		page, err := from.ListGroups(ctx, &ListGroupsRequest{Group: in.GetGroup(), PageSize: pageSize, PageToken: token},
			options...)
		return page.GetGroups(), page.GetNextPageToken(), err
	})
	if err != nil {
		return nil, err
	}
	return &ListGroupsResponse{Groups: groups}, nil
}

// AllShards is like AllGroups, for shards.
func AllShards(ctx context.Context, from AdminServiceClient, options ...grpc.CallOption) (*ListShardsResponse, error) {
	out := &ListShardsResponse{}
	shards, err := all("", (*Shard).GetName, func(token string) ([]*Shard, string, error) {
		page, err := from.ListShards(ctx, &ListShardsRequest{PageSize: pageSize, PageToken: token}, options...)
		if token == "" {
			out.Problems, out.Warnings = page.GetProblems(), page.GetWarnings()
		}
		return page.GetShards(), page.GetNextPageToken(), err
	})
	if err != nil {
		return nil, err
	}
	out.Shards = shards
	return out, nil
}

// AllMoves is like AllGroups, for moves.
func AllMoves(ctx context.Context, from AdminServiceClient, options ...grpc.CallOption) (*PlanMovesResponse, error) {
	moves, err := all("", (*Move).GetGroup, func(token string) ([]*Move, string, error) {
		page, err := from.PlanMoves(ctx, &PlanMovesRequest{PageSize: pageSize, PageToken: token}, options...)
		return page.GetMoves(), page.GetNextPageToken(), err
	})
	if err != nil {
		return nil, err
	}
	return &PlanMovesResponse{Moves: moves}, nil
}

// ReceiveRouting receives one whole routing table from WatchRouting, in one part or several. If an error occurs in the
// middle of a table, it returns no table.
func ReceiveRouting(stream RoutingService_WatchRoutingClient) (*WatchRoutingResponse, error) {
	table, err := stream.Recv()
	if err != nil {
		return nil, err
	}
	for more := table.GetMore(); more; {
		part, err := stream.Recv()
		if err != nil {
			return nil, err
		}
		table.Groups, more = append(table.Groups, part.GetGroups()...), part.GetMore()
	}
	table.More = false
	return table, nil
}
