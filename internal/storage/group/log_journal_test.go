package group

import (
	"context"
	"errors"
	"fmt"
	"path"
	"testing"

	"go.etcd.io/raft/v3/raftpb"

	"sheaf.dev/sheaf/internal/storage/group/format"
	"sheaf.dev/sheaf/internal/storage/journal"
	"sheaf.dev/sheaf/internal/storage/vfs"
	"sheaf.dev/sheaf/internal/test/grouptest"
	"sheaf.dev/sheaf/internal/test/must"
	"sheaf.dev/sheaf/internal/test/vfstest"
)

// journaled is a log that uses a journal on the same disk.
type journaled struct {
	t       *testing.T
	disk    vfs.FS
	opts    Options
	journal *journal.Journal
	log     *Log
	next    uint64
}

func newJournaled(t *testing.T, disk vfs.FS, residency Residency) *journaled {
	t.Helper()
	must.OK(t, disk.MkdirAll("/v"))
	j := &journaled{t: t, disk: disk, next: 1, journal: journal.New(journal.Options{FS: disk, Dir: "/v"})}
	j.opts = Options{FS: disk, Dir: "/v/g", Identity: format.Identity{Name: "g"}, Residency: residency, Journal: j.journal}
	must.OK(t, Create(j.opts, &raftpb.ConfState{Voters: []uint64{1}}))
	j.load()
	return j
}

func (j *journaled) load() {
	j.t.Helper()
	log, _, err := Load(context.Background(), j.opts, nil)
	must.OK(j.t, err)
	j.log = log
	j.t.Cleanup(func() { _ = log.Close(false) })
}

// append appends one put. The record's id is the index of the put.
func (j *journaled) append() uint64 {
	j.t.Helper()
	e := &format.Entry{Kind: format.KindPut, Used: true, ID: int64(j.next), Index: j.next, Term: 1,
		Data: fmt.Appendf(nil, "record %d", j.next)}
	must.OK(j.t, j.log.Append(nil, []*raftpb.Entry{format.RaftEntry(e)}))
	j.next++
	return e.Index
}

func (j *journaled) shared() {
	j.t.Helper()
	if !j.log.SyncShared() {
		j.t.Fatal("the journal did not take it")
	}
}

// after loads the log from the disk that a power cut leaves, and returns the log's last index. If redo is true, it
// first writes the journal's data to the segments.
func (j *journaled) after(redo bool) uint64 {
	j.t.Helper()
	disk := mem(j.disk).CrashClone(vfstest.Survival{Kind: vfstest.SurviveNone})
	if redo {
		found, err := journal.Read(disk, "/v")
		must.OK(j.t, err)
		share := found.Share(j.opts.Identity.Group)
		must.OK(j.t, Redo(disk, "/v/g", share))
		must.OK(j.t, Redo(disk, "/v/g", share)) // Redo may be called again
	}
	opts := j.opts
	opts.FS, opts.Journal = disk, nil
	log, report, err := Load(context.Background(), opts, nil)
	must.OK(j.t, err)
	defer log.Close(false)
	if report.Outcome == Damaged {
		j.t.Errorf("report %+v", report)
	}
	last, err := log.LastIndex()
	must.OK(j.t, err)
	return last
}

func mem(fs vfs.FS) *vfstest.Mem {
	if faulty, ok := fs.(*vfstest.Faulty); ok {
		return faulty.Unwrap().(*vfstest.Mem)
	}
	return fs.(*vfstest.Mem)
}

func TestSyncSharedIsDurable(t *testing.T) {
	for _, residency := range []Residency{Index, Resident} {
		j := newJournaled(t, vfstest.NewMem(), residency)
		j.append()
		must.OK(t, j.log.Sync())
		for range 3 {
			j.append()
			j.shared()
		}
		j.shared() // does nothing and returns false, because nothing new was appended
		if with, without := j.after(true), j.after(false); with != 4 || without != 1 {
			t.Errorf("last index %d with the journal, %d without; want 4 and 1", with, without)
		}
		must.OK(t, j.log.Sync())
		if last := j.after(false); last != 4 {
			t.Errorf("last index %d after the segment was synced", last)
		}
		j.append()
		j.append() // the bytes of the two appends are in different buffers
		if j.log.SyncShared() {
			t.Error("two appends were taken")
		}
	}
}

// TestWritingBeginsBeforeTheJournalAsks checks that data which the journal made durable is passed to the kernel in
// pieces of whole blocks, and only once.
func TestWritingBeginsBeforeTheJournalAsks(t *testing.T) {
	mem := vfstest.NewMem()
	mem.SetCheapOverwrite(true)
	fs := &aheadFS{Mem: mem}
	j := newJournaled(t, mem, Index)
	must.OK(t, sealAndClose(j.log))
	j.opts.FS, j.opts.Journal = fs, journal.New(journal.Options{FS: mem, Dir: "/v", FileBytes: 16 << 20})
	j.load()
	w := &j.log.w
	pieces := 0
	for range 3 * startBytes / 1000 {
		e := &format.Entry{Kind: format.KindPut, Used: true, ID: int64(j.next), Index: j.next, Term: 1,
			Data: grouptest.RandomBytes(j.next, 1000)}
		j.next++
		must.OK(t, j.log.Append(nil, []*raftpb.Entry{format.RaftEntry(e)}))
		before := w.share.started
		j.shared()
		if w.share.started == before {
			continue
		}
		pieces++
		if n := w.share.started - max(before, j.log.state.syncedEnd&^(format.BlockBytes-1)); n < startBytes ||
			w.share.started%format.BlockBytes != 0 || w.share.started > w.end {
			t.Fatalf("a piece of %d bytes ends at %d of %d", n, w.share.started, w.end)
		}
	}
	if pieces != 3 || fs.zeros != 0 {
		t.Errorf("%d pieces, want 3; %d writes of zeros, want none without a sync", pieces, fs.zeros)
	}
	must.OK(t, j.log.Seal())
	if w.share.started != 0 {
		t.Errorf("the new segment is begun to be written up to %d", w.share.started)
	}
	j.append()
	must.OK(t, j.log.Sync())
	if fs.zeros != 1 {
		t.Errorf("%d writes of zeros, want one with the sync", fs.zeros)
	}
}

// TestRedoLeavesOtherSegmentsAlone continues the log in another segment after a failed sync. The journal's data for the
// abandoned segment is then void.
func TestRedoLeavesOtherSegmentsAlone(t *testing.T) {
	faulty := vfstest.NewFaulty(vfstest.NewMem())
	j := newJournaled(t, faulty, Index)
	j.append()
	must.OK(t, j.log.Sync())
	j.append()
	j.shared()
	fault := faulty.Add(&vfstest.Fault{
		Match: func(op vfstest.Op) bool {
			return op.Kind == vfstest.OpSync && path.Base(op.Name) == format.SegmentName(1)
		},
		Effect: vfstest.EffectDrop, Count: 1,
	})
	must.OK(t, j.log.Sync())
	if fault.Fired() != 1 {
		t.Fatal("no sync failed")
	}
	j.append()
	j.shared()
	if last := j.after(true); last != 3 {
		t.Errorf("last index %d, want 3", last)
	}
	must.OK(t, j.log.Seal())
	j.append()
	j.shared()
	if last := j.after(true); last != 4 {
		t.Errorf("last index %d, want 4", last)
	}
	must.OK(t, Redo(j.disk, "/v/absent", journal.Share{Ranges: []journal.Range{{Offset: 64}}}))
}

// TestALogIsLoadedWithWhatTheJournalHas loads a log whose predecessor in the same process could not sync its segment
// when it was closed. The journal has the missing data.
func TestALogIsLoadedWithWhatTheJournalHas(t *testing.T) {
	faulty := vfstest.NewFaulty(vfstest.NewMem())
	j := newJournaled(t, faulty, Index)
	j.append()
	j.shared()
	fault := faulty.Add(&vfstest.Fault{Match: func(op vfstest.Op) bool {
		return op.Kind == vfstest.OpSync && path.Base(path.Dir(op.Name)) == "g" || op.Kind == vfstest.OpCreate
	}, Effect: vfstest.EffectDrop})
	must.OK(t, j.log.Close(false))
	if fault.Fired() == 0 {
		t.Fatal("no sync failed")
	}
	if _, _, err := Load(context.Background(), j.opts, nil); err == nil {
		t.Fatal("loaded although the segment cannot be synced")
	}
	fault.Remove()
	plan, err := PlanLoad(j.opts)
	must.OK(t, err)
	planned := j.opts
	planned.Plan = plan
	j.log, _, err = Load(t.Context(), planned, nil)
	must.OK(t, err)
	// Redo moves the mark forward for the data in the journal, so the load must not use the mark in the plan, which was
	// read before.
	mark, _, _, err := format.ReadMark(faulty, j.opts.Dir)
	if err != nil || mark == plan.mark.Mark || j.log.marks.last != mark || j.log.marks.sequence != mark.Sequence {
		t.Errorf("the log has the mark %+v of sequence %d, the file has %+v: %v", j.log.marks.last, j.log.marks.sequence,
			mark, err)
	}
	if last, err := j.log.LastIndex(); last != 1 || err != nil {
		t.Errorf("last index %d, %v", last, err)
	}
	if last := j.after(false); last != 1 {
		t.Errorf("last index %d after a power cut", last)
	}
	j.append()
	j.shared()
	must.OK(t, j.log.Close(false))
	if clean, err := j.journal.Close(); !clean || err != nil {
		t.Errorf("clean %v, %v: the log was synced when it was closed", clean, err)
	}
	if err := j.log.Sync(); !errors.Is(err, format.ErrClosed) {
		t.Errorf("%v", err)
	}
}
