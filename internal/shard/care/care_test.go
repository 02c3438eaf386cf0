package care

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/google/uuid"
	"go.etcd.io/raft/v3/raftpb"

	"sheaf.dev/sheaf/internal/placement"
	"sheaf.dev/sheaf/internal/shard/disk"
	"sheaf.dev/sheaf/internal/shard/member"
	"sheaf.dev/sheaf/internal/shard/problems"
	"sheaf.dev/sheaf/internal/shard/replicas"
	"sheaf.dev/sheaf/internal/storage/group"
	"sheaf.dev/sheaf/internal/storage/group/format"
	"sheaf.dev/sheaf/internal/storage/volume"
	"sheaf.dev/sheaf/internal/test/must"
	"sheaf.dev/sheaf/internal/test/vfstest"
)

// noViews implements Views for a store without views.
type noViews struct{}

func (noViews) HoldOf(uuid.UUID) (uint64, bool, bool) { return 0, false, true }

func (noViews) All() []placement.DataView { return nil }

func (noViews) Lose(context.Context, *placement.DataView, string, string) error { return nil }

// lone creates a Compactor for a volume in memory. The only group served on the volume is "0", which is empty.
func lone(t *testing.T) *Compactor {
	t.Helper()
	logger, fs := slog.New(slog.DiscardHandler), vfstest.NewMem()
	d := disk.New(disk.Options{Log: group.Options{FS: fs}, Logger: logger})
	must.OK(t, d.Open(volume.Options{FS: fs, Dir: "v", Store: uuid.New(), Shard: "a", Create: true,
		Logger: logger}))
	set := replicas.New(replicas.Options{Shard: "a", Logger: logger,
		Volume: func() uuid.UUID { return d.Superblock().Volume }, Meta: func() placement.Meta { return placement.Meta{} }})
	id := uuid.New()
	options := d.LogOptions(id, "0")
	must.OK(t, group.Create(options, &raftpb.ConfState{Voters: []uint64{1}}))
	log, _, err := group.Load(t.Context(), options, new(group.Progress))
	must.OK(t, err)
	t.Cleanup(func() {
		if err := errors.Join(log.Close(false), d.Close()); err != nil {
			t.Error(err)
		}
	})
	set.Add(id, replicas.State{Replica: member.Replica{Name: "0"}}).Serve(log, nil, 1, nil)
	return New(Options{Compaction: Compaction{SupersededShareMin: 0.5}, Context: t.Context(), Replicas: set, Disk: d,
		Problems: problems.New(logger), Logger: logger, Views: noViews{}})
}

// After a failed compaction, the shard reports a problem, and gives the failure as the reason why superseded data is
// still stored. The problem and the reason disappear when the group has nothing to compact.
func TestAFailedCompactionIsAProblemForAWhile(t *testing.T) {
	c := lone(t)
	c.Problems.Note(problems.Compacting+"0", format.ErrNoSpace)
	if reason, text := c.whyFree("0", &group.Stats{}); reason != "no_room" || text == "" {
		t.Errorf("the reason is %q: %s", reason, text)
	}
	for _, g := range c.servedGroups(nil) { // the group has no superseded data
		c.lookAt(t.Context(), &g)
	}
	if left := c.Problems.Words(); len(left) > 0 {
		t.Errorf("with nothing to compact: %q", left)
	}
	if reason, _ := c.whyFree("0", &group.Stats{}); reason != "threshold" {
		t.Errorf("after that the reason is %q", reason)
	}
}

func TestWhichScansAreGivenUp(t *testing.T) {
	now := time.Unix(1000, 0)
	of := func(id byte, opened, used int, read, keeps bool) scanOf {
		ago := func(seconds int) time.Time { return now.Add(-time.Duration(seconds) * time.Second) }
		return scanOf{OpenScan: group.OpenScan{ID: group.ScanID{id}, Opened: ago(opened), Used: ago(used), Read: read,
			Keeps: keeps}}
	}
	scans := []scanOf{
		of(1, 100, 0, true, true),
		of(2, 300, 0, true, true),
		of(3, 200, 60, false, true),
		of(4, 20, 9, false, true),
		of(5, 400, 60, false, false),
		of(6, 50, 10, false, true),
		of(7, 500, 0, true, false),
	}
	for _, c := range []struct {
		loss  scanLoss
		scans []scanOf
		want  string
	}{
		{scansAbandoned, scans, "[3 6]"},
		{scansOldest, scans, "[2 3 1]"},
		{scansOldest, scans[:1], "[1]"},
		{scansOldest, scans[4:5], "[]"},
		{scansAbandoned, nil, "[]"},
	} {
		ids := []int{}
		for _, s := range c.loss.losers(c.scans, now) {
			ids = append(ids, int(s.ID[0]))
		}
		if got := fmt.Sprint(ids); got != c.want {
			t.Errorf("%s of %d: %v, want %s", c.loss, len(c.scans), got, c.want)
		}
	}
}

func TestSupersededMinOfAVolume(t *testing.T) {
	const mib, gib = 1 << 20, 1 << 30
	for _, c := range []struct {
		wanted, volume int64
		groups         int
		want           int64
	}{
		{64 * mib, 1 << 40, 64, 64 * mib},
		{64 * mib, 960 * mib, 12, 10 * mib},
		{64 * mib, gib, 1000, mib},
		{10, gib, 1000, 10},
		{64 * mib, 0, 12, 64 * mib},
		{64 * mib, gib, 0, 64 * mib},
	} {
		if got := supersededMin(c.wanted, c.volume, c.groups); got != c.want {
			t.Errorf("%d of %d bytes with %d groups: %d, want %d", c.wanted, c.volume, c.groups, got, c.want)
		}
	}
}

func TestLowSpaceIsAPartOfASmallVolume(t *testing.T) {
	const mib, gib = 1 << 20, 1 << 30
	for _, c := range []struct{ volume, segment, want int64 }{
		{1 << 40, 0, 512 * mib}, {960 * mib, 0, 60 * mib}, {gib, 4 * mib, 8 * mib}, {gib, -1, 64 * mib},
	} {
		if got := lowSpaceBytes(c.volume, c.segment); got != c.want {
			t.Errorf("of %d bytes with segments of %d: %d, want %d", c.volume, c.segment, got, c.want)
		}
	}
}
