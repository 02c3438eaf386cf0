package recordv1

import (
	"context"

	"google.golang.org/grpc"
)

// pageSize is the number of groups or shards that AllGroups and AllShards request at a time. It is the limit of the
// servers.
const pageSize = 1000

// AllGroups requests all pages of a listing of groups, beginning with in.PageToken. It ignores the page size of the
// request and uses its own. It returns all rows in one answer, however large that answer is. If any page has an error,
// AllGroups returns the error and no rows.
func AllGroups(ctx context.Context, from AdminServiceClient, in *ListGroupsRequest, options ...grpc.CallOption) (
	*ListGroupsResponse, error) {
	all, token := &ListGroupsResponse{}, in.GetPageToken()
	listed := map[string]bool{} // groups of earlier pages
	for {
		page, err := from.ListGroups(ctx, &ListGroupsRequest{Group: in.GetGroup(), PageSize: pageSize, PageToken: token},
			options...)
		if err != nil {
			return nil, err
		}
		before := len(all.Groups)
		for _, g := range page.GetGroups() {
			// A server that is too old to know pages answers with all rows. Such a server may answer after a newer
			// server, which sent the earlier pages, has stopped.
			if !listed[g.GetGroup()] {
				all.Groups = append(all.Groups, g)
			}
		}
		if token = page.GetNextPageToken(); token == "" {
			return all, nil
		}
		for _, g := range all.Groups[before:] {
			listed[g.GetGroup()] = true
		}
	}
}

// AllShards is like AllGroups, for shards.
func AllShards(ctx context.Context, from AdminServiceClient, options ...grpc.CallOption) (*ListShardsResponse, error) {
	all := &ListShardsResponse{}
	listed := map[string]bool{}
	for token := ""; ; {
		page, err := from.ListShards(ctx, &ListShardsRequest{PageSize: pageSize, PageToken: token}, options...)
		if err != nil {
			return nil, err
		}
		if token == "" {
			all.Problems, all.Warnings = page.GetProblems(), page.GetWarnings()
		}
		for _, s := range page.GetShards() {
			if !listed[s.GetName()] {
				listed[s.GetName()] = true
				all.Shards = append(all.Shards, s)
			}
		}
		if token = page.GetNextPageToken(); token == "" {
			return all, nil
		}
	}
}

// AllMoves is like AllGroups, for moves.
func AllMoves(ctx context.Context, from AdminServiceClient, options ...grpc.CallOption) (*PlanMovesResponse, error) {
	all := &PlanMovesResponse{}
	listed := map[string]bool{} // groups of earlier pages
	for token := ""; ; {
		page, err := from.PlanMoves(ctx, &PlanMovesRequest{PageSize: pageSize, PageToken: token}, options...)
		if err != nil {
			return nil, err
		}
		before := len(all.Moves)
		for _, m := range page.GetMoves() {
			if !listed[m.GetGroup()] {
				all.Moves = append(all.Moves, m)
			}
		}
		if token = page.GetNextPageToken(); token == "" {
			return all, nil
		}
		for _, m := range all.Moves[before:] {
			listed[m.GetGroup()] = true
		}
	}
}

// ReceiveRouting receives one whole table of WatchRouting, in one part or several. If an error occurs in the middle of
// a table, it returns no table.
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
