package shard

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/protobuf/proto"

	"sheaf.dev/sheaf/client/recordv1"
	"sheaf.dev/sheaf/internal/placement"
	"sheaf.dev/sheaf/internal/storage/group/format"
	"sheaf.dev/sheaf/internal/test/vfstest"
)

// gathered returns all samples in a registry. The keys consist of the name and the labels, as in
// `name{method="Get"}`, without the label that names the shard. The value for a histogram is its count.
func gathered(t testing.TB, registry *prometheus.Registry) map[string]float64 {
	t.Helper()
	families, err := registry.Gather()
	must(t, err)
	samples := map[string]float64{}
	for _, family := range families {
		for _, m := range family.GetMetric() {
			var labels []string
			for _, label := range m.GetLabel() {
				if label.GetName() != "shard" {
					labels = append(labels, fmt.Sprintf("%s=%q", label.GetName(), label.GetValue()))
				}
			}
			name := family.GetName()
			if len(labels) > 0 {
				name += "{" + strings.Join(labels, ",") + "}"
			}
			samples[name] = m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
		}
	}
	return samples
}

// TestEveryMethodCountsItsRecords checks that each record is counted once, with its bytes, when the caller has
// received it. Refused and missing records are not counted.
func TestEveryMethodCountsItsRecords(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *bubble) {
		metrics := prometheus.NewRegistry()
		f := start(t, newRegistry(hash4, "s1"), func(c *Config) { c.Registry = metrics }).ready()
		f.put(1, data(1, 1000))
		f.put(2, data(2, 500))
		f.get(1)
		f.get(2)
		f.absent(3)
		f.delete(2)

		puts, err := f.records.BatchPut(f.ctx())
		must(t, err)
		batch := &recordv1.BatchPutRequest{Puts: []*recordv1.PutRequest{
			{Key: key(10), Data: data(10, 100)}, {Key: key(11), Data: data(11, 200)}, {Data: []byte("no key")},
			{Key: key(1), Data: data(9, 50), Condition: &recordv1.WriteCondition{Condition: &recordv1.WriteCondition_IfAbsent{
				IfAbsent: true}}},
		}}
		must(t, puts.Send(batch))
		if _, err := puts.Recv(); err != nil {
			t.Fatal(err)
		}
		must(t, puts.CloseSend())
		if _, err := puts.Recv(); !errors.Is(err, io.EOF) {
			t.Fatal(err)
		}

		gets, err := f.records.BatchGet(f.ctx(), &recordv1.BatchGetRequest{Gets: []*recordv1.GetRequest{
			{Key: key(10)}, {Key: key(3)}, {Key: key(11)}, {Key: key(1), MetadataOnly: true},
		}})
		must(t, err)
		for err == nil {
			_, err = gets.Recv()
		}
		if !errors.Is(err, io.EOF) {
			t.Fatal(err)
		}

		const large = format.DataBytesMax + 5
		if _, err := f.upload(&recordv1.UploadHeader{Key: key(20)},
			cut(data(20, large), format.BlobChunkBytes)...); err != nil {
			t.Fatal(err)
		}
		if _, _, err := f.download(&recordv1.DownloadRequest{Key: key(20), OffsetBytes: 5}); err != nil {
			t.Fatal(err)
		}
		if _, _, err := f.download(&recordv1.DownloadRequest{Key: key(1)}); err != nil {
			t.Fatal(err)
		}
		if records, _, err := f.scan(&recordv1.ScanRequest{}, 0); err != nil || len(records) != 4 {
			t.Fatal(len(records), err)
		}
		w := f.watch("0", nil)
		must(t, w.next())
		open := `sheaf_shard_open_streams{method="Watch"}`
		if n := gathered(t, metrics)[open]; n != 1 {
			t.Errorf("%s is %v beside one Watch", open, n)
		}
		w.stop()

		f.eventually("no stream is open", func() bool { return gathered(t, metrics)[open] == 0 })
		for method, want := range map[string][2]float64{
			"Put": {2, 1500}, "Get": {2, 1500}, "Delete": {1, 0}, "BatchPut": {2, 300}, "BatchGet": {3, 300},
			"Upload": {1, large}, "Download": {2, large - 5 + 1000}, "Scan": {4, 1300}, "Watch": {0, 0},
		} {
			samples := gathered(t, metrics)
			label := fmt.Sprintf("{method=%q}", method)
			records, known := samples["sheaf_shard_records_total"+label]
			if bytes := samples["sheaf_shard_record_bytes_total"+label]; !known || records != want[0] || bytes != want[1] {
				t.Errorf("%s: %v records of %v bytes (%v), want %v", method, records, bytes, known, want)
			}
		}
		// /status and AdminService report the same calls and bytes. Neither counts AdminService calls.
		var calls, bytes, unary float64
		samples := gathered(t, metrics)
		of := func(metric, method string) float64 { return samples[fmt.Sprintf("%s{method=%q}", metric, method)] }
		for _, m := range recordv1.RecordService_ServiceDesc.Methods {
			unary += of("sheaf_shard_call_duration_seconds", m.MethodName)
			bytes += of("sheaf_shard_record_bytes_total", m.MethodName)
		}
		calls = unary
		for _, m := range recordv1.RecordService_ServiceDesc.Streams {
			calls += of("sheaf_shard_call_duration_seconds", m.StreamName)
			bytes += of("sheaf_shard_record_bytes_total", m.StreamName)
		}
		st := f.shard.Status()
		told := st.GetShard().GetTraffic()
		if told == nil || float64(told.GetCallsTotal()) != calls || float64(told.GetRecordBytesTotal()) != bytes ||
			float64(told.GetUnaryCallsTotal()) != unary || unary == 0 || calls <= unary || told.GetUnarySecondsTotal() < 0 {
			t.Errorf("traffic is %+v, want %v calls, %v of them unary, and %v bytes", told, calls, unary, bytes)
		}
		rows, err := f.admin.ListShards(f.ctx(), &recordv1.ListShardsRequest{})
		if err != nil || !proto.Equal(rows.GetShards()[0].GetTraffic(), told) {
			t.Errorf("AdminService says %v (%v), /status %v", rows, err, told)
		}
	})
}

// TestSyncsAreCountedByTheirFile checks that the syncs for which a put waits are counted with their durations, by
// kind of file.
func TestSyncsAreCountedByTheirFile(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *bubble) {
		metrics := prometheus.NewRegistry()
		faulty := vfstest.NewFaulty(vfstest.NewMem())
		const late = 60 * time.Millisecond
		slow := faulty.Add(&vfstest.Fault{
			Match:  func(op vfstest.Op) bool { return op.Kind == vfstest.OpSync && strings.Contains(op.Name, "/segment-") },
			Effect: vfstest.EffectPass, Before: func(vfstest.Op) { time.Sleep(late) },
		})
		f := start(t, newRegistry(placement.Routing{Mode: placement.Hash, Groups: 1}, "s1"), func(c *Config) {
			c.Registry, c.FS, c.Dir = metrics, faulty, "/s1"
		}).ready()
		const name = `sheaf_shard_sync_duration_seconds{file="segment"}`
		before := gathered(t, metrics)[name]
		f.put(1, []byte("x"))
		if n := gathered(t, metrics)[name] - before; n < 1 || slow.Fired() == 0 {
			t.Errorf("%v syncs were counted, %d were slow", n, slow.Fired())
		}
		families, err := metrics.Gather()
		must(t, err)
		for _, family := range families {
			if family.GetName() != "sheaf_shard_sync_duration_seconds" {
				continue
			}
			for _, m := range family.GetMetric() {
				for _, label := range m.GetLabel() {
					n, sum := m.GetHistogram().GetSampleCount(), m.GetHistogram().GetSampleSum()
					if label.GetName() == "file" && label.GetValue() == "segment" && sum < late.Seconds() {
						t.Errorf("%d syncs of segments took %v s", n, sum)
					}
				}
			}
		}
	})
}

// TestASyncThatFailsIsCounted checks that a failed sync is counted as well, because it also takes up the device's
// time.
func TestASyncThatFailsIsCounted(t *testing.T) {
	m := newMetrics(&Shard{})
	m.synced("/a/groups/b/blob-1", time.Second, syscall.EIO)
	registry := prometheus.NewRegistry()
	registry.MustRegister(m.syncTime)
	for file, want := range map[string]float64{syncBlob: 1, syncSegment: 0, syncJournal: 0, syncOther: 0} {
		if n := gathered(t, registry)[fmt.Sprintf("sheaf_shard_sync_duration_seconds{file=%q}", file)]; n != want {
			t.Errorf("%s: %v", file, n)
		}
	}
	for name, want := range map[string]string{
		format.SegmentName(3): syncSegment, "journal-1": syncJournal, "journal-kept-1": syncJournal,
		format.ManifestName: syncOther, "sheaf": syncOther,
	} {
		if got := syncKind(name); got != want {
			t.Errorf("%s is of kind %s", name, got)
		}
	}
}

// TestManyGroupsAreReportedInSums checks that groups have their own metrics only up to a certain number of groups, and
// that sums over all groups always exist.
func TestManyGroupsAreReportedInSums(t *testing.T) {
	for _, n := range []int{groupSeriesMax, groupSeriesMax + 1} {
		registry := prometheus.NewRegistry()
		registry.MustRegister(groupsCollector(n))
		samples := gathered(t, registry)
		want := map[string]float64{
			"sheaf_shard_records": float64(3 * n), "sheaf_shard_stored_bytes": float64(50 * n),
			"sheaf_shard_superseded_bytes": float64(7 * n),
			"sheaf_shard_damages":          float64(n), "sheaf_shard_leading_groups": 1,
			`sheaf_shard_groups{state="serving"}`: float64(n),
		}
		for name, value := range want {
			if samples[name] != value {
				t.Errorf("%d groups: %s is %v, want %v", n, name, samples[name], value)
			}
		}
		if _, single := samples[`sheaf_shard_group_records{group="1"}`]; single != (n <= groupSeriesMax) {
			t.Errorf("%d groups: series of single ones: %v", n, single)
		}
	}
}

// groupsCollector stands in for a shard. A groupsCollector with the value n collects the metrics of n groups.
type groupsCollector int

func (groupsCollector) Describe(chan<- *prometheus.Desc) {}

func (n groupsCollector) Collect(ch chan<- prometheus.Metric) {
	groups := make([]*recordv1.Group, n)
	for i := range groups {
		groups[i] = &recordv1.Group{
			Group: fmt.Sprint(i), State: recordv1.GroupState_GROUP_STATE_SERVING, Records: 3, StoredBytes: 50,
			SupersededBytes: 7,
			Damages:         make([]*recordv1.Damage, 1), DamagesTotal: 1, Leader: i == 1,
		}
	}
	new(collector).collectGroups(ch, groups)
}

// TestSnapshotsMoveTheirMetrics checks that the metrics count open snapshots, and that a group never has more
// snapshots than allowed.
func TestSnapshotsMoveTheirMetrics(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *bubble) {
		metrics := prometheus.NewRegistry()
		f := start(t, newRegistry(hash4, "s1"), func(c *Config) { c.Registry = metrics }).ready()
		want := func(when string, open, most, places float64) {
			t.Helper()
			samples := gathered(t, metrics)
			for name, n := range map[string]float64{
				"sheaf_shard_snapshots": open, "sheaf_shard_group_snapshots_most": most, "sheaf_shard_snapshot_places": places,
			} {
				if got, known := samples[name]; got != n || !known {
					t.Errorf("%s: %s is %v (known: %t), not %v", when, name, got, known, n)
				}
			}
		}
		want("at first", 0, 0, 0)
		plan := func(times int, groups ...string) {
			for range times {
				if _, err := f.records.PlanScan(f.ctx(), &recordv1.PlanScanRequest{Groups: groups}); err != nil {
					t.Fatal(err)
				}
			}
		}
		f.put(1, data(1, 100))
		plan(2, "0", "1", "2", "3")
		want("with two scans of all", 8, 2, 0)
		f.put(1, data(1, 100))
		want("behind a write", 8, 2, 2)
		time.Sleep(time.Second) // so that the snapshots have different times, which determine their order
		plan(300, "1")
		want("with many scans of one, for which those that hold a place are given up", 262, 256, 0)
		time.Sleep(11 * time.Minute)
		want("when they have expired", 0, 0, 0)
	})
}
