package page_test

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"sheaf.dev/sheaf/client/recordv1"
	"sheaf.dev/sheaf/internal/gateway"
	"sheaf.dev/sheaf/internal/local/dev"
	"sheaf.dev/sheaf/internal/placement"
	"sheaf.dev/sheaf/internal/status/finding"
	"sheaf.dev/sheaf/internal/status/page"
)

// hostileName is a name that no store accepts. If such a name ever reached the page, it must be shown as text.
const hostileName = `<img src="x" onerror="document.title='broken'">`

// TestThePageInABrowser runs the page in Chromium and checks the resulting document.
func TestThePageInABrowser(t *testing.T) {
	if testing.Short() {
		t.Skip("a browser is no part of the short tests")
	}
	browser, err := exec.LookPath("chromium")
	if err != nil {
		t.Skip("chromium is not installed")
	}
	eta := 6.0
	one := &recordv1.ShardStatus{
		Summary: &recordv1.StatusSummary{State: page.Loading, Text: "Loading: 1 of 4 groups"},
		Shard: &recordv1.Shard{
			Name: "quotes-0", Alive: true, State: recordv1.ShardState_SHARD_STATE_LOADING,
			Load: &recordv1.Load{GroupsTotal: 4, GroupsLoaded: 1, BytesTotal: 1000, BytesDone: 420, BytesPerSecond: 100,
				EtaSeconds: 5.8},
			FileSystem: "xfs", Source: "/dev/x", CapacityBytes: 4 << 30, FreeBytes: 1 << 30, MemoryUsedBytes: 3 << 20,
			MemoryLimitBytes: 4 << 20,
		},
		Groups: []*recordv1.Group{{Group: "7", State: recordv1.GroupState_GROUP_STATE_LOADING}},
		Moves: []*recordv1.Move{{Group: "9", Copies: []*recordv1.Copy{{From: "quotes-1", Shard: "quotes-0",
			Phase: recordv1.CopyPhase_COPY_PHASE_FILES, BytesTotal: 100, BytesDone: 40, EtaSeconds: &eta}}}},
		Strays: []*recordv1.StrayGroup{{Group: "old", Reason: "etcd says that it is elsewhere"}},
	}
	bad := proto.CloneOf(one)
	bad.Shard.State, bad.Shard.Load = recordv1.ShardState_SHARD_STATE_SERVING, &recordv1.Load{Done: true}
	bad.Shard.Problems = []string{"the disk is slow: see to it"}
	bad.Findings = finding.Messages([]finding.Finding{
		{Severity: finding.Problem, Where: "shard quotes-0", What: "the disk is slow: see to it"},
		{Severity: finding.Problem, Where: "group b on shard quotes-0", What: "its manifest is gone",
			Do: "sheaf verify reads all of it"},
		{Severity: finding.Warning, Where: "shard quotes-0", What: "writes will be refused soon"},
	})
	bad.Groups = []*recordv1.Group{
		{Group: hostileName, State: recordv1.GroupState_GROUP_STATE_DAMAGED, Damages: []*recordv1.Damage{{File: "segment-1",
			OffsetBytes: 1234, LengthBytes: 2048, What: "entry content is bad", Records: new(int32(1))}}},
		{Group: "b", State: recordv1.GroupState_GROUP_STATE_FAILED, Message: "its manifest is gone"},
		{Group: "c", State: recordv1.GroupState_GROUP_STATE_SERVING, Leader: true, Records: 12345},
	}
	bad.Uncompacted = []*recordv1.UncompactedBytes{{Reason: "scan", Bytes: 3 << 20, Groups: 2, Group: "c",
		Text: "an open scan sees them"}}
	for name, c := range map[string]struct {
		status any
		has    []string
	}{
		"a shard that loads": {one, []string{
			"Shard quotes-0", "Loading: 1 of 4 groups", `class="busy"`,
			"42 %, 1 of 4 groups, 420 B of 1000 B, 100 B/s, 6 s left", "group 7: Loading, 0 records",
			"3.0 MiB of 4.0 MiB", "1.0 GiB free of 4.0 GiB", "xfs on /dev/x", "quotes-1 → quotes-0",
			"Files: 40 B of 100 B, 6 s left",
		}},
		"sheaf dev with damage": {dev.Status{
			Dir: "/x", Summary: &recordv1.StatusSummary{State: page.Damaged, Text: "Damaged: group " + hostileName,
				Do: "accept the loss"},
			Shards: []*recordv1.ShardStatus{bad}, Load: bad.GetShard().GetLoad(),
		}, []string{
			`class="bad"`, "Damaged: group &lt;img", "accept the loss", "the disk is slow: see to it", "its manifest is gone",
			"sheaf verify reads all of it", "writes will be refused soon", "etcd says that it is elsewhere",
			"segment-1, 2.0 KiB at 1,234; 1 record (sheaf status", "on quotes-0 (leader)", "1 Failed", "1 Damaged", "1 Serving",
			"12,345 records", "3.0 MiB in 2 groups", "an open scan sees them",
		}},
		"a gateway": {gateway.Status{
			Store: "quotes", Summary: &recordv1.StatusSummary{State: page.Problems, Text: "Without etcd for 12 s"}, Copies: 3,
			Routing: &placement.Routing{Mode: placement.Named},
			Shards: []gateway.ShardStatus{{Name: "a", State: "Active", Node: "n1", Zone: "z1", GroupCount: 2, Leaders: 1},
				{Name: "b", State: "Silent"}},
			Groups: []gateway.GroupStatus{{Group: "g", State: "Degraded", Leader: "a", Shards: []string{"a", "b"}}},
			Moves: []gateway.MoveStatus{{Group: "g", From: []string{"a"}, To: []string{"d"}, Bytes: 1 << 20, Reason: "Drain",
				Running: true}},
			Findings: []finding.Finding{{Severity: finding.Problem, Where: "shard b", What: "it is not registered"}},
		}, []string{
			"Gateway of store quotes", "Without etcd for", "node n1, zone z1", "groups </span>2, leads 1", "Silent",
			"leader a, copies on a, b", "1 Degraded", "a → d",
			"under way, Drain, 1.0 MiB", "shard b:", "it is not registered",
		}},
		"no answer": {nil, []string{"The process does not answer"}},
	} {
		t.Run(name, func(t *testing.T) {
			mux := http.NewServeMux()
			page.Handle(mux)
			if c.status != nil {
				mux.HandleFunc("GET /status", func(w http.ResponseWriter, _ *http.Request) {
					_ = json.NewEncoder(w).Encode(c.status)
				})
			}
			server := httptest.NewServer(mux)
			defer server.Close()
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			run := exec.CommandContext(ctx, browser, "--headless", "--no-sandbox", "--disable-gpu", "--disable-crash-reporter",
				"--disable-breakpad",
				"--user-data-dir="+t.TempDir(), "--virtual-time-budget=1500", "--dump-dom", server.URL+"/")
			run.WaitDelay = time.Second
			out, err := run.Output()
			if err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			_, document, _ := strings.Cut(string(out), "<body")
			document, script, _ := strings.Cut(document, "<script>")
			for _, want := range c.has {
				if !strings.Contains(document, want) {
					t.Errorf("%q is not there: %s", want, document)
				}
			}
			if script == "" || strings.Contains(document, "<img") || strings.Contains(document, "<title>broken") ||
				strings.Contains(document, "undefined") || strings.Contains(document, "NaN") {
				t.Errorf("the document: %s", document)
			}
		})
	}
}
