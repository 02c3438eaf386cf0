package shard

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	"sheaf.dev/sheaf/client/recordv1"
	"sheaf.dev/sheaf/internal/call/paging"
	"sheaf.dev/sheaf/internal/placement"
	"sheaf.dev/sheaf/internal/status/page"
)

// The page shows only data from /status, so the test checks /status.
func TestTheStatusSaysTheStateInASentence(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *bubble) {
		f := start(t, newRegistry(hash4, "s1"), nil).ready()
		told := func() *recordv1.ShardStatus {
			t.Helper()
			st := &recordv1.ShardStatus{}
			answer := httptest.NewRecorder()
			handlerOf(f.shard).ServeHTTP(answer, httptest.NewRequest(http.MethodGet, "/status", nil))
			if err := json.Unmarshal(answer.Body.Bytes(), st); err != nil || answer.Code != http.StatusOK {
				t.Fatalf("/status: %d, %v", answer.Code, err)
			}
			return st
		}
		if s := told().Summary; s.GetState() != page.Ready || s.GetText() != "Ready: 4 groups here serve" || s.GetDo() != "" {
			t.Errorf("all well: %+v", s)
		}
		f.registry.mu.Lock()
		f.registry.silent = 12 * time.Second
		f.registry.mu.Unlock()
		if st := told(); st.GetShard().GetEtcdSilentSeconds() < 12 || st.GetShard().GetEtcdSilentSeconds() > 100 ||
			st.Summary.State != page.Problems ||
			!strings.HasPrefix(st.Summary.Text, "Without etcd for 12 s") {
			t.Errorf("without etcd: %+v, %v s", st.Summary, st.GetShard().GetEtcdSilentSeconds())
		}
		f.registry.mu.Lock()
		f.registry.silent = 0
		f.registry.mu.Unlock()
		f.registry.change(func(v *placement.View) { v.States = map[string]placement.ShardState{"s1": placement.Draining} })
		f.eventually("it is said that the shard is emptied", func() bool {
			return told().Summary.Text == "Ready: 4 groups here serve; the shard is being emptied"
		})
		f.shard.stopping.Store(true)
		if s := told().Summary; s.State != page.NotReady || !strings.Contains(s.Text, "is stopping") {
			t.Errorf("stopping: %+v", s)
		}
		f.shard.stopping.Store(false)
	})
}

func TestAShardListsItsGroupsByPages(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *bubble) {
		f := start(t, newRegistry(named, "s1", "10", "9", "b", "a", "1"), nil).ready()
		for size, wanted := range map[int32]string{0: "1 9 10 a b", 1: "1|9|10|a|b", 2: "1 9|10 a|b", 5: "1 9 10 a b",
			1001: "1 9 10 a b"} {
			in := &recordv1.ListGroupsRequest{PageSize: size}
			var pages []string
			for len(pages) == 0 || in.GetPageToken() != "" {
				out, err := f.admin.ListGroups(f.ctx(), in)
				if err != nil || len(pages) > 5 {
					t.Fatalf("page %d: %v", len(pages), err)
				}
				var names []string
				for _, g := range out.GetGroups() {
					names = append(names, g.GetGroup())
				}
				pages, in.PageToken = append(pages, strings.Join(names, " ")), out.GetNextPageToken()
			}
			if got := strings.Join(pages, "|"); got != wanted {
				t.Errorf("pages of %d: %s, want %s", size, got, wanted)
			}
		}
		one, err := f.admin.ListGroups(f.ctx(), &recordv1.ListGroupsRequest{Group: "9", PageSize: 1})
		if err != nil || len(one.GetGroups()) != 1 || one.GetNextPageToken() != "" {
			t.Errorf("%v, %v", one, err)
		}
		for _, in := range []*recordv1.ListGroupsRequest{
			{PageSize: -1}, {PageToken: "x"}, {Group: "9", PageToken: paging.Token(paging.Groups, "1")},
			{PageToken: paging.Token(paging.Shards, "1")},
		} {
			_, err := f.admin.ListGroups(f.ctx(), in)
			want(t, err, codes.InvalidArgument, "")
		}
		_, err = f.admin.ListShards(f.ctx(), &recordv1.ListShardsRequest{PageSize: -1})
		want(t, err, codes.InvalidArgument, "")
	})
}
