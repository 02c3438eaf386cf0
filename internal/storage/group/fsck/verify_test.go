package fsck

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

	"sheaf.dev/sheaf/internal/storage/group/format"
	"sheaf.dev/sheaf/internal/storage/vfs"
	"sheaf.dev/sheaf/internal/test/foldertest"
	"sheaf.dev/sheaf/internal/test/must"
	"sheaf.dev/sheaf/internal/test/vfstest"
)

// overlapping returns the damage in a report that overlaps a range of a file.
func overlapping(report VerifyReport, name string, offset, length int64) []format.Damage {
	var hit []format.Damage
	for _, d := range report.Damages {
		if d.File == name && (d.Length == 0 || d.Offset < offset+length && offset < d.Offset+d.Length) {
			hit = append(hit, d)
		}
	}
	return hit
}

func TestVerifyPassesAWholeGroup(t *testing.T) {
	g := foldertest.Build(t, vfs.OS{}, t.TempDir()+"/g", 40, 200)
	var bytes, total int64
	report, err := VerifyDir(t.Context(), g.FS, g.Dir, func(n int64) { bytes += n })
	must.OK(t, err)
	if len(report.Damages) != 0 || report.TornBytes != 0 || report.Group != "g7" || report.Blobs != 1 ||
		report.Entries != 3*41 {
		t.Errorf("%+v", report)
	}
	for _, name := range g.Names(t) {
		info, err := g.FS.Stat(path.Join(g.Dir, name))
		must.OK(t, err)
		total += info.Size()
	}
	if bytes != report.Bytes || bytes < total {
		t.Errorf("progress says %d, report %d, the files have %d", bytes, report.Bytes, total)
	}
}

func TestVerifyNamesEveryBitFlipped(t *testing.T) {
	if testing.Short() {
		t.Skip("short: one goroutine, many bits")
	}
	g := foldertest.Build(t, vfstest.NewMem(), "/g", 6, 40)
	rnd := rand.New(rand.NewPCG(1, 1))
	for _, name := range g.Names(t) {
		info, err := g.FS.Stat(path.Join(g.Dir, name))
		must.OK(t, err)
		stride := 1
		if name == format.ManifestName || name == format.MarkName || strings.HasPrefix(name, format.BlobPrefix) {
			stride = 13 // a sample is enough, because other tests flip every bit of these files
		}
		for at := 0; at < int(info.Size()); at += stride {
			undo := g.Change(t, name, int64(at), func(b []byte) { b[0] ^= 1 << rnd.IntN(8) }, 1)
			report := verifyFolder(t, g)
			behind := name == g.Active() && int64(at) >= g.Last().Offset+g.Last().Bytes
			if hit := overlapping(report, name, int64(at), 1); (len(hit) != 1 || report.TornBytes != 0) && !behind {
				t.Fatalf("byte %d of %s: %+v, torn %d", at, name, report.Damages, report.TornBytes)
			}
			if behind && (report.TornBytes == 0 || len(report.Damages) != 0) {
				t.Fatalf("byte %d of %s, behind the mark: %+v", at, name, report)
			}
			undo()
		}
	}
	if report := verifyFolder(t, g); len(report.Damages) != 0 {
		t.Fatal("the flips were not undone", report.Damages)
	}
}

func TestVerifyNamesTheIdsThatWereHit(t *testing.T) {
	g := foldertest.Build(t, vfstest.NewMem(), "/g", 30, 100)
	for _, name := range []string{format.SegmentName(1), format.SegmentName(2), format.SegmentName(3)} {
		for _, f := range g.Frames[name] {
			if f.Entry.Kind == format.KindState {
				continue
			}
			// If a frame's content is damaged, its header still identifies the entry.
			if len(f.Entry.Data) > 0 {
				undo := g.Change(t, name, f.Offset+format.FrameHeaderBytes, func(b []byte) { b[0]++ }, 1)
				d := verifyFolder(t, g).Damages
				if len(d) != 1 || d[0].IDsUnknown || !slices.Equal(d[0].IDs, []int64{f.Entry.ID}) ||
					d[0].IndexFirst != f.Entry.Index {
					t.Fatalf("content of index %d: %+v", f.Entry.Index, d)
				}
				undo()
			}
			// If a frame's header is damaged, the hint, if there is one, identifies the entry. The index of the entry follows
			// from the entries before and after it.
			undo := g.Change(t, name, f.Offset+8, func(b []byte) { b[0]++ }, 1)
			d := verifyFolder(t, g).Damages
			if len(d) != 1 || d[0].Offset != f.Offset || d[0].Length != f.Bytes {
				t.Fatalf("header of index %d: %+v", f.Entry.Index, d)
			}
			if d[0].IndexFirst != f.Entry.Index || d[0].IndexLast != f.Entry.Index {
				t.Fatalf("header of index %d: indexes %d to %d", f.Entry.Index, d[0].IndexFirst, d[0].IndexLast)
			}
			known := name != g.Active()
			if d[0].IDsUnknown == known || known && f.Entry.Kind.IsVersion() && !slices.Equal(d[0].IDs, []int64{f.Entry.ID}) {
				t.Fatalf("header of index %d in %s: %+v", f.Entry.Index, name, d[0])
			}
			undo()
		}
	}
}

func TestVerifyOfPaddingAndStateFramesLosesNoEntry(t *testing.T) {
	g := foldertest.Build(t, vfstest.NewMem(), "/g", 30, 100)
	states := 0
	for _, name := range []string{format.SegmentName(1), format.SegmentName(3)} {
		for _, f := range g.Frames[name] {
			if f.Entry.Kind != format.KindState {
				continue
			}
			states++
			for _, at := range []int64{0, format.FrameHeaderBytes} {
				undo := g.Change(t, name, f.Offset+at, func(b []byte) { b[0]++ }, 1)
				d := verifyFolder(t, g).Damages
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

// TestRule3_VerifyDistinguishesATornTailFromDamage checks that bad bytes above the synced mark are a torn tail, and
// that bad bytes below the mark are damage.
func TestRule3_VerifyDistinguishesATornTailFromDamage(t *testing.T) {
	g := foldertest.Build(t, vfstest.NewMem(), "/g", 30, 100)
	// The hints cover the tail, so they are removed.
	must.OK(t, errors.Join(g.FS.Remove(g.Dir+"/"+format.HintName(1)), g.FS.Remove(g.Dir+"/"+format.HintName(2))))
	frames := g.Frames[g.Active()]
	marked := frames[20]
	g.WriteMark(t, marked.Offset, marked.Entry.Index-1)
	for i, f := range frames {
		undo := g.Change(t, g.Active(), f.Offset+4, func(b []byte) { b[0]++ }, 1)
		report := verifyFolder(t, g)
		if below := i < 20; below != (len(report.Damages) == 1) || below == (report.TornBytes != 0) {
			t.Fatalf("frame %d: %d damages, torn %d", i, len(report.Damages), report.TornBytes)
		}
		if i >= 20 && report.TornBytes != g.Last().Offset+g.Last().Bytes-f.Offset {
			t.Fatalf("frame %d: torn %d", i, report.TornBytes)
		}
		undo()
	}
}

func TestVerifyFindsZerosBelowTheMark(t *testing.T) {
	g := foldertest.Build(t, vfstest.NewMem(), "/g", 30, 100)
	f := g.Frames[g.Active()][25]
	end := g.Last().Offset + g.Last().Bytes
	undo := g.Change(t, g.Active(), f.Offset, func(b []byte) { clear(b) }, int(end-f.Offset))
	d := verifyFolder(t, g).Damages
	if len(d) != 1 || d[0].Offset != f.Offset || d[0].Length != end-f.Offset || !d[0].IDsUnknown ||
		d[0].IndexFirst != f.Entry.Index || d[0].IndexLast != g.Last().Entry.Index {
		t.Errorf("%+v", d)
	}
	undo()
	file, err := g.FS.OpenWrite(path.Join(g.Dir, g.Active()))
	must.OK(t, err)
	must.OK(t, file.Truncate(f.Offset+3))
	must.OK(t, file.Close())
	if d := verifyFolder(t, g).Damages; len(d) != 2 || d[0].Offset != f.Offset || d[1].Offset+d[1].Length != end {
		t.Errorf("%+v", d)
	}
}

func TestVerifyOfMissingAndWrongFiles(t *testing.T) {
	for what, c := range map[string]struct {
		change func(t *testing.T, g *foldertest.Folder)
		file   string
		says   string
	}{
		"segment missing": {func(t *testing.T, g *foldertest.Folder) {
			must.OK(t, g.FS.Remove(g.Dir+"/"+format.SegmentName(2)))
		}, format.SegmentName(2), "missing"},
		"manifest missing": {func(t *testing.T, g *foldertest.Folder) {
			must.OK(t, g.FS.Remove(g.Dir+"/manifest"))
		}, format.ManifestName, "missing"},
		"blob missing": {func(t *testing.T, g *foldertest.Folder) {
			must.OK(t, g.FS.Remove(g.Dir+"/"+format.BlobName(g.Blobs[0].ID)))
		}, "", "missing"},
		"segment shorter": {func(t *testing.T, g *foldertest.Folder) {
			truncateFolder(t, g, format.SegmentName(1), g.Frames[format.SegmentName(1)][5].Offset)
		}, format.SegmentName(1), "ends before"},
		"segment of another group": {func(t *testing.T, g *foldertest.Folder) {
			h := format.SegmentHeader{Store: g.Manifest.Identity.Store, ID: g.Manifest.Segments[1].ID,
				FirstIndex: g.Manifest.Segments[1].FirstIndex}
			g.Change(t, format.SegmentName(2), 0, func(b []byte) { copy(b, h.Encode()) }, format.SegmentHeaderBytes)
		}, format.SegmentName(2), "another store or group"},
		"hint of another segment": {func(t *testing.T, g *foldertest.Folder) {
			must.OK(t, g.FS.Rename(g.Dir+"/"+format.HintName(2), g.Dir+"/"+format.HintName(1)))
		}, format.HintName(1), "another segment"},
		"an entry cut out": {func(t *testing.T, g *foldertest.Folder) {
			m := g.Manifest.Segments[0]
			image := format.SegmentHeader{Store: g.Manifest.Identity.Store, Group: g.Manifest.Identity.Group, ID: m.ID,
				FirstIndex: m.FirstIndex}.Encode()
			for i, f := range g.Frames[format.SegmentName(1)] {
				if i != 25 {
					image = format.AppendFrame(image, m.ID, int64(len(image)), &f.Entry)
				}
			}
			must.OK(t, g.FS.Remove(g.Dir+"/"+format.HintName(1)))
			must.OK(t, format.WriteReplace(g.FS, g.Dir, format.SegmentName(1), image))
			g.Manifest.Segments[0].Bytes = int64(len(image))
			must.OK(t, format.WriteManifest(g.FS, g.Dir, g.Manifest))
		}, format.SegmentName(1), "missing before it"},
	} {
		t.Run(what, func(t *testing.T) {
			g := foldertest.Build(t, vfstest.NewMem(), "/g", 30, 100)
			c.change(t, g)
			d := verifyFolder(t, g).Damages
			if len(d) != 1 || !strings.Contains(d[0].String(), c.says) || c.file != "" && d[0].File != c.file {
				t.Errorf("%v", d)
			}
		})
	}
}

func truncateFolder(t *testing.T, g *foldertest.Folder, name string, size int64) {
	t.Helper()
	f, err := g.FS.OpenWrite(path.Join(g.Dir, name))
	must.OK(t, err)
	must.OK(t, errors.Join(f.Truncate(size), f.Close()))
}

func TestVerifyFindsAnImpossibleOrder(t *testing.T) {
	for what, c := range map[string]struct {
		change func(g *foldertest.Folder, e *format.Entry)
		says   string // substring of the expected report; empty if nothing is wrong
	}{
		"the next entry": {func(*foldertest.Folder, *format.Entry) {}, ""},
		"a new term cuts above the commit": {func(_ *foldertest.Folder, e *format.Entry) {
			e.Index, e.Term = e.Index-3, 9
		}, ""},
		"a new term cuts below the commit": {func(g *foldertest.Folder, e *format.Entry) {
			e.Index, e.Term = g.Manifest.Segments[2].FirstIndex+1, 9
		}, "behind index"},
		// This entry replaces another leader's entry, which becomes void.
		"the same index and term again": {func(_ *foldertest.Folder, e *format.Entry) { e.Index-- }, ""},
		"an older term cuts": {func(_ *foldertest.Folder, e *format.Entry) {
			e.Index--
			e.Term--
		}, "term 2 behind term 3"},
		"an older term": {func(_ *foldertest.Folder, e *format.Entry) {
			e.Term--
		}, "term 2 behind term 3"},
		"below the segment": {func(_ *foldertest.Folder, e *format.Entry) {
			e.Index, e.Term = 1, 9
		}, "is not one of this segment"},
		"a gap": {func(_ *foldertest.Folder, e *format.Entry) { e.Index++ }, "missing before it"},
	} {
		g := foldertest.Build(t, vfstest.NewMem(), "/g", 30, 100)
		last := g.Last()
		end := last.Offset + last.Bytes
		e := format.Entry{Kind: format.KindPut, Used: true, ID: 5000, Index: last.Entry.Index + 1, Term: 3, CommitTime: 1000,
			Data: []byte("x")}
		c.change(g, &e)
		frame := format.AppendFrame(nil, g.Manifest.Segments[2].ID, end, &e)
		g.Change(t, g.Active(), end, func(b []byte) { copy(b, frame) }, len(frame))
		d := verifyFolder(t, g).Damages
		if c.says == "" && len(d) != 0 || c.says != "" && (len(d) != 1 || d[0].Offset != end ||
			!strings.Contains(d[0].What, c.says)) {
			t.Errorf("%s: %v", what, d)
		}
	}
}

// TestVerifyLooksAtASealedSegmentUpToItsSizeOnly checks that VerifyDir ignores bytes after the end of a sealed segment.
// After a failed sync, a segment is sealed at its synced size, and its file keeps the bytes after that.
func TestVerifyLooksAtASealedSegmentUpToItsSizeOnly(t *testing.T) {
	g := foldertest.Build(t, vfstest.NewMem(), "/g", 30, 100)
	file, err := g.FS.OpenWrite(path.Join(g.Dir, format.SegmentName(1)))
	must.OK(t, err)
	_, err = file.WriteAt([]byte("left over"), g.Manifest.Segments[0].Bytes)
	must.OK(t, errors.Join(err, file.Close()))
	if report := verifyFolder(t, g); len(report.Damages) != 0 || report.TornBytes != 0 {
		t.Errorf("%+v", report)
	}
}

func TestVerifyFindsAWrongUsedFlag(t *testing.T) {
	g := foldertest.Build(t, vfstest.NewMem(), "/g", 30, 100)
	h, err := format.ReadHint(g.FS, g.Dir, g.Manifest.Segments[1])
	must.OK(t, err)
	set := 0
	for row := range h.IDs {
		used := h.IsUsed(row)
		h.SetUsed(row, !used)
		must.OK(t, format.WriteHint(g.FS, g.Dir, 2, h))
		d := verifyFolder(t, g).Damages
		if used {
			set++
			if len(d) != 1 || d[0].File != format.HintName(2) || !slices.Equal(d[0].IDs, h.IDs[row:row+1]) {
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
	for what, change := range map[string]func(h *format.Hint){
		"id":     func(h *format.Hint) { h.IDs[3]++ },
		"index":  func(h *format.Hint) { h.Indexes[3]++ },
		"place":  func(h *format.Hint) { h.Places[3] += 1 << 16 },
		"length": func(h *format.Hint) { h.Places[3] += 2 },
		"row":    func(h *format.Hint) { h.IDs, h.Places, h.Indexes = h.IDs[1:], h.Places[1:], h.Indexes[1:] },
		"row, all used": func(h *format.Hint) {
			h.IDs, h.Places, h.Indexes, h.Used = h.IDs[1:], h.Places[1:], h.Indexes[1:], []uint64{1<<29 - 1}
		},
		"term":   func(h *format.Hint) { h.Terms[0].Term-- },
		"blob":   func(h *format.Hint) { h.Blobs = nil },
		"commit": func(h *format.Hint) { h.LastCommit++ },
	} {
		g := foldertest.Build(t, vfstest.NewMem(), "/g", 30, 100)
		h, err := format.ReadHint(g.FS, g.Dir, g.Manifest.Segments[1])
		must.OK(t, err)
		change(h)
		foldertest.OrderRows(h)
		must.OK(t, format.WriteHint(g.FS, g.Dir, 2, h))
		if d := verifyFolder(t, g).Damages; len(d) != 1 || d[0].File != format.HintName(2) {
			t.Errorf("%s: %v", what, d)
		}
	}
}

func TestVerifyGoesOnBehindABadSector(t *testing.T) {
	faulty := vfstest.NewFaulty(vfstest.NewMem())
	g := foldertest.Build(t, faulty, "/g", 200, 400)
	fault := faulty.Add(&vfstest.Fault{Match: func(op vfstest.Op) bool {
		return op.Kind == vfstest.OpRead && path.Base(op.Name) == format.SegmentName(1) && op.Offset <= 20480 &&
			20480 < op.Offset+op.Length
	}, Err: syscall.EIO})
	d := verifyFolder(t, g).Damages
	if len(d) == 0 || fault.Fired() < 2 {
		t.Fatalf("%v, fired %d times", d, fault.Fired())
	}
	for _, d := range d {
		if d.File != format.SegmentName(1) || !strings.Contains(d.What, "cannot read") || d.IDsUnknown || d.Offset > 24576 ||
			d.Offset+d.Length < 20480 {
			t.Errorf("%v", d)
		}
	}
}

func TestVerifyEndsWithItsContext(t *testing.T) {
	g := foldertest.Build(t, vfstest.NewMem(), "/g", 30, 100)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := VerifyDir(ctx, g.FS, g.Dir, nil); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if _, err := VerifyDir(t.Context(), g.FS, "/nothing", nil); err == nil {
		t.Error("a folder that is not there passes")
	}
}

// BenchmarkVerifyDir compares VerifyDir with reads of the same files that bypass the page cache. SHEAF_BENCH_BYTES is
// the size of each of the three segments. The files are below TMPDIR.
func BenchmarkVerifyDir(b *testing.B) {
	segmentBytes := 32 << 20
	if n, err := strconv.Atoi(os.Getenv("SHEAF_BENCH_BYTES")); err == nil {
		segmentBytes = n
	}
	for _, size := range []int{1000, 10000} {
		g := foldertest.Build(b, vfs.OS{}, b.TempDir()+"/g", segmentBytes/size, size)
		b.Run(fmt.Sprintf("%d/verify", size), func(b *testing.B) {
			for b.Loop() {
				b.SetBytes(verifyFolder(b, g).Bytes)
			}
		})
		b.Run(fmt.Sprintf("%d/raw", size), func(b *testing.B) {
			for b.Loop() {
				b.SetBytes(readRaw(b, g))
			}
		})
	}
}

// readRaw reads all segments with O_DIRECT, 1 MiB at a time, with as many goroutines as VerifyDir uses.
func readRaw(b *testing.B, g *foldertest.Folder) int64 {
	var total atomic.Int64
	var wg sync.WaitGroup
	var next atomic.Int64
	var files []vfs.File
	for _, m := range g.Manifest.Segments {
		f, err := g.FS.OpenDirect(path.Join(g.Dir, format.SegmentName(m.Number)))
		must.OK(b, err)
		files = append(files, f)
	}
	for range verifyWorkers {
		wg.Go(func() {
			buffer := vfs.AlignedBytes(1 << 20)
			for {
				block := next.Add(1) - 1
				f := files[block%int64(len(files))]
				n, _ := f.ReadAt(buffer, block/int64(len(files))<<20) // only a read at the end of the file can fail
				total.Add(int64(n))
				if n == 0 {
					return
				}
			}
		})
	}
	wg.Wait()
	for _, f := range files {
		must.OK(b, f.Close())
	}
	return total.Load()
}

func verifyFolder(t testing.TB, g *foldertest.Folder) VerifyReport {
	t.Helper()
	report, err := VerifyDir(t.Context(), g.FS, g.Dir, nil)
	must.OK(t, err)
	return report
}
