package shard

import (
	"errors"
	"maps"
	"path"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"sheaf.dev/sheaf/client/recordv1"
	"sheaf.dev/sheaf/internal/consensus/replica"
	"sheaf.dev/sheaf/internal/placement"
	"sheaf.dev/sheaf/internal/storage/journal"
	"sheaf.dev/sheaf/internal/storage/vfs"
	"sheaf.dev/sheaf/internal/storage/volume"
	"sheaf.dev/sheaf/internal/test/vfstest"
)

// many is a routing with many groups, for tests in which groups share their syncs through the journal. A sync of a
// disk in memory takes no time, so few syncs are in progress at once, and groups would rarely share them. These tests
// therefore use sharing, which makes groups share every sync.
var many = placement.Routing{Mode: placement.Hash, Groups: 16}

func sharing(fs vfs.FS) func(*Config) {
	return func(c *Config) {
		c.FS, c.Dir, c.probe = fs, "/v", &replica.Probe{Shared: true}
		c.stepEvery = time.Hour // the shard runs on for a moment after a power cut, but must not raise its volume's step then
	}
}

// putAll puts records from several concurrent callers, and calls look while puts are in progress. It returns the
// records that had been acknowledged when look was called.
func (f *fixture) putAll(from, records int64, look func()) map[int64][]byte {
	var mu sync.Mutex
	acked, then := map[int64][]byte{}, map[int64][]byte{}
	var wait sync.WaitGroup
	const callers = 32
	for c := range int64(callers) {
		wait.Go(func() {
			for id := from + c; id < from+records; id += callers {
				d := data(id, 1000)
				if _, err := f.records.Put(f.ctx(), &recordv1.PutRequest{Key: key(id), Data: d}); err != nil {
					f.t.Errorf("put %d: %v", id, err)
					return
				}
				mu.Lock()
				acked[id] = d
				if int64(len(acked)) == records/2 {
					then = maps.Clone(acked)
					look()
				}
				mu.Unlock()
			}
		})
	}
	wait.Wait()
	return then
}

// TestAPowerCutTakesNothingThatTheJournalHas checks that acknowledged writes survive a power cut even if the segments
// were not synced. While a journal exists, a mark on the volume keeps programs without journal support from opening
// the volume. An orderly stop removes the mark.
func TestAPowerCutTakesNothingThatTheJournalHas(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *bubble) {
		disk := vfstest.NewMem()
		registry := prometheus.NewRegistry()
		f := start(t, newRegistry(many, "s1"), func(c *Config) {
			sharing(disk)(c)
			c.Registry = registry
		}).ready()
		there := map[int64][]byte{}
		for round := range int64(3) {
			var after *vfstest.Mem
			kind := []vfstest.SurvivalKind{vfstest.SurviveNone, vfstest.SurviveTorn, vfstest.SurviveRandom}[round]
			maps.Copy(there, f.putAll(round*1000, 1000, func() {
				after = disk.CrashClone(vfstest.Survival{Kind: kind, Seed: uint64(round)})
			}))
			if n := counter(t, registry, "sheaf_shard_journal_writes_total"); n == 0 ||
				n < counter(t, registry, "sheaf_shard_journal_syncs_total") {
				t.Errorf("%v writes of the journal are counted", n)
			}
			found, err := journal.Read(after, "/v")
			if err != nil || len(found.Ranges) == 0 || len(found.Bad) > 0 {
				t.Fatalf("the journal holds %d writes, %v, %v: the test does not test", len(found.Ranges), found.Bad, err)
			}
			if sb, _, err := volume.VerifySuperblock(after, "/v"); err != nil || !sb.Journal {
				t.Errorf("the superblock says %+v, %v", sb, err)
			}
			f.shard.Kill()
			disk = after
			f.again(func(c *Config) { c.FS = after })
			f.ready()
			f.holdsAll(there)
		}
		f.stop()
		if found, err := journal.Read(disk, "/v"); err != nil || found.Files > 0 {
			t.Errorf("%d files of the journal are left, %v", found.Files, err)
		}
		if sb, _, err := volume.VerifySuperblock(disk, "/v"); err != nil || sb.Journal {
			t.Errorf("the superblock says %+v, %v", sb, err)
		}
	})
}

// TestNothingIsServedBeforeTheJournalIsBack checks a start after a power cut on a disk that accepts no writes,
// neither to segments nor to other files next to them. The shard does not start, and the journal remains.
func TestNothingIsServedBeforeTheJournalIsBack(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *bubble) {
		disk := vfstest.NewMem()
		f := start(t, newRegistry(many, "s1"), sharing(disk)).ready()
		var after *vfstest.Mem
		there := f.putAll(0, 1000, func() { after = disk.CrashClone(vfstest.Survival{Kind: vfstest.SurviveNone}) })
		f.shard.Kill()
		faulty := vfstest.NewFaulty(after)
		fault := faulty.Add(&vfstest.Fault{Match: func(op vfstest.Op) bool {
			return op.Kind == vfstest.OpWrite && (path.Base(path.Dir(path.Dir(op.Name))) == "groups" ||
				strings.HasPrefix(path.Base(op.Name), "journal-kept-"))
		}})
		f.cfg.FS = faulty
		if _, err := Start(f.ctx(), f.cfg); !errors.Is(err, syscall.EIO) || fault.Fired() == 0 {
			t.Fatalf("started, or for another reason: %v; %d faults", err, fault.Fired())
		}
		fault.Remove()
		f.again(nil)
		f.ready()
		f.holdsAll(there)
	})
}

// counter returns the value of a counter that has no labels other than the shard's.
func counter(t testing.TB, registry *prometheus.Registry, name string) float64 {
	t.Helper()
	families, err := registry.Gather()
	must(t, err)
	for _, family := range families {
		if family.GetName() == name {
			return family.GetMetric()[0].GetCounter().GetValue()
		}
	}
	t.Fatalf("there is no metric %s", name)
	return 0
}
