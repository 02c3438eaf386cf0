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

	"sheaf.dev/sheaf/internal/storage/group/format"
	"sheaf.dev/sheaf/internal/storage/group/fsck"
	"sheaf.dev/sheaf/internal/test/foldertest"
	"sheaf.dev/sheaf/internal/test/must"
	"sheaf.dev/sheaf/internal/test/vfstest"
)

// loadFolder opens the group in a folder as a Log.
func loadFolder(t testing.TB, g *foldertest.Folder) (*Log, Report) {
	t.Helper()
	l, report, err := Load(context.Background(), Options{FS: g.FS, Dir: g.Dir, Identity: g.Manifest.Identity}, nil)
	must.OK(t, err)
	t.Cleanup(func() {
		if err := l.Close(false); err != nil {
			t.Error(err)
		}
	})
	return l, report
}

// checkReadsFolder checks that the log returns exactly the newest remaining version of each record, byte for byte.
func checkReadsFolder(t testing.TB, g *foldertest.Folder, l *Log, gone map[uint64]bool) {
	t.Helper()
	left := g.NewestLeft(gone)
	for _, f := range slices.Concat(g.Frames[format.SegmentName(1)], g.Frames[format.SegmentName(2)],
		g.Frames[format.SegmentName(3)]) {
		if !f.Entry.Kind.IsVersion() {
			continue
		}
		id := f.Entry.ID
		want, there := left[id]
		r, err := l.Get(id, GetOptions{})
		switch {
		case !there || want.Kind == format.KindDelete:
			if !errors.Is(err, ErrNotFound) {
				t.Fatalf("id %d: %v", id, err)
			}
		case err != nil || r.Index != want.Index || want.Codec == format.CodecPlain && !bytes.Equal(r.Data, want.Data):
			t.Fatalf("id %d: index %d, want %d: %v", id, r.Index, want.Index, err)
		case want.Codec == format.CodecBlob && r.Blob == nil:
			t.Fatalf("id %d: no blob", id)
		}
	}
}

func TestRepairOfAWholeGroupChangesNothing(t *testing.T) {
	fs := vfstest.NewMem()
	g := foldertest.Build(t, fs, "/g", 30, 100)
	before := fs.OpCount()
	r, err := fsck.RepairDir(t.Context(), fs, g.Dir, nil)
	if err != nil || fs.OpCount() != before || r.NextIndex != 0 || len(r.Quarantined) != 0 {
		t.Errorf("%+v, %v, %d operations", r, err, fs.OpCount()-before)
	}
}

// TestRule8_RepairGivesUpWhatIsHitAndJumpsAhead checks that an index that a client may have seen is never used again
// after a loss was accepted.
func TestRule8_RepairGivesUpWhatIsHitAndJumpsAhead(t *testing.T) {
	for _, name := range []string{format.SegmentName(1), format.SegmentName(2), format.SegmentName(3)} {
		for at := range 31 {
			for _, part := range []int64{4, format.FrameHeaderBytes} {
				g := foldertest.Build(t, vfstest.NewMem(), "/g", 30, 100)
				f := g.Frames[name][at]
				if f.Entry.Kind == format.KindState || part == format.FrameHeaderBytes && len(f.Entry.Data) == 0 {
					continue
				}
				g.Change(t, name, f.Offset+part, func(b []byte) { b[0]++ }, 1)
				original, err := format.ReadAll(g.FS, path.Join(g.Dir, name), 1<<30)
				must.OK(t, err)
				r, err := fsck.RepairDir(t.Context(), g.FS, g.Dir, nil)
				must.OK(t, err)
				last := g.Last().Entry.Index
				if r.NextIndex != last+format.LossJump+1 || len(r.Rewritten) != 1 || len(r.Before.Damages) != 1 {
					t.Fatalf("frame %d of %s: %+v", at, name, r)
				}
				checkQuarantineFolder(t, g, name, f, original)
				l, report := loadFolder(t, g)
				if report.Outcome != Loaded || len(report.Damages) != 0 {
					t.Fatalf("frame %d of %s: %+v", at, name, report)
				}
				checkReadsFolder(t, g, l, map[uint64]bool{f.Entry.Index: true})
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

// checkQuarantineFolder checks that the damaged file and the bad range are in quarantine.
func checkQuarantineFolder(t *testing.T, g *foldertest.Folder, name string, f foldertest.Frame, original []byte) {
	t.Helper()
	folder := path.Join(g.Dir, format.QuarantineName)
	whole, err := format.ReadAll(g.FS, path.Join(folder, name), 1<<30)
	must.OK(t, err)
	part, err := format.ReadAll(g.FS, path.Join(folder, fmt.Sprintf("%s@%d", name, f.Offset)), 1<<30)
	must.OK(t, err)
	if !bytes.Equal(whole, original) || !bytes.Equal(part, original[f.Offset:f.Offset+f.Bytes]) {
		t.Errorf("the quarantine does not hold what was there")
	}
}

func TestRepairOfManyBadPlacesLeavesAllThatWasWhole(t *testing.T) {
	rnd := rand.New(rand.NewPCG(11, 12))
	for round := range 60 {
		g := foldertest.Build(t, vfstest.NewMem(), "/g", 40, 300)
		gone := map[uint64]bool{}
		for range 1 + rnd.IntN(6) {
			name := format.SegmentName(1 + rnd.Uint64N(3))
			frames := g.Frames[name]
			end := frames[len(frames)-1].Offset + frames[len(frames)-1].Bytes
			length := 1 + rnd.Int64N(600)
			offset := format.SegmentHeaderBytes + rnd.Int64N(end-format.SegmentHeaderBytes-length)
			g.Change(t, name, offset, func(b []byte) {
				for i := range b {
					b[i] ^= byte(1 + rnd.IntN(255))
				}
			}, int(length))
			for _, f := range frames {
				if f.Offset < offset+length && offset < f.Offset+f.Bytes {
					gone[f.Entry.Index] = true
				}
			}
		}
		r, err := fsck.RepairDir(t.Context(), g.FS, g.Dir, nil)
		must.OK(t, err)
		if len(gone) > 0 && len(r.Before.Damages) == 0 {
			t.Fatalf("round %d: nothing found", round)
		}
		verifyUsedBytesFolder(t, g)
		l, report := loadFolder(t, g)
		if report.Outcome != Loaded {
			t.Fatalf("round %d: %+v", round, report)
		}
		checkReadsFolder(t, g, l, gone)
		must.OK(t, l.Close(false))
		if again, err := fsck.RepairDir(t.Context(), g.FS, g.Dir, nil); err != nil || len(again.Before.Damages) != 0 {
			t.Fatalf("round %d: again %+v, %v", round, again.Before.Damages, err)
		}
	}
}

// verifyUsedBytesFolder verifies the group without hints, so that the used bytes in the frames matter.
func verifyUsedBytesFolder(t *testing.T, g *foldertest.Folder) {
	t.Helper()
	bare := &foldertest.Folder{FS: g.FS.(*vfstest.Mem).CrashClone(vfstest.Survival{}),
		Dir: g.Dir} //nolint:forcetypeassert // the tests use only Mem
	for _, name := range bare.Names(t) {
		if format.IsHintName(name) {
			must.OK(t, bare.FS.Remove(path.Join(g.Dir, name)))
		}
	}
	if d := verifyFolder(t, bare).Damages; len(d) != 0 {
		t.Fatalf("without hints: %v", d)
	}
}

func TestRepairOfWhatLosesNoEntryKeepsIndexes(t *testing.T) {
	state := func(g *foldertest.Folder, name string) foldertest.Frame {
		for _, f := range g.Frames[name] {
			if f.Entry.Kind == format.KindState {
				return f
			}
		}
		panic("no state frame")
	}
	for what, change := range map[string]func(t *testing.T, g *foldertest.Folder){
		"manifest copy": func(t *testing.T, g *foldertest.Folder) {
			g.Change(t, format.ManifestName, 10, func(b []byte) { b[0]++ }, 1)
		},
		"mark slot": func(t *testing.T, g *foldertest.Folder) {
			g.Change(t, format.MarkName, 10, func(b []byte) { b[0]++ }, 1)
		},
		"hint": func(t *testing.T, g *foldertest.Folder) {
			g.Change(t, format.HintName(2), 10, func(b []byte) { b[0]++ }, 1)
		},
		"segment header": func(t *testing.T, g *foldertest.Folder) {
			g.Change(t, format.SegmentName(2), 10, func(b []byte) { b[0]++ }, 1)
		},
		"active segment header": func(t *testing.T, g *foldertest.Folder) {
			g.Change(t, g.Active(), 10, func(b []byte) { b[0]++ }, 1)
		},
		"state record": func(t *testing.T, g *foldertest.Folder) {
			g.Change(t, format.SegmentName(1), state(g, format.SegmentName(1)).Offset, func(b []byte) { b[0]++ }, 1)
		},
		"active state record": func(t *testing.T, g *foldertest.Folder) {
			g.Change(t, g.Active(), state(g, g.Active()).Offset, func(b []byte) { b[0]++ }, 1)
		},
		"used flag": func(t *testing.T, g *foldertest.Folder) {
			h, err := format.ReadHint(g.FS, g.Dir, g.Manifest.Segments[1])
			must.OK(t, err)
			clear(h.Used)
			must.OK(t, format.WriteHint(g.FS, g.Dir, 2, h))
		},
	} {
		t.Run(what, func(t *testing.T) {
			g := foldertest.Build(t, vfstest.NewMem(), "/g", 30, 100)
			change(t, g)
			r, err := fsck.RepairDir(t.Context(), g.FS, g.Dir, nil)
			must.OK(t, err)
			if r.NextIndex != 0 || len(r.Before.Damages) == 0 || len(r.Quarantined) == 0 {
				t.Errorf("%+v", r)
			}
			l, report := loadFolder(t, g)
			if report.Outcome != Loaded {
				t.Errorf("%+v", report)
			}
			last, err := l.LastIndex()
			if err != nil || last != g.Last().Entry.Index {
				t.Errorf("last index %d, %v", last, err)
			}
			must.OK(t, l.Apply(last, nil))
			checkReadsFolder(t, g, l, nil)
		})
	}
}

func TestRepairGivesUpTheRecordOfABadBlob(t *testing.T) {
	for what, change := range map[string]func(t *testing.T, g *foldertest.Folder, name string){
		"chunk": func(t *testing.T, g *foldertest.Folder, name string) {
			g.Change(t, name, 700, func(b []byte) { b[0]++ }, 1)
		},
		"missing": func(t *testing.T, g *foldertest.Folder, name string) {
			must.OK(t, g.FS.Remove(path.Join(g.Dir, name)))
		},
	} {
		t.Run(what, func(t *testing.T) {
			g := foldertest.Build(t, vfstest.NewMem(), "/g", 30, 100)
			change(t, g, format.BlobName(g.Blobs[0].ID))
			r, err := fsck.RepairDir(t.Context(), g.FS, g.Dir, nil)
			must.OK(t, err)
			if r.Dropped != 1 || r.NextIndex == 0 {
				t.Errorf("%+v", r)
			}
			l, report := loadFolder(t, g)
			if report.Outcome != Loaded {
				t.Errorf("%+v", report)
			}
			checkReadsFolder(t, g, l, map[uint64]bool{g.NewestLeft(nil)[1000].Index: true})
		})
	}
}

func TestRepairRefusesWithoutAChange(t *testing.T) {
	for what, c := range map[string]struct {
		change func(t *testing.T, g *foldertest.Folder)
		says   string
	}{
		"no manifest": {func(t *testing.T, g *foldertest.Folder) {
			must.OK(t, g.FS.Remove(g.Dir+"/manifest"))
		}, "from a peer or a backup"},
		"no room": {func(_ *testing.T, g *foldertest.Folder) {
			mem := g.FS.(*vfstest.Mem) //nolint:forcetypeassert // made below
			space, _ := mem.Space("/")
			mem.SetCapacity(space.TotalBytes - space.FreeBytes + 100)
		}, "are free"},
	} {
		t.Run(what, func(t *testing.T) {
			mem := vfstest.NewMem()
			mem.SetCapacity(64 << 20)
			g := foldertest.Build(t, mem, "/g", 30, 100)
			g.Change(t, format.SegmentName(1), g.Frames[format.SegmentName(1)][3].Offset, func(b []byte) { b[0]++ }, 1)
			c.change(t, g)
			before := mem.OpCount()
			if _, err := fsck.RepairDir(t.Context(), g.FS, g.Dir, nil); err == nil || !strings.Contains(err.Error(), c.says) ||
				mem.OpCount() != before {
				t.Errorf("%v, %d operations", err, mem.OpCount()-before)
			}
		})
	}
}

// TestRepairSurvivesAPowerCutAtEveryOperation cuts the power at every operation of a repair. After that, the group must
// be in its old state or be repaired, and a second attempt must succeed.
func TestRepairSurvivesAPowerCutAtEveryOperation(t *testing.T) {
	build := func() (*vfstest.Mem, *foldertest.Folder, map[uint64]bool) {
		mem := vfstest.NewMem()
		g := foldertest.Build(t, mem, "/g", 20, 60)
		gone := map[uint64]bool{}
		for _, name := range []string{format.SegmentName(1), g.Active()} {
			f := g.Frames[name][5]
			g.Change(t, name, f.Offset, func(b []byte) { b[0]++ }, 1)
			gone[f.Entry.Index] = true
		}
		return mem.CrashClone(vfstest.Survival{Kind: vfstest.SurviveAll}), g, gone
	}
	mem, g, _ := build()
	_, err := fsck.RepairDir(t.Context(), mem, g.Dir, nil)
	must.OK(t, err)
	operations := mem.OpCount()
	for n := range operations {
		for _, kind := range vfstest.SurvivalKinds {
			mem, g, gone := build()
			mem.CrashAfter(n)
			_, _ = fsck.RepairDir(t.Context(), mem, g.Dir, nil) // the power cut interrupts this repair
			g.FS = mem.CrashClone(vfstest.Survival{Kind: kind, Seed: uint64(n)})
			if _, err := fsck.RepairDir(t.Context(), g.FS, g.Dir, nil); err != nil {
				t.Fatalf("cut after %d of %d, %v: %v", n, operations, kind, err)
			}
			l, report := loadFolder(t, g)
			if report.Outcome != Loaded {
				t.Fatalf("cut after %d of %d, %v: %+v", n, operations, kind, report)
			}
			checkReadsFolder(t, g, l, gone)
			if last, err := l.LastIndex(); err != nil || last < g.Last().Entry.Index+format.LossJump {
				t.Fatalf("last index %d, %v", last, err)
			}
		}
	}
}

func TestRepairFailsWithEveryFailedWriteAndSync(t *testing.T) {
	for _, kind := range []vfstest.OpKind{vfstest.OpCreate, vfstest.OpWrite, vfstest.OpSync, vfstest.OpRename,
		vfstest.OpSyncDir} {
		for skip := int64(0); ; skip++ {
			faulty := vfstest.NewFaulty(vfstest.NewMem())
			g := foldertest.Build(t, faulty, "/g", 20, 60)
			f := g.Frames[format.SegmentName(2)][5]
			g.Change(t, format.SegmentName(2), f.Offset, func(b []byte) { b[0]++ }, 1)
			fault := faulty.Add(&vfstest.Fault{Match: func(op vfstest.Op) bool { return op.Kind == kind }, Skip: skip, Count: 1})
			_, err := fsck.RepairDir(t.Context(), faulty, g.Dir, nil)
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
			if _, err := fsck.RepairDir(t.Context(), faulty, g.Dir, nil); err != nil {
				t.Fatalf("%v number %d failed, the second try: %v", kind, skip, err)
			}
			l, report := loadFolder(t, g)
			if report.Outcome != Loaded {
				t.Fatalf("%+v", report)
			}
			checkReadsFolder(t, g, l, map[uint64]bool{f.Entry.Index: true})
		}
	}
}
