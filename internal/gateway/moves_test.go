package gateway_test

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"sheaf.dev/sheaf/client/recordv1"
	"sheaf.dev/sheaf/internal/gateway"
	"sheaf.dev/sheaf/internal/placement"
	"sheaf.dev/sheaf/internal/test/must"
)

// setProgress sets the progress that a stand-in reports for its copies.
func (s *standIn) setProgress(copies map[string]*recordv1.Copy) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.moves = []*recordv1.Move{}
	for group, c := range copies {
		c.Shard = s.name
		s.moves = append(s.moves, &recordv1.Move{Group: group, Copies: []*recordv1.Copy{c}})
	}
}

func TestPlanMovesShowsHowFarTheyAre(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, hash(3), gateway.Config{}, "a", "b", "d")
		const mib = 1 << 20
		var revision int64
		for n := range 3 {
			name := placement.GroupName(n)
			g, err := c.store.Group(c.ctx, name)
			must.OK(t, err)
			g.Bytes = 100 * mib
			g.Members = []placement.Member{{Shard: "a", VolumeUUID: c.shards["a"].volume, RaftID: 1}}
			if n == 1 { // group 1 has a learner in etcd, on shard b
				g.Members = append(g.Members, placement.Member{Shard: "b", VolumeUUID: c.shards["b"].volume, RaftID: 3,
					Role: placement.Learner})
			}
			g.Leader = "a"
			if g, err = c.store.PutGroup(c.ctx, g); err != nil {
				t.Fatal(err)
			}
			revision = g.Revision
		}
		var targets []placement.Target
		for group, shard := range map[string]string{"0": "a", "1": "b", "2": "d"} {
			targets = append(targets, placement.Target{Group: group, Shards: []string{shard}, Reason: placement.ForBalance})
		}
		must.OK(t, c.store.SetTargets(c.ctx, targets))
		c.awaitEpoch(revision)
		eta := 8.0
		c.shards["b"].setProgress(map[string]*recordv1.Copy{"1": {
			Phase: recordv1.CopyPhase_COPY_PHASE_FILES, From: "a", BytesTotal: 120 * mib, BytesDone: 40 * mib,
			BytesPerSecond: 10 * mib, EtaSeconds: &eta,
		}})
		// A replica on another volume of shard a replaces the replica on a.
		c.shards["a"].setProgress(map[string]*recordv1.Copy{"0": {Phase: recordv1.CopyPhase_COPY_PHASE_ENTRIES,
			BytesTotal: 100 * mib, BytesDone: 100 * mib}})
		var out *recordv1.PlanMovesResponse
		for len(out.GetMoves()) != 3 { // repeated until the gateway has the targets
			time.Sleep(time.Millisecond)
			var err error
			if out, err = c.admin.PlanMoves(c.ctx, &recordv1.PlanMovesRequest{}); err != nil {
				t.Fatal(err)
			}
		}
		zero := 0.0
		want := []*recordv1.Move{
			{
				Group: "0", From: []string{"a"}, To: []string{"a"}, Running: true, Reason: "Repair",
				Phase: recordv1.MovePhase_MOVE_PHASE_CATCHING_UP,
				Bytes: 100 * mib, BytesDone: 100 * mib, EtaSeconds: &zero,
				Copies: []*recordv1.Copy{{Shard: "a", Phase: recordv1.CopyPhase_COPY_PHASE_ENTRIES, BytesTotal: 100 * mib,
					BytesDone: 100 * mib}},
			},
			{
				Group: "1", From: []string{"a"}, To: []string{"b"}, Running: true, Reason: "Balance",
				Phase: recordv1.MovePhase_MOVE_PHASE_COPYING,
				Bytes: 120 * mib, BytesDone: 40 * mib, BytesPerSecond: 10 * mib, EtaSeconds: &eta,
				Copies: []*recordv1.Copy{{
					Shard: "b", Phase: recordv1.CopyPhase_COPY_PHASE_FILES, From: "a", BytesTotal: 120 * mib, BytesDone: 40 * mib,
					BytesPerSecond: 10 * mib, EtaSeconds: &eta,
				}},
			},
			{ // shard d does not respond, or is too old to know the request
				Group: "2", From: []string{"a"}, To: []string{"d"}, Running: true, Reason: "Balance",
				Phase: recordv1.MovePhase_MOVE_PHASE_WAITING, Bytes: 100 * mib,
				Copies: []*recordv1.Copy{{Shard: "d", Phase: recordv1.CopyPhase_COPY_PHASE_WAITING}},
			},
		}
		for i, m := range out.GetMoves() {
			if !proto.Equal(m, want[i]) {
				t.Errorf("move %d:\n got %v\nwant %v", i, m, want[i])
			}
		}
		in, n := &recordv1.PlanMovesRequest{PageSize: 2}, 0
		for pages := 1; ; pages++ {
			page, err := c.admin.PlanMoves(c.ctx, in)
			if err != nil || pages > 2 {
				t.Fatalf("page %d: %v", pages, err)
			}
			for _, m := range page.GetMoves() {
				if !proto.Equal(m, want[n]) {
					t.Errorf("move %d by pages:\n got %v\nwant %v", n, m, want[n])
				}
				n++
			}
			if in.PageToken = page.GetNextPageToken(); in.GetPageToken() == "" {
				break
			}
		}
		if n != 3 {
			t.Errorf("%d moves on pages", n)
		}
		_, err := c.admin.PlanMoves(c.ctx, &recordv1.PlanMovesRequest{PageSize: -1})
		wantError(t, err, codes.InvalidArgument, "")
	})
}

// Before the target is set, PlanMoves names every group whose move needs two copies in one domain for a while.
func TestPlanMovesReportsSharedDomains(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		meta := hash(1)
		meta.Copies = 3
		c := newCluster(t, meta, gateway.Config{}, "a", "b", "d", "e")
		g, err := c.store.Group(c.ctx, "0")
		must.OK(t, err)
		g.Members, g.Leader = nil, "a"
		for n, shard := range []string{"a", "b", "d"} {
			g.Members = append(g.Members, placement.Member{Shard: shard, VolumeUUID: c.shards[shard].volume,
				RaftID: uint64(2*n + 1)})
		}
		if _, err := c.store.PutGroup(c.ctx, g); err != nil {
			t.Fatal(err)
		}
		must.OK(t, c.store.SetTargets(c.ctx, []placement.Target{{Group: "0", Shards: []string{"a", "b", "d"}}}))
		for _, shard := range []string{"a", "b"} { // the node of both shards now has another label
			c.stops[shard]()
			stop, err := c.store.RegisterShard(c.ctx, placement.Shard{
				Name: shard, Address: c.shards[shard].address, VolumeUUID: c.shards[shard].volume, Generation: 2, Domain: "n1",
			})
			must.OK(t, err)
			defer stop()
		}
		// The gateway may still have an older view. If the group lacks members in that view, the planner plans a Repair; if
		// the labels are missing, it plans nothing. The test ignores both results.
		var out *recordv1.PlanMovesResponse
		// If the call's deadline passes, the test fails.
		for len(out.GetMoves()) != 1 || out.GetMoves()[0].GetReason() != "Domain" {
			time.Sleep(time.Millisecond)
			if out, err = c.admin.PlanMoves(c.ctx, &recordv1.PlanMovesRequest{}); err != nil {
				t.Fatal(err)
			}
		}
		if m := out.GetMoves()[0]; m.GetRunning() || !slices.Equal(m.GetSharedDomains(), []string{"n1"}) {
			t.Fatalf("%v", out)
		}
	})
}

func TestFollowerRowsIncludeLeadersReport(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, hash(1), gateway.Config{}, "a", "b")
		for i, name := range []string{"a", "b"} {
			s := c.shards[name]
			s.mu.Lock()
			s.records = map[string]map[int64]*recordv1.Record{"0": {}}
			s.raftID = uint64(2*i + 1)
			if name == "a" {
				s.members = map[string][]*recordv1.Member{"0": {{RaftId: 1, MatchIndex: 9},
					{RaftId: 3, Shard: "b", MatchIndex: 5, LagEntries: 4}}}
			}
			s.mu.Unlock()
		}
		out, err := c.admin.ListGroups(c.ctx, &recordv1.ListGroupsRequest{})
		if err != nil || len(out.GetGroups()) != 2 {
			t.Fatalf("%v, %v", out, err)
		}
		if b := out.GetGroups()[1]; b.GetShard() != "b" || b.MatchIndex == nil || b.GetMatchIndex() != 5 ||
			b.LagEntries == nil || b.GetLagEntries() != 4 {
			t.Errorf("row of b: %v", b)
		}
	})
}
