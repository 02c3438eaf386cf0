package group

import (
	"testing"
	"testing/synctest"
	"time"

	"sheaf.dev/sheaf/internal/storage/group/format"
	"sheaf.dev/sheaf/internal/test/vfstest"
)

// due reports whether a compaction is due, given that a compaction must free at least two fifths of the sealed data.
func (d *logDriver) due() bool {
	r := d.log.Stats().Reclaim
	return r.IsDue(0.4, 0)
}

// look compacts like a background compaction, and checks that no further compaction is due after that.
func (d *logDriver) look() CompactReport {
	d.t.Helper()
	report, err := d.log.Compact(d.t.Context(), CompactOptions{})
	ok(d.t, err)
	d.log.hints.writing.Wait()
	if d.due() {
		d.t.Errorf("still due: %+v", d.log.Stats().Reclaim)
	}
	return report
}

// TestCompactionIsDueAgainWhenWhatKeptSomethingHasEnded checks that data that a compaction had to keep makes a
// compaction due as soon as the reason for keeping it may have ended, and not earlier.
func TestCompactionIsDueAgainWhenWhatKeptSomethingHasEnded(t *testing.T) {
	const count = 40
	for name, c := range map[string]struct {
		options func(*Options)
		before  func(*logDriver) (end func())
		reason  func(Reclaim) int64
	}{
		"a scan": {
			before: func(d *logDriver) func() {
				id, err := d.log.OpenScan(time.Hour)
				ok(d.t, err)
				return func() { d.log.CloseScan(id) }
			},
			reason: func(r Reclaim) int64 { return r.Scans },
		},
		"a scan that nobody uses any more": {
			before: func(d *logDriver) func() {
				_, err := d.log.OpenScan(time.Hour)
				ok(d.t, err)
				return func() { time.Sleep(time.Hour + time.Second) }
			},
			reason: func(r Reclaim) int64 { return r.Scans },
		},
		"the age of versions": {
			options: func(o *Options) { o.Retention.MinAge = time.Hour },
			before:  func(*logDriver) func() { return func() { time.Sleep(time.Hour + time.Second) } },
			reason:  func(r Reclaim) int64 { return r.Age },
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				opts := driverOptions(vfstest.NewMem(), Index, 16<<10)
				if c.options != nil {
					c.options(&opts)
				}
				d := newDriver(t, opts)
				d.time = time.Now().UnixNano()
				for id := range int64(count) {
					d.put(format.Entry{ID: id, Data: payload(id, 1000)})
				}
				end := c.before(d)
				for id := range int64(count) {
					d.put(format.Entry{ID: id, Data: payload(id+1, 1000)})
				}
				ok(t, d.log.Seal())
				d.put(format.Entry{ID: count})
				for range 3 {
					if report := d.look(); report.EntriesDropped != 0 {
						t.Fatalf("%+v", report)
					}
				}
				if kept := c.reason(d.log.Stats().Reclaim); kept < count*1000 {
					t.Errorf("%+v", d.log.Stats().Reclaim)
				}
				end()
				if !d.due() {
					t.Fatalf("not due: %+v", d.log.Stats().Reclaim)
				}
				if report := d.look(); report.EntriesDropped != count {
					t.Errorf("%+v", report)
				}
				ok(t, d.log.Close(false))
			})
		})
	}
}

// TestVersionsThatRetentionKeepsMakeNoCompactionDue checks that versions kept by Retention.Versions do not count as
// superseded. After a compaction has kept some, the next one is due only when as many further bytes are superseded.
func TestVersionsThatRetentionKeepsMakeNoCompactionDue(t *testing.T) {
	opts := driverOptions(vfstest.NewMem(), Index, 16<<10)
	opts.Retention.Versions = 3
	d := newDriver(t, opts)
	round := func(n int64) {
		for id := range int64(30) {
			d.put(format.Entry{ID: id, Data: payload(id+n, 1000)})
		}
	}
	for n := range int64(3) {
		round(n)
	}
	ok(t, d.log.Seal())
	round(3)
	if report := d.look(); report.EntriesDropped > 0 && report.EntriesDropped != 30 {
		t.Errorf("%+v", report)
	}
	if kept := d.log.Stats().Reclaim.Versions; kept == 0 {
		t.Errorf("%+v", d.log.Stats().Reclaim)
	}
	for n := range int64(6) {
		round(n + 4)
	}
	ok(t, d.log.Seal())
	if !d.due() {
		t.Errorf("%+v", d.log.Stats().Reclaim)
	}
	d.look()
	ok(t, d.log.Close(false))
}

// TestTombstonesMakeACompactionDueWhenEveryMemberHasThem checks that a tombstone makes a compaction due once every
// member has applied it, because only then can the tombstone be dropped.
func TestTombstonesMakeACompactionDueWhenEveryMemberHasThem(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDriver(t, driverOptions(vfstest.NewMem(), Index, 16<<10))
		for id := range int64(30) {
			d.put(format.Entry{ID: id, Data: payload(id, 1000)}, format.Entry{ID: id, Kind: format.KindDelete,
				RequestID: [16]byte{1, byte(id)}})
		}
		ok(t, d.log.Seal())
		d.put(format.Entry{ID: 99})
		if report := d.look(); report.EntriesDropped != 30 {
			t.Fatalf("%+v", report)
		}
		time.Sleep(format.DefaultRequestWindow.Age + ageStep)
		if !d.due() {
			t.Fatalf("not due: %+v", d.log.Stats().Reclaim)
		}
		d.look()
		if got := d.log.Stats(); got.StoredBytes > 1000 {
			t.Errorf("%+v", got)
		}
		ok(t, d.log.Close(false))
	})
}

// TestOverwrittenBlobsMakeACompactionDue checks that an overwritten blob counts with the size of its data, and not
// with the 40 bytes of the reference to it.
func TestOverwrittenBlobsMakeACompactionDue(t *testing.T) {
	d := newDriver(t, driverOptions(vfstest.NewMem(), Index, 64<<10))
	for i := range 12 {
		ref, err := writeBlobOf(d.log, make([]byte, 50_000))
		ok(t, err)
		d.put(format.Entry{ID: int64(i % 2), Codec: format.CodecBlob, Data: ref.Encode(), RequestID: [16]byte{1, byte(i)}})
		if d.due() {
			d.look()
		}
		if got := d.log.Stats().StoredBytes; got > 22*2*50_000/10+64<<10 {
			t.Errorf("%d bytes are stored after %d blobs: %+v", got, i, d.log.Stats().Reclaim)
		}
	}
	if n := len(d.requests()); n != 12 {
		t.Errorf("%d requests are remembered", n)
	}
	ok(t, d.log.Close(false))
}

// TestLiveBlobsAreNotSuperseded checks that live blobs do not count as superseded, whether a compaction has examined
// them or not. Once a compaction has found a blob to be superseded, the blob counts until it is removed. New blobs
// make a compaction due.
func TestLiveBlobsAreNotSuperseded(t *testing.T) {
	d := newDriver(t, driverOptions(vfstest.NewMem(), Index, 16<<10))
	var one int64 // size of one blob in bytes
	put := func(id int64) {
		ref, err := writeBlobOf(d.log, payload(id, 100_000))
		ok(t, err)
		d.put(format.Entry{ID: id, Codec: format.CodecBlob, Data: ref.Encode()})
		one = ref.Size
	}
	known := func() int64 {
		r := d.log.Stats().Reclaim
		return r.Free - r.Unlooked
	}
	wants := func(when string, bytes int64) {
		t.Helper()
		if r := d.log.Stats().Reclaim; known() < bytes || known() > bytes+1000 {
			t.Errorf("%s: %d bytes are known to be superseded, want %d: %+v", when, known(), bytes, r)
		}
	}
	for id := range int64(4) {
		put(id)
	}
	wants("new blobs", 0)
	if !d.due() {
		t.Errorf("no look is due: %+v", d.log.Stats().Reclaim)
	}
	ok(t, d.log.Seal())
	d.look()
	wants("they are looked at", 0)
	put(0)
	d.put(format.Entry{ID: 99})
	if _, err := d.log.Compact(t.Context(), CompactOptions{LookOnly: true}); err != nil {
		t.Fatal(err)
	}
	wants("one was superseded", one)
	put(5)
	put(6)
	wants("others came", one)
	d.look()
	put(7)
	wants("the superseded one is gone, and another came", 0)
	ok(t, d.log.Close(false))
}

// TestWhatAHoldKeepsMakesNoCompactionDue checks that data kept by a hold does not make a compaction due, no matter
// how much data it is. A compaction becomes due only when the hold has moved past a quarter of the entries above it.
func TestWhatAHoldKeepsMakesNoCompactionDue(t *testing.T) {
	d := newHeld(t, driverOptions(vfstest.NewMem(), Index, 16<<10), 0)
	round := func() {
		for id := range int64(40) {
			d.put(format.Entry{ID: id, Data: payload(id, 1000)})
		}
	}
	round()
	d.log.SetHold(Hold{Index: d.last(), On: true})
	round()
	ok(t, d.log.Seal())
	if !d.due() {
		t.Fatalf("no look is due: %+v", d.log.Stats().Reclaim)
	}
	if report := d.look(); report.EntriesDropped != 0 {
		t.Errorf("%+v", report)
	}
	for n := range 4 {
		if got := d.log.Stats(); got.HeldBytes != got.SupersededBytes || got.HeldBytes < int64(n+1)*40_000 {
			t.Errorf("round %d: %d bytes of %d are held", n, got.HeldBytes, got.SupersededBytes)
		}
		round()
		if r := d.log.Stats().Reclaim; d.due() || r.Newest > 0 {
			t.Errorf("round %d: due for what is held: %+v", n, r)
		}
	}
	ok(t, d.log.Seal())
	d.log.SetHold(Hold{Index: 45, On: true})
	if d.due() {
		t.Errorf("due for a hold that has hardly moved: %+v", d.log.Stats().Reclaim)
	}
	d.log.SetHold(Hold{Index: d.last(), On: true})
	if !d.due() {
		t.Fatalf("not due: %+v", d.log.Stats().Reclaim)
	}
	if report := d.look(); report.EntriesDropped != 5*40 {
		t.Errorf("%+v", report)
	}
	if got := d.log.Stats(); got.HeldBytes != 0 {
		t.Errorf("%d bytes are held", got.HeldBytes)
	}
	ok(t, d.log.Close(false))
}

// TestWhatAHoldKeepsIsKnownAfterARewrite checks that a compaction that rewrites a segment records how much of it the
// hold keeps. A blob counts with the size of its data.
func TestWhatAHoldKeepsIsKnownAfterARewrite(t *testing.T) {
	d := newHeld(t, driverOptions(vfstest.NewMem(), Index, 16<<10), 0)
	var blob int64
	for range 3 {
		for id := range int64(8) {
			d.put(format.Entry{ID: id, Data: payload(id, 1000)})
		}
		ref, err := writeBlobOf(d.log, payload(1, 50_000))
		ok(t, err)
		d.put(format.Entry{ID: 9, Codec: format.CodecBlob, Data: ref.Encode()})
		blob = ref.Size
	}
	ok(t, d.log.Seal())
	d.log.SetHold(Hold{Index: d.last() / 3 * 2, On: true})
	if report := compactAll(t, d.log); report.EntriesDropped != 9 {
		t.Errorf("%+v", report)
	}
	stats := d.log.Stats()
	if r := stats.Reclaim; r.HeldBlobs != blob || r.Held < 8_000 || r.Held != stats.SupersededBytes || r.Age != 0 ||
		r.Free > 0 || stats.HeldBytes != r.Held+r.HeldBlobs {
		t.Errorf("%+v", r)
	}
	d.look()
	d.log.SetHold(Hold{Index: d.last(), On: true})
	if r := d.log.Stats().Reclaim; r.Held != 0 || r.FreeBlobs != blob {
		t.Errorf("%+v", r)
	}
	if report := compactAll(t, d.log); report.EntriesDropped != 9 {
		t.Errorf("%+v", report)
	}
	ok(t, d.log.Close(false))
}

// TestWhatWasJustSupersededMakesNoCompactionDue checks that versions are kept for ten minutes while a hold is in
// force, and that no compaction is due on their account until a quarter of them may be dropped.
func TestWhatWasJustSupersededMakesNoCompactionDue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newHeld(t, driverOptions(vfstest.NewMem(), Index, 16<<10), everything)
		for range 2 {
			for id := range int64(40) {
				d.time = time.Now().UnixNano()
				d.put(format.Entry{ID: id, Data: payload(id, 1000)})
				time.Sleep(6 * time.Second) // each round of the outer loop takes 4 minutes
			}
		}
		ok(t, d.log.Seal())
		for range 3 {
			if report := d.look(); report.EntriesDropped != 0 {
				t.Errorf("%+v", report)
			}
		}
		if held := d.log.Stats().HeldBytes; held < 40_000 {
			t.Errorf("%d bytes are held", held)
		}
		time.Sleep(3 * time.Minute) // the first version was written 11 minutes ago, but superseded only 7 minutes ago
		if d.due() {
			t.Errorf("due: %+v", d.log.Stats().Reclaim)
		}
		time.Sleep(7 * time.Minute)
		if !d.due() {
			t.Errorf("not due: %+v", d.log.Stats().Reclaim)
		}
		if report := d.look(); report.EntriesDropped != 40 {
			t.Errorf("%+v", report)
		}
		ok(t, d.log.Close(false))
	})
}
