package group

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"go.etcd.io/raft/v3/raftpb"

	"sheaf.dev/sheaf/internal/storage/group/format"
	"sheaf.dev/sheaf/internal/storage/index"
	"sheaf.dev/sheaf/internal/storage/vfs"
	"sheaf.dev/sheaf/internal/test/soaktest"
	"sheaf.dev/sheaf/internal/test/vfstest"
)

// repairFrom repairs a log with data from an undamaged one.
func repairFrom(peer, l *Log) error {
	for range 10 {
		repairs, err := l.Repairs(context.Background())
		if err != nil || repairs == nil {
			return err
		}
		for _, r := range repairs {
			if r.Blob != nil {
				err = fetchBlob(peer, l, *r.Blob)
			} else {
				err = repairSegment(peer, l, r)
			}
			if err != nil {
				return err
			}
		}
	}
	return fmt.Errorf("still damaged: %v", l.Stats().Damages)
}

func repairSegment(peer, l *Log, r Repair) error {
	entries, applied, err := fetch(peer, r.Ranges)
	if err == nil {
		err = receiveBlobs(peer, l, entries)
	}
	if err != nil {
		return err
	}
	return l.RepairRange(context.Background(), r, entries, applied)
}

func fetch(peer *Log, ranges []IndexRange) (entries []*raftpb.Entry, applied uint64, err error) {
	for _, r := range ranges {
		for r.First <= r.Last {
			a, err := peer.ReadRange(r, 1500)
			if err != nil {
				return nil, 0, err
			}
			if a.Through < r.First {
				return nil, 0, fmt.Errorf("the peer has applied %d only", a.Applied)
			}
			entries, applied = append(entries, a.Entries...), max(applied, a.Applied)
			r.First = a.Through + 1
		}
	}
	return entries, applied, nil
}

func fetchBlob(peer, l *Log, ref format.BlobRef) error {
	r, err := peer.OpenBlob(ref)
	if err != nil {
		return err
	}
	w, err := l.BlobWriter(ref)
	if err != nil {
		return errors.Join(err, r.Close())
	}
	_, err = io.Copy(w, io.NewSectionReader(r, 0, ref.Size))
	if err == nil {
		_, err = w.Commit()
	}
	return errors.Join(err, w.Close(), r.Close())
}

// twin loads the bed's undamaged group.
func (b *damageBed) twin(t testing.TB) *Log {
	opts := b.opts
	opts.FS = b.mem.CrashClone(vfstest.Survival{Kind: vfstest.SurviveAll})
	l := mustLoad(t, opts)
	last, err := l.LastIndex()
	ok(t, err)
	ok(t, l.Apply(last, nil))
	return l
}

// repaired loads a damaged group, finds all damage, and repairs it. It reports whether there was any damage.
func (b *damageBed) repaired(twin *Log, disk *vfstest.Mem, residency Residency) (seen bool, err error) {
	opts := b.opts
	opts.FS, opts.Residency = disk, residency
	l, _, err := Load(context.Background(), opts, nil)
	if err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, l.Close(false)) }()
	last, _ := l.LastIndex()
	if err := l.Apply(max(last, l.AppliedIndex()), nil); err != nil {
		return false, err
	}
	// A load from hints does not read the entries, so only Verify finds all damage.
	if residency == Index {
		if _, err := l.Verify(context.Background(), 0); err != nil {
			return false, err
		}
	}
	if seen = len(l.Stats().Damages) > 0; !seen {
		return false, nil
	}
	if err := repairFrom(twin, l); err != nil {
		return seen, err
	}
	if err := sameLogs(twin, l); err != nil {
		return seen, err
	}
	if err := l.Close(residency == Resident); err != nil {
		return seen, err
	}
	opts.Residency = 1 - residency
	l, report, err := Load(context.Background(), opts, nil)
	if err != nil {
		return seen, err
	}
	if report.Outcome != Loaded {
		return seen, errors.Join(fmt.Errorf("loaded again: %+v", report), l.Close(false))
	}
	if last, _ := l.LastIndex(); last > l.AppliedIndex() {
		if err := l.Apply(last, nil); err != nil {
			return seen, err
		}
	}
	if err := sameLogs(twin, l); err != nil {
		return seen, fmt.Errorf("loaded again: %w", err)
	}
	v, err := l.Verify(context.Background(), 0)
	if err == nil && len(v.Damages) > 0 {
		err = fmt.Errorf("verify: %v", v.Damages)
	}
	return seen, err
}

// TestRule4_EveryDamageIsRepairedFromATwin repairs flipped bits, truncations, sectors that are zeroed or exchanged, and
// missing files, with hints and without.
func TestRule4_EveryDamageIsRepairedFromATwin(t *testing.T) {
	b := newDamageBed(t)
	twin := b.twin(t)
	type damage struct {
		what, name string
		change     func(vfs.File) error
	}
	var damages []damage
	add := func(what, name string, change func(vfs.File) error) {
		damages = append(damages, damage{what, name, change})
	}
	for _, name := range b.names {
		_, isBlob := format.ParseBlobName(name)
		if _, isSegment := format.ParseSegmentName(name); !isSegment && !isBlob {
			continue
		}
		size := b.sizes[name]
		if frames := b.frames[name]; len(frames) > 0 {
			size = frames[len(frames)-1].offset + frames[len(frames)-1].bytes
		}
		for at := range size {
			add(fmt.Sprintf("bit of byte %d", at), name, func(f vfs.File) error { return flip(f, at) })
			if at%16 == 5 {
				add(fmt.Sprintf("cut to %d", at), name, func(f vfs.File) error { return f.Truncate(at) })
			}
		}
		for sector := range size / 512 {
			add(fmt.Sprintf("sector %d zeroed", sector), name, func(f vfs.File) error {
				_, err := f.WriteAt(make([]byte, 512), sector*512)
				return err
			})
			for other := range sector {
				add(fmt.Sprintf("sectors %d and %d swapped", sector, other), name, func(f vfs.File) error {
					return swapSectors(f, sector, other)
				})
			}
		}
		add("gone", name, nil)
	}
	step := soaktest.Pick(int64(127), 1, 2999)
	var seen, whole atomic.Int64
	each(t, int64(len(damages))/step, func(i int64) error {
		d := damages[i*step]
		disk := b.mem.CrashClone(vfstest.Survival{Kind: vfstest.SurviveAll})
		if err := b.inflict(disk, d.name, d.change, i%3 == 2); err != nil {
			return err
		}
		was, err := b.repaired(twin, disk, Residency(i%2))
		if err != nil {
			return fmt.Errorf("%s of %s, residency %d, without hints %t: %w", d.what, d.name, i%2, i%3 == 2, err)
		}
		if was {
			seen.Add(1)
		} else {
			whole.Add(1)
		}
		return nil
	})
	t.Logf("%d damages repaired, %d changed nothing that is read", seen.Load(), whole.Load())
	if seen.Load() < whole.Load() {
		t.Error("too little was damaged")
	}
	ok(t, twin.Close(false))
}

func flip(f vfs.File, at int64) error {
	var one [1]byte
	if _, err := f.ReadAt(one[:], at); err != nil {
		return err
	}
	one[0] ^= 1 << (at % 8)
	_, err := f.WriteAt(one[:], at)
	return err
}

func swapSectors(f vfs.File, a, b int64) error {
	x, y := make([]byte, 512), make([]byte, 512)
	_, err := f.ReadAt(x, a*512)
	if err == nil {
		_, err = f.ReadAt(y, b*512)
	}
	if err == nil {
		_, err = f.WriteAt(y, a*512)
	}
	if err == nil {
		_, err = f.WriteAt(x, b*512)
	}
	return err
}

// inflict changes a file, or removes it if change is nil. If hintless is true, it also removes all hints.
func (b *damageBed) inflict(disk *vfstest.Mem, name string, change func(vfs.File) error, hintless bool) error {
	if hintless {
		for _, hint := range b.names {
			if format.IsHintName(hint) {
				if err := disk.Remove(path.Join(b.opts.Dir, hint)); err != nil {
					return err
				}
			}
		}
	}
	if change == nil {
		return disk.Remove(path.Join(b.opts.Dir, name))
	}
	f, err := disk.OpenWrite(path.Join(b.opts.Dir, name))
	if err != nil {
		return err
	}
	return errors.Join(change(f), f.Sync(), f.Close())
}

// damagedEntry loads the bed's group with damage in the content of one entry, and finds the damage.
func (b *damageBed) damagedEntry(t *testing.T, at uint64) (*vfstest.Mem, *Log) {
	t.Helper()
	for name, frames := range b.frames {
		for _, f := range frames {
			if f.index != at {
				continue
			}
			disk, err := b.damaged(func(file vfs.File) error { return flip(file, f.offset+f.bytes-1) }, name)
			ok(t, err)
			if f.kind == format.KindDelete { // the frame of a delete consists only of a header
				disk, err = b.damaged(func(file vfs.File) error { return flip(file, f.offset+30) }, name)
				ok(t, err)
			}
			opts := b.opts
			opts.FS = disk
			l := mustLoad(t, opts)
			last, _ := l.LastIndex()
			ok(t, l.Apply(max(last, l.AppliedIndex()), nil))
			_, err = l.Verify(t.Context(), 0)
			ok(t, err)
			if len(l.Stats().Damages) == 0 {
				t.Fatal("nothing is damaged")
			}
			return disk, l
		}
	}
	t.Fatalf("no entry with index %d", at)
	return nil, nil
}

func TestRepairRefusesOtherEntries(t *testing.T) {
	b := newDamageBed(t)
	twin := b.twin(t)
	_, l := b.damagedEntry(t, 5)
	repairs, err := l.Repairs(t.Context())
	ok(t, err)
	if len(repairs) != 1 || !slices.Equal(repairs[0].Ranges, []IndexRange{{5, 5}}) {
		t.Fatalf("%+v", repairs)
	}
	good, applied, err := fetch(twin, repairs[0].Ranges)
	ok(t, err)
	for what, change := range map[string]func(e *format.Entry){
		"data":   func(e *format.Entry) { e.Data = append(slices.Clone(e.Data[:len(e.Data)-1]), 'x') },
		"length": func(e *format.Entry) { e.Data = e.Data[:10] },
		"id":     func(e *format.Entry) { e.ID++ },
		"term":   func(e *format.Entry) { e.Term = 9 },
		"index":  func(e *format.Entry) { e.Index++ },
		"kind":   func(e *format.Entry) { *e = format.Entry{Kind: format.KindEmpty, Index: e.Index, Term: e.Term} },
	} {
		e, err := format.DecodePayload(good[0])
		ok(t, err)
		change(&e)
		if err := l.RepairRange(t.Context(), repairs[0], []*raftpb.Entry{format.RaftEntry(&e)}, applied); !errors.Is(err,
			format.ErrCorrupt) {
			t.Errorf("another %s: %v", what, err)
		}
	}
	if len(l.Stats().Damages) == 0 {
		t.Fatal("the damage was forgotten")
	}
	ok(t, l.RepairRange(t.Context(), repairs[0], good, applied))
	if err := sameLogs(twin, l); err != nil {
		t.Error(err)
	}
	ok(t, l.RepairRange(t.Context(), repairs[0], good, applied)) // does nothing, because the damage is repaired already
	l.hints.writing.Wait()
	for range 2 { // each further damage and repair moves the entries to another segment
		name := format.SegmentName(l.state.segments[0].number)
		f, err := l.folder.fs.OpenWrite(path.Join(l.folder.dir, name))
		ok(t, err)
		ok(t, errors.Join(flip(f, format.SegmentHeaderBytes+format.FrameHeaderBytes+500), f.Close()))
		_, err = l.Verify(t.Context(), 0)
		ok(t, err)
		if len(l.Stats().Damages) == 0 {
			t.Fatal("nothing is damaged")
		}
		ok(t, repairFrom(twin, l))
		if err := sameLogs(twin, l); err != nil {
			t.Error(err)
		}
		l.hints.writing.Wait()
	}
	ok(t, l.Close(false))
}

func TestRepairSurvivesACrashAtEveryOperation(t *testing.T) {
	b := newDamageBed(t)
	twin := b.twin(t)
	for _, at := range []uint64{5, 25} { // one entry in a sealed segment, and one in the active segment
		disk, l := b.damagedEntry(t, at)
		var mu sync.Mutex // hints are written concurrently
		var failed error
		var before, after int
		disk.AfterOp(func(op vfstest.Op) {
			mu.Lock()
			defer mu.Unlock()
			for i, kind := range vfstest.SurvivalKinds {
				if failed != nil {
					return
				}
				if testing.Short() && uint64(op.Number)%uint64(len(vfstest.SurvivalKinds)) != uint64(i) {
					continue
				}
				s := vfstest.Survival{Kind: kind, Seed: uint64(op.Number)<<8 + uint64(i)}
				seen, err := b.repaired(twin, disk.CrashClone(s), Index)
				if err != nil {
					failed = fmt.Errorf("crash after operation %d (%s), survival %s: %w", op.Number, op, s, err)
				}
				if seen {
					before++
				} else {
					after++
				}
			}
		})
		err := repairFrom(twin, l)
		l.hints.writing.Wait()
		disk.AfterOp(nil)
		ok(t, errors.Join(err, failed))
		if before == 0 || after == 0 {
			t.Errorf("index %d: damaged after %d crashes, repaired after %d", at, before, after)
		}
		ok(t, l.Close(false))
	}
}

// TestRepairFromAPeerThatHasCompacted checks that a repair drops the entries which the peer has dropped, unless deleted
// records would become visible again.
func TestRepairFromAPeerThatHasCompacted(t *testing.T) {
	b := newDamageBed(t)
	twin := b.twin(t)
	ok(t, twin.Seal())
	for range 2 {
		_, err := twin.Compact(t.Context(), CompactOptions{All: true})
		ok(t, err)
	}
	_, l := b.damagedEntry(t, 2) // a superseded version
	ok(t, repairFrom(twin, l))
	for id := range int64(25) {
		want, known := b.newest[id]
		if err := compareRecord(l, id, want, known); err != nil {
			t.Error(err)
		}
	}
	if first, _ := l.FirstIndex(); first <= 2 {
		t.Errorf("Raft may ask for index 2, its first one is %d", first)
	}
	if report, err := l.Verify(t.Context(), 0); err != nil || len(report.Damages) > 0 {
		t.Error(report.Damages, err)
	}
	ok(t, l.Close(false))

	// The delete of record 3 is damaged, and the log stores an older version of the record. In the first case nothing is
	// known about the damaged entry. In the second case the hint describes it.
	for _, bed := range []*damageBed{b, b.sealed(t)} {
		_, l = bed.damagedEntry(t, 21)
		err := repairFrom(twin, l)
		if !errors.Is(err, ErrRepairByInstall) {
			t.Errorf("a tombstone that the peer has not any more: %v", err)
		}
		var damage *format.DamageError
		if _, err := l.Get(3, GetOptions{}); !errors.As(err, &damage) {
			t.Errorf("deleted record: %v", err)
		}
		ok(t, l.Close(false))
	}
	// The damaged entry in this case is known to be a put that was superseded.
	_, l = b.sealed(t).damagedEntry(t, 3)
	ok(t, repairFrom(twin, l))
	ok(t, l.Close(false))
	ok(t, twin.Close(false))
}

// sealed returns the bed after all segments were sealed, so that they have hints.
func (b *damageBed) sealed(t *testing.T) *damageBed {
	t.Helper()
	l := b.twin(t)
	ok(t, l.Seal())
	l.hints.writing.Wait()
	m := l.folder.manifest
	c := *b
	c.mem, c.opts, c.frames, c.sizes = l.folder.fs.(*vfstest.Mem), l.opts, make(map[string][]bedFrame),
		make(map[string]int64)
	ok(t, l.Close(false))
	c.learn(t, m)
	return &c
}

func TestRepairWaitsForWhatSupersedes(t *testing.T) {
	b := newDamageBed(t)
	twin := b.twin(t)
	peer := &logDriver{t: t, opts: twin.opts, log: twin, term: 1, time: 1 << 40}
	_, l := b.damagedEntry(t, 20) // the newest version of its record in this log
	id := b.frames[format.SegmentName(1)][0].id
	for _, frames := range b.frames {
		for _, f := range frames {
			if f.index == 20 {
				id = f.id
			}
		}
	}
	peer.put(format.Entry{ID: id, Data: []byte("newer")})
	ok(t, twin.Seal())
	_, err := twin.Compact(t.Context(), CompactOptions{All: true})
	ok(t, err)
	if err := repairFrom(twin, l); !errors.Is(err, ErrRepairLater) {
		t.Fatalf("%v", err)
	}
	// Now this log receives the newer version.
	newer := peer.last()
	e := format.Entry{Kind: format.KindPut, Index: newer, Term: 1, ID: id, CommitTime: peer.time, Data: []byte("newer")}
	ok(t, l.Append(nil, []*raftpb.Entry{format.RaftEntry(&e)}))
	ok(t, l.Sync())
	ok(t, l.Apply(newer, nil))
	ok(t, repairFrom(twin, l))
	if r, err := l.Get(id, GetOptions{}); err != nil || string(r.Data) != "newer" {
		t.Error(r, err)
	}
	ok(t, l.Close(false))
	ok(t, twin.Close(false))
}

func TestReadRangeAnswersNothingThatIsBad(t *testing.T) {
	b := newDamageBed(t)
	_, l := b.damagedEntry(t, 5)
	var damage *format.DamageError
	if a, err := l.ReadRange(IndexRange{4, 6}, 1<<20); !errors.As(err, &damage) {
		t.Errorf("%+v, %v", a, err)
	}
	last, _ := l.LastIndex()
	if a, err := l.ReadRange(IndexRange{last + 1, last + 5}, 1<<20); err != nil || a.Through != last ||
		len(a.Entries) > 0 {
		t.Errorf("%+v, %v", a, err)
	}
	if _, err := l.Export(t.Context()); !errors.As(err, &damage) {
		t.Errorf("export of a damaged log: %v", err)
	}
	ok(t, l.Close(false))
}

// TestRepairForgetsATombstoneThatThePeerHasNotAnyMore repairs a log that, like the peer, stores no older version of
// the record. Therefore no older version becomes visible again when the tombstone is dropped. Readers that follow the
// log, and have not read the delete yet, must learn that they missed it.
func TestRepairForgetsATombstoneThatThePeerHasNotAnyMore(t *testing.T) {
	d := newDriver(t, driverOptions(vfstest.NewMem(), Index, 64<<10))
	d.put(format.Entry{ID: 1, Data: payload(1, 200)}, format.Entry{ID: 7, Data: payload(7, 200)})
	d.put(format.Entry{ID: 7, Kind: format.KindDelete})
	at, last := d.last(), format.Entry{ID: 2, Data: payload(2, 200)}
	d.put(last)
	ok(t, d.log.Seal())
	// The first compaction drops the older version, and the next one drops the tombstone.
	_, err := d.log.Compact(t.Context(), CompactOptions{All: true})
	ok(t, err)
	d.log.hints.writing.Wait()
	b := &damageBed{mem: d.opts.FS.(*vfstest.Mem), opts: d.opts, names: d.names()}
	twin := b.twin(t)
	_, err = twin.Compact(t.Context(), CompactOptions{All: true})
	ok(t, err)
	if _, is := d.log.places.table.Get(7); !is {
		t.Fatal("the tombstone is gone here, too")
	}
	place := int64(0)
	ok(t, d.log.reader.walkEntries(at, at, nil, func(_ *format.Entry, loc index.Loc) bool {
		place = loc.Offset()
		return true
	}))
	f, err := d.opts.FS.OpenWrite(d.log.state.segments[0].path)
	ok(t, err)
	ok(t, errors.Join(flip(f, place+20), f.Close()))
	_, err = d.log.Verify(t.Context(), 0)
	ok(t, err)
	ok(t, repairFrom(twin, d.log))
	if loc, is := d.log.places.table.Get(7); is {
		t.Errorf("the index has record 7 at %v", loc)
	}
	d.wants(7, nil)
	d.wants(2, last.Data)
	if floor := d.log.DeletesFloor(); floor != at {
		t.Errorf("the delete with index %d is missing, and the floor of deletes is %d", at, floor)
	}
	if _, _, err := d.log.Changes(t.Context(), at-1, ChangesOptions{RecordsMax: 9, BytesMax: 1 << 20}); !errors.Is(err,
		ErrCursorExpired) {
		t.Errorf("changes from before a delete that is missing: %v", err)
	}
	ok(t, errors.Join(d.log.Close(false), twin.Close(false)))
}
