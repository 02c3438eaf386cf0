package group

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"sheaf.dev/sheaf/internal/storage/group/format"
	"sheaf.dev/sheaf/internal/storage/group/fsck"
	"sheaf.dev/sheaf/internal/storage/vfs"
	"sheaf.dev/sheaf/internal/test/vfstest"
)

// storeModel is the expected content of a group: all versions ever applied, and the open snapshots.
type storeModel struct {
	versions map[int64][]modelEntry // each record's versions in the order in which they were written
	scans    map[ScanID]map[int64]modelEntry
}

// compactBed drives a log that is compacted repeatedly.
type compactBed struct {
	*logDriver
	random *rand.Rand
	model  storeModel
	keep   int
}

const compactIDs = 12

func newCompactBed(t testing.TB, fs vfs.FS, residency Residency, seed uint64, keep int) *compactBed {
	opts := driverOptions(fs, residency, 8<<10)
	opts.Retention.Versions = keep
	return &compactBed{
		logDriver: newDriver(t, opts), random: rand.New(rand.NewPCG(seed, 3)), keep: keep,
		model: storeModel{versions: map[int64][]modelEntry{}, scans: map[ScanID]map[int64]modelEntry{}},
	}
}

// write puts or deletes a random record, and applies it.
func (b *compactBed) write() error {
	m := modelEntry{entry: format.Entry{Kind: format.KindPut, ID: b.random.Int64N(compactIDs)}}
	switch b.random.IntN(8) {
	case 0, 1:
		m.entry.Kind = format.KindDelete
	case 2:
		m.blob = bytes.Repeat([]byte{byte(b.random.Uint32())}, 2000)
		ref, err := writeBlobOf(b.log, m.blob)
		if err != nil {
			return err
		}
		m.entry.Codec, m.entry.Data = format.CodecBlob, ref.Encode()
	default:
		m.entry.Data = bytes.Repeat([]byte{byte(b.random.Uint32())}, b.random.IntN(1500))
	}
	if err := b.append(m.entry); err != nil {
		return err
	}
	m.entry.Index = b.last()
	if err := errors.Join(b.log.Sync(), b.log.Apply(m.entry.Index, nil)); err != nil {
		return err
	}
	b.model.versions[m.entry.ID] = append(b.model.versions[m.entry.ID], m)
	return nil
}

func writeBlobOf(l *Log, data []byte) (format.BlobRef, error) {
	w, err := l.CreateBlob()
	if err != nil {
		return format.BlobRef{}, err
	}
	_, err = w.Write(data)
	var ref format.BlobRef
	if err == nil {
		ref, err = w.Commit()
	}
	return ref, errors.Join(err, w.Close())
}

func (m *storeModel) newest() map[int64]modelEntry {
	out := map[int64]modelEntry{}
	for id, all := range m.versions {
		if last := all[len(all)-1]; last.entry.Kind == format.KindPut {
			out[id] = last
		}
	}
	return out
}

func (b *compactBed) openScan() {
	id, err := b.log.OpenScan(time.Hour)
	ok(b.t, err)
	b.model.scans[id] = b.model.newest()
}

func sameData(l *Log, r Record, want modelEntry) error {
	switch {
	case r.Index != want.entry.Index:
		return fmt.Errorf("record %d has index %d, want %d", r.ID, r.Index, want.entry.Index)
	case r.Blob != nil:
		return compareBlob(l, r, want.blob)
	case !bytes.Equal(r.Data, want.entry.Data):
		return fmt.Errorf("record %d, index %d: wrong data", r.ID, r.Index)
	}
	return nil
}

// check compares everything that can be read with the model. The argument keep says how many of each record's newest
// versions must exist.
func (m *storeModel) check(l *Log, keep int) error {
	for id := range int64(compactIDs) {
		all := m.versions[id]
		r, err := l.Get(id, GetOptions{})
		if len(all) == 0 || all[len(all)-1].entry.Kind == format.KindDelete {
			if !errors.Is(err, ErrNotFound) {
				return fmt.Errorf("record %d: index %d, %w, want not found", id, r.Index, err)
			}
			continue
		}
		if err != nil {
			return fmt.Errorf("record %d: %w", id, err)
		}
		if err := sameData(l, r, all[len(all)-1]); err != nil {
			return err
		}
		if err := checkVersions(l, id, all, keep); err != nil {
			return err
		}
	}
	newest := m.newest()
	if got := l.Stats().Records; got != int64(len(newest)) {
		return fmt.Errorf("%d records, want %d", got, len(newest))
	}
	for id, want := range m.scans {
		if err := checkScan(l, id, want); err != nil {
			return err
		}
	}
	return nil
}

// checkVersions checks that the newest versions of a record exist, and that no version exists that was never written.
func checkVersions(l *Log, id int64, all []modelEntry, keep int) error {
	got, err := l.Versions(id, 0, 1000)
	if err != nil {
		return err
	}
	// The tombstone of a delete may have been dropped, together with all older versions.
	must := 0
	for must < min(keep, len(all)) && all[len(all)-1-must].entry.Kind == format.KindPut {
		must++
	}
	if len(got) < must {
		return fmt.Errorf("record %d has %d versions of %d, want %d at least", id, len(got), len(all), must)
	}
	for i, r := range got {
		at := slices.IndexFunc(all, func(m modelEntry) bool { return m.entry.Index == r.Index })
		if at < 0 || i < must && at != len(all)-1-i || r.Deleted != (all[at].entry.Kind == format.KindDelete) {
			return fmt.Errorf("record %d: version %d is %d, deleted %t", id, i, r.Index, r.Deleted)
		}
		read, err := l.Get(id, GetOptions{Index: r.Index})
		if err != nil {
			return fmt.Errorf("record %d, version %d: %w", id, r.Index, err)
		}
		if !r.Deleted {
			if err := sameData(l, read, all[at]); err != nil {
				return err
			}
		}
	}
	return nil
}

func checkScan(l *Log, id ScanID, want map[int64]modelEntry) error {
	seen := 0
	for r, err := range l.Scan(context.Background(), id, 0, ^uint64(0), false) {
		if err != nil {
			return err
		}
		if err := sameData(l, r, want[r.ID]); err != nil {
			return fmt.Errorf("scan: %w", err)
		}
		seen++
	}
	if seen != len(want) {
		return fmt.Errorf("scan gave %d records, want %d", seen, len(want))
	}
	return nil
}

func (b *compactBed) reload(seal bool) error {
	if err := b.log.Close(seal); err != nil {
		return err
	}
	b.model.scans = map[ScanID]map[int64]modelEntry{}
	verified, err := fsck.VerifyDir(context.Background(), b.opts.FS, b.opts.Dir, nil)
	if err != nil || len(verified.Damages) > 0 {
		return fmt.Errorf("verify: %v, %w", verified.Damages, err)
	}
	report := b.load()
	if report.Outcome != Loaded {
		return fmt.Errorf("outcome %d: %v", report.Outcome, report.Damages)
	}
	return b.log.Apply(b.last(), nil)
}

func (b *compactBed) step() error {
	switch n := b.random.IntN(40); {
	case n < 30:
		return b.write()
	case n < 33:
		return b.log.Seal()
	case n < 34:
		b.openScan()
	case n < 35:
		for id := range b.model.scans {
			b.log.CloseScan(id)
			delete(b.model.scans, id)
			break
		}
	case n < 36:
		return b.reload(b.random.IntN(2) == 0)
	default:
		_, err := b.log.Compact(context.Background(), CompactOptions{All: b.random.IntN(3) > 0})
		return err
	}
	return nil
}

func bothResidencies(t *testing.T, run func(t *testing.T, residency Residency)) {
	for name, residency := range map[string]Residency{"index": Index, "resident": Resident} {
		t.Run(name, func(t *testing.T) { run(t, residency) })
	}
}

func TestStoreEqualsModelAfterPutsDeletesCompactionsAndReloads(t *testing.T) {
	bothResidencies(t, func(t *testing.T, residency Residency) {
		seeds := uint64(12)
		if testing.Short() {
			seeds = 3
		}
		for seed := range seeds {
			b := newCompactBed(t, vfstest.NewMem(), residency, seed, 1+int(seed%3))
			for i := range 250 {
				err := b.step()
				if err == nil && i%5 == 0 {
					err = b.model.check(b.log, b.keep)
				}
				if err != nil {
					t.Fatalf("seed %d, step %d: %v", seed, i, err)
				}
			}
			ok(t, b.reload(true))
			if err := b.model.check(b.log, b.keep); err != nil {
				t.Fatalf("seed %d, reloaded: %v", seed, err)
			}
			ok(t, b.log.Close(false))
		}
	})
}

// fill writes records into several sealed segments. Most of the records are superseded.
func (b *compactBed) fill(writes int) {
	for range writes {
		ok(b.t, b.write())
	}
	ok(b.t, b.log.Seal())
	b.log.hints.writing.Wait()
}

func TestCompactThatFailsLeavesAllAsItWas(t *testing.T) {
	for name, fault := range map[string]error{"full disk": syscall.ENOSPC, "broken disk": syscall.EIO} {
		t.Run(name, func(t *testing.T) {
			fired := 0
			for at := 1; ; at++ {
				faulty := vfstest.NewFaulty(vfstest.NewMem())
				b := newCompactBed(t, faulty, Index, 5, 1)
				b.fill(40)
				var calls atomic.Int64
				f := faulty.Add(&vfstest.Fault{Match: func(op vfstest.Op) bool {
					return isChange(op) && calls.Add(1) == int64(at)
				}, Err: fault})
				_, err := b.log.Compact(context.Background(), CompactOptions{All: true})
				b.log.hints.writing.Wait()
				f.Remove()
				if f.Fired() == 0 {
					ok(t, err)
					ok(t, b.log.Close(false))
					break
				}
				fired++
				if errors.Is(fault, syscall.ENOSPC) && err != nil && !errors.Is(err, format.ErrNoSpace) {
					t.Fatalf("change %d: %v is not ErrNoSpace", at, err)
				}
				if err := b.model.check(b.log, 1); err != nil {
					t.Fatalf("change %d failed: %v", at, err)
				}
				ok(t, b.write())
				_, err = b.log.Compact(context.Background(), CompactOptions{All: true})
				ok(t, err)
				ok(t, b.reload(false))
				if err := b.model.check(b.log, 1); err != nil {
					t.Fatalf("change %d failed, then reloaded: %v", at, err)
				}
				ok(t, b.log.Close(false))
			}
			if fired < 20 {
				t.Errorf("only %d faults fired", fired)
			}
		})
	}
}

func isChange(op vfstest.Op) bool {
	switch op.Kind {
	case vfstest.OpCreate, vfstest.OpWrite, vfstest.OpSync, vfstest.OpRename, vfstest.OpSyncDir, vfstest.OpTruncate:
		return true
	}
	return false
}

func TestCompactDropsTombstonesOnceNoOlderPutIsLeft(t *testing.T) {
	b := newCompactBed(t, vfstest.NewMem(), Index, 1, 1)
	for id := range int64(20) {
		b.put(format.Entry{ID: id, Data: payload(id, 300)})
	}
	ok(t, b.log.Seal())
	for id := range int64(20) {
		b.put(format.Entry{Kind: format.KindDelete, ID: id})
	}
	b.put(format.Entry{ID: 100, Data: payload(100, 300)})
	ok(t, b.log.Seal())
	for round, want := range []int64{20, 20, 0} {
		if round == 2 {
			ok(t, b.log.Seal())
		}
		report, err := b.log.Compact(context.Background(), CompactOptions{All: true})
		ok(t, err)
		if report.EntriesDropped != want {
			t.Fatalf("round %d dropped %d entries, want %d", round, report.EntriesDropped, want)
		}
		b.wants(3, nil)
		b.wants(100, payload(100, 300))
		if n := b.log.places.table.Len(); round > 0 && n != 1 {
			t.Errorf("the index has %d ids, want 1", n)
		}
		m, err := format.ReadManifest(b.opts.FS, b.opts.Dir)
		ok(t, err)
		if floor := m.TombstoneFloor; (floor >= 40) != (round > 0) {
			t.Errorf("round %d: the tombstone floor is %d", round, floor)
		}
	}
	ok(t, b.log.Close(false))
	b.load()
	b.wants(3, nil)
	b.wants(100, payload(100, 300))
	ok(t, b.log.Close(false))
}

func TestCompactKeepsWhatRetentionSays(t *testing.T) {
	now := time.Unix(1_700_000_000, 0)
	opts := driverOptions(vfstest.NewMem(), Index, 64<<10)
	opts.Now = func() time.Time { return now }
	opts.Retention = Retention{Versions: 2, MinAge: time.Minute}
	d := newDriver(t, opts)
	d.time = now.Add(-time.Hour).UnixNano()
	for range 5 {
		d.put(format.Entry{ID: 1, Data: []byte("old")}, format.Entry{ID: 2, Data: []byte("too")})
	}
	d.time = now.Add(-time.Second).UnixNano()
	d.put(format.Entry{ID: 3, Data: []byte("young")}, format.Entry{ID: 3}, format.Entry{ID: 3}, format.Entry{ID: 3})
	d.put(format.Entry{ID: 1, Data: []byte("new")})
	ok(t, d.log.Seal())
	_, err := d.log.Compact(context.Background(), CompactOptions{All: true})
	ok(t, err)
	for id, want := range map[int64]int{1: 2, 2: 2, 3: 4} {
		got, err := d.log.Versions(id, 0, 100)
		ok(t, err)
		if len(got) != want {
			t.Errorf("record %d has %d versions, want %d", id, len(got), want)
		}
	}
	ok(t, d.log.Close(false))
}

func TestCompactEndsWithClose(t *testing.T) {
	b := newCompactBed(t, vfstest.NewMem(), Index, 2, 1)
	b.fill(60)
	done := make(chan error)
	go func() {
		_, err := b.log.Compact(context.Background(), CompactOptions{All: true, RateBytesPerSecond: 1})
		done <- err
	}()
	ok(t, b.log.Close(false))
	if err := <-done; err != nil && !errors.Is(err, format.ErrClosed) {
		t.Fatal(err)
	}
}

// TestAReadLooksAgainWhereAnOrdinalIsUsedAgain delays a read until its record has moved and its ordinal belongs to a
// different segment. The read must look up the record again.
func TestAReadLooksAgainWhereAnOrdinalIsUsedAgain(t *testing.T) {
	bothResidencies(t, func(t *testing.T, residency Residency) {
		d := newDriver(t, driverOptions(vfstest.NewMem(), residency, 32<<10))
		d.put(format.Entry{ID: 1, Data: payload(1, 10)}, format.Entry{ID: 2, Data: payload(2, 10)})
		stale, _ := d.log.places.table.Get(2)
		reused := false
		for round := 0; round < 20 && !reused; round++ {
			d.put(format.Entry{ID: 1, Data: payload(1, 10)})
			d.compact()
			now, _ := d.log.places.table.Get(2)
			reused = now != stale && d.log.places.segment(stale.Ordinal()) != nil
			if s := d.log.places.pin(2, stale); now != stale && s != nil {
				t.Errorf("round %d: the record is at %x, and a read goes to %x", round, now, stale)
			}
			if s := d.log.places.pin(2, now); s == nil {
				t.Errorf("round %d: the record is not found where it is", round)
			} else {
				s.unpin()
			}
			d.wants(2, payload(2, 10))
		}
		if !reused {
			t.Error("no ordinal was used again: the test does not test")
		}
		ok(t, d.log.Close(false))
	})
}

func TestCompactBesideReadsWritesAndScans(t *testing.T) {
	bothResidencies(t, func(t *testing.T, residency Residency) {
		d := newDriver(t, driverOptions(vfstest.NewMem(), residency, 32<<10))
		const ids = 30
		for id := range int64(ids) {
			d.put(format.Entry{ID: id, Data: payload(id, 200)})
		}
		stop := make(chan struct{})
		var wait sync.WaitGroup
		reads := atomic.Int64{}
		for w := range 2 {
			wait.Go(func() {
				r := rand.New(rand.NewPCG(uint64(w), 1))
				for {
					select {
					case <-stop:
						return
					default:
					}
					id := r.Int64N(ids)
					got, err := d.log.Get(id, GetOptions{})
					if err != nil || !bytes.Equal(got.Data, payload(id, 200)) {
						t.Errorf("record %d: %v", id, err)
						return
					}
					reads.Add(1)
				}
			})
		}
		wait.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				id, err := d.log.OpenScan(time.Hour)
				n := 0
				for r, scanErr := range d.log.Scan(context.Background(), id, 0, ^uint64(0), false) {
					err = errors.Join(err, scanErr)
					if !bytes.Equal(r.Data, payload(r.ID, 200)) {
						t.Errorf("scan: record %d is wrong", r.ID)
					}
					n++
				}
				d.log.CloseScan(id)
				if err != nil || n != ids {
					t.Errorf("scan gave %d records, %v", n, err)
					return
				}
			}
		})
		dropped := int64(0)
		for reads.Load() == 0 && !t.Failed() {
			runtime.Gosched()
		}
		for round := range 40 {
			for i := range int64(ids) {
				d.put(format.Entry{ID: (i*7 + int64(round)) % ids, Data: payload((i*7+int64(round))%ids, 200)})
			}
			ok(t, d.log.Seal())
			report, err := d.log.Compact(context.Background(), CompactOptions{All: true})
			ok(t, err)
			dropped += report.EntriesDropped
		}
		close(stop)
		wait.Wait()
		if dropped < 30*ids || reads.Load() == 0 {
			t.Errorf("%d entries dropped beside %d reads", dropped, reads.Load())
		}
		ok(t, sealAndClose(d.log))
	})
}
