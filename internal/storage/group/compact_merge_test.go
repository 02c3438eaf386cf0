package group

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"path"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.etcd.io/raft/v3/raftpb"

	"sheaf.dev/sheaf/internal/storage/group/format"
	"sheaf.dev/sheaf/internal/storage/group/fsck"
	"sheaf.dev/sheaf/internal/test/vfstest"
)

// remove deletes a record, and applies the delete.
func (b *compactBed) remove(id int64) {
	m := modelEntry{entry: format.Entry{Kind: format.KindDelete, ID: id}}
	ok(b.t, b.append(m.entry))
	m.entry.Index = b.last()
	ok(b.t, errors.Join(b.log.Sync(), b.log.Apply(m.entry.Index, nil)))
	b.model.versions[id] = append(b.model.versions[id], m)
}

func TestCompactCrashAtEveryOperation(t *testing.T) {
	crashWhileCompacting(t, func(b *compactBed) { b.fill(60) })
}

// TestMergeCrashAtEveryOperation crashes at every operation of compactions that merge many small segments into a few,
// and that remove empty segments from the manifest.
func TestMergeCrashAtEveryOperation(t *testing.T) {
	crashWhileCompacting(t, func(b *compactBed) {
		for range 12 {
			b.fill(3)
		}
		for id := range int64(compactIDs) { // after this, the last segments hold only tombstones
			b.remove(id)
		}
		b.fill(0)
		ok(b.t, b.append(format.Entry{Kind: format.KindEmpty})) // the first entry of a new leader
		ok(b.t, b.log.Sync())
		ok(b.t, b.log.Apply(b.last(), nil))
		b.fill(0)
	})
}

// crashWhileCompacting crashes at every operation of two compactions.
func crashWhileCompacting(t *testing.T, fill func(b *compactBed)) {
	var points atomic.Int64
	bothResidencies(t, func(t *testing.T, residency Residency) {
		seeds := uint64(3)
		if testing.Short() {
			seeds = 1
		}
		for seed := range seeds {
			mem := vfstest.NewMem()
			b := newCompactBed(t, mem, residency, seed, 1+int(seed%2))
			fill(b)
			before := b.log.Stats().Segments
			var mu sync.Mutex
			var failed error
			mem.AfterOp(func(op vfstest.Op) {
				mu.Lock()
				defer mu.Unlock()
				for _, kind := range vfstest.SurvivalKinds {
					if failed != nil {
						return
					}
					points.Add(1)
					s := vfstest.Survival{Kind: kind, Seed: uint64(op.Number)}
					opts := b.opts
					opts.FS = mem.CrashClone(s)
					l, report, err := Load(context.Background(), opts, nil)
					if err == nil && report.Outcome == Damaged {
						err = fmt.Errorf("damaged: %v", report.Damages)
					}
					if err == nil {
						var verified fsck.VerifyReport
						if verified, err = l.Verify(context.Background(), 0); len(verified.Damages) > 0 {
							err = fmt.Errorf("verify: %v", verified.Damages)
						}
					}
					if err == nil {
						m := storeModel{versions: b.model.versions}
						last, _ := l.LastIndex()
						err = errors.Join(l.Apply(last, nil), m.check(l, b.keep), l.Close(false))
					}
					if err != nil {
						failed = fmt.Errorf("crash after operation %d (%s), survival %s: %w", op.Number, op, s, err)
					}
				}
			})
			for range 2 { // the second compaction drops tombstones
				_, err := b.log.Compact(context.Background(), CompactOptions{All: true})
				ok(t, err)
				b.log.hints.writing.Wait()
			}
			mem.AfterOp(nil)
			if failed != nil {
				t.Fatalf("seed %d: %v", seed, failed)
			}
			ok(t, b.model.check(b.log, b.keep))
			if after := b.log.Stats().Segments; after >= before {
				t.Errorf("%d segments before, %d after", before, after)
			}
			ok(t, b.reload(false))
			ok(t, b.model.check(b.log, b.keep))
			ok(t, b.log.Close(false))
		}
	})
	if points.Load() < 500 {
		t.Errorf("only %d crash points", points.Load())
	}
	t.Logf("%d crash points", points.Load())
}

func TestMergeRun(t *testing.T) {
	const most = 1000 + format.SegmentHeaderBytes
	for name, c := range map[string]struct {
		bytes []int64
		all   bool
		want  int
	}{
		"none":                           {nil, false, 1},
		"too few":                        {[]int64{1, 1, 1}, false, 1},
		"too few, but all":               {[]int64{1, 1, 1}, true, 3},
		"enough":                         {[]int64{1, 1, 1, 1, 1}, false, 5},
		"a great one waits for more":     {[]int64{100, 20, 20, 20}, false, 1},
		"a great one with as much":       {[]int64{100, 20, 20, 20, 40}, false, 5},
		"a great one at the end is left": {[]int64{20, 20, 20, 20, 900}, false, 4},
		"up to the size of a segment":    {[]int64{250, 250, 250, 250, 250}, false, 4},
		"all, up to the size":            {[]int64{600, 400, 1}, true, 2},
		"greater than a segment":         {[]int64{2000, 1, 1, 1, 1}, true, 1},
		"nothing in them":                {[]int64{0, 0, 0, 0}, false, 4},
	} {
		var extents []extent
		for i, n := range c.bytes {
			extents = append(extents, extent{first: uint64(i + 1), through: uint64(i + 1), bytes: n})
		}
		if got := mergeRun(extents, most, c.all); got != c.want {
			t.Errorf("%s: %d segments of %v, want %d", name, got, c.bytes, c.want)
		}
	}
	jump := []extent{{first: 1, through: 5}, {first: 5 + 1<<32 + 1, through: 5 + 1<<32 + 2}}
	if got := mergeRun(jump, most, true); got != 1 {
		t.Errorf("indexes 2^32 apart became one segment")
	}
}

func TestCompactMergesWhatManyRestartsLeft(t *testing.T) {
	bothResidencies(t, func(t *testing.T, residency Residency) {
		d := newDriver(t, driverOptions(vfstest.NewMem(), residency, 64<<10))
		const restarts = 9
		for i := range int64(restarts) {
			ok(t, d.append(format.Entry{Kind: format.KindEmpty})) // the entry that a new leader appends first
			d.put(format.Entry{ID: i, Data: payload(i, 300)})
			ok(t, sealAndClose(d.log))
			d.load()
			ok(t, d.log.Apply(d.last(), nil))
		}
		scan, err := d.log.OpenScan(time.Hour)
		ok(t, err)
		if n := d.log.Stats().Mergeable; n != restarts {
			t.Errorf("%d segments are told to be mergeable, want %d", n, restarts)
		}
		report, err := d.log.Compact(context.Background(), CompactOptions{})
		ok(t, err)
		if got := d.log.Stats(); report.SegmentsRewritten != restarts || report.EntriesDropped != 0 || got.Segments != 2 ||
			got.Mergeable != 0 {
			t.Errorf("%+v, then %d segments, %d mergeable", report, got.Segments, got.Mergeable)
		}
		for range 2 { // first in the open log, and then in the log after a reload
			for i := range int64(restarts) {
				d.wants(i, payload(i, 300))
			}
			if scan == (ScanID{}) {
				scan, err = d.log.OpenScan(time.Hour)
				ok(t, err)
			}
			n := int64(0)
			for r, err := range d.log.Scan(context.Background(), scan, 0, ^uint64(0), false) {
				ok(t, err)
				if r.ID != n || !bytes.Equal(r.Data, payload(n, 300)) {
					t.Fatalf("scan: record %d at place %d", r.ID, n)
				}
				n++
			}
			if n != restarts {
				t.Errorf("scan gave %d records", n)
			}
			scan = ScanID{}
			ok(t, d.log.Close(false))
			d.load()
			ok(t, d.log.Apply(d.last(), nil))
		}
		again, err := d.log.Compact(context.Background(), CompactOptions{})
		ok(t, err)
		if again != (CompactReport{}) {
			t.Errorf("nothing is left to do, but %+v", again)
		}
		ok(t, d.log.Close(false))
	})
}

func TestCompactLeavesNoEmptySegment(t *testing.T) {
	b := newCompactBed(t, vfstest.NewMem(), Index, 1, 1)
	b.put(format.Entry{ID: 100, Data: payload(100, 9000)}) // this put makes its segment too large to merge
	for id := range int64(3) {
		b.put(format.Entry{ID: id, Data: payload(id, 3000)})
		b.put(format.Entry{Kind: format.KindDelete, ID: id})
		ok(t, b.log.Seal())
	}
	ok(t, b.append(format.Entry{Kind: format.KindEmpty}))
	ok(t, b.log.Sync())
	ok(t, b.log.Apply(b.last(), nil))
	ok(t, b.log.Seal())
	last := b.last()
	for range 3 { // the three compactions drop the puts, then the tombstones, then the empty segments
		_, err := b.log.Compact(context.Background(), CompactOptions{})
		ok(t, err)
	}
	if got := b.log.Stats(); got.Segments != 2 || got.Mergeable != 0 {
		t.Errorf("%d segments, %d mergeable", got.Segments, got.Mergeable)
	}
	b.log.hints.writing.Wait()
	names, err := b.opts.FS.List(b.opts.Dir)
	ok(t, err)
	segments := 0
	for _, name := range names {
		if _, is := format.ParseSegmentName(name); is {
			segments++
		}
	}
	if segments != 2 {
		t.Errorf("%d segment files: %v", segments, names)
	}
	for range 2 {
		if got := b.last(); got != last {
			t.Errorf("the last index is %d, want %d", got, last)
		}
		b.wants(1, nil)
		b.wants(100, payload(100, 9000))
		ok(t, b.reload(false))
	}
	ok(t, b.log.Close(false))
}

// TestCompactKeepsAnEmptySegmentThatMakesEntriesVoid compacts an empty segment whose first index makes entries void. If
// that index were not in the manifest, the truncated entries would become valid again.
func TestCompactKeepsAnEmptySegmentThatMakesEntriesVoid(t *testing.T) {
	for name, all := range map[string]bool{"alone": false, "merged": true} {
		t.Run(name, func(t *testing.T) {
			d := newDriver(t, driverOptions(vfstest.NewMem(), Index, 64<<10))
			d.put(format.Entry{ID: 1, Data: []byte("first")})
			ok(t, d.append(format.Entry{ID: 2, Data: []byte("void")}))
			ok(t, d.log.Sync())
			ok(t, d.log.Seal())
			d.term++
			second := d.entry(2, format.Entry{Kind: format.KindEmpty}) // a new leader replaces index 2
			ok(t, d.log.Append(&raftpb.HardState{Term: &d.term}, []*raftpb.Entry{second}))
			ok(t, d.log.Sync())
			ok(t, d.log.Apply(2, nil))
			ok(t, d.log.Seal())
			d.put(format.Entry{ID: 3, Data: []byte("third")})
			for range 2 {
				_, err := d.log.Compact(context.Background(), CompactOptions{All: all})
				ok(t, err)
			}
			d.log.hints.writing.Wait()
			want := 3 // the segment with the void entry, the segment that makes it void, and the active one
			if all {
				want = 2
			}
			if n := d.log.Stats().Segments; n != want {
				t.Errorf("%d segments, want %d", n, want)
			}
			ok(t, d.log.Close(false))
			names, err := d.opts.FS.List(d.opts.Dir)
			ok(t, err)
			for _, name := range names { // without hints, only the frames show which entries are void
				if format.IsHintName(name) {
					ok(t, d.opts.FS.Remove(path.Join(d.opts.Dir, name)))
				}
			}
			d.load()
			ok(t, d.log.Apply(d.last(), nil))
			d.wants(1, []byte("first"))
			d.wants(2, nil)
			d.wants(3, []byte("third"))
			ok(t, d.log.Close(false))
		})
	}
}
