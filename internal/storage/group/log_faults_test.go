package group

import (
	"context"
	"errors"
	"fmt"
	"path"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"go.etcd.io/raft/v3/raftpb"

	"sheaf.dev/sheaf/internal/storage/group/format"
	"sheaf.dev/sheaf/internal/storage/group/fsck"
	"sheaf.dev/sheaf/internal/storage/vfs"
	"sheaf.dev/sheaf/internal/test/soaktest"
	"sheaf.dev/sheaf/internal/test/vfstest"
)

func TestRule6_EveryOperationThatFailsOnceIsSurvived(t *testing.T) {
	// A failure makes one mutating operation of a workload fail once, with one effect. Everything that the log has
	// reported as done must be on the disk after that.
	type failure struct {
		kind   vfstest.OpKind
		effect vfstest.Effect
		errno  error
		skip   int64
	}
	var all []failure
	for _, kind := range []vfstest.OpKind{vfstest.OpCreate, vfstest.OpWrite, vfstest.OpSync, vfstest.OpTruncate,
		vfstest.OpAllocate, vfstest.OpRename, vfstest.OpSyncDir} {
		for _, effect := range []vfstest.Effect{vfstest.EffectNone, vfstest.EffectDone, vfstest.EffectPart,
			vfstest.EffectDrop} {
			for _, errno := range []error{syscall.EIO, syscall.ENOSPC} {
				for skip := range int64(12) {
					all = append(all, failure{kind, effect, errno, skip})
				}
			}
		}
	}
	step := soaktest.Pick(int64(5), 1, 23)
	var fired atomic.Int64
	each(t, int64(len(all))/step, func(i int64) error {
		f := all[i*step]
		fired.Add(oneFailure(t, f.kind, f.effect, f.errno, f.skip))
		return nil
	})
	t.Logf("%d faults fired", fired.Load())
	if fired.Load() < int64(len(all))/step/3 {
		t.Errorf("only %d faults fired", fired.Load())
	}
}

func oneFailure(t *testing.T, kind vfstest.OpKind, effect vfstest.Effect, errno error, skip int64) int64 {
	mem := vfstest.NewMem()
	fs := vfstest.NewFaulty(mem)
	w := newWorkload(t, uint64(skip), mem, fs, Residency(skip%2))
	where := fmt.Sprintf("%s effect %d %v skip %d", kind, effect, errno, skip)
	fault := fs.Add(&vfstest.Fault{
		Match: func(op vfstest.Op) bool { return op.Kind == kind }, Skip: skip, Count: 1, Effect: effect, Err: errno,
	})
	defer func() {
		if t.Failed() {
			t.Log(where)
		}
	}()
	for i := range 12 {
		batch := w.batch()
		from := w.model.last + 1
		if err := w.appendBatch(from, batch); err != nil {
			continue // the failed append has appended nothing
		}
		if err := w.sync(); err != nil {
			ok(t, w.sync()) // this succeeds, because the fault occurs only once
		}
		ok(t, w.apply())
		if i%4 == 3 {
			if err := w.log.Seal(); err != nil {
				ok(t, w.log.Seal())
			}
			w.log.hints.writing.Wait()
		}
		_ = w.log.Tick() // one failed Tick merely leaves an older mark
		if i%3 != 2 && fault.Fired() == 0 {
			continue
		}
		synced, applied, term := w.model.needs()
		for _, s := range []vfstest.SurvivalKind{vfstest.SurviveNone, vfstest.SurviveAll} {
			disk := mem.CrashClone(vfstest.Survival{Kind: s})
			if err := crashCheck(w, disk, synced, applied, term); err != nil {
				t.Fatalf("%s, batch %d, survival %s: %v", where, i, s, err)
			}
		}
	}
	ok(t, sealAndClose(w.log))
	return fault.Fired()
}

func TestRule8_IndexesAreNeverReusedAfterAcceptedLoss(t *testing.T) {
	b := newDamageBed(t)
	// The damage hits the header of the last entry, whose index a client has seen.
	name := format.SegmentName(3)
	frames := b.frames[name]
	last := frames[len(frames)-2] // the last put, which is followed only by a state record
	if !last.kind.IsVersion() {
		last = frames[len(frames)-3]
	}
	disk, err := b.damaged(func(f vfs.File) error {
		_, err := f.WriteAt(make([]byte, last.bytes), last.offset)
		return err
	}, name)
	ok(t, err)
	ok(t, disk.Remove(path.Join(b.opts.Dir, format.ActiveHintName))) // with the hint, the load would not read the segment
	l, v, err := b.check(disk, Index)
	ok(t, err)
	if v.report.Outcome != Damaged {
		t.Fatalf("outcome %d", v.report.Outcome)
	}
	l, _, err = l.AcceptLoss(t.Context())
	ok(t, err)
	first, err := l.FirstIndex()
	ok(t, err)
	if first <= last.index+format.LossJump {
		t.Errorf("first new index %d, lost index %d", first, last.index)
	}
	if got := l.AppliedIndex(); got != first-1 {
		t.Errorf("applied %d, first %d", got, first)
	}
	hard, _, err := l.InitialState()
	ok(t, err)
	term, err := l.Term(first - 1)
	if err != nil || term != hard.GetTerm() || hard.GetCommit() != first-1 {
		t.Errorf("term %d, %v, hard state %v", term, err, hard)
	}
	e := format.Entry{Kind: format.KindPut, ID: 5, Index: first, Term: hard.GetTerm(), CommitTime: 1 << 40,
		Data: []byte("new")}
	ok(t, l.Append(nil, []*raftpb.Entry{format.RaftEntry(&e)}))
	ok(t, l.Sync())
	ok(t, l.Apply(first, nil))
	r, err := l.Get(5, GetOptions{})
	if err != nil || r.Index != first {
		t.Errorf("index %d, %v", r.Index, err)
	}
	vs, err := l.Versions(5, 0, 10)
	if err != nil || len(vs) < 2 {
		t.Errorf("%d versions, %v", len(vs), err)
	}
	names, err := disk.List(path.Join(b.opts.Dir, format.QuarantineName))
	if err != nil || len(names) != 2 || names[0] != name || !strings.HasPrefix(names[1], name+"@") {
		t.Errorf("quarantine: %v, %v", names, err)
	}
	report, err := l.Verify(context.Background(), 0)
	if err != nil || len(report.Damages) > 0 {
		t.Errorf("verify: %v, %v", report.Damages, err)
	}
	ok(t, sealAndClose(l))
}

func TestRule8_ACrashWhileLossIsAcceptedLosesNothingMore(t *testing.T) {
	b := newDamageBed(t)
	name := format.SegmentName(1)
	victim := b.frames[name][2]
	disk, err := b.damaged(func(f vfs.File) error {
		if _, err := f.WriteAt([]byte{1, 2, 3}, victim.offset+200); err != nil {
			return err
		}
		return f.Sync()
	}, name)
	ok(t, err)
	l, v, err := b.check(disk, Index)
	ok(t, err)
	if v.lost > 1 {
		t.Fatalf("%d records lost", v.lost)
	}
	if _, err := l.Get(victim.id, GetOptions{Index: victim.index}); err == nil {
		t.Fatal("the damaged version was read")
	}
	points := 0
	hit := map[int64]bool{victim.id: true}
	var failed error
	disk.AfterOp(func(op vfstest.Op) {
		for _, kind := range vfstest.SurvivalKinds {
			if failed != nil {
				return
			}
			points++
			opts := b.opts
			opts.FS = disk.CrashClone(vfstest.Survival{Kind: kind, Seed: uint64(op.Number)})
			after, _, err := Load(context.Background(), opts, nil)
			if err == nil {
				last, _ := after.LastIndex()
				err = errors.Join(after.Apply(max(last, after.AppliedIndex()), nil), b.unhitOrDamaged(after, hit),
					after.Close(false))
			}
			if err != nil {
				failed = fmt.Errorf("crash after %s, survival %s: %w", op, kind, err)
			}
		}
	})
	l, _, err = l.AcceptLoss(t.Context())
	l.hints.writing.Wait()
	disk.AfterOp(nil)
	ok(t, err)
	ok(t, failed)
	if points < 50 {
		t.Errorf("%d crash points", points)
	}
	ok(t, b.unhit(l, hit))
	ok(t, sealAndClose(l))
}

// unhitOrDamaged is like unhit, except that reading a record that was hit may return DATA_LOSS.
func (b *damageBed) unhitOrDamaged(l *Log, hit map[int64]bool) error {
	err := b.unhit(l, hit)
	var damage *format.DamageError
	if errors.As(err, &damage) && hit[damage.ID] {
		return nil
	}
	return err
}

func TestRule10_NoSpaceLeavesEverythingWorkingAndHeals(t *testing.T) {
	residencies(t, func(t *testing.T, residency Residency) {
		mem := vfstest.NewMem()
		d := newDriver(t, driverOptions(mem, residency, 16<<10))
		d.fill(30, 300, payload)
		d.log.hints.writing.Wait()
		space, err := mem.Space("/")
		ok(t, err)
		used := space.TotalBytes - space.FreeBytes
		mem.SetCapacity(used + 8<<10)
		full := 0
		for i := range int64(200) {
			id := 100 + i
			before := d.last()
			err := d.append(format.Entry{ID: id, Data: payload(id, 300)})
			if err == nil {
				ok(t, d.log.Sync())
				ok(t, d.log.Apply(d.last(), nil))
				continue
			}
			if !errors.Is(err, format.ErrNoSpace) {
				t.Fatalf("append: %v", err)
			}
			if d.last() != before {
				t.Fatalf("last index is %d, was %d", d.last(), before)
			}
			full++
			d.wants(id, nil)
			d.wants(3, payload(3, 300))
			if full == 20 {
				mem.SetCapacity(0) // frees space
			}
		}
		if full != 20 {
			t.Fatalf("refused %d times", full)
		}
		disk := mem.CrashClone(vfstest.Survival{Kind: vfstest.SurviveNone})
		want := d.log.Stats().Records
		ok(t, d.log.Close(false))
		d.opts.FS = disk
		report := d.load()
		if report.Outcome == Damaged {
			t.Fatalf("%+v", report)
		}
		ok(t, d.log.Apply(d.last(), nil))
		if got := d.log.Stats().Records; got != want {
			t.Fatalf("%d records, want %d", got, want)
		}
	})
}

func TestRule10_WhatARefusedAppendWroteIsNotRevived(t *testing.T) {
	// The disk becomes full after a batch was written completely. The second entry of that batch must not appear in the
	// log after a shorter batch was appended.
	mem := vfstest.NewMem()
	fs := vfstest.NewFaulty(mem)
	d := newDriver(t, driverOptions(fs, Index, 64<<10))
	d.put(format.Entry{ID: 1, Data: []byte("one")})
	fault := fs.Add(&vfstest.Fault{
		Match: func(op vfstest.Op) bool { return op.Kind == vfstest.OpWrite && isSegmentFile(op.Name) }, Count: 1,
		Effect: vfstest.EffectDone, Err: syscall.ENOSPC,
	})
	vote := uint64(1)
	hard := &raftpb.HardState{Term: &d.term, Vote: &vote, Commit: &vote}
	refused := []*raftpb.Entry{d.entry(2, format.Entry{ID: 2, Data: []byte("refused")}),
		d.entry(3, format.Entry{ID: 3, Data: []byte("refused")})}
	if err := d.log.Append(hard, refused); !errors.Is(err, format.ErrNoSpace) || fault.Fired() != 1 {
		t.Fatalf("append: %v, fault fired %d times", err, fault.Fired())
	}
	ok(t, d.log.Append(nil, []*raftpb.Entry{d.entry(2, format.Entry{ID: 4, Data: []byte("shorter")})}))
	ok(t, d.log.Sync())
	for _, kind := range vfstest.SurvivalKinds {
		opts := d.opts
		opts.FS = mem.CrashClone(vfstest.Survival{Kind: kind})
		l := mustLoad(t, opts)
		if last := d.last0(l); last != 2 {
			t.Errorf("survival %s: last index %d", kind, last)
		}
		ok(t, l.Close(false))
	}
}

func TestRule8_TheVersionThatIsLeftAnswersAfterAcceptedLoss(t *testing.T) {
	// The hint says that the older version is superseded, but the entry that superseded it is lost.
	residencies(t, func(t *testing.T, residency Residency) {
		mem := vfstest.NewMem()
		d := newDriver(t, driverOptions(mem, residency, 64<<10))
		d.put(format.Entry{ID: 1, Data: []byte("older")}, format.Entry{ID: 2, Data: []byte("two")})
		ok(t, d.log.Seal())
		d.put(format.Entry{ID: 1, Data: payload(1, 100)}, format.Entry{ID: 3, Data: []byte("three")})
		ok(t, sealAndClose(d.log)) // this writes the hint of the first segment again
		m, err := format.ReadManifest(mem, d.opts.Dir)
		ok(t, err)
		h, err := format.ReadHint(mem, d.opts.Dir, m.Segments[0])
		ok(t, err)
		if h.IsUsed(0) && h.IsUsed(1) {
			t.Fatal("the hint does not know what is superseded")
		}
		f, err := mem.OpenWrite(path.Join(d.opts.Dir, format.SegmentName(m.Segments[1].Number)))
		ok(t, err)
		_, err = f.WriteAt([]byte{0}, format.SegmentHeaderBytes+format.FrameHeaderBytes+20)
		ok(t, errors.Join(err, f.Close()))
		d.load()
		ok(t, d.log.Apply(d.last(), nil))
		var damage *format.DamageError
		if _, err := d.get(1); !errors.As(err, &damage) {
			t.Fatalf("damaged record: %v", err)
		}
		d.log, _, err = d.log.AcceptLoss(t.Context())
		ok(t, err)
		for range 2 {
			d.wants(1, []byte("older"))
			d.wants(2, []byte("two"))
			d.wants(3, []byte("three"))
			ok(t, sealAndClose(d.log))
			d.load()
		}
	})
}

func TestTheHintOfAnAbandonedSegmentKnowsOnlyWhatItHolds(t *testing.T) {
	mem := vfstest.NewMem()
	fs := vfstest.NewFaulty(mem)
	d := newDriver(t, driverOptions(fs, Index, 64<<10))
	d.put(format.Entry{ID: 1, Data: []byte("one"), CommitTime: 100})
	fault := fs.Add(&vfstest.Fault{Match: func(op vfstest.Op) bool {
		return op.Kind == vfstest.OpSync && isSegmentFile(op.Name)
	}, Count: 1, Effect: vfstest.EffectDrop})
	d.put(format.Entry{ID: 2, Data: []byte("two"), CommitTime: 200})
	if fault.Fired() != 1 {
		t.Fatal("no sync failed")
	}
	d.log.hints.writing.Wait()
	report, err := fsck.VerifyDir(t.Context(), mem, d.opts.Dir, nil)
	ok(t, err)
	if len(report.Damages) > 0 {
		t.Error(report.Damages)
	}
	ok(t, sealAndClose(d.log))
}
