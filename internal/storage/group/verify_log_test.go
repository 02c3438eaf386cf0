package group

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"sync"
	"testing"

	"sheaf.dev/sheaf/internal/storage/group/format"
	"sheaf.dev/sheaf/internal/storage/group/fsck"
	"sheaf.dev/sheaf/internal/storage/group/replay"
	"sheaf.dev/sheaf/internal/storage/group/segio"
	"sheaf.dev/sheaf/internal/storage/index"
	"sheaf.dev/sheaf/internal/storage/vfs"
	"sheaf.dev/sheaf/internal/test/must"
	"sheaf.dev/sheaf/internal/test/soaktest"
	"sheaf.dev/sheaf/internal/test/vfstest"
)

// TestVerifyPassesWhatAPowerCutLeavesOfALog checks that the files of a log after a power cut never count as damaged,
// and that a repair leaves a log that can be loaded.
func TestVerifyPassesWhatAPowerCutLeavesOfALog(t *testing.T) {
	seeds := uint64(2)
	if soaktest.Long() {
		seeds = 50
	}
	for seed := range seeds {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			mem := vfstest.NewMem()
			w := newWorkload(t, 100+seed, mem, mem, Index)
			var mu sync.Mutex // hints are written by another goroutine
			var failed error
			points, torn, dropped := 0, 0, int64(0)
			mem.AfterOp(func(op vfstest.Op) {
				mu.Lock()
				defer mu.Unlock()
				for _, kind := range vfstest.SurvivalKinds {
					s := vfstest.Survival{Kind: kind, Seed: uint64(op.Number)}
					report, err := fsck.VerifyDir(context.Background(), mem.CrashClone(s), w.opts.Dir, nil)
					if failed == nil && (err != nil || len(report.Damages) > 0) {
						failed = fmt.Errorf("operation %d (%s), survival %s: %v, %w", op.Number, op, s, report.Damages, err)
					}
					points++
					if report.TornBytes > 0 {
						torn++
					}
				}
			})
			for i := range 60 {
				if i%15 == 14 {
					report, err := w.log.Compact(t.Context(), CompactOptions{All: true})
					must.OK(t, err)
					dropped += report.EntriesDropped
				}
				must.OK(t, w.step())
				w.log.hints.writing.Wait()
				mu.Lock()
				if failed != nil {
					t.Fatalf("step %d: %v", i, failed)
				}
				mu.Unlock()
			}
			mem.AfterOp(nil)
			must.OK(t, sealAndClose(w.log))
			if torn == 0 || torn == points {
				t.Errorf("%d of %d crash points had a torn tail", torn, points)
			}
			if dropped == 0 {
				t.Error("compaction dropped nothing")
			}
		})
	}
}

// TestRepairOfARealLogLeavesWhatWasNotHit repairs a damaged log with void entries, blobs and hints. Undamaged entries
// must remain, and no read may return wrong data.
func TestRepairOfARealLogLeavesWhatWasNotHit(t *testing.T) {
	hits := 0
	for seed := range uint64(40) {
		mem := vfstest.NewMem()
		w := newWorkload(t, 1000+seed, mem, mem, Index)
		for i := range 80 {
			if i == 50 && seed%3 != 0 {
				_, err := w.log.Compact(t.Context(), CompactOptions{All: true})
				must.OK(t, err)
			}
			must.OK(t, w.step())
		}
		must.OK(t, w.sync())
		must.OK(t, w.apply())
		must.OK(t, w.log.Tick())
		must.OK(t, w.log.Close(seed%2 == 0))
		before, err := fsck.VerifyDir(t.Context(), mem, w.opts.Dir, nil)
		must.OK(t, err)
		if len(before.Damages) > 0 {
			t.Fatalf("seed %d: %v", seed, before.Damages)
		}
		left := hitSegments(t, mem, w, readSegments(t, mem, w.opts.Dir))
		report, err := fsck.RepairDir(t.Context(), mem, w.opts.Dir, nil)
		must.OK(t, err)
		hits += len(report.Before.Damages)
		l, loaded, err := Load(t.Context(), w.opts, nil)
		must.OK(t, err)
		if loaded.Outcome != Loaded {
			t.Fatalf("seed %d: %+v", seed, loaded)
		}
		last, err := l.LastIndex()
		must.OK(t, err)
		must.OK(t, l.Apply(last, nil))
		for id := range w.ids {
			row, there := left[id]
			r, err := l.Get(id, GetOptions{})
			if !there || row.loc.Tombstone() {
				if !errors.Is(err, ErrNotFound) {
					t.Fatalf("seed %d: id %d: %v", seed, id, err)
				}
				continue
			}
			if err != nil || r.Index != row.index {
				t.Fatalf("seed %d: id %d: index %d, want %d, %v", seed, id, r.Index, row.index, err)
			}
			if !slices.ContainsFunc(w.model.byIndex[r.Index], func(m modelEntry) bool { return sameRecord(m.entry, r) }) {
				t.Fatalf("seed %d: id %d: never written like this: %+v", seed, id, r)
			}
		}
		must.OK(t, l.Close(false))
	}
	if hits < 40 {
		t.Errorf("only %d damages", hits)
	}
}

func sameRecord(e format.Entry, r Record) bool {
	data := r.Data
	if r.Blob != nil {
		data = r.Blob.Encode()
	}
	return e.ID == r.ID && e.CommitTime == r.CommitTime && bytes.Equal(e.Attributes, r.Attributes) &&
		bytes.Equal(e.Data, data)
}

// hitRow is a put or delete in a segment.
type hitRow struct {
	id    int64
	index uint64
	loc   index.Loc
}

// hitSegment describes a segment before it is damaged.
type hitSegment struct {
	name    string
	end     int64 // offset at which the segment's last frame ends
	rows    []hitRow
	lengths map[int64]int64 // by offset of the frame
}

// readSegments reads the segments of an undamaged folder.
func readSegments(t *testing.T, mem *vfstest.Mem, dir string) []*hitSegment {
	t.Helper()
	m, err := format.ReadManifest(mem, dir)
	must.OK(t, err)
	var out []*hitSegment
	for n, segment := range m.Segments {
		s := &hitSegment{name: format.SegmentName(segment.Number), lengths: map[int64]int64{}}
		image, err := format.ReadAll(mem, path.Join(dir, s.name), 1<<30)
		must.OK(t, err)
		if segment.Sealed() {
			image = image[:segment.Bytes]
		}
		for r := segio.NewFrameReaderBytes(image, segment.ID, format.SegmentHeaderBytes); r.Next(); {
			s.lengths[r.Step().Offset] = r.Step().Bytes
		}
		r := segio.NewFrameReaderBytes(image, segment.ID, format.SegmentHeaderBytes)
		walk, err := replay.Segment(r, segment.FirstIndex, int64(len(image)), true)
		must.OK(t, err)
		s.end = walk.Zeros
		for i, id := range walk.Rows.IDs {
			row := hitRow{id: id, index: segment.FirstIndex + uint64(walk.Rows.Indexes[i]), loc: index.Loc(walk.Rows.Places[i])}
			if n+1 == len(m.Segments) || row.index < m.Segments[n+1].FirstIndex {
				s.rows = append(s.rows, row)
			}
		}
		out = append(out, s)
	}
	return out
}

// hitSegments overwrites some bytes of the segments. It returns, for each id, the newest row that is not damaged.
func hitSegments(t *testing.T, mem *vfstest.Mem, w *workload, segments []*hitSegment) map[int64]hitRow {
	t.Helper()
	type span struct{ begin, end int64 }
	hit := map[*hitSegment][]span{}
	for range 1 + w.random.IntN(4) {
		s := segments[w.random.IntN(len(segments))]
		if s.end <= format.SegmentHeaderBytes {
			continue
		}
		begin := format.SegmentHeaderBytes + w.random.Int64N(s.end-format.SegmentHeaderBytes)
		end := min(s.end, begin+1+w.random.Int64N(200))
		f, err := mem.OpenWrite(path.Join(w.opts.Dir, s.name))
		must.OK(t, err)
		b := make([]byte, end-begin)
		must.OK(t, format.ReadFull(f, b, begin))
		for i := range b {
			b[i] ^= byte(1 + w.random.IntN(127))
		}
		_, err = f.WriteAt(b, begin)
		must.OK(t, errors.Join(err, f.Close()))
		hit[s] = append(hit[s], span{begin, end})
	}
	left := map[int64]hitRow{}
	for _, s := range segments {
		for _, row := range s.rows {
			begin := row.loc.Offset()
			bad := slices.ContainsFunc(hit[s], func(h span) bool {
				return h.begin < begin+s.lengths[begin] && begin < h.end
			})
			if !bad && left[row.id].index < row.index {
				left[row.id] = row
			}
		}
	}
	return left
}

// compactsFirst is a file system that runs a compaction once, before the first blob is opened. Blobs are opened
// concurrently, so each open waits for the compaction.
type compactsFirst struct {
	vfs.FS
	compact func()
	once    sync.Once
}

func (c *compactsFirst) OpenDirect(name string) (vfs.File, error) {
	if _, ok := format.ParseBlobName(path.Base(name)); ok && c.compact != nil {
		c.once.Do(c.compact)
	}
	return c.FS.OpenDirect(name)
}

// TestVerifyOfALogTakesNoDroppedBlobForDamage verifies an open log while a compaction drops a blob together with the
// entry that referred to it. The missing blob must not count as damaged. Any other missing blob must.
func TestVerifyOfALogTakesNoDroppedBlobForDamage(t *testing.T) {
	fs := &compactsFirst{FS: vfstest.NewMem()}
	d := newDriver(t, driverOptions(fs, Index, 64<<10))
	d.putBlob(1, payload(1, 5000))
	kept := d.putBlob(2, payload(2, 5000))
	d.put(format.Entry{ID: 1, Data: []byte("in its place")})
	ok(t, d.log.Seal())
	dropped := int64(0)
	fs.compact = func() {
		report, err := d.log.Compact(context.Background(), CompactOptions{All: true})
		ok(t, err)
		dropped = report.EntriesDropped
	}
	report, err := d.log.Verify(context.Background(), 0)
	ok(t, err)
	if dropped == 0 || len(report.Damages) > 0 {
		t.Fatalf("%d entries were dropped meanwhile, damages %v", dropped, report.Damages)
	}
	ok(t, fs.Remove(path.Join(d.opts.Dir, format.BlobName(kept.ID))))
	report, err = d.log.Verify(context.Background(), 0)
	ok(t, err)
	if len(report.Damages) != 1 || !slices.Equal(report.Damages[0].IDs, []int64{2}) {
		t.Fatalf("damages %v, want that of the blob that is missed", report.Damages)
	}
}
