package shard

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	"sheaf.dev/sheaf/client/recordv1"
	"sheaf.dev/sheaf/internal/placement"
	"sheaf.dev/sheaf/internal/storage/group/format"
	"sheaf.dev/sheaf/internal/storage/volume"
)

// TestARingKeepsTheNewest checks that a ring keeps the newest elements up to its capacity, in descending order of
// time, and counts all elements.
func TestARingKeepsTheNewest(t *testing.T) {
	for _, n := range []int{0, 1, slowKept - 1, slowKept, slowKept + 1, 5*slowKept + 3} {
		var (
			r    ring[int]
			want []int
		)
		for i := range n {
			r.add(i)
			want = slices.Insert(want, 0, i)
		}
		want = want[:min(len(want), slowKept)]
		if kept, total := r.newest(); !slices.Equal(kept, want) || total != int64(n) {
			t.Errorf("of %d it kept %v and counted %d", n, kept, total)
		}
	}
}

// TestSlowCallsAreReported checks that slow calls are reported with their method, group and outcome, the newest first.
// Streams, and calls whose time depends on a group's size, are never reported as slow.
//
// This test runs in real time, because a call takes no virtual time.
func TestSlowCallsAreReported(t *testing.T) {
	t.Parallel()
	f := start(t, newRegistry(hash4, "s1"), func(c *Config) { c.slowCallMin = 1 }).ready()
	began := time.Now()
	id := idsOf(hash4, 2, 1)[0]
	f.put(id, data(id, 100))
	f.get(id)
	f.delete(id)
	f.absent(id)
	if _, _, err := f.scan(&recordv1.ScanRequest{}, 0); err != nil {
		t.Fatal(err)
	}
	if _, err := f.admin.Compact(f.ctx(), &recordv1.CompactRequest{Group: "2"}); err != nil {
		t.Fatal(err)
	}
	if _, err := f.admin.ListGroups(f.ctx(), &recordv1.ListGroupsRequest{Group: "2"}); err != nil {
		t.Fatal(err)
	}
	_, err := f.admin.ListGroups(f.ctx(), &recordv1.ListGroupsRequest{Group: strings.Repeat("x", 1<<20)})
	want(t, err, codes.InvalidArgument, "")

	var got []string
	// A call is counted only after its response was sent.
	f.eventually("six calls are told", func() bool { return f.shard.Status().Slow.CallsTotal >= 6 })
	slow := f.shard.Status().Slow
	for _, c := range slow.Calls {
		got = append(got, strings.Join([]string{c.Method, c.Group, c.Code, c.Reason}, " "))
		if at := time.Unix(0, c.BeganUnixNs); at.Before(began) || c.DurationNs <= 0 || at.Add(time.Duration(c.DurationNs)).
			After(time.Now()) {
			t.Errorf("%s began at %v and took %d ns", c.Method, at, c.DurationNs)
		}
	}
	if words := []string{
		"ListGroups  InvalidArgument ", "ListGroups 2 OK ", "Get 2 NotFound RECORD_NOT_FOUND", "Delete 2 OK ", "Get 2 OK ",
		"Put 2 OK ",
	}; !slices.Equal(got, words) || slow.CallsTotal != int64(len(words)) {
		t.Errorf("%d were slow: %q", slow.CallsTotal, got)
	}
}

func TestCallsAndSyncsInTimeAreNotReported(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *bubble) {
		f := start(t, newRegistry(hash4, "s1"), func(c *Config) {
			c.slowCallMin, c.slowSyncMin = time.Hour, time.Hour
		}).ready()
		f.put(1, data(1, 100))
		f.get(1)
		f.stop()
		if slow := f.shard.Status().Slow; slow.CallsTotal != 0 || slow.SyncsTotal != 0 || len(slow.Calls) != 0 ||
			len(slow.Syncs) != 0 {
			t.Errorf("%+v", slow)
		}
	})
}

// TestSlowSyncsAreReported checks that slow syncs are reported with the file, and with the group that waited for the
// sync.
//
// This test runs in real time, because a sync takes no virtual time.
func TestSlowSyncsAreReported(t *testing.T) {
	t.Parallel()
	f := start(t, newRegistry(placement.Routing{Mode: placement.Hash, Groups: 1}, "s1"), func(c *Config) {
		c.slowSyncMin = 1
	}).ready()
	began := time.Now()
	f.put(1, data(1, 100))
	slow := f.shard.Status().Slow
	found := slices.IndexFunc(slow.Syncs, func(s *recordv1.SlowSync) bool {
		return s.Kind == syncSegment && s.File == format.SegmentName(1) && s.Group == "0"
	})
	if found < 0 || slow.SyncsTotal < int64(len(slow.Syncs)) {
		t.Fatalf("no sync of the group's segment: %+v", slow)
	}
	if s := slow.Syncs[found]; s.DurationNs <= 0 || s.Error != "" || time.Unix(0, s.BeganUnixNs+s.DurationNs).
		Before(began) {
		t.Errorf("%+v", s)
	}

	// These syncs displace the earlier entries. A failed sync is reported with its error, whose message is truncated.
	id := f.shard.replicas.Routes().ByName["0"].UUID
	long := &os.PathError{Op: "sync", Path: strings.Repeat("ä", slowErrorBytesMax), Err: syscall.EIO}
	for n := range slowKept {
		f.shard.metrics.synced(fmt.Sprintf("%s/blob-%d", volume.GroupDirIn(f.cfg.Dir, id), n), 700*time.Millisecond, long)
	}
	recorder := httptest.NewRecorder()
	handlerOf(f.shard).ServeHTTP(recorder, httptest.NewRequest(http.MethodGet, "/status", nil))
	var page struct {
		Slow struct {
			SyncsTotal int64 `json:"syncsTotal"`
			Syncs      []struct {
				Began    int64 `json:"beganUnixNs"`
				Duration int64 `json:"durationNs"`
				Kind     string
				File     string
				Group    string
				Error    string
			}
		}
	}
	must(t, json.Unmarshal(recorder.Body.Bytes(), &page))
	if len(page.Slow.Syncs) != slowKept || page.Slow.SyncsTotal < slowKept+1 {
		t.Fatalf("%d syncs of %d", len(page.Slow.Syncs), page.Slow.SyncsTotal)
	}
	s := page.Slow.Syncs[0]
	if s.Began == 0 || s.Duration != 700e6 || s.Kind != syncBlob || s.File != fmt.Sprintf("blob-%d", slowKept-1) ||
		s.Group != "0" ||
		!strings.HasPrefix(s.Error, "sync ää") || len(s.Error) > slowErrorBytesMax {
		t.Errorf("%+v", s)
	}
}
