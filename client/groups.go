package client

import (
	"context"
	"iter"

	"google.golang.org/grpc"

	"sheaf.dev/sheaf/client/recordv1"
)

// groupsPage is the number of groups that Groups asks for at a time.
const groupsPage = 1000

// Group describes a group of a store.
type Group struct {
	// Name is what Key.Group is in Named routing; in Hash routing it is a decimal number.
	Name string
	// Records is the number of records, and StoredBytes the size of one copy on disk, as the leader of the group says.
	// If no leader answers, they are the largest values that are known of any copy.
	Records, StoredBytes int64
	// Copies is the number of copies; 0: the group has no place yet. Serving is the number of them that answer calls.
	Copies, Serving int
}

// Groups yields the groups of a store, each once: in Hash routing by number, in Named routing by name, numbers by value
// and before other names. It asks for pages of 1,000 groups while it is ranged over. A group that is made or deleted
// meanwhile is yielded or not. An error ends the sequence. The caller needs the right to read the state of all groups:
// without it the error is ErrPermissionDenied.
func (c *Client) Groups(ctx context.Context) iter.Seq2[Group, error] {
	return func(yield func(Group, error) bool) {
		request := &recordv1.ListGroupsRequest{PageSize: groupsPage}
		yielded := map[string]bool{} // a gateway older than pages answers with all groups, also in the middle of a listing
		for {
			var answer *recordv1.ListGroupsResponse
			err := c.do(ctx, call{op: "list groups"}, func(ctx context.Context, to target,
				options ...grpc.CallOption) (err error) {
				answer, err = recordv1.NewAdminServiceClient(to.conn).ListGroups(ctx, request,
					append(options, grpc.MaxCallRecvMsgSize(routingBytes))...)
				return err
			})
			if err != nil {
				yield(Group{}, err)
				return
			}
			for rows := answer.GetGroups(); len(rows) > 0; {
				n := 1
				for n < len(rows) && rows[n].GetGroup() == rows[0].GetGroup() {
					n++
				}
				g := toGroup(rows[:n])
				if !yielded[g.Name] && !yield(g, nil) {
					return
				}
				yielded[g.Name] = true
				rows = rows[n:]
			}
			if request.PageToken = answer.GetNextPageToken(); request.GetPageToken() == "" {
				return
			}
		}
	}
}

// toGroup sums up the rows of one group, of which each is a copy.
func toGroup(rows []*recordv1.Group) Group {
	g := Group{Name: rows[0].GetGroup()}
	led := false
	for _, row := range rows {
		if row.GetUuid() != "" && row.GetState() != recordv1.GroupState_GROUP_STATE_PENDING {
			g.Copies++
		}
		switch row.GetState() {
		case recordv1.GroupState_GROUP_STATE_SERVING, recordv1.GroupState_GROUP_STATE_DAMAGED:
			g.Serving++
		}
		switch {
		case row.GetLeader():
			led, g.Records, g.StoredBytes = true, row.GetRecords(), row.GetStoredBytes()
		case !led:
			g.Records, g.StoredBytes = max(g.Records, row.GetRecords()), max(g.StoredBytes, row.GetStoredBytes())
		}
	}
	return g
}
