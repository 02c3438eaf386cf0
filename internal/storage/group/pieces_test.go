package group

import (
	"bytes"
	"context"
	"errors"
	"math"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"sheaf.dev/sheaf/internal/storage/group/format"
	"sheaf.dev/sheaf/internal/test/vfstest"
)

// largeBatch returns a batch that is written in several pieces. Its records include the largest possible ones, and
// small ones between them.
func largeBatch() (entries []format.Entry) {
	for i := range int64(60) {
		size := 40 << 10
		switch i % 20 {
		case 3:
			size = format.DataBytesMax
		case 7:
			size = 1
		}
		entries = append(entries, format.Entry{ID: i, Data: payload(i, size)[:size]})
	}
	return entries
}

func (d *logDriver) wantAll(entries []format.Entry) {
	d.t.Helper()
	for _, e := range entries {
		r, err := d.log.Get(e.ID, GetOptions{})
		ok(d.t, err)
		if !bytes.Equal(r.Data, e.Data) {
			d.t.Fatalf("record %d has other data", e.ID)
		}
	}
}

func TestABatchOfSeveralPieces(t *testing.T) {
	residencies(t, func(t *testing.T, residency Residency) {
		fs := vfstest.NewFaulty(vfstest.NewMem())
		d := newDriver(t, driverOptions(fs, residency, 64<<20))
		d.put(format.Entry{ID: 1000, Data: []byte("before")})
		before := fs.Calls(vfstest.OpWrite)
		d.put(largeBatch()...)
		if n := fs.Calls(vfstest.OpWrite) - before; n < 5 {
			t.Errorf("%d writes for %d records: it was not written in pieces", n, len(largeBatch()))
		}
		d.wantAll(largeBatch())
		ok(t, d.log.Close(false))
		if report := d.load(); report.Outcome != Loaded {
			t.Errorf("loaded again: %+v", report)
		}
		// The last commit index was not stored, so the load has not applied the last batch.
		ok(t, d.log.Apply(d.last(), nil))
		d.wantAll(append(largeBatch(), format.Entry{ID: 1000, Data: []byte("before")}))
	})
}

// TestAPieceThatCannotBeWritten makes writing a piece in the middle of a batch fail. No entry of the batch may remain,
// and a second attempt to append the batch must succeed.
func TestAPieceThatCannotBeWritten(t *testing.T) {
	residencies(t, func(t *testing.T, residency Residency) {
		fs := vfstest.NewFaulty(vfstest.NewMem())
		d := newDriver(t, driverOptions(fs, residency, 64<<20))
		d.put(format.Entry{ID: 1000, Data: []byte("before")})
		last := d.last()
		fault := fs.Add(&vfstest.Fault{Err: syscall.ENOSPC, Effect: vfstest.EffectPart, Skip: 3, Count: 1,
			Match: func(op vfstest.Op) bool {
				return op.Kind == vfstest.OpWrite && strings.HasPrefix(filepath.Base(op.Name), "segment-")
			}})
		if err := d.append(largeBatch()...); !errors.Is(err, format.ErrNoSpace) || fault.Fired() != 1 {
			t.Fatalf("%d faults, error %v", fault.Fired(), err)
		}
		if d.last() != last {
			t.Errorf("index %d is the last one, not %d", d.last(), last)
		}
		d.put(largeBatch()...)
		d.put(format.Entry{ID: 1001, Data: []byte("behind")})
		ok(t, d.log.Close(false))
		if report := d.load(); report.Outcome != Loaded {
			t.Errorf("loaded again: %+v", report)
		}
		// The last commit index was not stored, so the load left the last batch unapplied.
		ok(t, d.log.Apply(d.last(), nil))
		d.wantAll(append(largeBatch(), format.Entry{ID: 1000, Data: []byte("before")},
			format.Entry{ID: 1001, Data: []byte("behind")}))
	})
}

// TestScanOfAnImagePassesOverHistory changes bytes in memory. A scan must not check the bytes of a superseded version,
// but must check those of a current record.
func TestScanOfAnImagePassesOverHistory(t *testing.T) {
	d := newDriver(t, driverOptions(vfstest.NewMem(), Resident, 64<<20))
	d.put(format.Entry{ID: 1, Data: []byte("old one")})
	d.put(format.Entry{ID: 1, Data: []byte("new one")}, format.Entry{ID: 2, Data: []byte("another")})
	scan := func() (ids []int64, damages int) {
		id, err := d.log.OpenScan(1 << 40)
		ok(t, err)
		defer d.log.CloseScan(id)
		for r, err := range d.log.Scan(context.Background(), id, 0, math.MaxUint64, false) {
			var damage *format.DamageError
			switch {
			case errors.As(err, &damage):
				damages++
			case err != nil:
				t.Fatal(err)
			default:
				ids = append(ids, r.ID)
			}
		}
		return ids, damages
	}
	spoil := func(data string) {
		image := d.log.state.segments[0].image
		image[bytes.Index(image, []byte(data))] ^= 1
	}
	spoil("old one")
	if ids, damages := scan(); len(ids) != 2 || damages != 0 {
		t.Errorf("with a bad version that is superseded: records %v, %d damages", ids, damages)
	}
	spoil("another")
	if ids, damages := scan(); len(ids) != 1 || ids[0] != 1 || damages != 1 {
		t.Errorf("with a bad record: records %v, %d damages", ids, damages)
	}
	if _, damages := scan(); damages != 2 { // because of the known damage, this scan checks everything
		t.Errorf("with damage that is known: %d damages", damages)
	}
}

// TestSplitsOfAScanReadTheirPart counts the bytes that are read for all splits of a scan. No split may read a part of a
// segment that belongs to earlier splits.
func TestSplitsOfAScanReadTheirPart(t *testing.T) {
	const records, size = 2000, 16 << 10
	fs := vfstest.NewFaulty(vfstest.NewMem())
	d := newDriver(t, driverOptions(fs, Index, 64<<20))
	for first := int64(0); first < records; first += 100 {
		var batch []format.Entry
		for i := range int64(100) {
			batch = append(batch, format.Entry{ID: first + i, Data: payload(first+i, size)[:size]})
		}
		d.put(batch...)
	}
	check := func(what string) {
		t.Helper()
		id, err := d.log.OpenScan(1 << 40)
		ok(t, err)
		defer d.log.CloseScan(id)
		bounds, err := d.log.ScanSplits(id, 1<<20)
		ok(t, err)
		var bytesRead atomic.Int64
		fs.Add(&vfstest.Fault{Effect: vfstest.EffectPass, Match: func(op vfstest.Op) bool {
			return op.Kind == vfstest.OpRead
		},
			Before: func(op vfstest.Op) { bytesRead.Add(op.Length) }})
		defer fs.Clear()
		given := int64(0)
		for i := 1; i < len(bounds); i++ {
			for r, err := range d.log.Scan(context.Background(), id, bounds[i-1], bounds[i], false) {
				ok(t, err)
				if r.ID != given {
					t.Fatalf("%s: record %d, not %d", what, r.ID, given)
				}
				given++
			}
		}
		if given != records || len(bounds) < 20 {
			t.Errorf("%s: %d records in %d splits", what, given, len(bounds)-1)
		}
		if n := bytesRead.Load(); n > 4*records*size { // read-ahead reads some bytes twice
			t.Errorf("%s: %d MiB were read for %d MiB", what, n>>20, records*size>>20)
		}
	}
	check("active segment")
	ok(t, sealAndClose(d.log))
	d.load()
	ok(t, d.log.Apply(d.last(), nil)) // the last commit index was not stored, so the load has not applied the last batch
	check("sealed segment, cold")
	check("sealed segment, once more")
}
