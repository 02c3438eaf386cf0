package gateway

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/google/uuid"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"sheaf.dev/sheaf/client/recordv1"
	"sheaf.dev/sheaf/internal/call/paging"
	"sheaf.dev/sheaf/internal/placement"
	"sheaf.dev/sheaf/internal/placement/registry"
	"sheaf.dev/sheaf/internal/security/access"
	"sheaf.dev/sheaf/internal/test/must"
	"sheaf.dev/sheaf/internal/test/soaktest"
)

// clientBytes is the size of the largest message that a gRPC client accepts by default.
const clientBytes = 4 << 20

// gatewayWithView returns a gateway that has a view but cannot reach any shard. It must be called in a bubble.
func gatewayWithView(t *testing.T, view placement.View) *Gateway {
	t.Helper()
	r := newRouter(Config{Logger: slog.New(slog.DiscardHandler),
		ShardCredentials: func(string) credentials.TransportCredentials { return insecure.NewCredentials() },
		Dial:             func(context.Context, string) (net.Conn, error) { return nil, net.ErrClosed },
	})
	t.Cleanup(r.close)
	r.set(view)
	store, err := registry.NewStore(nil, "quotes", nil) // the client is nil, because no test reads from etcd
	must.OK(t, err)
	return &Gateway{cfg: Config{Store: store}, router: r, stopping: make(chan struct{})}
}

// manyGroups is the view of a store with n named groups of three copies.
func manyGroups(n int) placement.View {
	view := placement.View{Epoch: 7, Meta: placement.Meta{StoreUUID: uuid.New(), Copies: 3,
		Routing: placement.Routing{Mode: placement.Named}}, Groups: make(map[string]placement.Group, n),
		Shards: map[string]placement.Shard{}}
	for i := range 3 {
		name := fmt.Sprintf("quotes-%d", i)
		view.Shards[name] = placement.Shard{Name: name, Address: name + ".quotes.trading.svc:7400"}
	}
	for i := range n {
		name := fmt.Sprintf("instrument-%06d", i)
		g := placement.Group{Name: name, UUID: uuid.New(), Leader: "quotes-0"}
		for shard := range 3 {
			g.Members = append(g.Members, placement.Member{Shard: fmt.Sprintf("quotes-%d", shard),
				RaftID: uint64(shard + 1), Role: placement.Voter})
		}
		view.Groups[name] = g
	}
	return view
}

func TestPagesOf100000Groups(t *testing.T) { synctest.Test(t, pagesOf100000Groups) }

func pagesOf100000Groups(t *testing.T) {
	const groups = 100_000
	admin := &adminServer{g: gatewayWithView(t, manyGroups(groups))}
	in := &recordv1.ListGroupsRequest{PageSize: 1 << 30} // the gateway reduces this page size to its limit
	last, rows, pages := "", 0, 0
	for {
		out, err := admin.ListGroups(t.Context(), in)
		must.OK(t, err)
		if size := proto.Size(out); size > paging.BytesMax+16<<10 {
			t.Fatalf("page %d has %d bytes", pages, size)
		}
		for _, row := range out.GetGroups() {
			name := row.GetGroup() + "/" + row.GetShard()
			if name <= last {
				t.Fatalf("%s comes behind %s", name, last)
			}
			last = name
		}
		rows, pages = rows+len(out.GetGroups()), pages+1
		if in.PageToken = out.GetNextPageToken(); in.PageToken == "" {
			break
		}
	}
	if rows != 3*groups || pages != groups/paging.NamesMax {
		t.Errorf("%d rows on %d pages", rows, pages)
	}
	// A client that does not use pages gets one complete response.
	if all, err := admin.ListGroups(t.Context(), &recordv1.ListGroupsRequest{}); err != nil ||
		len(all.GetGroups()) != 3*groups || all.GetNextPageToken() != "" {
		t.Errorf("without pages: %d rows, %v", len(all.GetGroups()), err)
	}
}

// sent is a WatchRouting stream whose caller disconnects after the first table.
type sent struct {
	grpc.ServerStream
	ctx      context.Context
	end      context.CancelFunc
	messages []*recordv1.WatchRoutingResponse
}

func (s *sent) Context() context.Context { return s.ctx }

func (s *sent) Send(m *recordv1.WatchRoutingResponse) error {
	s.messages = append(s.messages, m)
	if !m.GetMore() {
		s.end()
	}
	return nil
}

func TestATableOfManyRoutesComesInParts(t *testing.T) {
	synctest.Test(t, aTableOfManyRoutesComesInParts)
}

func aTableOfManyRoutesComesInParts(t *testing.T) {
	const groups = 45_000
	g := gatewayWithView(t, manyGroups(groups))
	watch := func(in *recordv1.WatchRoutingRequest) []*recordv1.WatchRoutingResponse {
		ctx, cancel := context.WithCancel(access.WithCall(t.Context(), access.Everybody))
		s := &sent{ctx: ctx, end: cancel}
		_ = (&routingServer{g: g}).WatchRouting(in, s) // the error is that of the context, which s cancels
		return s.messages
	}
	whole := watch(&recordv1.WatchRoutingRequest{})
	if len(whole) != 1 || whole[0].GetMore() || len(whole[0].GetGroups()) != groups {
		t.Fatalf("a caller that knows no parts gets %d messages", len(whole))
	}
	if proto.Size(whole[0]) <= clientBytes {
		t.Fatalf("the table has %d bytes: take more groups", proto.Size(whole[0]))
	}
	var names []string
	parts := watch(&recordv1.WatchRoutingRequest{InParts: true})
	for i, part := range parts {
		if proto.Size(part) > clientBytes || part.GetMore() != (i < len(parts)-1) ||
			part.GetEpoch() != whole[0].GetEpoch() || part.GetStoreUuid() != whole[0].GetStoreUuid() ||
			part.GetMode() != whole[0].GetMode() {
			t.Fatalf("part %d of %d: %d bytes, epoch %d, more %v", i, len(parts), proto.Size(part), part.GetEpoch(),
				part.GetMore())
		}
		for _, r := range part.GetGroups() {
			names = append(names, r.GetGroup())
		}
	}
	if !slices.EqualFunc(names, whole[0].GetGroups(), func(name string, r *recordv1.GroupRoute) bool {
		return name == r.GetGroup()
	}) {
		t.Errorf("%d routes in %d parts, want %d", len(names), len(parts), groups)
	}
	if empty := watch(&recordv1.WatchRoutingRequest{InParts: true, KnownEpoch: 6}); len(empty) != len(parts) {
		t.Errorf("who knows another epoch gets %d messages", len(empty))
	}
}

func TestAnEmptyTableInPartsIsOneMessage(t *testing.T) {
	synctest.Test(t, anEmptyTableInPartsIsOneMessage)
}

func anEmptyTableInPartsIsOneMessage(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	s := &sent{ctx: ctx, end: cancel}
	_ = (&routingServer{g: gatewayWithView(t, manyGroups(0))}).WatchRouting(
		&recordv1.WatchRoutingRequest{InParts: true}, s)
	if len(s.messages) != 1 || s.messages[0].GetMore() || s.messages[0].GetEpoch() != 7 {
		t.Errorf("%v", s.messages)
	}
}

// TestPagesAreTheWholeListing checks that all pages of a gateway together are its whole listing, however shards answer:
// in pages; without pages, as older shards do; in pages limited by bytes; not at all; or with groups that etcd does not
// have.
func TestPagesAreTheWholeListing(t *testing.T) {
	filler := strings.Repeat("x", paging.BytesMax)
	soaktest.Check(t, func(t *rapid.T) {
		view := placement.View{Meta: placement.Meta{Routing: placement.Routing{Mode: placement.Named}},
			Groups: map[string]placement.Group{}}
		rows := map[string][]*recordv1.Group{} // the keys are shards
		shards := []*shard{{name: "a"}, {name: "b"}, {name: "c"}}
		name := rapid.SampledFrom([]string{"0", "1", "2", "9", "10", "11", "100", "a", "aa", "b", "x"})
		for _, group := range rapid.SliceOfNDistinct(name, 0, 11, rapid.ID).Draw(t, "groups") {
			g := placement.Group{Name: group}
			known := rapid.IntRange(0, 4).Draw(t, "known") > 0
			for _, s := range shards {
				if rapid.Bool().Draw(t, "has it") {
					g.Members = append(g.Members, placement.Member{Shard: s.name})
					rows[s.name] = append(rows[s.name], &recordv1.Group{Group: group, Shard: s.name,
						Message: filler[:rapid.SampledFrom([]int{0, paging.BytesMax}).Draw(t, "bytes")]})
				}
			}
			if known {
				view.Groups[group] = g
			}
		}
		old, silent := map[string]bool{}, map[string]bool{}
		for _, s := range shards {
			old[s.name] = rapid.IntRange(0, 3).Draw(t, "older than pages") == 0
			silent[s.name] = rapid.IntRange(0, 3).Draw(t, "silent") == 0
			slices.SortFunc(rows[s.name], func(a, b *recordv1.Group) int {
				return placement.CompareGroups(a.GetGroup(), b.GetGroup())
			})
		}
		table := &table{view: view, named: map[string]*route{}}
		for group := range view.Groups {
			table.named[group] = &route{group: group}
		}
		table.inOrder, table.unplaced = table.sortRoutes, func() map[string]string { return nil }
		list := func(in *recordv1.ListGroupsRequest) ([]string, string) {
			page, _, err := paging.Asked(paging.Groups, in)
			must.OK(t, err)
			answers := make([]*recordv1.ListGroupsResponse, len(shards))
			for i, s := range shards {
				asked := page
				if old[s.name] {
					asked = paging.Page{}
				}
				behind := slices.DeleteFunc(slices.Clone(rows[s.name]), func(g *recordv1.Group) bool {
					return placement.CompareGroups(g.GetGroup(), asked.After) <= 0
				})
				if !silent[s.name] {
					answers[i] = &recordv1.ListGroupsResponse{}
					answers[i].Groups, answers[i].NextPageToken = paging.Cut(asked, behind, (*recordv1.Group).GetGroup, false)
				}
			}
			merged, more := table.groupRows("", page, shards, answers)
			merged, next := paging.Cut(page, merged, (*recordv1.Group).GetGroup, more)
			var names []string
			for _, g := range merged {
				names = append(names, g.GetGroup()+"/"+g.GetShard()+"/"+g.GetState().Word())
			}
			return names, next
		}
		whole, next := list(&recordv1.ListGroupsRequest{})
		if next != "" {
			t.Fatal("the whole listing has a next page")
		}
		size := rapid.Int32Range(1, 12).Draw(t, "page size")
		var got []string
		for token, pages := "", 0; ; pages++ {
			names, next := list(&recordv1.ListGroupsRequest{PageSize: size, PageToken: token})
			if got = append(got, names...); next == "" {
				break
			}
			if token = next; pages > len(whole)+1 {
				t.Fatal("the pages do not end")
			}
		}
		if !slices.Equal(got, whole) {
			t.Fatalf("pages of %d:\n%v, want\n%v", size, got, whole)
		}
	})
}

func TestTheProblemsOfAStoreAreBounded(t *testing.T) { synctest.Test(t, theProblemsOfAStoreAreBounded) }

func theProblemsOfAStoreAreBounded(t *testing.T) {
	view := manyGroups(1)
	view.Unusable = map[string]placement.Unusable{}
	for i := range 1000 {
		name := fmt.Sprintf("groups/odd-%d", i)
		view.Unusable[name] = placement.Unusable{Key: name, Why: strings.Repeat("why ", 10)}
	}
	admin := &adminServer{g: gatewayWithView(t, view)}
	out, err := admin.ListShards(t.Context(), &recordv1.ListShardsRequest{PageSize: 2})
	if err != nil || len(out.GetProblems()) != problemsMax+1 ||
		!strings.Contains(out.GetProblems()[problemsMax], "900 more") {
		t.Fatalf("%d problems, %v", len(out.GetProblems()), err)
	}
	if len(out.GetShards()) != 2 || out.GetNextPageToken() == "" {
		t.Fatalf("%v", out.GetShards())
	}
	second, err := admin.ListShards(t.Context(), &recordv1.ListShardsRequest{PageSize: 2,
		PageToken: out.GetNextPageToken()})
	if err != nil || len(second.GetProblems()) != 0 || len(second.GetShards()) != 1 ||
		second.GetShards()[0].GetName() != "quotes-2" || second.GetNextPageToken() != "" {
		t.Fatalf("%v, %v", second, err)
	}
}
