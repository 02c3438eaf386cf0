package gateway_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"sheaf.dev/sheaf/client/recordv1"
	"sheaf.dev/sheaf/internal/gateway"
	"sheaf.dev/sheaf/internal/placement"
	"sheaf.dev/sheaf/internal/status/page"
	"sheaf.dev/sheaf/internal/test/must"
	"sheaf.dev/sheaf/internal/test/placementtest"
)

func TestRoutingIsSentAgainOnlyWhenItChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, hash(3), gateway.Config{}, "a", "b")
		ctx, cancel := context.WithCancel(c.ctx)
		defer cancel()
		stream, err := recordv1.NewRoutingServiceClient(c.conn).WatchRouting(ctx, &recordv1.WatchRoutingRequest{})
		must.OK(t, err)
		first, err := stream.Recv()
		if err != nil || len(first.GetGroups()) != 3 || first.GetStoreUuid() != c.meta.StoreUUID.String() {
			t.Fatalf("%v, %v", first, err)
		}
		for n, g := range first.GetGroups() {
			keyFirst, keyLast := c.meta.Routing.KeyRange(n)
			owner := c.shards[[]string{"a", "b"}[n%2]].address
			if g.GetKeyFirst() != keyFirst || g.GetKeyLast() != keyLast || g.GetLeaderAddress() != owner ||
				len(g.GetAddresses()) != 1 {
				t.Fatalf("group %d: %v", n, g)
			}
		}
		// A report of group sizes changes the view, but not the routing.
		reported, err := placementtest.UpdateGroup(ctx, c.store, "0", func(g *placement.Group) error {
			g.Bytes++
			return nil
		})
		must.OK(t, err)
		c.awaitEpoch(reported.Revision)
		synctest.Wait() // waits until all messages that were sent have arrived
		if _, err := placementtest.UpdateGroup(ctx, c.store, "0", func(g *placement.Group) error {
			g.Members = []placement.Member{{Shard: "b", VolumeUUID: c.shards["b"].volume}}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		second, err := stream.Recv()
		if err != nil || second.GetEpoch() <= first.GetEpoch() ||
			second.GetGroups()[0].GetLeaderAddress() != c.shards["b"].address {
			t.Fatalf("%v, %v", second, err)
		}
	})
}

func TestListingsIncludeSilentShards(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, hash(4), gateway.Config{}, "a", "b")
		for id := range int64(20) {
			if _, err := c.records.Put(c.ctx, &recordv1.PutRequest{Key: key(id)}); err != nil {
				t.Fatal(err)
			}
		}
		groups, err := c.admin.ListGroups(c.ctx, &recordv1.ListGroupsRequest{})
		if err != nil || len(groups.GetGroups()) != 4 {
			t.Fatalf("%v, %v", groups, err)
		}
		for n, g := range groups.GetGroups() {
			if g.GetGroup() != placement.GroupName(n) || g.GetState() != recordv1.GroupState_GROUP_STATE_SERVING {
				t.Fatalf("row %d: %v", n, g)
			}
		}
		c.shards["b"].server.Stop()
		if groups, err = c.admin.ListGroups(c.ctx, &recordv1.ListGroupsRequest{}); err != nil ||
			len(groups.GetGroups()) != 4 {
			t.Fatalf("%v, %v", groups, err)
		}
		for n, g := range groups.GetGroups() {
			want := []recordv1.GroupState{recordv1.GroupState_GROUP_STATE_SERVING,
				recordv1.GroupState_GROUP_STATE_UNAVAILABLE}[n%2]
			if g.GetState() != want {
				t.Errorf("group %d: %v, want %v", n, g, want)
			}
		}
		shards, err := c.admin.ListShards(c.ctx, &recordv1.ListShardsRequest{})
		if err != nil || len(shards.GetShards()) != 2 {
			t.Fatalf("%v, %v", shards, err)
		}
		if a, b := shards.GetShards()[0], shards.GetShards()[1]; !a.GetAlive() || b.GetAlive() || b.GetGroups() != 2 ||
			b.GetVolumeUuid() != c.shards["b"].volume.String() {
			t.Fatalf("%v", shards)
		}
		_, err = c.admin.ListGroups(c.ctx, &recordv1.ListGroupsRequest{Group: "99"})
		wantError(t, err, codes.NotFound, "GROUP_NOT_FOUND")
	})
}

// ListGroups and the status page give the planner's reason if a group has no shard.
func TestGroupWithoutShardsShowsPlannersReason(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		meta := hash(4)
		meta.Copies, meta.ShardsMin = 3, 3
		c := newCluster(t, meta, gateway.Config{}, "a")
		for n := range 4 {
			made, err := placementtest.UpdateGroup(c.ctx, c.store, placement.GroupName(n), func(g *placement.Group) error {
				g.Members, g.Leader = nil, ""
				return nil
			})
			must.OK(t, err)
			c.awaitEpoch(made.Revision)
		}
		c.stops["a"]()
		awaitStatus(t, c.gateway, "the shard is gone", func(st gateway.Status) bool { return len(st.Shards) == 0 })
		const waits = "the first placement waits until 3 shards are alive, 0 are"
		groups, err := c.admin.ListGroups(c.ctx, &recordv1.ListGroupsRequest{})
		if err != nil || len(groups.GetGroups()) != 4 {
			t.Fatalf("%v, %v", groups, err)
		}
		for _, g := range groups.GetGroups() {
			if g.GetMessage() != waits {
				t.Errorf("%v", g)
			}
		}
		st := statusOf(t, c.gateway)
		if len(st.Findings) != 1 || !strings.Contains(st.Findings[0].What, waits) || st.Summary.State != page.NotReady ||
			!strings.Contains(st.Summary.Text, waits) {
			t.Errorf("%+v, %+v", st.Findings, st.Summary)
		}
	})
}

func TestListingsHavePages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, hash(12), gateway.Config{}, "a", "b") // both shards ignore page sizes and page tokens
		for id := range int64(50) {
			if _, err := c.records.Put(c.ctx, &recordv1.PutRequest{Key: key(id)}); err != nil {
				t.Fatal(err)
			}
		}
		for _, size := range []int32{0, 1, 5, 12, 2000} {
			var groups, shards []string
			in := &recordv1.ListGroupsRequest{PageSize: size}
			for pages := 0; pages == 0 || in.GetPageToken() != ""; pages++ {
				out, err := c.admin.ListGroups(c.ctx, in)
				if err != nil || pages > 12 {
					t.Fatalf("page %d: %v", pages, err)
				}
				for _, g := range out.GetGroups() {
					groups = append(groups, g.GetGroup())
				}
				in.PageToken = out.GetNextPageToken()
			}
			if got := strings.Join(groups, " "); got != "0 1 2 3 4 5 6 7 8 9 10 11" {
				t.Errorf("groups by pages of %d: %s", size, got)
			}
			of := &recordv1.ListShardsRequest{PageSize: size}
			for pages := 0; pages == 0 || of.GetPageToken() != ""; pages++ {
				out, err := c.admin.ListShards(c.ctx, of)
				if err != nil || pages > 2 {
					t.Fatalf("page %d: %v", pages, err)
				}
				for _, s := range out.GetShards() {
					if shards = append(shards, s.GetName()); !s.GetAlive() {
						t.Errorf("%v", s)
					}
				}
				of.PageToken = out.GetNextPageToken()
			}
			if got := strings.Join(shards, " "); got != "a b" {
				t.Errorf("shards by pages of %d: %s", size, got)
			}
		}
		first, err := c.admin.ListGroups(c.ctx, &recordv1.ListGroupsRequest{PageSize: 1})
		must.OK(t, err)
		for _, in := range []*recordv1.ListGroupsRequest{
			{PageSize: -1}, {PageToken: "nonsense"}, {PageToken: first.GetNextPageToken() + "A"},
			{Group: "0", PageToken: first.GetNextPageToken()},
		} {
			_, err := c.admin.ListGroups(c.ctx, in)
			wantError(t, err, codes.InvalidArgument, "")
		}
		for _, in := range []*recordv1.ListShardsRequest{{PageSize: -1}, {PageToken: first.GetNextPageToken()}} {
			_, err := c.admin.ListShards(c.ctx, in)
			wantError(t, err, codes.InvalidArgument, "")
		}
	})
}

// A shard with more groups than fit into one message still responds, and none of its groups is listed as unavailable.
func TestAShardOfManyGroupsIsListed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, named(), gateway.Config{}, "a")
		const groups = 18_000
		for i := range groups {
			c.shards["a"].listed = append(c.shards["a"].listed, &recordv1.Group{Group: fmt.Sprintf("g%06d", i), Shard: "a",
				State: recordv1.GroupState_GROUP_STATE_SERVING, Message: strings.Repeat("x", 500)})
		}
		c.setOwner(placement.NewGroup(c.meta.Routing, "g000007", 0), "a")
		for _, size := range []int32{0, 1000} {
			in, rows := &recordv1.ListGroupsRequest{PageSize: size}, 0
			for pages := 0; pages == 0 || in.GetPageToken() != ""; pages++ {
				out, err := c.admin.ListGroups(c.ctx, in, grpc.MaxCallRecvMsgSize(64<<20))
				if err != nil || pages > groups {
					t.Fatalf("page %d: %v", pages, err)
				}
				for _, g := range out.GetGroups() {
					if g.GetGroup() != fmt.Sprintf("g%06d", rows) || g.GetState() != recordv1.GroupState_GROUP_STATE_SERVING {
						t.Fatalf("row %d: %v", rows, g)
					}
					rows++
				}
				in.PageToken = out.GetNextPageToken()
			}
			if rows != groups {
				t.Errorf("pages of %d: %d groups", size, rows)
			}
		}
	})
}

// TestNewGroupIsNotReportedMissing checks that a gateway does not answer "does not exist" for a group that is missing
// from its table, because another gateway may have just created the group.
func TestNewGroupIsNotReportedMissing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		meta := named()
		c := newCluster(t, meta, gateway.Config{}, "a")
		for n := range 60 {
			name := fmt.Sprintf("made-%d", n)
			if _, _, err := c.store.CreateGroup(c.ctx, placement.NewGroup(meta.Routing, name, 0)); err != nil {
				t.Fatal(err)
			}
			groups, err := c.admin.ListGroups(c.ctx, &recordv1.ListGroupsRequest{Group: name})
			if err != nil || len(groups.GetGroups()) != 1 || groups.GetGroups()[0].GetGroup() != name {
				t.Fatalf("group %s: %v, %v", name, groups, err)
			}
		}
		_, err := c.admin.ListGroups(c.ctx, &recordv1.ListGroupsRequest{Group: "made-60"})
		wantError(t, err, codes.NotFound, "GROUP_NOT_FOUND")
		_, err = c.admin.Verify(c.ctx, &recordv1.VerifyRequest{Group: "no\nname"})
		wantError(t, err, codes.NotFound, "GROUP_NOT_FOUND")
	})
}

// An error about a group name that is too long does not repeat the whole name, because a name of 60,000 bytes could not
// be sent to the caller.
func TestErrorsAboutLongNamesOfGroupsAreShort(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, named(), gateway.Config{}, "a")
		long := strings.Repeat("\x00", 60_000)
		calls := map[string]func() error{
			"ListGroups": func() error {
				_, err := c.admin.ListGroups(c.ctx, &recordv1.ListGroupsRequest{Group: long})
				return err
			},
			"CreateGroup": func() error {
				_, err := c.admin.CreateGroup(c.ctx, &recordv1.CreateGroupRequest{Group: long})
				return err
			},
			"Verify": func() error {
				_, err := c.admin.Verify(c.ctx, &recordv1.VerifyRequest{Group: long})
				return err
			},
			"Compact": func() error {
				_, err := c.admin.Compact(c.ctx, &recordv1.CompactRequest{Group: long})
				return err
			},
			"AcceptLoss": func() error {
				_, err := c.admin.AcceptLoss(c.ctx, &recordv1.AcceptLossRequest{Group: long})
				return err
			},
		}
		for name, call := range calls {
			err := call()
			if code := status.Code(err); code != codes.NotFound && code != codes.InvalidArgument || len(err.Error()) > 500 {
				t.Errorf("%s: %.200v", name, err)
			}
		}
	})
}

func TestLoadIsTheSumOverShards(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, hash(2), gateway.Config{}, "a", "b")
		stream, err := c.admin.WatchLoad(c.ctx, &recordv1.WatchLoadRequest{})
		must.OK(t, err)
		var last *recordv1.WatchLoadResponse
		for {
			message, err := stream.Recv()
			if errors.Is(err, io.EOF) {
				break
			}
			must.OK(t, err)
			last = message
		}
		if l := last.GetLoad(); !l.GetDone() || l.GetBytesDone() != 4 || l.GetGroupsTotal() != 4 ||
			len(last.GetShards()) != 2 {
			t.Fatalf("%v", last)
		}
	})
}

func TestPlanMovesShowsWhatThePlannerWouldDo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, hash(2), gateway.Config{}, "a", "b")
		if out, err := c.admin.PlanMoves(c.ctx, &recordv1.PlanMovesRequest{}); err != nil || len(out.GetMoves()) != 0 {
			t.Fatalf("%v, %v", out, err)
		}
		c.stops["b"]()
		stop, err := c.store.RegisterShard(c.ctx, placement.Shard{
			Name: "b", Address: c.shards["b"].address, VolumeUUID: c.shards["b"].volume, Generation: 2,
			State: placement.Draining,
		})
		must.OK(t, err)
		defer stop()
		var out *recordv1.PlanMovesResponse
		for len(out.GetMoves()) == 0 { // repeated until the gateway has the view with the moves
			time.Sleep(time.Millisecond)
			if out, err = c.admin.PlanMoves(c.ctx, &recordv1.PlanMovesRequest{}); err != nil {
				t.Fatal(err)
			}
		}
		if m := out.GetMoves(); len(m) != 1 || m[0].GetGroup() != "1" || m[0].GetFrom()[0] != "b" || m[0].GetTo()[0] != "a" ||
			m[0].GetReason() != "Drain" {
			t.Fatalf("%v", out)
		}
	})
}

func TestAdminCallsOfAGroupNeedOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, hash(1), gateway.Config{}, "a")
		_, err := c.admin.Verify(c.ctx, &recordv1.VerifyRequest{})
		wantFieldViolation(t, err, "group")
		_, err = c.admin.Compact(c.ctx, &recordv1.CompactRequest{Group: "7"})
		wantError(t, err, codes.NotFound, "GROUP_NOT_FOUND")
		_, err = c.admin.AcceptLoss(c.ctx, &recordv1.AcceptLossRequest{Group: "0"})
		wantError(t, err, codes.Unimplemented, "")
	})
}

func TestStopLeavesNothingRunning(t *testing.T) {
	// synctest.Test fails if a goroutine still runs when the test and its cleanups have finished.
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, hash(2), gateway.Config{Registry: prometheus.NewRegistry()}, "a", "b")
		if _, err := batchPut(t, c, puts(1, 2, 3, 4)); err != nil {
			t.Fatal(err)
		}
		if _, err := batchGet(c, 1, 2, 3, 4); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(c.ctx)
		defer cancel()
		routing, err := recordv1.NewRoutingServiceClient(c.conn).WatchRouting(ctx, &recordv1.WatchRoutingRequest{})
		must.OK(t, err)
		if _, err := routing.Recv(); err != nil {
			t.Fatal(err)
		}
		fired := c.shards["a"].failFirst(1, "Download", refuse(codes.Unavailable, "NO_LEADER"))
		fired2 := c.shards["b"].failFirst(1, "Download", refuse(codes.Unavailable, "NO_LEADER"))
		if _, err := download(ctx, c, 1); err != nil || *fired+*fired2 != 1 {
			t.Fatalf("%v; faults fired %d times", err, *fired+*fired2)
		}
	})
}
