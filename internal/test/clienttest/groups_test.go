package clienttest

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"testing"
	"testing/synctest"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"sheaf.dev/sheaf/client"
	"sheaf.dev/sheaf/client/recordv1"
	"sheaf.dev/sheaf/internal/test/bubbletest"
	"sheaf.dev/sheaf/internal/test/must"
	"sheaf.dev/sheaf/internal/test/storetest"
)

func TestGroupsAreListed(t *testing.T) {
	runBoth(t, storetest.Config{Shards: 2, Named: true}, func(t *testing.T, _ *storetest.Server, c *client.Client) {
		ctx := testContext(t)
		for name, records := range map[string]int{"10": 1, "9": 2, "b": 3, "a": 4} {
			for id := range int64(records) {
				if _, err := c.Put(ctx, client.Key{ID: id, Group: name}, []byte("data"), nil); err != nil {
					t.Fatal(err)
				}
			}
		}
		got := ""
		for g, err := range c.Groups(ctx) {
			must.OK(t, err)
			if g.Copies != 1 || g.Serving != 1 || g.StoredBytes <= 0 {
				t.Errorf("%+v", g)
			}
			got += fmt.Sprint(g.Name, ":", g.Records, " ")
		}
		if got != "9:2 10:1 a:4 b:3 " {
			t.Error(got)
		}
	})
}

// pagedGateway is a gateway that lists n groups of three copies each. The first copy of each group leads. The gateway
// can behave as if it were replaced, between two pages, by an old version that does not support pages.
type pagedGateway struct {
	recordv1.UnimplementedAdminServiceServer
	// older is the number of pages after which an old gateway replaces the new one. refused is the number of the call
	// that is refused. If one of them is 0, its event does not happen.
	n, older, refused int
	asked             int
}

func (p *pagedGateway) ListGroups(_ context.Context, in *recordv1.ListGroupsRequest) (
	*recordv1.ListGroupsResponse, error,
) {
	p.asked++
	from, _ := strconv.Atoi(in.GetPageToken())
	out, size := &recordv1.ListGroupsResponse{}, int(in.GetPageSize())
	switch {
	case p.refused == p.asked:
		return nil, status.Error(codes.PermissionDenied, "may not list")
	case p.older > 0 && p.asked > p.older:
		from, size = 0, p.n
	case from+size < p.n:
		out.NextPageToken = strconv.Itoa(from + size)
	}
	for i := from; i < min(from+size, p.n); i++ {
		for copied := range 3 {
			row := &recordv1.Group{Group: strconv.Itoa(i), Uuid: "a uuid", Shard: strconv.Itoa(copied), Records: 7,
				State: recordv1.GroupState_GROUP_STATE_SERVING, Leader: copied == 0}
			if copied > 0 { // another copy may report other numbers, because it is behind or unavailable
				row.Records = int64(9 * copied)
			}
			if copied == 2 {
				row.State = recordv1.GroupState_GROUP_STATE_UNAVAILABLE
			}
			out.Groups = append(out.Groups, row)
		}
	}
	return out, nil
}

func TestGroupsFollowsPages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const groups = 2500
		for name, gateway := range map[string]*pagedGateway{
			"pages": {n: groups}, "a gateway older than pages": {n: groups, older: -1},
			"an older gateway at the end": {n: groups, older: 2}, "an older gateway in the middle": {n: groups, older: 1},
		} {
			if gateway.older < 0 {
				gateway.older, gateway.asked = 1, 1
			}
			n := 0
			for g, err := range clientOf(t, gateway).Groups(testContext(t)) {
				want := client.Group{Name: strconv.Itoa(n), Records: 7, Copies: 3, Serving: 2}
				if err != nil || g != want {
					t.Fatalf("%s: %+v, %v, want %+v", name, g, err, want)
				}
				n++
			}
			if n != groups {
				t.Errorf("%s: %d groups", name, n)
			}
		}
		gateway := &pagedGateway{n: groups, refused: 2}
		n := 0
		var last error
		for _, err := range clientOf(t, gateway).Groups(testContext(t)) {
			n, last = n+1, err
		}
		if n != 1001 || !errors.Is(last, client.ErrPermissionDenied) {
			t.Errorf("%d groups, then %v", n, last)
		}
		gateway = &pagedGateway{n: groups}
		for range clientOf(t, gateway).Groups(testContext(t)) {
			break
		}
		if gateway.asked != 1 {
			t.Errorf("%d pages for one group", gateway.asked)
		}
	})
}

// clientOf returns a client that is connected to a gateway whose only method lists groups.
func clientOf(t *testing.T, gateway recordv1.AdminServiceServer) *client.Client {
	t.Helper()
	network := bubbletest.NewNet()
	listener, err := network.Listen(t.Context(), "gateway:0")
	must.OK(t, err)
	server := grpc.NewServer()
	recordv1.RegisterAdminServiceServer(server, gateway)
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(server.Stop)
	c, err := client.New(client.Config{Addresses: []string{listener.Addr().String()}, Dial: network.Dial})
	must.OK(t, err)
	t.Cleanup(func() { _ = c.Close() })
	return c
}
