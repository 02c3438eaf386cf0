package recordv1

import (
	"context"

	"google.golang.org/grpc"
)

// pageSize is the number of groups or shards that AllGroups and AllShards request at a time. It is the limit of the
// servers.
const pageSize = 1000

// AllGroups requests all pages of a listing of groups from in.PageToken on. It uses a page size of its own. It returns
// the rows in one answer, however many bytes they have. If any page has an error, AllGroups returns the error and no
// rows.
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
			// A server older than pages answers with everything. It may take the place of a newer server that has stopped.
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

// AllShards is AllGroups for shards.
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

// AllMoves is AllGroups for moves.
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
