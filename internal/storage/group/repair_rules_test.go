package group

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"go.etcd.io/raft/v3/raftpb"

	"sheaf.dev/sheaf/internal/storage/group/format"
	"sheaf.dev/sheaf/internal/storage/vfs"
	"sheaf.dev/sheaf/internal/test/grouptest"
	"sheaf.dev/sheaf/internal/test/vfstest"
)

// TestRepairOfRandomLogs damages random logs at random offsets and repairs them from a twin. The logs have several
// terms, entries that a new leader truncated, and segments that compaction has rewritten.
func TestRepairOfRandomLogs(t *testing.T) {
	seeds := uint64(40)
	if testing.Short() {
		seeds = 6
	}
	var seen atomic.Int64
	t.Run("seeds", func(t *testing.T) {
		for seed := range seeds {
			t.Run(fmt.Sprint(seed), func(t *testing.T) {
				t.Parallel()
				repairRandomLog(t, seed, &seen)
			})
		}
	})
	t.Logf("%d damages were repaired", seen.Load())
	if seen.Load() < int64(seeds) {
		t.Error("too little was damaged")
	}
}

func repairRandomLog(t *testing.T, seed uint64, seen *atomic.Int64) {
	w := randomState(t, seed, Index, 120)
	ok(t, w.sync())
	ok(t, w.apply())
	// The group once had other voters, which may have truncated the log.
	ok(t, w.log.SetConf(&raftpb.ConfState{Voters: []uint64{1}, AutoLeave: new(bool)}, 1))
	ok(t, w.appendBatch(w.model.last+1, nil)) // this batch stores the commit index that covers all entries
	ok(t, w.log.Sync())
	ok(t, w.log.Tick())
	ok(t, w.log.Close(false))
	b := &damageBed{mem: w.mem, opts: w.opts}
	twin := b.twin(t)
	names := dirNames(t, twin)
	for range 12 {
		name := names[w.random.IntN(len(names))]
		_, isBlob := format.ParseBlobName(name)
		if _, isSegment := format.ParseSegmentName(name); !isSegment && !isBlob {
			continue
		}
		disk := b.mem.CrashClone(vfstest.Survival{Kind: vfstest.SurviveAll})
		info, err := disk.Stat(path.Join(w.opts.Dir, name))
		ok(t, err)
		at, length := w.random.Int64N(info.Size()), 1+w.random.Int64N(900)
		b.names = names
		hintless := w.random.IntN(2) == 0
		ok(t, b.inflict(disk, name, func(f vfs.File) error {
			_, err := f.WriteAt(grouptest.RandomBytes(seed, int(min(length, info.Size()-at))), at)
			return err
		}, hintless))
		was, err := b.repaired(twin, disk, Residency(w.random.IntN(2)))
		if err != nil && (!hintless || !errors.Is(err, ErrRepairByInstall)) {
			t.Fatalf("%d bytes at %d of %s, without hints %t: %v", length, at, name, hintless, err)
		}
		if was && err == nil {
			seen.Add(1)
		}
	}
	ok(t, twin.Close(false))
}

// TestRule4_NoHintHidesDamage checks that no hint is created from only the readable entries, because the next load
// would then not find the damage.
func TestRule4_NoHintHidesDamage(t *testing.T) {
	b := newDamageBed(t)
	ok(t, b.mem.Remove(path.Join(b.opts.Dir, format.ActiveHintName))) // this hint was made before the damage
	b.names = slices.DeleteFunc(b.names, func(name string) bool { return name == format.ActiveHintName })
	for _, at := range []uint64{25, 5} { // one entry in the active segment, and one in a sealed segment without a hint
		disk, l := b.damagedEntry(t, at)
		ok(t, l.Close(false))
		ok(t, b.inflict(disk, format.MarkName, func(vfs.File) error { return nil }, true))
		opts := b.opts
		opts.FS = disk
		d := &logDriver{t: t, opts: opts, term: 1, time: 1 << 40}
		d.load()
		ok(t, d.log.Apply(d.last(), nil))
		for i := range int64(30) {
			d.put(format.Entry{ID: 100 + i%3, Data: payload(i, 400)}) // makes the log seal the active segment
		}
		ok(t, sealAndClose(d.log))
		if report := d.load(); report.Outcome != Damaged {
			t.Errorf("index %d: outcome %d of the next load", at, report.Outcome)
		}
		ok(t, d.log.Close(false))
	}
}

// TestLoadOfSeveralVotersWithADamagedTail checks that an entry that may have completed a quorum is treated neither as
// lost nor as committed.
func TestLoadOfSeveralVotersWithADamagedTail(t *testing.T) {
	for _, voters := range [][]uint64{{1}, {1, 2, 3}} {
		for _, what := range []string{"entry", "vote"} {
			mem := vfstest.NewMem()
			opts := driverOptions(mem, Index, 64<<10)
			ok(t, Create(opts, &raftpb.ConfState{Voters: voters}))
			d := &logDriver{t: t, opts: opts, term: 1}
			d.load()
			d.put(format.Entry{ID: 1, Data: []byte("committed")})
			ok(t, d.append(format.Entry{ID: 2, Data: []byte("perhaps committed")}, format.Entry{ID: 3, Data: []byte("too")}))
			ok(t, d.log.Sync())
			ok(t, d.log.Tick())
			end, place := d.log.w.end, d.log.state.tail.at(2).loc.Offset()
			if what == "vote" {
				place = end - format.FrameBytes(0, format.StateRecordBytes)
			}
			name := d.log.w.active.path
			ok(t, d.log.Close(false))
			f, err := mem.OpenWrite(name)
			ok(t, err)
			ok(t, errors.Join(flip(f, place+32), f.Close()))
			l, _, err := Load(t.Context(), opts, nil)
			if got := errors.Is(err, ErrTailDamaged); got != (len(voters) > 1) || err != nil && !got {
				t.Errorf("%d voters, damaged %s: %v", len(voters), what, err)
			}
			if err == nil {
				ok(t, l.Close(false))
			}
		}
	}
}

func TestAcceptLossIsNotForSeveralVoters(t *testing.T) {
	d := newDriver(t, driverOptions(vfstest.NewMem(), Index, 64<<10))
	d.put(format.Entry{ID: 1, Data: []byte("x")}, format.Entry{ID: 2, Data: []byte("y")})
	ok(t, d.log.SetConf(&raftpb.ConfState{Voters: []uint64{1, 2, 3}}, 2))
	d.log.damages.note(format.Damage{File: format.SegmentName(1), Offset: 128, IDsUnknown: true, IndexFirst: 1,
		IndexLast: 1})
	if _, _, err := d.log.AcceptLoss(t.Context()); err == nil || !strings.Contains(err.Error(), "3 voters") {
		t.Error(err)
	}
	ok(t, d.log.Close(false))
}
