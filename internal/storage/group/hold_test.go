package group

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"sheaf.dev/sheaf/internal/storage/group/format"
	"sheaf.dev/sheaf/internal/test/vfstest"
)

// indexesOf returns the indexes of a record's stored versions.
func indexesOf(t testing.TB, l *Log, id int64) []uint64 {
	t.Helper()
	all, _ := stored(t, l)
	maps.DeleteFunc(all, func(_ uint64, v version) bool { return v.id != id })
	return slices.Sorted(maps.Keys(all))
}

func wantIndexes(t testing.TB, l *Log, id int64, want ...uint64) {
	t.Helper()
	if got := indexesOf(t, l, id); !slices.Equal(got, want) {
		t.Errorf("record %d has the versions %v, want %v", id, got, want)
	}
}

func wantFloor(t testing.TB, l *Log, floor uint64, known bool) {
	t.Helper()
	if got, gotKnown := l.HistoryFloor(); got != floor || gotKnown != known {
		t.Errorf("history floor %d, %t, want %d, %t", got, gotKnown, floor, known)
	}
}

// newHeld returns a log with a hold at the given index.
func newHeld(t testing.TB, opts Options, at uint64) *logDriver {
	t.Helper()
	d := newDriver(t, opts)
	d.log.SetHold(Hold{Index: at, On: true})
	ok(t, d.log.BeginHistory())
	return d
}

// TestCompactKeepsWhatWasSupersededAboveTheHold checks that a version is dropped if the entry that superseded it is at
// or below the hold. The version's own index does not matter.
func TestCompactKeepsWhatWasSupersededAboveTheHold(t *testing.T) {
	bothResidencies(t, func(t *testing.T, residency Residency) {
		d := newHeld(t, driverOptions(vfstest.NewMem(), residency, 64<<10), 0)
		for range 3 {
			d.put(format.Entry{ID: 1, Data: payload(1, 50)}, format.Entry{ID: 2, Data: payload(2, 50)})
		}
		d.put(format.Entry{ID: 2, Kind: format.KindDelete})
		ok(t, d.log.Seal())
		for _, c := range []struct {
			hold, floor uint64
			one, two    []uint64
		}{
			{2, 0, []uint64{1, 3, 5}, []uint64{2, 4, 6, 7}},
			{3, 3, []uint64{3, 5}, []uint64{2, 4, 6, 7}},
			{1, 3, []uint64{3, 5}, []uint64{2, 4, 6, 7}}, // lowering the hold does not bring dropped versions back
			{5, 5, []uint64{5}, []uint64{4, 6, 7}},
			{9, 7, []uint64{5}, []uint64{7}},
		} {
			d.log.SetHold(Hold{Index: c.hold, On: true})
			compactAll(t, d.log)
			wantIndexes(t, d.log, 1, c.one...)
			wantIndexes(t, d.log, 2, c.two...)
			wantFloor(t, d.log, c.floor, true)
		}
		ok(t, d.log.Close(false))
	})
}

// TestARecordThatIsWrittenAllTheTimeIsCompactedUnderAHold checks that versions of a record are dropped although the
// hold never reaches the record's newest version.
func TestARecordThatIsWrittenAllTheTimeIsCompactedUnderAHold(t *testing.T) {
	d := newHeld(t, driverOptions(vfstest.NewMem(), Index, 8<<10), 0)
	for round := range uint64(10) {
		for range 100 {
			d.put(format.Entry{ID: 1, Data: payload(1, 50)})
		}
		d.log.SetHold(Hold{Index: d.last() - 10, On: true})
		compactAll(t, d.log)
		if n := len(indexesOf(t, d.log, 1)); n > 110 {
			t.Errorf("round %d: %d versions are stored", round, n)
		}
	}
	ok(t, d.log.Close(false))
}

// TestAWriteBesideACompactionKeepsWhatItSupersedes applies a write after a running compaction has read the rows. The
// compaction cannot tell whether that write or an earlier one superseded an older version of the record, so it must
// keep the older version.
func TestAWriteBesideACompactionKeepsWhatItSupersedes(t *testing.T) {
	bothResidencies(t, func(t *testing.T, residency Residency) {
		d := newHeld(t, driverOptions(vfstest.NewMem(), residency, 64<<10), 0)
		for id := range int64(3) {
			d.put(format.Entry{ID: id, Data: payload(id, 50)}) // entries 1, 2 and 3
		}
		d.put(format.Entry{ID: 1, Data: payload(1, 50)}, format.Entry{ID: 2, Data: payload(2, 50)}) // entries 4 and 5
		d.put(format.Entry{ID: 2, Data: payload(2, 50)})                                            // entry 6
		ok(t, d.log.Seal())
		d.log.SetHold(Hold{Index: 5, On: true})
		d.log.compacting.Lock()
		c := d.log.newCompaction(t.Context(), CompactOptions{All: true})
		views, err := c.learn()
		ok(t, err)
		c.history.countTombstones()
		ok(t, c.look(views))
		for id := range int64(3) {
			d.put(format.Entry{ID: id, Data: payload(id, 50)}) // entries 7, 8 and 9
		}
		ok(t, c.rewriteRuns(views))
		d.log.compacting.Unlock()
		wantIndexes(t, d.log, 0, 1, 7)
		wantIndexes(t, d.log, 1, 2, 4, 8) // only the next compaction knows that version 2 may be dropped
		wantIndexes(t, d.log, 2, 5, 6, 9)
		wantFloor(t, d.log, 5, true)
		compactAll(t, d.log)
		wantIndexes(t, d.log, 1, 4, 8)
		ok(t, d.log.Close(false))
	})
}

// TestAHoldThatComesDuringACompactionIsObeyed sets a hold after a compaction has decided what to drop. That compaction
// must not drop anything any more. A compaction that ignores holds drops it nevertheless, and raises the floor.
func TestAHoldThatComesDuringACompactionIsObeyed(t *testing.T) {
	d := newDriver(t, driverOptions(vfstest.NewMem(), Index, 64<<10))
	d.put(format.Entry{ID: 1, Data: payload(1, 50)}, format.Entry{ID: 1, Data: payload(1, 60)})
	ok(t, d.log.Seal())
	for _, ignore := range []bool{false, true} {
		d.log.SetHold(Hold{})
		d.log.compacting.Lock()
		c := d.log.newCompaction(t.Context(), CompactOptions{All: true, IgnoreHold: ignore})
		views, err := c.learn()
		ok(t, err)
		ok(t, c.look(views))
		d.log.SetHold(Hold{Index: 1, On: true})
		if floor, err := d.log.SettleHistory(); err != nil || floor > 2 {
			t.Errorf("the floor is %d, %v", floor, err)
		}
		ok(t, c.rewriteRuns(views))
		d.log.compacting.Unlock()
		if !ignore {
			wantIndexes(t, d.log, 1, 1, 2)
			continue
		}
		wantIndexes(t, d.log, 1, 2)
		wantFloor(t, d.log, 2, true)
	}
	d.log.SetHold(Hold{})
	ok(t, d.log.EndHistory())
	if floor, err := d.log.SettleHistory(); err == nil {
		t.Errorf("without a hold, the floor is %d", floor)
	}
	ok(t, d.log.Close(false))
}

// TestTheFloorCoversWritesBesideACompaction checks the floor if there is no hold. A compaction then also drops versions
// that are superseded while it runs, so the floor must be above them.
func TestTheFloorCoversWritesBesideACompaction(t *testing.T) {
	d := newHeld(t, driverOptions(vfstest.NewMem(), Index, 64<<10), 0)
	d.log.SetHold(Hold{})
	d.put(format.Entry{ID: 1, Data: payload(1, 50)}, format.Entry{ID: 2})
	ok(t, d.log.Seal())
	d.log.compacting.Lock()
	c := d.log.newCompaction(t.Context(), CompactOptions{All: true})
	views, err := c.learn()
	ok(t, err)
	d.put(format.Entry{ID: 1, Data: payload(1, 50)})
	ok(t, c.look(views))
	ok(t, c.rewriteRuns(views))
	d.log.compacting.Unlock()
	wantIndexes(t, d.log, 1, 3)
	wantFloor(t, d.log, 3, true)
	ok(t, d.log.Close(false))
}

// TestTheFloorIsDurableFirstAtEveryOperation crashes at every operation of a compaction, and checks that the history
// above the floor on disk is complete. The manifest that removes the old segments must therefore contain the new floor.
func TestTheFloorIsDurableFirstAtEveryOperation(t *testing.T) {
	mem := vfstest.NewMem()
	d := newHeld(t, driverOptions(mem, Index, 1<<10), 0)
	model := map[uint64]version{}
	for i := range int64(60) {
		e := format.Entry{ID: i * i % 7, Data: payload(i, 60), Kind: format.KindPut}
		if i%5 == 0 {
			e = format.Entry{ID: e.ID, Kind: format.KindDelete}
		}
		d.put(e)
		model[d.last()] = version{id: e.ID, index: d.last(), deleted: e.Kind == format.KindDelete}
	}
	ok(t, d.log.Seal())
	d.log.hints.writing.Wait()
	d.log.SetHold(Hold{Index: 40, On: true})
	last := d.last()
	var crashes atomic.Int64 // hints are written concurrently with the compaction
	mem.AfterOp(func(op vfstest.Op) {
		for _, kind := range vfstest.SurvivalKinds {
			opts := d.opts
			opts.FS = mem.CrashClone(vfstest.Survival{Kind: kind, Seed: uint64(op.Number)})
			l, _, err := Load(t.Context(), opts, nil)
			if err != nil {
				t.Errorf("operation %d, %v: %v", op.Number, kind, err)
				return
			}
			ok(t, l.Apply(last, nil))
			floor, known := l.HistoryFloor()
			have, _ := stored(t, l)
			for at := floor; at <= last; at++ {
				if want, got := asOf(model, at), asOf(have, at); !known || !maps.Equal(want, got) {
					t.Errorf("operation %d, %v, floor %d, as of %d: %v, want %v", op.Number, kind, floor, at, got, want)
				}
			}
			ok(t, l.Close(false))
			crashes.Add(1)
		}
	})
	_, err := d.log.Compact(t.Context(), CompactOptions{All: true})
	ok(t, err)
	d.log.hints.writing.Wait()
	mem.AfterOp(nil)
	wantFloor(t, d.log, 40, true)
	if crashes.Load() < 100 {
		t.Errorf("only %d crashes", crashes.Load())
	}
	ok(t, d.log.Close(false))
}

// TestTheHistoryFloorIsKnownWhenItIsDurable checks that the floor is not known before it is durable, and that the
// manifest has version 1 until a hold is in force.
func TestTheHistoryFloorIsKnownWhenItIsDurable(t *testing.T) {
	faulty := vfstest.NewFaulty(vfstest.NewMem())
	d := newDriver(t, driverOptions(faulty, Index, 64<<10))
	d.put(format.Entry{ID: 1}, format.Entry{ID: 1})
	versionOnDisk := func() uint32 {
		m, err := format.ReadManifest(faulty, d.opts.Dir)
		ok(t, err)
		return m.Version()
	}
	d.log.SetHold(Hold{})
	ok(t, d.log.BeginHistory())
	ok(t, d.log.Seal())
	compactAll(t, d.log)
	wantFloor(t, d.log, 0, false)
	if got := versionOnDisk(); got != 1 {
		t.Errorf("version %d without a hold", got)
	}
	d.log.SetHold(Hold{On: true})
	wantFloor(t, d.log, 0, false)
	f := faulty.Add(&vfstest.Fault{Err: syscall.ENOSPC,
		Match: func(op vfstest.Op) bool { return op.Kind == vfstest.OpSync }})
	if err := d.log.BeginHistory(); !errors.Is(err, format.ErrNoSpace) {
		t.Errorf("a manifest that was not written: %v", err)
	}
	f.Remove()
	wantFloor(t, d.log, 0, false)
	ok(t, d.log.BeginHistory())
	wantFloor(t, d.log, 2, true)
	d.put(format.Entry{ID: 1})
	ok(t, d.log.BeginHistory()) // changes nothing, because there is a floor already
	d.log.SetHold(Hold{})
	ok(t, d.log.Close(false))
	d.load()
	wantFloor(t, d.log, 2, true)
	ok(t, d.log.Close(false))
}

// TestTheEndOfHistoryIsDurable checks that a log whose history has ended keeps nothing, also after a load, and that its
// manifest has version 1 again. A later hold begins with a new floor.
func TestTheEndOfHistoryIsDurable(t *testing.T) {
	faulty := vfstest.NewFaulty(vfstest.NewMem())
	d := newHeld(t, driverOptions(faulty, Index, 64<<10), 0)
	d.put(format.Entry{ID: 1}, format.Entry{ID: 1}, format.Entry{ID: 2})
	f := faulty.Add(&vfstest.Fault{Err: syscall.ENOSPC,
		Match: func(op vfstest.Op) bool { return op.Kind == vfstest.OpSync }})
	if err := d.log.EndHistory(); !errors.Is(err, format.ErrNoSpace) {
		t.Errorf("a manifest that was not written: %v", err)
	}
	f.Remove()
	wantFloor(t, d.log, 0, true)
	ok(t, d.log.EndHistory())
	ok(t, d.log.EndHistory())
	wantFloor(t, d.log, 0, false)
	ok(t, d.log.Seal())
	ok(t, d.log.Close(true))
	if m, err := format.ReadManifest(faulty, d.opts.Dir); err != nil || m.Version() != 1 {
		t.Errorf("version %d, %v", m.Version(), err)
	}
	d.load()
	ok(t, d.log.Apply(3, nil))
	compactAll(t, d.log)
	wantIndexes(t, d.log, 1, 2)
	wantFloor(t, d.log, 0, false)
	d.log.SetHold(Hold{Index: 1, On: true})
	ok(t, d.log.BeginHistory())
	wantFloor(t, d.log, 3, true)
	ok(t, d.log.Close(false))
}

// TestTheNextManifestHasTheHistoryFloor checks that the floor also becomes durable with any other write of the
// manifest: a seal, or a compaction that drops nothing.
func TestTheNextManifestHasTheHistoryFloor(t *testing.T) {
	for name, write := range map[string]func(*Log) error{
		"seal": (*Log).Seal,
		"compaction": func(l *Log) error {
			_, err := l.Compact(t.Context(), CompactOptions{})
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			d := newDriver(t, driverOptions(vfstest.NewMem(), Index, 64<<10))
			d.put(format.Entry{ID: 1})
			d.log.SetHold(Hold{Index: 1, On: true})
			ok(t, write(d.log))
			wantFloor(t, d.log, 1, true)
			ok(t, d.log.Close(false))
		})
	}
}

// TestHistoryIsKeptWhileTheHoldIsUnknown checks that a log does not know its hold after a load, and keeps all history
// above its floor until SetHold is called.
func TestHistoryIsKeptWhileTheHoldIsUnknown(t *testing.T) {
	d := newHeld(t, driverOptions(vfstest.NewMem(), Index, 64<<10), 0)
	d.put(format.Entry{ID: 1, Data: payload(1, 50)}, format.Entry{ID: 1, Data: payload(1, 50)}, format.Entry{ID: 2})
	d.put(format.Entry{ID: 2, Kind: format.KindDelete})
	ok(t, d.log.Seal())
	ok(t, d.log.Close(true))
	d.load()
	ok(t, d.log.Apply(4, nil))
	for range 2 {
		compactAll(t, d.log)
		wantIndexes(t, d.log, 1, 1, 2)
		wantIndexes(t, d.log, 2, 3, 4)
	}
	wantFloor(t, d.log, 0, true)
	d.log.SetHold(Hold{})
	compactAll(t, d.log)
	compactAll(t, d.log)
	wantIndexes(t, d.log, 1, 2)
	wantIndexes(t, d.log, 2)
	wantFloor(t, d.log, 4, true)
	ok(t, d.log.Close(false))
}

// TestDeletesAboveAnIgnoredHoldStay checks that versions above an ignored hold are dropped, but deletes are kept. An
// archive that misses a version merely has a gap, but an archive that misses a delete would show the record forever.
// Deletes are dropped only if free space is also low.
func TestDeletesAboveAnIgnoredHoldStay(t *testing.T) {
	d := newHeld(t, driverOptions(vfstest.NewMem(), Index, 64<<10), 1)
	d.put(format.Entry{ID: 1, Data: payload(1, 50)}, format.Entry{ID: 1, Kind: format.KindDelete}, format.Entry{ID: 2})
	ok(t, d.log.Seal())
	compactAll(t, d.log)
	wantIndexes(t, d.log, 1, 1, 2)
	for range 3 {
		_, err := d.log.Compact(t.Context(), CompactOptions{All: true, IgnoreHold: true})
		ok(t, err)
		wantIndexes(t, d.log, 1, 2)
		wantFloor(t, d.log, 3, true)
	}
	if m := d.log.folder.manifest; m.TombstoneFloor > 1 {
		t.Errorf("tombstone floor %d is above the hold", m.TombstoneFloor)
	}
	if floor := d.log.DeletesFloor(); floor > 1 {
		t.Errorf("the floor of deletes is %d, and no delete above the hold is missing", floor)
	}
	_, err := d.log.Compact(t.Context(), CompactOptions{All: true, IgnoreHold: true, SpaceLow: true})
	ok(t, err)
	wantIndexes(t, d.log, 1)
	if floor := d.log.DeletesFloor(); floor < 2 {
		t.Errorf("the floor of deletes is %d, and the delete with index 2 is missing", floor)
	}
	ok(t, d.log.Close(false))
}

// TestAMemberThatNeverHeardOfAHoldTellsWhichDeletesItDropped checks the case in which the history floor does not show
// that a delete is missing. A member that has not been told of the hold drops versions and tombstones as if there were
// no archive. If it becomes the leader, the archive is told a history floor from which on reads are exact, but the
// archive itself still has a put of the deleted record from before.
func TestAMemberThatNeverHeardOfAHoldTellsWhichDeletesItDropped(t *testing.T) {
	for _, settled := range []bool{false, true} {
		d := newDriver(t, driverOptions(vfstest.NewMem(), Index, 64<<10))
		d.put(format.Entry{ID: 1, Data: payload(1, 50)}, format.Entry{ID: 2}) // an archive has these
		d.put(format.Entry{ID: 1, Kind: format.KindDelete}, format.Entry{ID: 2})
		ok(t, d.log.Seal())
		compactAll(t, d.log)
		if settled {
			compactAll(t, d.log)
		}
		d.log.SetHold(Hold{Index: 2, On: true})
		ok(t, d.log.BeginHistory())
		wantFloor(t, d.log, 4, true)
		if missing := len(indexesOf(t, d.log, 1)) == 0; missing != settled || d.log.DeletesFloor() > 2 != settled {
			t.Errorf("the delete with index 3 is missing: %t, and the floor of deletes is %d", missing, d.log.DeletesFloor())
		}
		floor := d.log.DeletesFloor()
		ok(t, d.log.Close(true))
		d.load()
		if got := d.log.DeletesFloor(); got != floor {
			t.Errorf("the floor of deletes was %d, and is %d after a restart", floor, got)
		}
		to := d.opts
		to.FS = vfstest.NewMem()
		ok(t, to.FS.MkdirAll(to.Dir))
		ok(t, d.log.Apply(d.last(), nil))
		ok(t, install(d.log, to))
		l, _, err := Load(t.Context(), to, nil)
		ok(t, err)
		if got := l.DeletesFloor(); got != floor {
			t.Errorf("the floor of deletes was %d, and is %d after an install", floor, got)
		}
		ok(t, errors.Join(l.Close(false), d.log.Close(false)))
	}
}

// TestWhatWasJustSupersededStaysWhileAHoldIsOn checks that versions superseded in the last ten minutes are kept while a
// hold is in force, unless IgnoreHold is set.
func TestWhatWasJustSupersededStaysWhileAHoldIsOn(t *testing.T) {
	now := time.Unix(1_700_000_000, 0)
	opts := driverOptions(vfstest.NewMem(), Index, 64<<10)
	opts.Now = func() time.Time { return now }
	d := newHeld(t, opts, 100)
	put := func(ago time.Duration) {
		d.time = now.Add(-ago).UnixNano() - 1
		d.put(format.Entry{ID: 1, Data: payload(1, 50)})
	}
	put(time.Hour)                    // version 1
	put(11 * time.Minute)             // version 2
	put(heldAgeMin - time.Nanosecond) // version 3
	put(0)                            // version 4
	ok(t, d.log.Seal())
	compactAll(t, d.log)
	wantIndexes(t, d.log, 1, 2, 3, 4)
	wantFloor(t, d.log, 2, true)
	now = now.Add(time.Nanosecond)
	compactAll(t, d.log)
	wantIndexes(t, d.log, 1, 3, 4)
	_, err := d.log.Compact(t.Context(), CompactOptions{All: true, IgnoreHold: true})
	ok(t, err)
	wantIndexes(t, d.log, 1, 4)
	wantFloor(t, d.log, 4, true)
	ok(t, d.log.Close(false))
}

// TestCommitTimesInTheFutureKeepNothingForLong checks that versions are not kept for much longer than ten minutes if
// a leader with a wrong clock has set commit times in the future. Because commit times never decrease, all later ones
// are in the future too. The ten minutes must therefore be counted from the time at which this replica applied an
// entry.
func TestCommitTimesInTheFutureKeepNothingForLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newHeld(t, driverOptions(vfstest.NewMem(), Index, 64<<10), everything)
		d.time = time.Now().Add(1000 * time.Hour).UnixNano()
		for range 3 {
			d.put(format.Entry{ID: 1, Data: payload(1, 50)})
		}
		ok(t, d.log.Seal())
		compactAll(t, d.log)
		wantIndexes(t, d.log, 1, 1, 2, 3)
		time.Sleep(heldAgeMin + ageStep)
		if d.log.Stats().HeldBytes != 0 {
			t.Errorf("%+v", d.log.Stats().Reclaim)
		}
		compactAll(t, d.log)
		wantIndexes(t, d.log, 1, 3)
		ok(t, d.log.Close(false))
	})
}

// TestMinAgeCountsFromWhenAVersionWasSuperseded checks that Retention.MinAge counts from the time at which a version
// was superseded, and not from the time at which it was written.
func TestMinAgeCountsFromWhenAVersionWasSuperseded(t *testing.T) {
	for _, hinted := range []bool{false, true} {
		t.Run(fmt.Sprintf("hinted %t", hinted), func(t *testing.T) {
			now := time.Unix(1_700_000_000, 0)
			opts := driverOptions(vfstest.NewMem(), Index, 64<<10)
			opts.Now = func() time.Time { return now }
			opts.Retention.MinAge = time.Hour
			d := newDriver(t, opts)
			for _, ago := range []time.Duration{30 * time.Hour, 2 * time.Hour} {
				d.time = now.Add(-ago).UnixNano()
				d.put(format.Entry{ID: 1}, format.Entry{ID: 2, Data: payload(2, 50)})
			}
			d.time = now.Add(-time.Minute).UnixNano()
			d.put(format.Entry{ID: 2, Data: payload(2, 50)})
			ok(t, d.log.Seal())
			if hinted {
				d.log.hints.writing.Wait()
				ok(t, d.log.Close(true))
				d.load()
				ok(t, d.log.Apply(d.last(), nil))
			}
			compactAll(t, d.log)
			wantIndexes(t, d.log, 1, 3)    // version 1 was superseded two hours ago
			wantIndexes(t, d.log, 2, 4, 5) // version 4 was written two hours ago, and superseded a minute ago
			now = now.Add(time.Hour)
			compactAll(t, d.log)
			wantIndexes(t, d.log, 2, 5)
			wantFloor(t, d.log, 0, false)
			ok(t, d.log.Close(false))
		})
	}
}
