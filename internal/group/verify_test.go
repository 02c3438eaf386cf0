package group

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"sheaf.dev/sheaf/internal/vfs"
	"sheaf.dev/sheaf/internal/vfs/vfstest"
)

// overlapping is the damages of a report that touch a range of a file.
func overlapping(report VerifyReport, name string, offset, length int64) []Damage {
	var hit []Damage
	for _, d := range report.Damages {
		if d.File == name && (d.Length == 0 || d.Offset < offset+length && offset < d.Offset+d.Length) {
			hit = append(hit, d)
		}
	}
	return hit
}

func TestVerifyPassesAWholeGroup(t *testing.T) {
	g := buildGroup(t, vfs.OS{}, t.TempDir()+"/g", 40, 200)
	var bytes, total int64
	report, err := VerifyDir(t.Context(), g.fs, g.dir, func(n int64) { bytes += n })
	must(t, err)
	if len(report.Damages) != 0 || report.TornBytes != 0 || report.Group != "g7" || report.Blobs != 1 || report.Entries != 3*41 {
		t.Errorf("%+v", report)
	}
	for _, name := range g.names(t) {
		info, err := g.fs.Stat(path.Join(g.dir, name))
		must(t, err)
		total += info.Size()
	}
	if bytes != report.Bytes || bytes < total {
		t.Errorf("progress says %d, report %d, the files have %d", bytes, report.Bytes, total)
	}
}

func TestVerifyNamesEveryBitFlipped(t *testing.T) {
	g := buildGroup(t, vfstest.NewMem(), "/g", 6, 40)
	rnd := rand.New(rand.NewPCG(1, 1))
	for _, name := range g.names(t) {
		info, err := g.fs.Stat(path.Join(g.dir, name))
		must(t, err)
		stride := 1
		if name == ManifestName || name == MarkName || strings.HasPrefix(name, blobPrefix) {
			stride = 13 // their codecs are tested bit by bit
		}
		for at := 0; at < int(info.Size()); at += stride {
			undo := g.change(t, name, int64(at), func(b []byte) { b[0] ^= 1 << rnd.IntN(8) }, 1)
			report := g.verify(t)
			behind := name == g.active() && int64(at) >= g.last().offset+g.last().bytes
			if hit := overlapping(report, name, int64(at), 1); (len(hit) != 1 || report.TornBytes != 0) && !behind {
				t.Fatalf("byte %d of %s: %+v, torn %d", at, name, report.Damages, report.TornBytes)
			}
			if behind && (report.TornBytes == 0 || len(report.Damages) != 0) {
				t.Fatalf("byte %d of %s, behind the mark: %+v", at, name, report)
			}
			undo()
		}
	}
	if report := g.verify(t); len(report.Damages) != 0 {
		t.Fatal("the flips were not undone", report.Damages)
	}
}

func TestVerifyTellsTheIdsThatWereHit(t *testing.T) {
	g := buildGroup(t, vfstest.NewMem(), "/g", 30, 100)
	for _, name := range []string{SegmentName(1), SegmentName(2), SegmentName(3)} {
		for _, f := range g.frames[name] {
			if f.entry.Kind == KindState {
				continue
			}
			// Content: the header tells.
			if len(f.entry.Data) > 0 {
				undo := g.change(t, name, f.offset+FrameHeaderBytes, func(b []byte) { b[0]++ }, 1)
				d := g.verify(t).Damages
				if len(d) != 1 || d[0].IDsUnknown || !slices.Equal(d[0].IDs, []int64{f.entry.ID}) || d[0].IndexFirst != f.entry.Index {
					t.Fatalf("content of index %d: %+v", f.entry.Index, d)
				}
				undo()
			}
			// Header: the hint tells where there is one, the neighbours tell the index.
			undo := g.change(t, name, f.offset+8, func(b []byte) { b[0]++ }, 1)
			d := g.verify(t).Damages
			if len(d) != 1 || d[0].Offset != f.offset || d[0].Length != f.bytes {
				t.Fatalf("header of index %d: %+v", f.entry.Index, d)
			}
			if d[0].IndexFirst != f.entry.Index || d[0].IndexLast != f.entry.Index {
				t.Fatalf("header of index %d: indexes %d to %d", f.entry.Index, d[0].IndexFirst, d[0].IndexLast)
			}
			known := name != g.active()
			if d[0].IDsUnknown == known || known && f.entry.Kind.isVersion() && !slices.Equal(d[0].IDs, []int64{f.entry.ID}) {
				t.Fatalf("header of index %d in %s: %+v", f.entry.Index, name, d[0])
			}
			undo()
		}
	}
}

func TestVerifyOfPaddingAndStateFramesLosesNoEntry(t *testing.T) {
	g := buildGroup(t, vfstest.NewMem(), "/g", 30, 100)
	states := 0
	for _, name := range []string{SegmentName(1), SegmentName(3)} {
		for _, f := range g.frames[name] {
			if f.entry.Kind != KindState {
				continue
			}
			states++
			for _, at := range []int64{0, FrameHeaderBytes} {
				undo := g.change(t, name, f.offset+at, func(b []byte) { b[0]++ }, 1)
				d := g.verify(t).Damages
				if len(d) != 1 || d[0].IDsUnknown || d[0].IDs != nil || d[0].IndexLast != 0 {
					t.Errorf("%+v", d)
				}
				undo()
			}
		}
	}
	if states != 2 {
		t.Error(states)
	}
}

// Rule 3: bad bytes above the synced mark are a torn tail, below it they are damage.
func TestRule3_VerifyTellsATornTailFromDamage(t *testing.T) {
	g := buildGroup(t, vfstest.NewMem(), "/g", 30, 100)
	must(t, errors.Join(g.fs.Remove(g.dir+"/"+HintName(1)), g.fs.Remove(g.dir+"/"+HintName(2)))) // they know of the tail
	frames := g.frames[g.active()]
	marked := frames[20]
	g.writeMark(t, marked.offset, marked.entry.Index-1)
	for i, f := range frames {
		undo := g.change(t, g.active(), f.offset+4, func(b []byte) { b[0]++ }, 1)
		report := g.verify(t)
		if below := i < 20; below != (len(report.Damages) == 1) || below == (report.TornBytes != 0) {
			t.Fatalf("frame %d: %d damages, torn %d", i, len(report.Damages), report.TornBytes)
		}
		if i >= 20 && report.TornBytes != g.last().offset+g.last().bytes-f.offset {
			t.Fatalf("frame %d: torn %d", i, report.TornBytes)
		}
		undo()
	}
}

func TestVerifyFindsZerosBelowTheMark(t *testing.T) {
	g := buildGroup(t, vfstest.NewMem(), "/g", 30, 100)
	f := g.frames[g.active()][25]
	end := g.last().offset + g.last().bytes
	undo := g.change(t, g.active(), f.offset, func(b []byte) { clear(b) }, int(end-f.offset))
	d := g.verify(t).Damages
	if len(d) != 1 || d[0].Offset != f.offset || d[0].Length != end-f.offset || !d[0].IDsUnknown ||
		d[0].IndexFirst != f.entry.Index || d[0].IndexLast != g.last().entry.Index {
		t.Errorf("%+v", d)
	}
	undo()
	file, err := g.fs.OpenWrite(path.Join(g.dir, g.active()))
	must(t, err)
	must(t, file.Truncate(f.offset+3))
	must(t, file.Close())
	if d := g.verify(t).Damages; len(d) != 2 || d[0].Offset != f.offset || d[1].Offset+d[1].Length != end {
		t.Errorf("%+v", d)
	}
}

func TestVerifyOfMissingAndWrongFiles(t *testing.T) {
	for what, c := range map[string]struct {
		change func(t *testing.T, g *testGroup)
		file   string
		says   string
	}{
		"segment missing":  {func(t *testing.T, g *testGroup) { must(t, g.fs.Remove(g.dir+"/"+SegmentName(2))) }, SegmentName(2), "missing"},
		"manifest missing": {func(t *testing.T, g *testGroup) { must(t, g.fs.Remove(g.dir+"/manifest")) }, ManifestName, "missing"},
		"blob missing":     {func(t *testing.T, g *testGroup) { must(t, g.fs.Remove(g.dir+"/"+BlobName(g.blobs[0].ID))) }, "", "missing"},
		"segment shorter":  {func(t *testing.T, g *testGroup) { g.truncate(t, SegmentName(1), g.frames[SegmentName(1)][5].offset) }, SegmentName(1), "ends before"},
		"segment of another group": {func(t *testing.T, g *testGroup) {
			h := SegmentHeader{Store: g.manifest.Identity.Store, ID: g.manifest.Segments[1].ID, FirstIndex: g.manifest.Segments[1].FirstIndex}
			g.change(t, SegmentName(2), 0, func(b []byte) { copy(b, h.Encode()) }, SegmentHeaderBytes)
		}, SegmentName(2), "another store or group"},
		"hint of another segment": {func(t *testing.T, g *testGroup) {
			must(t, g.fs.Rename(g.dir+"/"+HintName(2), g.dir+"/"+HintName(1)))
		}, HintName(1), "another segment"},
		"an entry cut out": {func(t *testing.T, g *testGroup) {
			m := g.manifest.Segments[0]
			image := SegmentHeader{Store: g.manifest.Identity.Store, Group: g.manifest.Identity.Group, ID: m.ID, FirstIndex: m.FirstIndex}.Encode()
			for i, f := range g.frames[SegmentName(1)] {
				if i != 25 {
					image = AppendFrame(image, m.ID, int64(len(image)), &f.entry)
				}
			}
			must(t, g.fs.Remove(g.dir+"/"+HintName(1)))
			must(t, writeReplace(g.fs, g.dir, SegmentName(1), image))
			g.manifest.Segments[0].Bytes = int64(len(image))
			must(t, WriteManifest(g.fs, g.dir, g.manifest))
		}, SegmentName(1), "missing before it"},
	} {
		t.Run(what, func(t *testing.T) {
			g := buildGroup(t, vfstest.NewMem(), "/g", 30, 100)
			c.change(t, g)
			d := g.verify(t).Damages
			if len(d) != 1 || !strings.Contains(d[0].String(), c.says) || c.file != "" && d[0].File != c.file {
				t.Errorf("%v", d)
			}
		})
	}
}

func (g *testGroup) truncate(t *testing.T, name string, size int64) {
	t.Helper()
	f, err := g.fs.OpenWrite(path.Join(g.dir, name))
	must(t, err)
	must(t, errors.Join(f.Truncate(size), f.Close()))
}

func TestVerifyFindsAnImpossibleOrder(t *testing.T) {
	for what, c := range map[string]struct {
		change func(g *testGroup, e *Entry)
		says   string // "": it is right
	}{
		"the next entry":                   {func(*testGroup, *Entry) {}, ""},
		"a new term cuts above the commit": {func(_ *testGroup, e *Entry) { e.Index, e.Term = e.Index-3, 9 }, ""},
		"a new term cuts below the commit": {func(g *testGroup, e *Entry) { e.Index, e.Term = g.manifest.Segments[2].FirstIndex+1, 9 }, "behind index"},
		"the same index and term again":    {func(_ *testGroup, e *Entry) { e.Index-- }, ""}, // another leader's was there and is void
		"an older term cuts":               {func(_ *testGroup, e *Entry) { e.Index--; e.Term-- }, "term 2 behind term 3"},
		"an older term":                    {func(_ *testGroup, e *Entry) { e.Term-- }, "term 2 behind term 3"},
		"below the segment":                {func(_ *testGroup, e *Entry) { e.Index, e.Term = 1, 9 }, "is not one of this segment"},
		"a gap":                            {func(_ *testGroup, e *Entry) { e.Index++ }, "missing before it"},
	} {
		g := buildGroup(t, vfstest.NewMem(), "/g", 30, 100)
		last := g.last()
		end := last.offset + last.bytes
		e := Entry{Kind: KindPut, Used: true, ID: 5000, Index: last.entry.Index + 1, Term: 3, CommitTime: 1000, Data: []byte("x")}
		c.change(g, &e)
		frame := AppendFrame(nil, g.manifest.Segments[2].ID, end, &e)
		g.change(t, g.active(), end, func(b []byte) { copy(b, frame) }, len(frame))
		d := g.verify(t).Damages
		if c.says == "" && len(d) != 0 || c.says != "" && (len(d) != 1 || d[0].Offset != end || !strings.Contains(d[0].What, c.says)) {
			t.Errorf("%s: %v", what, d)
		}
	}
}

// After a failed sync a segment is sealed where it was synced, and nothing more is done to the file.
func TestVerifyLooksAtASealedSegmentUpToItsSizeOnly(t *testing.T) {
	g := buildGroup(t, vfstest.NewMem(), "/g", 30, 100)
	file, err := g.fs.OpenWrite(path.Join(g.dir, SegmentName(1)))
	must(t, err)
	_, err = file.WriteAt([]byte("left over"), g.manifest.Segments[0].Bytes)
	must(t, errors.Join(err, file.Close()))
	if report := g.verify(t); len(report.Damages) != 0 || report.TornBytes != 0 {
		t.Errorf("%+v", report)
	}
}

func TestVerifyFindsAWrongUsedFlag(t *testing.T) {
	g := buildGroup(t, vfstest.NewMem(), "/g", 30, 100)
	h, err := ReadHint(g.fs, g.dir, g.manifest.Segments[1])
	must(t, err)
	set := 0
	for row := range h.IDs {
		used := h.IsUsed(row)
		h.SetUsed(row, !used)
		must(t, WriteHint(g.fs, g.dir, 2, h))
		d := g.verify(t).Damages
		if used {
			set++
			if len(d) != 1 || d[0].File != HintName(2) || !slices.Equal(d[0].IDs, h.IDs[row:row+1]) {
				t.Errorf("a 0 that is not true, row %d: %v", row, d)
			}
		} else if len(d) != 0 {
			t.Errorf("a 1 that is out of date, row %d: %v", row, d)
		}
		h.SetUsed(row, used)
	}
	if set == 0 || set == len(h.IDs) {
		t.Errorf("%d of %d rows are used", set, len(h.IDs))
	}
}

func TestVerifyFindsAHintThatDisagrees(t *testing.T) {
	for what, change := range map[string]func(h *Hint){
		"id":     func(h *Hint) { h.IDs[3]++ },
		"index":  func(h *Hint) { h.Indexes[3]++ },
		"place":  func(h *Hint) { h.Places[3] += 1 << 16 },
		"length": func(h *Hint) { h.Places[3] += 2 },
		"row":    func(h *Hint) { h.IDs, h.Places, h.Indexes = h.IDs[1:], h.Places[1:], h.Indexes[1:] },
		"row, all used": func(h *Hint) {
			h.IDs, h.Places, h.Indexes, h.Used = h.IDs[1:], h.Places[1:], h.Indexes[1:], []uint64{1<<29 - 1}
		},
		"term":   func(h *Hint) { h.Terms[0].Term-- },
		"blob":   func(h *Hint) { h.Blobs = nil },
		"commit": func(h *Hint) { h.LastCommit++ },
	} {
		g := buildGroup(t, vfstest.NewMem(), "/g", 30, 100)
		h, err := ReadHint(g.fs, g.dir, g.manifest.Segments[1])
		must(t, err)
		change(h)
		orderRows(h)
		must(t, WriteHint(g.fs, g.dir, 2, h))
		if d := g.verify(t).Damages; len(d) != 1 || d[0].File != HintName(2) {
			t.Errorf("%s: %v", what, d)
		}
	}
}

func TestVerifyGoesOnBehindABadSector(t *testing.T) {
	faulty := vfstest.NewFaulty(vfstest.NewMem())
	g := buildGroup(t, faulty, "/g", 200, 400)
	fault := faulty.Add(&vfstest.Fault{Match: func(op vfstest.Op) bool {
		return op.Kind == vfstest.OpRead && path.Base(op.Name) == SegmentName(1) && op.Offset <= 20480 && 20480 < op.Offset+op.Length
	}, Err: syscall.EIO})
	d := g.verify(t).Damages
	if len(d) == 0 || fault.Fired() < 2 {
		t.Fatalf("%v, fired %d times", d, fault.Fired())
	}
	for _, d := range d {
		if d.File != SegmentName(1) || !strings.Contains(d.What, "cannot read") || d.IDsUnknown || d.Offset > 24576 || d.Offset+d.Length < 20480 {
			t.Errorf("%v", d)
		}
	}
}

func TestVerifyEndsWithItsContext(t *testing.T) {
	g := buildGroup(t, vfstest.NewMem(), "/g", 30, 100)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := VerifyDir(ctx, g.fs, g.dir, nil); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if _, err := VerifyDir(t.Context(), g.fs, "/nothing", nil); err == nil {
		t.Error("a folder that is not there passes")
	}
}

// BenchmarkVerifyDir compares verify with raw reads of the same files past the page cache. SHEAF_BENCH_BYTES sizes each of
// the three segments; TMPDIR says where.
func BenchmarkVerifyDir(b *testing.B) {
	segmentBytes := 32 << 20
	if n, err := strconv.Atoi(os.Getenv("SHEAF_BENCH_BYTES")); err == nil {
		segmentBytes = n
	}
	for _, size := range []int{1000, 10000} {
		g := buildGroup(b, vfs.OS{}, b.TempDir()+"/g", segmentBytes/size, size)
		b.Run(fmt.Sprintf("%d/verify", size), func(b *testing.B) {
			for b.Loop() {
				b.SetBytes(g.verify(b).Bytes)
			}
		})
		b.Run(fmt.Sprintf("%d/raw", size), func(b *testing.B) {
			for b.Loop() {
				b.SetBytes(readRaw(b, g))
			}
		})
	}
}

// readRaw reads all segments by O_DIRECT, 1 MiB at a time, by as many readers as verify has.
func readRaw(b *testing.B, g *testGroup) int64 {
	var total atomic.Int64
	var wg sync.WaitGroup
	var next atomic.Int64
	var files []vfs.File
	for _, m := range g.manifest.Segments {
		f, err := g.fs.OpenDirect(path.Join(g.dir, SegmentName(m.Number)))
		must(b, err)
		files = append(files, f)
	}
	for range verifyWorkers {
		wg.Go(func() {
			buffer := vfs.AlignedBytes(1 << 20)
			for {
				block := next.Add(1) - 1
				f := files[block%int64(len(files))]
				n, _ := f.ReadAt(buffer, block/int64(len(files))<<20) // the end of the file
				total.Add(int64(n))
				if n == 0 {
					return
				}
			}
		})
	}
	wg.Wait()
	for _, f := range files {
		must(b, f.Close())
	}
	return total.Load()
}
