package client

import (
	"context"
	"iter"

	"google.golang.org/grpc"

	"sheaf.dev/sheaf/client/recordv1"
)

// groupsPage is the number of groups that Groups requests at a time.
const groupsPage = 1000

// Group describes a group of a store.
type Group struct {
	// Name is the value of Key.Group in Named routing. In Hash routing it is a decimal number.
	Name string
	// Records is the number of records, and StoredBytes is the size in bytes of one copy on disk, as reported by the
	// group's leader. If no leader responds, they are the largest known values of any copy.
	Records, StoredBytes int64
	// Copies is the number of copies. It is 0 if no shard has created the group yet. Serving is the number of copies
	// that serve calls.
	Copies, Serving int
}

// Groups yields each group of a store once. In Hash routing the groups are sorted by number. In Named routing they are
// sorted by name, but numbers are sorted by value and come before other names. Groups requests pages of 1,000 groups as
// the iteration proceeds. A group that is created or deleted during the iteration may or may not be yielded. An error
// ends the sequence. Without permission to read the state of all groups, the error is ErrPermissionDenied.
func (c *Client) Groups(ctx context.Context) iter.Seq2[Group, error] {
	return func(yield func(Group, error) bool) {
		request := &recordv1.ListGroupsRequest{PageSize: groupsPage}
		yielded := map[string]bool{} // a gateway that does not support pages returns all groups in each response
		for {
			answer, err := unary(ctx, c, call{op: "list groups"}, recordv1.NewAdminServiceClient,
				recordv1.AdminServiceClient.ListGroups, request, grpc.MaxCallRecvMsgSize(routingBytes))
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

// toGroup combines the rows of one group. Each row describes one of the group's copies.
func toGroup(rows []*recordv1.Group) Group {
	g := Group{Name: rows[0].GetGroup()}
	led := false
	for _, row := range rows {
		if row.GetUuid() != "" && row.GetState() != recordv1.GroupState_GROUP_STATE_PENDING {
			g.Copies++
		}
		if row.GetState().Serves() {
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
