package group

import (
	"bytes"
	"context"
	"errors"
	"path"
	"syscall"
	"testing"

	"sheaf.dev/sheaf/internal/storage/group/format"
	"sheaf.dev/sheaf/internal/test/vfstest"
)

func isSegmentFile(name string) bool {
	_, ok := format.ParseSegmentName(path.Base(name))
	return ok
}

// residencies runs a test in each of the two residencies.
func residencies(t *testing.T, run func(t *testing.T, residency Residency)) {
	for name, r := range map[string]Residency{"index": Index, "resident": Resident} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			run(t, r)
		})
	}
}

func TestRule2_UncommittedEntriesAreInvisible(t *testing.T) {
	residencies(t, func(t *testing.T, residency Residency) {
		d := newDriver(t, driverOptions(vfstest.NewMem(), residency, 8<<10))
		d.put(format.Entry{ID: 1, Data: []byte("committed")}, format.Entry{ID: 2, Data: []byte("stays")})
		ok(t, d.append(format.Entry{ID: 1, Data: []byte("not yet")}, format.Entry{ID: 2, Kind: format.KindDelete},
			format.Entry{ID: 3, Data: []byte("not yet")}))
		ok(t, d.log.Sync())
		ok(t, d.log.Seal()) // even in a sealed segment, no read may see uncommitted entries
		see := func() {
			t.Helper()
			d.wants(1, []byte("committed"))
			d.wants(2, []byte("stays"))
			d.wants(3, nil)
			if at, _, err := d.log.Head(1); at != 1 || err != nil {
				t.Errorf("head %d, %v", at, err)
			}
			if _, _, err := d.log.Head(3); !errors.Is(err, ErrNotFound) {
				t.Errorf("head of record 3: %v", err)
			}
			if _, err := d.log.Get(1, GetOptions{Index: 3}); !errors.Is(err, ErrVersionNotFound) {
				t.Errorf("version 3: %v", err)
			}
			vs, err := d.log.Versions(1, 0, 10)
			if err != nil || len(vs) != 1 {
				t.Errorf("%d versions, %v", len(vs), err)
			}
			id, err := d.log.OpenScan(1 << 40)
			ok(t, err)
			n := 0
			for r, err := range d.log.Scan(context.Background(), id, 0, ^uint64(0), false) {
				ok(t, err)
				if r.Index > 2 {
					t.Errorf("scan gave index %d", r.Index)
				}
				n++
			}
			d.log.CloseScan(id)
			if n != 2 || d.log.Stats().Records != 2 {
				t.Errorf("%d records scanned, %d counted", n, d.log.Stats().Records)
			}
		}
		see()
		d.log.hints.writing.Wait()
		ok(t, d.log.Close(false))
		d.load()
		// The commit on disk may be too low, but must never be too high.
		ok(t, d.log.Apply(max(2, d.log.AppliedIndex()), nil))
		see()
		ok(t, d.log.Apply(5, nil))
		d.wants(1, []byte("not yet"))
		d.wants(2, nil)
		ok(t, sealAndClose(d.log))
	})
}

func TestRule3_TornTailIsTruncatedAndNothingBehindIsRevived(t *testing.T) {
	mem := vfstest.NewMem()
	d := newDriver(t, driverOptions(mem, Index, 64<<10))
	d.put(format.Entry{ID: 1, Data: payload(1, 300)})
	ok(t, d.log.Tick())
	var at []int64
	for i := range int64(4) {
		at = append(at, d.log.w.end)
		ok(t, d.append(format.Entry{ID: 10 + i, Data: payload(i, 300)}))
	}
	name := path.Join(d.opts.Dir, format.SegmentName(1))
	disk := mem.CrashClone(vfstest.Survival{Kind: vfstest.SurviveAll})
	f, err := disk.OpenWrite(name)
	ok(t, err)
	// This leaves a hole before two whole entries.
	_, err = f.WriteAt(make([]byte, 8), at[1])
	ok(t, err)
	ok(t, f.Close())
	d.opts.FS = disk
	report := d.load()
	if report.Outcome != Truncated || report.TornTailBytes == 0 || d.last() != 2 {
		t.Fatalf("%+v, last index %d", report, d.last())
	}
	// The new entry is shorter than the truncated ones. The remaining bytes must not become entries again.
	ok(t, d.append(format.Entry{ID: 20, Data: []byte("short")}))
	ok(t, d.log.Sync())
	ok(t, d.log.Close(false))
	d.opts.FS = disk.CrashClone(vfstest.Survival{Kind: vfstest.SurviveNone})
	report = d.load()
	if report.Outcome != Loaded || d.last() != 3 {
		t.Fatalf("%+v, last index %d", report, d.last())
	}
	ok(t, d.log.Apply(3, nil))
	for i := range int64(4) {
		if i == 0 {
			d.wants(10, payload(0, 300))
			continue
		}
		d.wants(10+i, nil)
	}
	d.wants(20, []byte("short"))
}

func TestRule3_BadBytesBelowTheMarkAreDamage(t *testing.T) {
	// To a load, the hole looks like a torn tail. However, the log has recorded that the bytes were synced. Tick records
	// this in the mark when the group is idle, and otherwise the state record of the next batch does.
	for name, settle := range map[string]func(d *logDriver){
		"tick":         func(d *logDriver) { ok(d.t, d.log.Tick()) },
		"state record": func(d *logDriver) { ok(d.t, d.append(format.Entry{Kind: format.KindEmpty})); ok(d.t, d.log.Sync()) },
	} {
		t.Run(name, func(t *testing.T) {
			mem := vfstest.NewMem()
			d := newDriver(t, driverOptions(mem, Index, 64<<10))
			d.put(format.Entry{ID: 1, Data: payload(1, 300)})
			at := d.log.w.end
			d.put(format.Entry{ID: 2, Data: payload(2, 300)})
			settle(d)
			disk := mem.CrashClone(vfstest.Survival{Kind: vfstest.SurviveAll})
			f, err := disk.OpenWrite(path.Join(d.opts.Dir, format.SegmentName(1)))
			ok(t, err)
			_, err = f.WriteAt(make([]byte, 8), at)
			ok(t, err)
			ok(t, f.Close())
			d.opts.FS = disk
			report := d.load()
			if report.Outcome != Damaged || len(report.Damages) != 1 || report.TornTailBytes != 0 {
				t.Fatalf("%+v", report)
			}
			var damage *format.DamageError
			if _, err := d.get(2); !errors.As(err, &damage) {
				t.Fatalf("damaged record: %v", err)
			}
		})
	}
}

func TestRule3_OneTickIsEnoughAfterABurst(t *testing.T) {
	d := newDriver(t, driverOptions(vfstest.NewMem(), Index, 64<<10))
	d.fill(50, 30, payload)
	synced, last := d.log.w.end, d.last()
	// This entry is not synced yet, so the mark does not cover it, and Tick does not have to wait for it.
	ok(t, d.append(format.Entry{ID: 1, Data: payload(1, 30)}))
	ok(t, d.log.Tick())
	mark, found, _, err := format.ReadMark(d.opts.FS, d.opts.Dir)
	ok(t, err)
	if !found || mark.Offset != synced || mark.Index != last {
		t.Fatalf("the mark is %+v (found: %t), want offset %d, index %d", mark, found, synced, last)
	}
	ok(t, d.log.Close(false))
}

func TestRule3_TheRecoveredTailIsSyncedBeforeItCounts(t *testing.T) {
	mem := vfstest.NewMem()
	d := newDriver(t, driverOptions(mem, Index, 64<<10))
	// After this append, the process is killed, but the machine keeps running.
	ok(t, d.append(format.Entry{ID: 1, Data: []byte("written, not synced")}))
	ok(t, d.log.Close(false))
	d.load()
	if d.last() != 1 {
		t.Fatalf("last index %d", d.last())
	}
	d.opts.FS = mem.CrashClone(vfstest.Survival{Kind: vfstest.SurviveNone})
	d.load()
	if d.last() != 1 {
		t.Fatalf("last index %d after a power cut: what loading gave to Raft was not synced", d.last())
	}
}

// TestRule3_TheRecoveredTailIsSyncedWithTheVolume checks that a start syncs the volume once for all groups, and that it
// syncs the group's own file if that fails. Without either sync, the write is lost.
func TestRule3_TheRecoveredTailIsSyncedWithTheVolume(t *testing.T) {
	for name, c := range map[string]struct {
		durable         func(*vfstest.Mem) error
		ownSyncs, keeps bool
	}{
		"with the volume": {func(m *vfstest.Mem) error { return m.SyncAll(".") }, false, true},
		"by itself":       {func(*vfstest.Mem) error { return syscall.EIO }, true, true},
		// This case shows that the write is lost without a sync.
		"not at all": {func(*vfstest.Mem) error { return nil }, false, false},
	} {
		t.Run(name, func(t *testing.T) {
			mem := vfstest.NewMem()
			d := newDriver(t, driverOptions(mem, Index, 64<<10))
			ok(t, d.append(format.Entry{ID: 1, Data: []byte("written, not synced")}))
			ok(t, d.log.Close(false))
			faulty := vfstest.NewFaulty(mem)
			d.opts.FS, d.opts.Durable = faulty, func() error { return c.durable(mem) }
			d.load()
			if d.last() != 1 {
				t.Fatalf("last index %d", d.last())
			}
			if own := faulty.Calls(vfstest.OpSync) > 0; own != c.ownSyncs {
				t.Errorf("the file was synced by itself: %t", own)
			}
			d.opts.FS, d.opts.Durable = mem.CrashClone(vfstest.Survival{Kind: vfstest.SurviveNone}), nil
			d.load()
			if kept := d.last() == 1; kept != c.keeps {
				t.Errorf("after a power cut the entry is there: %t, want %t", kept, c.keeps)
			}
		})
	}
}

func TestRule5_AFailedSyncIsNeverAcknowledgedFrom(t *testing.T) {
	residencies(t, func(t *testing.T, residency Residency) {
		mem := vfstest.NewMem()
		fs := vfstest.NewFaulty(mem)
		d := newDriver(t, driverOptions(fs, residency, 64<<10))
		d.put(format.Entry{ID: 1, Data: payload(1, 100)})
		poisoned := path.Base(d.log.w.active.path)
		fault := fs.Add(&vfstest.Fault{
			Match:  func(op vfstest.Op) bool { return op.Kind == vfstest.OpSync && path.Base(op.Name) == poisoned },
			Effect: vfstest.EffectDrop,
		})
		// The failed sync has dropped this data. It can still be read from the page cache, but is not on the disk.
		d.put(format.Entry{ID: 2, Data: payload(2, 100)}, format.Entry{ID: 1, Data: payload(3, 100)})
		if fault.Fired() != 1 {
			t.Fatalf("the fault fired %d times: the file was synced again", fault.Fired())
		}
		d.wants(1, payload(3, 100))
		d.wants(2, payload(2, 100))
		d.put(format.Entry{ID: 4, Data: payload(4, 100)})
		if fault.Fired() != 1 {
			t.Fatalf("the file was synced %d times after it was poisoned", fault.Fired()-1)
		}
		d.opts.FS = mem.CrashClone(vfstest.Survival{Kind: vfstest.SurviveNone})
		report := d.load()
		if report.Outcome == Damaged {
			t.Fatalf("%+v", report)
		}
		ok(t, d.log.Apply(d.last(), nil))
		d.wants(1, payload(3, 100))
		d.wants(2, payload(2, 100))
		d.wants(4, payload(4, 100))
	})
}

func TestRule5_AppliedBeforeSyncedMovesWithTheLog(t *testing.T) {
	// A follower may apply committed entries before it has synced them itself. If that sync fails, the entries are
	// written to another segment, so their locations change.
	residencies(t, func(t *testing.T, residency Residency) {
		mem := vfstest.NewMem()
		fs := vfstest.NewFaulty(mem)
		d := newDriver(t, driverOptions(fs, residency, 64<<10))
		d.put(format.Entry{ID: 1, Data: payload(1, 100)})
		id, err := d.log.OpenScan(1 << 40)
		ok(t, err)
		ok(t, d.append(format.Entry{ID: 1, Data: payload(2, 100)}, format.Entry{ID: 2, Data: payload(2, 100)},
			format.Entry{ID: 2, Data: payload(3, 100)}))
		ok(t, d.log.Apply(4, nil))
		fault := fs.Add(&vfstest.Fault{Match: func(op vfstest.Op) bool {
			return op.Kind == vfstest.OpSync && isSegmentFile(op.Name)
		}, Effect: vfstest.EffectDrop, Count: 1})
		ok(t, d.log.Sync())
		if fault.Fired() != 1 {
			t.Fatal("the fault did not fire")
		}
		d.wants(1, payload(2, 100))
		d.wants(2, payload(3, 100))
		// This checks that the file whose sync failed is no longer read, not even from the page cache.
		for id := int64(1); id <= 2; id++ {
			if r, err := d.log.Get(id, GetOptions{}); err != nil || r.Location.Segment != 2 {
				t.Errorf("record %d is read from %s, %v", id, r.Location, err)
			}
		}
		r, err := d.log.Get(2, GetOptions{Index: 3})
		if err != nil || !bytes.Equal(r.Data, payload(2, 100)) {
			t.Errorf("older version: %v", err)
		}
		n := 0
		for r, err := range d.log.Scan(context.Background(), id, 0, ^uint64(0), false) {
			ok(t, err)
			if r.ID != 1 || r.Index != 1 {
				t.Errorf("scan gave record %d index %d", r.ID, r.Index)
			}
			n++
		}
		if n != 1 {
			t.Errorf("scan gave %d records", n)
		}
		ok(t, sealAndClose(d.log))
		d.load()
		ok(t, d.log.Apply(4, nil))
		d.wants(2, payload(3, 100))
	})
}

func TestRule5_ASyncThatFailsEverywhereIsAnError(t *testing.T) {
	mem := vfstest.NewMem()
	fs := vfstest.NewFaulty(mem)
	d := newDriver(t, driverOptions(fs, Index, 64<<10))
	d.put(format.Entry{ID: 1, Data: []byte("one")})
	fault := fs.Add(&vfstest.Fault{Match: func(op vfstest.Op) bool {
		return op.Kind == vfstest.OpSync
	}, Effect: vfstest.EffectDrop})
	ok(t, d.append(format.Entry{ID: 2, Data: []byte("two")}))
	for range 2 {
		if err := d.log.Sync(); !errors.Is(err, ErrPoisoned) {
			t.Fatalf("sync: %v", err)
		}
	}
	if fault.Fired() < 2 {
		t.Fatal("the fault did not fire")
	}
	d.wants(1, []byte("one"))
	d.wants(2, nil)
	fault.Remove()
	ok(t, d.log.Sync())
	ok(t, d.log.Apply(2, nil))
	d.opts.FS = mem.CrashClone(vfstest.Survival{Kind: vfstest.SurviveNone})
	d.load()
	ok(t, d.log.Apply(2, nil))
	d.wants(2, []byte("two"))
}
