package group

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"path"
	"sync"
	"testing"
	"time"

	"sheaf.dev/sheaf/internal/storage/group/format"
	"sheaf.dev/sheaf/internal/test/vfstest"
)

// readScan returns the index of each record that a snapshot contains, as a scan yields it and as GetInScan reads it.
func readScan(l *Log, id ScanID, ids int64) (scanned, got map[int64]uint64, err error) {
	scanned, got = map[int64]uint64{}, map[int64]uint64{}
	for r, err := range l.Scan(context.Background(), id, 0, everything, false) {
		if err != nil {
			return nil, nil, err
		}
		if scanned[r.ID] != 0 {
			return nil, nil, fmt.Errorf("record %d twice, with the indexes %d and %d", r.ID, scanned[r.ID], r.Index)
		}
		scanned[r.ID] = r.Index
	}
	for record := range ids {
		switch r, err := l.GetInScan(id, record, GetOptions{}); {
		case err == nil:
			got[record] = r.Index
		case !errors.Is(err, ErrNotFound):
			return nil, nil, fmt.Errorf("record %d: %w", record, err)
		}
	}
	return scanned, got, nil
}

// pastBed keeps snapshots of the past open, and compares each with the model.
type pastBed struct {
	*holdBed
	open map[ScanID]uint64 // the index of each snapshot
}

// openOne opens a snapshot as of a random index that the log has, or that it no longer has.
func (b *pastBed) openOne() {
	floor, known := b.log.HistoryFloor()
	applied := b.log.AppliedIndex()
	at := b.random.Uint64N(applied + 4)
	if known && b.random.IntN(4) > 0 {
		at = floor + b.random.Uint64N(applied-floor+1)
	}
	id, err := b.log.OpenScanAt(at, time.Hour)
	switch {
	case at > applied:
		wantErr(b.t, err, ErrNotApplied)
		b.counts["not applied"]++
	case !known || at < floor:
		wantErr(b.t, err, ErrHistoryGone)
		b.counts["history gone"]++
	default:
		ok(b.t, err)
		b.open[id] = at
	}
}

func wantErr(t testing.TB, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Fatalf("%v, want %v", err, want)
	}
}

func (b *pastBed) compare() {
	floor, known := b.log.HistoryFloor()
	for id, at := range b.open {
		want := asOf(b.model, at)
		scanned, got, err := readScan(b.log, id, 100)
		if errors.Is(err, ErrCursorExpired) && (!known || at < floor) {
			delete(b.open, id)
			b.counts["ended"]++
			continue
		}
		ok(b.t, err)
		if !maps.Equal(scanned, want) || !maps.Equal(got, want) {
			b.t.Fatalf("as of %d, floor %d: a scan gives %v, and gets %v, want %v", at, floor, scanned, got, want)
		}
		b.counts["read"]++
	}
}

// TestSnapshotsOfThePastEqualTheModel opens snapshots as of random indexes among random writes, compactions under
// random holds, restarts and installs. Each snapshot must equal the model for as long as it lasts, and may end only
// if the history floor rises above its index.
func TestSnapshotsOfThePastEqualTheModel(t *testing.T) {
	seeds := uint64(16)
	if testing.Short() {
		seeds = 4
	}
	counts := map[string]int{}
	for seed := range seeds {
		t.Run(fmt.Sprintf("seed %d", seed), func(t *testing.T) {
			b := &pastBed{holdBed: newHoldBed(t, seed, counts), open: map[ScanID]uint64{}}
			log := b.log
			for range 250 {
				b.step()
				if b.log != log {
					log, b.open = b.log, map[ScanID]uint64{}
				}
				if b.random.IntN(6) == 0 {
					b.openOne()
				}
				if len(b.open) > 6 || b.random.IntN(20) == 0 {
					for id := range b.open {
						b.log.CloseScan(id)
						delete(b.open, id)
						break
					}
				}
				b.compare()
			}
			ok(t, b.log.Close(false))
		})
	}
	for _, what := range []string{"read", "ended", "not applied", "history gone"} {
		if counts[what] < int(seeds)/2 {
			t.Errorf("%s: only %d times", what, counts[what])
		}
	}
	t.Log(counts)
}

// TestSnapshotsOfThePastBesideWritesAndCompactions opens snapshots while other goroutines write and compact, under a
// hold that follows the writes.
func TestSnapshotsOfThePastBesideWritesAndCompactions(t *testing.T) {
	bothResidencies(t, func(t *testing.T, residency Residency) {
		d := newHeld(t, driverOptions(vfstest.NewMem(), residency, 8<<10), 0)
		var mu sync.Mutex // guards model and hold
		model, hold := map[uint64]version{}, uint64(0)
		writes := 1500
		if testing.Short() {
			writes = 400
		}
		done := make(chan struct{})
		var wait sync.WaitGroup
		wait.Go(func() {
			defer close(done)
			random := rand.New(rand.NewPCG(1, 2))
			for range writes {
				e := format.Entry{ID: random.Int64N(20), Kind: format.KindPut, Data: payload(1, 60)}
				if random.IntN(5) == 0 {
					e = format.Entry{ID: e.ID, Kind: format.KindDelete}
				}
				mu.Lock()
				model[d.last()+1] = version{id: e.ID, index: d.last() + 1, deleted: e.Kind == format.KindDelete}
				mu.Unlock()
				d.put(e)
			}
		})
		running := func() bool {
			select {
			case <-done:
				return false
			default:
				return true
			}
		}
		wait.Go(func() {
			for running() {
				mu.Lock()
				d.log.SetHold(Hold{Index: hold, On: true})
				mu.Unlock()
				ok(t, d.log.Seal())
				_, err := d.log.Compact(t.Context(), CompactOptions{All: true})
				ok(t, err)
			}
		})
		compare := func(at uint64) error {
			id, err := d.log.OpenScanAt(at, time.Hour)
			if err != nil {
				return err
			}
			defer d.log.CloseScan(id)
			scanned, got, err := readScan(d.log, id, 20)
			mu.Lock()
			defer mu.Unlock()
			if want := asOf(model, at); err == nil && (!maps.Equal(scanned, want) || !maps.Equal(got, want)) {
				return fmt.Errorf("as of %d: a scan gives %v, and gets %v, want %v", at, scanned, got, want)
			}
			return err
		}
		read := 0
		for running() && !t.Failed() {
			mu.Lock()
			at := hold
			hold = d.log.AppliedIndex()
			mu.Unlock()
			switch err := compare(at); {
			case err == nil:
				read++
			case errors.Is(err, ErrHistoryGone) || errors.Is(err, ErrCursorExpired):
				// The last compaction has obeyed the hold that was raised above.
			default:
				t.Error(err)
			}
		}
		wait.Wait()
		ok(t, compare(d.log.AppliedIndex()))
		t.Logf("%d snapshots beside writes", read)
		ok(t, d.log.Close(false))
	})
}

// TestASnapshotOfThePastHoldsOnlySoManyPlaces checks that a snapshot is refused if more records have changed since than
// all snapshots may hold.
func TestASnapshotOfThePastHoldsOnlySoManyPlaces(t *testing.T) {
	d := newHeld(t, driverOptions(vfstest.NewMem(), Index, 16<<10), 0)
	d.log.state.placesMax = 10
	d.fill(12, 3, payload)
	at := d.last()
	d.fill(9, 3, payload)
	id, err := d.log.OpenScanAt(at, time.Hour)
	ok(t, err)
	_, err = d.log.OpenScanAt(at, time.Hour)
	wantErr(t, err, ErrPastTooFar)
	if _, err := d.log.ScanInfo(id); err != nil {
		t.Errorf("the first snapshot: %v", err)
	}
	d.log.CloseScan(id)
	d.fill(12, 3, payload)
	_, err = d.log.OpenScanAt(at, time.Hour)
	wantErr(t, err, ErrPastTooFar)
	if n := len(d.log.state.snapshots); n != 0 {
		t.Errorf("%d snapshots are left", n)
	}
	ok(t, d.log.Close(false))
}

// TestThePastIsWholeBesideDamageOfThePresent loads a log in which the version that superseded a record's version cannot
// be read. A snapshot as of the older version must see it, and must not take the record for one that did not exist.
func TestThePastIsWholeBesideDamageOfThePresent(t *testing.T) {
	for _, header := range []bool{false, true} {
		mem := vfstest.NewMem()
		d := newHeld(t, driverOptions(mem, Index, 64<<10), 0)
		d.put(format.Entry{ID: 1, Data: payload(1, 50)}, format.Entry{ID: 2, Data: payload(2, 50)})
		ok(t, d.log.Seal())
		d.put(format.Entry{ID: 1, Data: payload(1, 60)}, format.Entry{ID: 3, Data: payload(3, 60)})
		ok(t, d.log.Close(true)) // the hint of segment 1 says that version 1 is superseded
		name := path.Join(d.opts.Dir, format.SegmentName(2))
		at := int64(format.SegmentHeaderBytes + format.FrameHeaderBytes + 5)
		if header {
			at = format.SegmentHeaderBytes + 3
		}
		if !mem.Rot(name, at, 1, func(b []byte) { b[0] ^= 4 }) {
			t.Fatal("the newer version is not on the disk")
		}
		d.load()
		if !d.log.Damaged() {
			t.Fatal("the load has not found the damage: the test does not test")
		}
		scan, err := d.log.OpenScanAt(2, time.Hour)
		if header {
			if _, isDamage := errors.AsType[*format.DamageError](err); !isDamage {
				t.Errorf("it is not known which records have newer versions: %v", err)
			}
		} else {
			ok(t, err)
			seen := map[int64]bool{}
			for r, err := range d.log.Scan(t.Context(), scan, 0, everything, false) {
				damage, isDamage := errors.AsType[*format.DamageError](err)
				switch {
				case isDamage:
					seen[damage.ID] = true // a scan may refuse the record, as Get does
				case err != nil:
					t.Fatal(err)
				default:
					seen[r.ID] = true
				}
			}
			if !seen[1] || !seen[2] || len(seen) != 2 {
				t.Errorf("a scan as of index 2 has %v", seen)
			}
		}
		ok(t, d.log.Close(false))
	}
}
