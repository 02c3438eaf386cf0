package recordv1_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc"

	"sheaf.dev/sheaf/client/recordv1"
)

// pagedStore is a store that returns its listing in pages. The token of a page is its number.
type pagedStore struct {
	recordv1.AdminServiceClient
	pages [][]string
	older int // from this page on, a server that does not support pages responds; 0 if there is no such server
	fails int // number of the page whose request fails; 0 if none fails
}

func (l *pagedStore) page(token string) (names []string, next string, err error) {
	n := 0
	if token != "" {
		_, _ = fmt.Sscan(token, &n)
	}
	switch {
	case l.fails > 0 && n == l.fails:
		return nil, "", errors.New("away")
	case l.older > 0 && n >= l.older:
		return slices.Concat(l.pages...), "", nil
	case n+1 < len(l.pages):
		next = fmt.Sprint(n + 1)
	}
	return l.pages[n], next, nil
}

func (l *pagedStore) ListGroups(_ context.Context, in *recordv1.ListGroupsRequest, _ ...grpc.CallOption) (
	*recordv1.ListGroupsResponse, error) {
	names, next, err := l.page(in.GetPageToken())
	out := &recordv1.ListGroupsResponse{NextPageToken: next}
	for _, name := range names {
		for _, shard := range []string{"s1", "s2"} {
			out.Groups = append(out.Groups, &recordv1.Group{Group: name, Shard: shard})
		}
	}
	return out, err
}

func (l *pagedStore) ListShards(_ context.Context, in *recordv1.ListShardsRequest, _ ...grpc.CallOption) (
	*recordv1.ListShardsResponse, error) {
	names, next, err := l.page(in.GetPageToken())
	out := &recordv1.ListShardsResponse{NextPageToken: next, Problems: []string{"of page " + in.GetPageToken()}}
	for _, name := range names {
		out.Shards = append(out.Shards, &recordv1.Shard{Name: name})
	}
	return out, err
}

func (l *pagedStore) PlanMoves(_ context.Context, in *recordv1.PlanMovesRequest, _ ...grpc.CallOption) (
	*recordv1.PlanMovesResponse, error) {
	names, next, err := l.page(in.GetPageToken())
	out := &recordv1.PlanMovesResponse{NextPageToken: next}
	for _, name := range names {
		out.Moves = append(out.Moves, &recordv1.Move{Group: name})
	}
	return out, err
}

func TestAllPagesAreOneListing(t *testing.T) {
	pages := [][]string{{"a", "b"}, {"c"}, {"d", "e"}}
	for name, store := range map[string]*pagedStore{
		"pages": {pages: pages}, "one page": {pages: [][]string{slices.Concat(pages...)}},
		"then an older server": {pages: pages, older: 1}, "an older server at the end": {pages: pages, older: 2},
	} {
		groups, err := recordv1.AllGroups(t.Context(), store, &recordv1.ListGroupsRequest{})
		var got strings.Builder
		for _, g := range groups.GetGroups() {
			got.WriteString(g.GetGroup() + g.GetShard() + " ")
		}
		if err != nil || got.String() != "as1 as2 bs1 bs2 cs1 cs2 ds1 ds2 es1 es2 " {
			t.Errorf("%s: %s, %v", name, got.String(), err)
		}
		shards, err := recordv1.AllShards(t.Context(), store)
		got.Reset()
		for _, s := range shards.GetShards() {
			got.WriteString(s.GetName())
		}
		moves, errMoves := recordv1.AllMoves(t.Context(), store)
		for i, m := range moves.GetMoves() {
			if name := got.String()[i : i+1]; m.GetGroup() != name {
				t.Errorf("%s: move %d is of %s, want %s", name, i, m.GetGroup(), name)
			}
		}
		if errMoves != nil || len(moves.GetMoves()) != 5 {
			t.Errorf("%s: %v, %v", name, moves, errMoves)
		}
		if err != nil || got.String() != "abcde" || !slices.Equal(shards.GetProblems(), []string{"of page "}) {
			t.Errorf("%s: %v, %v", name, shards, err)
		}
	}
	store := &pagedStore{pages: pages, fails: 2}
	if out, err := recordv1.AllGroups(t.Context(), store, &recordv1.ListGroupsRequest{}); err == nil || out != nil {
		t.Errorf("a page that fails: %v, %v", out, err)
	}
	if out, err := recordv1.AllShards(t.Context(), store); err == nil || out != nil {
		t.Errorf("a page that fails: %v, %v", out, err)
	}
}

// parts is a WatchRouting stream that returns prepared responses.
type parts struct {
	grpc.ClientStream
	left []*recordv1.WatchRoutingResponse
}

func (p *parts) Recv() (*recordv1.WatchRoutingResponse, error) {
	if len(p.left) == 0 {
		return nil, io.EOF
	}
	next := p.left[0]
	p.left = p.left[1:]
	return next, nil
}

func TestATableIsReceivedWhole(t *testing.T) {
	part := func(epoch uint64, more bool, groups ...string) *recordv1.WatchRoutingResponse {
		out := &recordv1.WatchRoutingResponse{Epoch: epoch, More: more}
		for _, g := range groups {
			out.Groups = append(out.Groups, &recordv1.GroupRoute{Group: g})
		}
		return out
	}
	stream := &parts{left: []*recordv1.WatchRoutingResponse{part(1, true, "a", "b"), part(1, true, "c"),
		part(1, false, "d"), part(2, false, "e"), part(3, false), part(4, true, "f")}}
	for _, want := range []string{"1 abcd", "2 e", "3 "} {
		table, err := recordv1.ReceiveRouting(stream)
		got := fmt.Sprint(table.GetEpoch(), " ")
		for _, g := range table.GetGroups() {
			got += g.GetGroup()
		}
		if err != nil || got != want || table.GetMore() {
			t.Errorf("%q, %v, want %q", got, err, want)
		}
	}
	if table, err := recordv1.ReceiveRouting(stream); !errors.Is(err, io.EOF) || table != nil {
		t.Errorf("a table that breaks off: %v, %v", table, err)
	}
}
