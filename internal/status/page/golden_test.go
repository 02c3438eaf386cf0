package page_test

import (
	"flag"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"

	"sheaf.dev/sheaf/client/recordv1"
	"sheaf.dev/sheaf/internal/gateway"
	"sheaf.dev/sheaf/internal/local/dev"
	"sheaf.dev/sheaf/internal/placement"
	"sheaf.dev/sheaf/internal/status/finding"
	"sheaf.dev/sheaf/internal/status/page"
	"sheaf.dev/sheaf/internal/test/must"
)

var update = flag.Bool("update", false, "write the golden files anew")

// shardWithAllFigures returns the status of a shard in which every field has a value.
func shardWithAllFigures() *recordv1.ShardStatus {
	eta := 6.5
	return &recordv1.ShardStatus{
		Summary: &recordv1.StatusSummary{State: page.Damaged, Text: "Damaged: group 7", Do: "accept the loss"},
		Shard: &recordv1.Shard{
			Name: "quotes-0", Address: "10.0.0.1:7610", Alive: true, Version: "v1.2.3",
			VolumeUuid: "11111111-1111-4111-8111-111111111111", StoreUuid: "22222222-2222-4222-8222-222222222222",
			Generation: 3, Path: "/data", FileSystem: "xfs", MountOptions: []string{"rw", "noatime"}, Source: "/dev/x",
			Rotational: new(false), CapacityBytes: 4 << 40, FreeBytes: 1 << 40, ReserveBytes: 1 << 30,
			MemoryNeedBytes: 3 << 30, MemoryUsedBytes: 2 << 30, MemoryLimitBytes: 4 << 30, Residency: "Index",
			Groups: 2, Leaders: 1, RoutingEpoch: 77, Stopping: true,
			Load: &recordv1.Load{GroupsTotal: 4, GroupsLoaded: 2, GroupsDamaged: 1, GroupsFailed: 1, BytesTotal: 1000,
				BytesDone: 420, BytesPerSecond: 100, DeviceBytesPerSecond: 200, DevicePercent: 50, EtaSeconds: 5.8,
				ElapsedSeconds: 4.2, Done: true},
			EtcdSilentSeconds: new(1.5),
			SlowSyncs:         &recordv1.SlowSyncs{Total: 1, NewestSeconds: .6, NewestSecondsAgo: 7, NewestFile: "journal"},
			Traffic:           &recordv1.Traffic{CallsTotal: 5, RecordBytesTotal: 6, UnaryCallsTotal: 7, UnarySecondsTotal: 8.5},
			VolumeSilent:      true, Problems: []string{"the disk is slow: see to it"},
			State: recordv1.ShardState_SHARD_STATE_MEMORY_TOO_SMALL, Message: "it needs more", WantedFileSystem: "ext4",
			WantedMountOptions: []string{"noatime"}, WantedStoreUuid: "55555555-5555-4555-8555-555555555555",
			WantedVolumeUuid: "66666666-6666-4666-8666-666666666666", VolumeShard: "quotes-0", Node: "n1", Zone: "z1",
			Domain: "rack-1", Medium: "SSD",
		},
		Groups: []*recordv1.Group{
			{Group: "7", Uuid: "33333333-3333-4333-8333-333333333333", Shard: "quotes-0",
				State: recordv1.GroupState_GROUP_STATE_DAMAGED, Outcome: recordv1.LoadOutcome_LOAD_OUTCOME_DAMAGED,
				Message: "some stored bytes are bad", Leader: true, Records: 10, StoredBytes: 100, SupersededBytes: 5,
				Segments: 2, AppliedIndex: 12, MemoryBytes: 640, TruncatedBytes: 30, DamagesTotal: 1,
				Damages: []*recordv1.Damage{{Group: "7", File: "segment-1", OffsetBytes: 1234, LengthBytes: 2048,
					What: "entry content is bad", Records: new(int32(2)), IdsUnknown: true}}},
			{Group: "8", State: recordv1.GroupState_GROUP_STATE_LOADING},
		},
		Moves: []*recordv1.Move{{Group: "9", To: []string{"quotes-0"}, Bytes: 100, BytesDone: 40, BytesPerSecond: 9,
			EtaSeconds: &eta, Running: true, Phase: recordv1.MovePhase_MOVE_PHASE_COPYING,
			Copies: []*recordv1.Copy{{From: "quotes-1", Shard: "quotes-0", Phase: recordv1.CopyPhase_COPY_PHASE_FILES,
				BytesTotal: 100, BytesDone: 40, BytesPerSecond: 9, EtaSeconds: &eta}}}},
		Uncompacted: []*recordv1.UncompactedBytes{{Reason: "scan", Bytes: 3 << 20, Groups: 2, Group: "7",
			Text: "an open scan sees them"}},
		Slow: &recordv1.SlowOperations{CallsTotal: 1, SyncsTotal: 1,
			Calls: []*recordv1.SlowCall{{BeganUnixNs: 1700000000000000001, DurationNs: 1500000000, Method: "/m", Group: "7",
				Code: "Unavailable", Reason: "NO_LEADER"}},
			Syncs: []*recordv1.SlowSync{{BeganUnixNs: 1700000000000000002, DurationNs: 600000000, Kind: "journal",
				File: "journal-1", Group: "7", Error: "input/output error"}}},
		Strays: []*recordv1.StrayGroup{{Group: "old", Uuid: "44444444-4444-4444-8444-444444444444",
			Reason: "it is elsewhere"}},
		Findings: finding.Messages([]finding.Finding{{Severity: finding.Problem, Kind: "volume", Where: "shard quotes-0",
			What: "the disk is slow", Do: "see to it"}}),
	}
}

// TestTheJSONOfStatus compares the /status responses of a shard, sheaf dev and a gateway with golden files, because
// scripts read these responses. An empty shard shows which fields are omitted.
func TestTheJSONOfStatus(t *testing.T) {
	st := shardWithAllFigures()
	for name, of := range map[string]any{
		"shard":       st,
		"shard-empty": &recordv1.ShardStatus{Shard: &recordv1.Shard{Alive: true}},
		"dev": dev.Status{Summary: st.Summary, Dir: "/x", Address: "127.0.0.1:7600", Version: "v1.2.3", PID: 42,
			Routing: placement.Routing{Mode: placement.Hash, Groups: 4}, NotYet: "1 of 4 groups serve",
			Load:   st.GetShard().GetLoad(),
			Shards: []*recordv1.ShardStatus{st}},
		"gateway": gateway.Status{Summary: st.Summary, Store: "quotes", Address: "127.0.0.1:7600", Version: "v1.2.3",
			StoreUUID: st.GetShard().GetStoreUuid(), Routing: &placement.Routing{Mode: placement.Hash, Groups: 4}, Copies: 3,
			Epoch:             77,
			EtcdSilentSeconds: new(1.5), Calls: 2, Stopping: true,
			Shards: []gateway.ShardStatus{{Name: "a", Address: "h:1", State: "Active", Node: "n1", Zone: "z1", Domain: "n1",
				CapacityBytes: 5, GroupCount: 2, Leaders: 1, StoredBytes: 6}},
			Groups: []gateway.GroupStatus{{Group: "7", State: "Degraded", Leader: "a", Shards: []string{"a", "b"}, Records: 1,
				StoredBytes: 2}},
			Moves: []gateway.MoveStatus{{Group: "7", From: []string{"a"}, To: []string{"d"}, Bytes: 1 << 20, Reason: "Drain",
				Running: true}},
			Problems: []string{"p"}, Findings: finding.Reported(st),
			LeftOut: &gateway.LeftOut{Groups: 1, GroupStates: map[string]int{"Routed": 1}, Text: "sheaf status shows all"}},
	} {
		mux := http.NewServeMux()
		page.HandleStatus(mux, slog.New(slog.DiscardHandler), func() any { return of })
		answer := httptest.NewRecorder()
		mux.ServeHTTP(answer, httptest.NewRequest(http.MethodGet, "/status", nil))
		got, file := answer.Body.Bytes(), filepath.Join("testdata", name+".json")
		if *update {
			must.OK(t, os.WriteFile(file, got, 0o600))
		}
		want, err := os.ReadFile(file)
		if err != nil || string(want) != string(got) {
			t.Errorf("%v: %s differs (go test ./internal/status/page -update writes it anew; look at it then):\n%s", err,
				file, got)
		}
	}
}
