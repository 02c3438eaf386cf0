package group

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"path"
	"slices"
	"strings"
	"syscall"
	"testing"

	"sheaf.dev/sheaf/internal/vfs/vfstest"
)

// newestLeft is what reads must answer when some indexes are gone: the newest version of each id.
func (g *testGroup) newestLeft(gone map[uint64]bool) map[int64]Entry {
	newest := map[int64]Entry{}
	for _, frames := range g.frames {
		for _, f := range frames {
			e := f.entry
			if e.Kind.isVersion() && !gone[e.Index] && newest[e.ID].Index < e.Index {
				newest[e.ID] = e
			}
		}
	}
	return newest
}

// load opens the group with the real log.
func (g *testGroup) load(t testing.TB) (*Log, Report) {
	t.Helper()
	l, report, err := Load(context.Background(), Options{FS: g.fs, Dir: g.dir, Identity: g.manifest.Identity}, nil)
	must(t, err)
	t.Cleanup(func() {
		if err := l.Close(false); err != nil {
			t.Error(err)
		}
	})
	return l, report
}

// checkReads wants from the log exactly the newest versions that are left, byte for byte.
func (g *testGroup) checkReads(t testing.TB, l *Log, gone map[uint64]bool) {
	t.Helper()
	left := g.newestLeft(gone)
	for _, f := range slices.Concat(g.frames[SegmentName(1)], g.frames[SegmentName(2)], g.frames[SegmentName(3)]) {
		if !f.entry.Kind.isVersion() {
			continue
		}
		id := f.entry.ID
		want, there := left[id]
		r, err := l.Get(id, GetOptions{})
		switch {
		case !there || want.Kind == KindDelete:
			if !errors.Is(err, ErrNotFound) {
				t.Fatalf("id %d: %v", id, err)
			}
		case err != nil || r.Index != want.Index || want.Codec == CodecPlain && !bytes.Equal(r.Data, want.Data):
			t.Fatalf("id %d: index %d, want %d: %v", id, r.Index, want.Index, err)
		case want.Codec == CodecBlob && r.Blob == nil:
			t.Fatalf("id %d: no blob", id)
		}
	}
}

func TestRepairOfAWholeGroupChangesNothing(t *testing.T) {
	fs := vfstest.NewMem()
	g := buildGroup(t, fs, "/g", 30, 100)
	before := fs.OpCount()
	r, err := RepairDir(t.Context(), fs, g.dir, nil)
	if err != nil || fs.OpCount() != before || r.NextIndex != 0 || len(r.Quarantined) != 0 {
		t.Errorf("%+v, %v, %d operations", r, err, fs.OpCount()-before)
	}
}

// Rule 8: after loss was accepted, an index that a client may have seen is never used again.
func TestRule8_RepairGivesUpWhatIsHitAndJumpsAhead(t *testing.T) {
	for _, name := range []string{SegmentName(1), SegmentName(2), SegmentName(3)} {
		for at := range 31 {
			for _, part := range []int64{4, FrameHeaderBytes} {
				g := buildGroup(t, vfstest.NewMem(), "/g", 30, 100)
				f := g.frames[name][at]
				if f.entry.Kind == KindState || part == FrameHeaderBytes && len(f.entry.Data) == 0 {
					continue
				}
				g.change(t, name, f.offset+part, func(b []byte) { b[0]++ }, 1)
				original, err := readAll(g.fs, path.Join(g.dir, name), 1<<30)
				must(t, err)
				r, err := RepairDir(t.Context(), g.fs, g.dir, nil)
				must(t, err)
				last := g.last().entry.Index
				if r.NextIndex != last+lossJump+1 || len(r.Rewritten) != 1 || len(r.Before.Damages) != 1 {
					t.Fatalf("frame %d of %s: %+v", at, name, r)
				}
				g.checkQuarantine(t, name, f, original)
				l, report := g.load(t)
				if report.Outcome != Loaded || len(report.Damages) != 0 {
					t.Fatalf("frame %d of %s: %+v", at, name, report)
				}
				g.checkReads(t, l, map[uint64]bool{f.entry.Index: true})
				if last, err := l.LastIndex(); err != nil || last != r.NextIndex-1 || l.AppliedIndex() != last {
					t.Fatalf("last index %d, applied %d, %v", last, l.AppliedIndex(), err)
				}
				hs, _, err := l.InitialState()
				if err != nil || hs.GetCommit() != r.NextIndex-1 || hs.GetTerm() != 3 {
					t.Fatalf("%v, %v", hs, err)
				}
			}
		}
	}
}

// checkQuarantine wants the damaged file and the bad range aside.
func (g *testGroup) checkQuarantine(t *testing.T, name string, f testFrame, original []byte) {
	t.Helper()
	folder := path.Join(g.dir, QuarantineName)
	whole, err := readAll(g.fs, path.Join(folder, name), 1<<30)
	must(t, err)
	part, err := readAll(g.fs, path.Join(folder, fmt.Sprintf("%s@%d", name, f.offset)), 1<<30)
	must(t, err)
	if !bytes.Equal(whole, original) || !bytes.Equal(part, original[f.offset:f.offset+f.bytes]) {
		t.Errorf("the quarantine does not hold what was there")
	}
}

func TestRepairOfManyBadPlacesLeavesAllThatWasWhole(t *testing.T) {
	rnd := rand.New(rand.NewPCG(11, 12))
	for round := range 60 {
		g := buildGroup(t, vfstest.NewMem(), "/g", 40, 300)
		gone := map[uint64]bool{}
		for range 1 + rnd.IntN(6) {
			name := SegmentName(1 + rnd.Uint64N(3))
			frames := g.frames[name]
			end := frames[len(frames)-1].offset + frames[len(frames)-1].bytes
			length := 1 + rnd.Int64N(600)
			offset := SegmentHeaderBytes + rnd.Int64N(end-SegmentHeaderBytes-length)
			g.change(t, name, offset, func(b []byte) {
				for i := range b {
					b[i] ^= byte(1 + rnd.IntN(255))
				}
			}, int(length))
			for _, f := range frames {
				if f.offset < offset+length && offset < f.offset+f.bytes {
					gone[f.entry.Index] = true
				}
			}
		}
		r, err := RepairDir(t.Context(), g.fs, g.dir, nil)
		must(t, err)
		if len(gone) > 0 && len(r.Before.Damages) == 0 {
			t.Fatalf("round %d: nothing found", round)
		}
		g.verifyUsedBytes(t)
		l, report := g.load(t)
		if report.Outcome != Loaded {
			t.Fatalf("round %d: %+v", round, report)
		}
		g.checkReads(t, l, gone)
		must(t, l.Close(false))
		if again, err := RepairDir(t.Context(), g.fs, g.dir, nil); err != nil || len(again.Before.Damages) != 0 {
			t.Fatalf("round %d: again %+v, %v", round, again.Before.Damages, err)
		}
	}
}

// verifyUsedBytes verifies without hints: then the used bytes of the frames count.
func (g *testGroup) verifyUsedBytes(t *testing.T) {
	t.Helper()
	bare := &testGroup{fs: g.fs.(*vfstest.Mem).CrashClone(vfstest.Survival{}), dir: g.dir} //nolint:forcetypeassert // a Mem in these tests
	for _, name := range bare.names(t) {
		if isHintName(name) {
			must(t, bare.fs.Remove(path.Join(g.dir, name)))
		}
	}
	if d := bare.verify(t).Damages; len(d) != 0 {
		t.Fatalf("without hints: %v", d)
	}
}

func TestRepairOfWhatLosesNoEntryKeepsIndexes(t *testing.T) {
	state := func(g *testGroup, name string) testFrame {
		for _, f := range g.frames[name] {
			if f.entry.Kind == KindState {
				return f
			}
		}
		panic("no state frame")
	}
	for what, change := range map[string]func(t *testing.T, g *testGroup){
		"manifest copy":         func(t *testing.T, g *testGroup) { g.change(t, ManifestName, 10, func(b []byte) { b[0]++ }, 1) },
		"mark slot":             func(t *testing.T, g *testGroup) { g.change(t, MarkName, 10, func(b []byte) { b[0]++ }, 1) },
		"hint":                  func(t *testing.T, g *testGroup) { g.change(t, HintName(2), 10, func(b []byte) { b[0]++ }, 1) },
		"segment header":        func(t *testing.T, g *testGroup) { g.change(t, SegmentName(2), 10, func(b []byte) { b[0]++ }, 1) },
		"active segment header": func(t *testing.T, g *testGroup) { g.change(t, g.active(), 10, func(b []byte) { b[0]++ }, 1) },
		"state record": func(t *testing.T, g *testGroup) {
			g.change(t, SegmentName(1), state(g, SegmentName(1)).offset, func(b []byte) { b[0]++ }, 1)
		},
		"active state record": func(t *testing.T, g *testGroup) {
			g.change(t, g.active(), state(g, g.active()).offset, func(b []byte) { b[0]++ }, 1)
		},
		"used flag": func(t *testing.T, g *testGroup) {
			h, err := ReadHint(g.fs, g.dir, g.manifest.Segments[1])
			must(t, err)
			clear(h.Used)
			must(t, WriteHint(g.fs, g.dir, 2, h))
		},
	} {
		t.Run(what, func(t *testing.T) {
			g := buildGroup(t, vfstest.NewMem(), "/g", 30, 100)
			change(t, g)
			r, err := RepairDir(t.Context(), g.fs, g.dir, nil)
			must(t, err)
			if r.NextIndex != 0 || len(r.Before.Damages) == 0 || len(r.Quarantined) == 0 {
				t.Errorf("%+v", r)
			}
			l, report := g.load(t)
			if report.Outcome != Loaded {
				t.Errorf("%+v", report)
			}
			last, err := l.LastIndex()
			if err != nil || last != g.last().entry.Index {
				t.Errorf("last index %d, %v", last, err)
			}
			must(t, l.Apply(last, nil))
			g.checkReads(t, l, nil)
		})
	}
}

func TestRepairGivesUpTheRecordOfABadBlob(t *testing.T) {
	for what, change := range map[string]func(t *testing.T, g *testGroup, name string){
		"chunk":   func(t *testing.T, g *testGroup, name string) { g.change(t, name, 700, func(b []byte) { b[0]++ }, 1) },
		"missing": func(t *testing.T, g *testGroup, name string) { must(t, g.fs.Remove(path.Join(g.dir, name))) },
	} {
		t.Run(what, func(t *testing.T) {
			g := buildGroup(t, vfstest.NewMem(), "/g", 30, 100)
			change(t, g, BlobName(g.blobs[0].ID))
			r, err := RepairDir(t.Context(), g.fs, g.dir, nil)
			must(t, err)
			if r.Dropped != 1 || r.NextIndex == 0 {
				t.Errorf("%+v", r)
			}
			l, report := g.load(t)
			if report.Outcome != Loaded {
				t.Errorf("%+v", report)
			}
			g.checkReads(t, l, map[uint64]bool{g.newestLeft(nil)[1000].Index: true})
		})
	}
}

func TestRepairRefusesWithoutAChange(t *testing.T) {
	for what, c := range map[string]struct {
		change func(t *testing.T, g *testGroup)
		says   string
	}{
		"no manifest": {func(t *testing.T, g *testGroup) { must(t, g.fs.Remove(g.dir+"/manifest")) }, "from a peer or a backup"},
		"no room": {func(_ *testing.T, g *testGroup) {
			mem := g.fs.(*vfstest.Mem) //nolint:forcetypeassert // made below
			space, _ := mem.Space("/")
			mem.SetCapacity(space.TotalBytes - space.FreeBytes + 100)
		}, "are free"},
	} {
		t.Run(what, func(t *testing.T) {
			mem := vfstest.NewMem()
			mem.SetCapacity(64 << 20)
			g := buildGroup(t, mem, "/g", 30, 100)
			g.change(t, SegmentName(1), g.frames[SegmentName(1)][3].offset, func(b []byte) { b[0]++ }, 1)
			c.change(t, g)
			before := mem.OpCount()
			if _, err := RepairDir(t.Context(), g.fs, g.dir, nil); err == nil || !strings.Contains(err.Error(), c.says) || mem.OpCount() != before {
				t.Errorf("%v, %d operations", err, mem.OpCount()-before)
			}
		})
	}
}

// At every operation the power may go: the group is then as before, or repaired, and a second try ends well.
func TestRepairSurvivesAPowerCutAtEveryOperation(t *testing.T) {
	build := func() (*vfstest.Mem, *testGroup, map[uint64]bool) {
		mem := vfstest.NewMem()
		g := buildGroup(t, mem, "/g", 20, 60)
		gone := map[uint64]bool{}
		for _, name := range []string{SegmentName(1), g.active()} {
			f := g.frames[name][5]
			g.change(t, name, f.offset, func(b []byte) { b[0]++ }, 1)
			gone[f.entry.Index] = true
		}
		return mem.CrashClone(vfstest.Survival{Kind: vfstest.SurviveAll}), g, gone
	}
	mem, g, _ := build()
	_, err := RepairDir(t.Context(), mem, g.dir, nil)
	must(t, err)
	operations := mem.OpCount()
	for n := range operations {
		for _, kind := range vfstest.SurvivalKinds {
			mem, g, gone := build()
			mem.CrashAfter(n)
			_, _ = RepairDir(t.Context(), mem, g.dir, nil) // it was cut off
			g.fs = mem.CrashClone(vfstest.Survival{Kind: kind, Seed: uint64(n)})
			if _, err := RepairDir(t.Context(), g.fs, g.dir, nil); err != nil {
				t.Fatalf("cut after %d of %d, %v: %v", n, operations, kind, err)
			}
			l, report := g.load(t)
			if report.Outcome != Loaded {
				t.Fatalf("cut after %d of %d, %v: %+v", n, operations, kind, report)
			}
			g.checkReads(t, l, gone)
			if last, err := l.LastIndex(); err != nil || last < g.last().entry.Index+lossJump {
				t.Fatalf("last index %d, %v", last, err)
			}
		}
	}
}

func TestRepairFailsWithEveryFailedWriteAndSync(t *testing.T) {
	for _, kind := range []vfstest.OpKind{vfstest.OpCreate, vfstest.OpWrite, vfstest.OpSync, vfstest.OpRename, vfstest.OpSyncDir} {
		for skip := int64(0); ; skip++ {
			faulty := vfstest.NewFaulty(vfstest.NewMem())
			g := buildGroup(t, faulty, "/g", 20, 60)
			f := g.frames[SegmentName(2)][5]
			g.change(t, SegmentName(2), f.offset, func(b []byte) { b[0]++ }, 1)
			fault := faulty.Add(&vfstest.Fault{Match: func(op vfstest.Op) bool { return op.Kind == kind }, Skip: skip, Count: 1})
			_, err := RepairDir(t.Context(), faulty, g.dir, nil)
			if fault.Fired() == 0 {
				if skip == 0 {
					t.Errorf("%v never happens", kind)
				}
				break
			}
			if !errors.Is(err, syscall.EIO) {
				t.Fatalf("%v number %d failed: %v", kind, skip, err)
			}
			fault.Remove()
			if _, err := RepairDir(t.Context(), faulty, g.dir, nil); err != nil {
				t.Fatalf("%v number %d failed, the second try: %v", kind, skip, err)
			}
			l, report := g.load(t)
			if report.Outcome != Loaded {
				t.Fatalf("%+v", report)
			}
			g.checkReads(t, l, map[uint64]bool{f.entry.Index: true})
		}
	}
}
