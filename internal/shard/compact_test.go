package shard

import (
	"maps"
	"path"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"

	"sheaf.dev/sheaf/client/recordv1"
	"sheaf.dev/sheaf/internal/shard/care"
)

// onDisk returns the size of the files of all groups on a shard, including space that is only allocated.
func (f *fixture) onDisk() (bytes int64) {
	f.t.Helper()
	for _, size := range filesBelow(f.t, f.cfg.FS, path.Join(f.cfg.Dir, "groups")) {
		bytes += size
	}
	return bytes
}

// overwrite puts records again and again, each time with a request id, and returns their final contents.
func (f *fixture) overwrite(ids []int64, rounds, bytes int) map[int64][]byte {
	f.t.Helper()
	there := map[int64][]byte{}
	for round := range rounds {
		for _, id := range ids {
			request := uuid.New()
			there[id] = data(id+int64(round)<<32, bytes)
			if _, err := f.records.Put(f.ctx(), &recordv1.PutRequest{Key: key(id), Data: there[id],
				RequestId: request[:]}); err != nil {
				f.t.Fatalf("round %d, put %d: %v", round, id, err)
			}
		}
	}
	return there
}

// If records are overwritten, the space of the old data is freed automatically, even if the writes have request ids,
// which the shard remembers. In the end, the files may exceed the current data only by a certain fraction and by one
// segment for each group. This does not depend on the periodic check, because a group is also checked whenever it has
// filled a segment.
func TestOverwrittenSpaceIsFreedWhereWritesCarryRequestIDs(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *bubble) {
		const segment, bytes = 1 << 20, 10_000
		f := start(t, newRegistry(hash4, "s1"), func(c *Config) {
			c.SegmentBytes = segment
			c.Compaction = Compaction{Interval: time.Hour, RateBytesPerSecond: -1}
		}).ready()
		ids := idsOf(hash4, 0, 100)
		there := f.overwrite(ids, 12, bytes)
		live := int64(len(ids) * (bytes + 100))
		most := 22*live/10 + int64(hash4.Groups)*segment
		f.eventually("the room of what was overwritten comes back", func() bool { return f.onDisk() <= most })
		f.holdsAll(there)
		f.stop()
	})
}

// If compaction can free space, a write waits for that space. It is refused only if no space can be freed.
func TestAFullDiskFreesWhatWasOverwritten(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *bubble) { aFullDiskFreesWhatWasOverwritten(t) })
}

func aFullDiskFreesWhatWasOverwritten(t testing.TB) {
	f := start(t, newRegistry(hash4, "s1"), func(c *Config) {
		smallDisk(t, c, 96)
		c.SegmentBytes = 64 << 20 // so large that no segment becomes full
		c.Compaction = Compaction{Interval: time.Hour, RateBytesPerSecond: -1}
	}).ready()
	ids := idsOf(hash4, 0, 10)
	for id, d := range f.overwrite(ids, 100, 200_000) { // in total, this is twice the size of the disk
		f.holds(id, d)
	}
}

// holds0 returns the number of superseded bytes that group 0 still stores, by the reason for which they are kept.
func (f *fixture) holds0() map[string]int64 {
	f.t.Helper()
	out, err := f.admin.Compact(f.ctx(), &recordv1.CompactRequest{Group: "0", Explain: true})
	must(f.t, err)
	by := map[string]int64{}
	for _, h := range out.GetHolds() {
		if by[h.GetReason()] = h.GetBytes(); h.GetBytes() <= 0 || h.GetText() == "" ||
			!slices.Contains(care.HoldReasons, h.GetReason()) {
			f.t.Errorf("%v", h)
		}
	}
	return by
}

// The status and the metrics say why superseded data is still kept.
func TestCompactionSaysWhyItLeavesWhatItLeaves(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *bubble) {
		f := start(t, newRegistry(hash4, "s1"), func(c *Config) {
			c.Registry, c.Compaction = prometheus.NewRegistry(), Compaction{Interval: time.Hour, SupersededShareMin: 1}
		}).ready()
		wants := func(when string, reasons ...string) {
			t.Helper()
			by := f.holds0()
			if got := slices.Sorted(maps.Keys(by)); !slices.Equal(got, reasons) {
				t.Errorf("%s: %v, want %v", when, by, reasons)
			}
			told := map[string]int64{}
			for i, u := range f.shard.Status().Uncompacted {
				if told[u.Reason] = u.Bytes; u.Group != "0" || u.Groups != 1 || u.Text == "" || i > 0 && u.Bytes > f.shard.Status().
					Uncompacted[i-1].Bytes {
					t.Errorf("%s: the status has %+v", when, u)
				}
			}
			if !maps.Equal(told, by) {
				t.Errorf("%s: the status says %v, the answer %v", when, told, by)
			}
			families, err := f.cfg.Registry.(*prometheus.Registry).Gather()
			must(t, err)
			for _, family := range families {
				if family.GetName() != "sheaf_shard_uncompacted_bytes" {
					continue
				}
				for _, m := range family.GetMetric() {
					for _, label := range m.GetLabel() {
						if label.GetName() == "reason" && int64(m.GetGauge().GetValue()) != by[label.GetValue()] {
							t.Errorf("%s: the metric says %v of %s, the answer %d", when, m.GetGauge().GetValue(), label.GetValue(),
								by[label.GetValue()])
						}
					}
				}
				return
			}
			t.Error("there is no metric")
		}
		ids := idsOf(hash4, 0, 10)
		wants("empty")
		f.overwrite(ids, 2, 10_000)
		wants("in the newest segment", "newest_segment")
		sv := f.served(0)
		seal := func() {
			t.Helper()
			must(t, sv.Log().Seal())
		}
		seal()
		wants("half of it", "threshold")
		scan, err := sv.Log().OpenScan(time.Hour)
		must(t, err)
		f.overwrite(ids, 1, 10_000)
		seal()
		wants("beside a scan", "scan", "threshold")
		sv.Log().CloseScan(scan)
		if _, err := f.admin.Compact(f.ctx(), &recordv1.CompactRequest{Group: "0", All: true}); err != nil {
			t.Fatal(err)
		}
		wants("compacted", "request_ids")
	})
}
