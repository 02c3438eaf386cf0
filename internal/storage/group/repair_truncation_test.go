package group

import (
	"bytes"
	"errors"
	"fmt"
	"path"
	"strings"
	"testing"

	"go.etcd.io/raft/v3/raftpb"

	"sheaf.dev/sheaf/internal/storage/group/format"
	"sheaf.dev/sheaf/internal/storage/group/fsck"
	"sheaf.dev/sheaf/internal/storage/vfs"
	"sheaf.dev/sheaf/internal/test/vfstest"
)

// TestRule4_DamageThatHidesACut damages the entry that made another entry void. The void entry must not become valid
// again. Until the damage is repaired, reads of the void entry's record must return DATA_LOSS.
func TestRule4_DamageThatHidesACut(t *testing.T) {
	step := 1
	if testing.Short() {
		step = 7
	}
	for n := 0; n < 1<<9; n += step {
		c := hiddenTruncation{hint: n&1 > 0, void: n&2 > 0, end: n&4 > 0, same: n&8 > 0, next: n&16 > 0, gone: n&32 > 0,
			none: n&64 > 0, two: n&128 > 0, older: n&256 > 0}
		t.Run(fmt.Sprintf("%+v", c), c.test)
	}
}

// placeOf returns the offset of the frame of an entry that is not applied yet.
func (d *logDriver) placeOf(at uint64) int64 { return d.log.state.tail.at(at).loc.Offset() }

// hiddenTruncation is one case of a test in which damage hides that a leader has truncated the log. One entry has made
// another one void, and then becomes unreadable.
type hiddenTruncation struct {
	hint  bool // the segment has a hint
	void  bool // whether the void entry's content is also damaged
	end   bool // no entry follows the damaged one in the batch
	same  bool // another entry follows in the same segment
	next  bool // another entry follows in the next segment
	gone  bool // the member that supplies the repair no longer has the damaged entry, because of compaction
	none  bool // whether the damaged entry is not a record's version, but a new leader's first entry
	two   bool // whether two entries are void, and the entry that replaced the second one is also damaged
	older bool // another segment has a version of the record that the void version would have superseded
}

func (c hiddenTruncation) test(t *testing.T) {
	d := newDriver(t, driverOptions(vfstest.NewMem(), Index, 64<<10))
	d.put(format.Entry{ID: 1, Data: payload(1, 200)})
	if c.older {
		d.put(format.Entry{ID: 2, Data: payload(6, 200)})
		ok(t, d.log.Seal())
	}
	file := path.Base(d.log.w.active.path)
	// The group once had other voters.
	ok(t, d.log.SetConf(&raftpb.ConfState{Voters: []uint64{1}, AutoLeave: new(bool)}, 1))
	ok(t, d.append(format.Entry{ID: 2, Data: []byte("void")}))
	at, right := d.last(), payload(7, 200)
	voidPlace := d.placeOf(at)
	if c.two {
		ok(t, d.append(format.Entry{ID: 2, Data: []byte("void, too")}))
	}
	d.term = 2
	next := format.Entry{ID: 2, Data: right}
	if c.none {
		next = format.Entry{Kind: format.KindEmpty}
	}
	batch := []*raftpb.Entry{d.entry(at, next)}
	if c.two {
		batch = append(batch, d.entry(at+1, format.Entry{ID: 6, Data: right}))
	}
	if !c.end {
		batch = append(batch, d.entry(at+uint64(len(batch)), format.Entry{ID: 3, Data: payload(3, 200)}))
	}
	ok(t, d.log.Append(nil, batch))
	ok(t, d.log.Sync())
	place, second := d.placeOf(at), int64(0)
	if c.two {
		second = d.placeOf(at + 1)
	}
	ok(t, d.log.Apply(d.last(), nil))
	ok(t, d.append()) // stores the commit of all entries
	if c.same {
		d.put(format.Entry{ID: 4, Data: payload(4, 200)})
		ok(t, d.append())
	}
	ok(t, d.log.Seal())
	if c.next {
		d.put(format.Entry{ID: 5, Data: payload(5, 200)})
		ok(t, d.append())
	}
	if c.gone {
		right = payload(8, 200)
		d.put(format.Entry{ID: 2, Data: right})
		ok(t, d.append())
	}
	d.log.hints.writing.Wait()
	ok(t, d.log.Close(false))

	b := &damageBed{mem: d.opts.FS.(*vfstest.Mem), opts: d.opts, names: d.names()}
	twin := b.twin(t)
	if c.gone {
		_, err := twin.Compact(t.Context(), CompactOptions{All: true})
		ok(t, err)
	}
	disk := b.mem.CrashClone(vfstest.Survival{Kind: vfstest.SurviveAll})
	ok(t, b.inflict(disk, file, func(f vfs.File) error {
		err := flip(f, place+20)
		if c.two {
			err = errors.Join(err, flip(f, second+20))
		}
		if c.void {
			err = errors.Join(err, flip(f, voidPlace+format.FrameHeaderBytes+1))
		}
		return err
	}, !c.hint))
	given := disk.CrashClone(vfstest.Survival{Kind: vfstest.SurviveAll})
	opts := d.opts
	opts.FS = disk
	l := mustLoad(t, opts)
	last, _ := l.LastIndex()
	ok(t, l.Apply(max(last, l.AppliedIndex()), nil))
	_, err := l.Verify(t.Context(), 0)
	ok(t, err)
	var damage *format.DamageError
	newest := func(r Record, err error) bool { // accepts the newest version, as if the entry had never become void
		switch {
		case c.gone || !c.none:
			return err == nil && bytes.Equal(r.Data, right)
		case c.older:
			return err == nil && bytes.Equal(r.Data, payload(6, 200))
		default:
			return errors.Is(err, ErrNotFound)
		}
	}
	if r, err := l.Get(2, GetOptions{}); !errors.As(err, &damage) && !c.gone && (!c.hint || !c.none || !newest(r, err)) {
		t.Errorf("%q, %v", r.Data, err)
	}
	answer, err := l.ReadRange(IndexRange{at, at}, 1<<20)
	if err == nil {
		t.Errorf("a peer is given %v", answer.Entries)
	}
	if entries, err := l.Entries(at, at+1, 1<<20); err == nil {
		t.Errorf("Raft is given %v", entries)
	}
	err = repairFrom(twin, l)
	if c.gone && !c.hint && errors.Is(err, ErrRepairByInstall) {
		ok(t, l.Close(false))
		ok(t, twin.Close(false))
		// Every result is allowed, because nothing is known about the lost entry.
		return
	}
	ok(t, err)
	if r, err := l.Get(2, GetOptions{}); !newest(r, err) {
		t.Errorf("%q, %v", r.Data, err)
	}
	if err := sameLogs(twin, l); err != nil && !c.gone {
		t.Error(err)
	}
	if r, err := l.Get(2, GetOptions{Index: at}); err == nil && c.gone {
		t.Errorf("version %d came back: %q", at, r.Data)
	}
	ok(t, l.Close(false))
	ok(t, twin.Close(false))
	if c.gone {
		return
	}

	c.givenUp(t, opts, given.CrashClone(vfstest.Survival{Kind: vfstest.SurviveAll}), func(opts Options) error {
		_, err = fsck.RepairDir(t.Context(), opts.FS, opts.Dir, nil)
		return err
	})
	c.givenUp(t, opts, given, func(opts Options) error {
		l := mustLoad(t, opts)
		_, err = l.Verify(t.Context(), 0)
		ok(t, err)
		l, _, err = l.AcceptLoss(t.Context())
		return errors.Join(err, l.Close(false))
	})
}

// givenUp checks that the void entry does not become valid when the damage is given up. The older version must be
// visible instead.
func (c hiddenTruncation) givenUp(t *testing.T, opts Options, disk vfs.FS, giveUp func(Options) error) {
	opts.FS = disk
	ok(t, giveUp(opts))
	l := mustLoad(t, opts)
	if r, err := l.Get(2, GetOptions{}); !c.older && !errors.Is(err, ErrNotFound) {
		t.Errorf("given up: %q, %v", r.Data, err)
	}
	for id, is := range map[int64]bool{1: true, 2: c.older, 4: c.same, 5: c.next} {
		want := payload(id, 200)
		if id == 2 {
			want = payload(6, 200)
		}
		if r, err := l.Get(id, GetOptions{}); is && (err != nil || !bytes.Equal(r.Data, want)) {
			t.Errorf("given up: record %d: %q, %v", id, r.Data, err)
		}
	}
	ok(t, l.Close(false))
}

// TestDamageThatHidesACutOfTheTail damages an entry above the commit. The damage may hide a truncation, so whole
// entries before it may be void, although everything after it is whole. The log must not pass these entries to Raft.
func TestDamageThatHidesACutOfTheTail(t *testing.T) {
	for _, seal := range []bool{false, true} {
		opts := driverOptions(vfstest.NewMem(), Index, 64<<10)
		ok(t, Create(opts, &raftpb.ConfState{Voters: []uint64{1, 2, 3}}))
		d := &logDriver{t: t, opts: opts, term: 1}
		d.load()
		d.put(format.Entry{ID: 1, Data: []byte("committed")})
		ok(t, d.append(format.Entry{ID: 2, Data: []byte("void")}))
		at := d.last()
		d.term = 2
		ok(t, d.log.Append(nil, []*raftpb.Entry{d.entry(at, format.Entry{ID: 2, Data: []byte("right")}),
			d.entry(at+1, format.Entry{ID: 3})}))
		ok(t, d.log.Sync())
		ok(t, d.log.Tick())
		place, name := d.placeOf(at), d.log.w.active.path
		if seal {
			ok(t, d.log.Seal())
			d.log.hints.writing.Wait()
			ok(t, opts.FS.Remove(path.Join(opts.Dir, format.HintName(1))))
		}
		ok(t, d.log.Close(false))
		f, err := opts.FS.OpenWrite(name)
		ok(t, err)
		ok(t, errors.Join(flip(f, place+20), f.Close()))
		if _, _, err := Load(t.Context(), opts, nil); !errors.Is(err, ErrTailDamaged) || seal &&
			!strings.Contains(err.Error(), path.Base(name)) {
			t.Errorf("sealed %v: %v", seal, err)
		}
	}
}

// TestRepairOffersNoIndexOfAVoidEntry repairs a log in which entries 2 to 5 are void, because a later segment, whose
// header is bad, has replaced them. The repair seals that segment and begins another one. The new segment's first
// index must directly follow the last valid entry.
func TestRepairOffersNoIndexOfAVoidEntry(t *testing.T) {
	d := newDriver(t, driverOptions(vfstest.NewMem(), Index, 64<<10))
	d.put(format.Entry{ID: 1, Data: payload(1, 200)})
	first := d.last() + 1
	for id := range int64(4) {
		ok(t, d.append(format.Entry{ID: 2 + id, Data: payload(2+id, 200)}))
	}
	ok(t, d.log.Seal())
	d.term = 2
	ok(t, d.log.Append(nil, []*raftpb.Entry{d.entry(first, format.Entry{ID: 9, Data: payload(9, 200)})}))
	ok(t, errors.Join(d.log.Sync(), d.log.Apply(first, nil)))
	name := d.log.w.active.path
	ok(t, d.log.Close(false))
	f, err := d.opts.FS.OpenWrite(name)
	ok(t, err)
	ok(t, errors.Join(flip(f, 10), f.Close()))
	report, err := fsck.RepairDir(t.Context(), d.opts.FS, d.opts.Dir, nil)
	ok(t, err)
	if report.NextIndex != 0 || len(report.Before.Damages) == 0 {
		t.Errorf("a bad header loses no entry: %+v", report)
	}
	d.load()
	if last := d.last(); last != first {
		t.Errorf("the last entry is %d, want %d", last, first)
	}
	ok(t, d.append(format.Entry{ID: 10, Data: payload(10, 200)}))
	ok(t, errors.Join(d.log.Sync(), d.log.Apply(first+1, nil), d.log.Close(false)))
	d.load()
	ok(t, d.log.Apply(d.last(), nil))
	for _, id := range []int64{1, 9, 10} {
		d.wants(id, payload(id, 200))
	}
	ok(t, d.log.Close(false))
}

// TestRepairKnowsOnlyWhatWasAskedFor damages more entries between Repairs and RepairRange. The repair must not mistake
// a damaged entry that was not requested from the peer for one that the peer has compacted away.
func TestRepairKnowsOnlyWhatWasAskedFor(t *testing.T) {
	b := newDamageBed(t)
	twin := b.twin(t)
	disk, l := b.damagedEntry(t, 5)
	repairs, err := l.Repairs(t.Context())
	ok(t, err)
	entries, applied, err := fetch(twin, repairs[0].Ranges)
	ok(t, err)
	other := int64(0)
	for _, f := range b.frames[repairs[0].File] {
		if f.kind == format.KindPut && f.index != 5 {
			other = f.offset
		}
	}
	f, err := disk.OpenWrite(path.Join(b.opts.Dir, repairs[0].File))
	ok(t, err)
	ok(t, flip(f, other+format.FrameHeaderBytes+1))
	ok(t, f.Close())
	if err := l.RepairRange(t.Context(), repairs[0], entries, applied); !errors.Is(err, ErrRepairLater) {
		t.Errorf("%v", err)
	}
	ok(t, repairFrom(twin, l))
	if err := sameLogs(twin, l); err != nil {
		t.Error(err)
	}
	ok(t, l.Close(false))
	ok(t, twin.Close(false))
}

// TestRepairOfWhatIsVoidSince lets a new leader truncate the damaged entry between Repairs and RepairRange, so that
// the entry no longer needs a repair.
func TestRepairOfWhatIsVoidSince(t *testing.T) {
	d := newDriver(t, driverOptions(vfstest.NewMem(), Index, 64<<10))
	l := d.log
	d.put(format.Entry{ID: 1, Data: payload(1, 200)})
	ok(t, l.SetConf(&raftpb.ConfState{Voters: []uint64{1}, AutoLeave: new(bool)}, 1)) // the group once had other voters
	ok(t, d.append(format.Entry{ID: 2, Data: payload(2, 200)}))
	ok(t, l.Sync())
	at := d.last()
	f, err := d.opts.FS.OpenWrite(path.Join(d.opts.Dir, format.SegmentName(1)))
	ok(t, err)
	ok(t, flip(f, l.state.tail.at(at).loc.Offset()+format.FrameHeaderBytes+1))
	ok(t, f.Close())
	_, err = l.Verify(t.Context(), 0)
	ok(t, err)
	repairs, err := l.Repairs(t.Context())
	ok(t, err)
	if len(repairs) != 1 || len(repairs[0].Ranges) != 1 || repairs[0].Ranges[0].Last != at {
		t.Fatalf("%+v", repairs)
	}
	d.term = 2
	now := d.entry(at, format.Entry{ID: 3, Data: payload(3, 200)})
	ok(t, l.Append(nil, []*raftpb.Entry{now}))
	ok(t, l.Sync())
	ok(t, l.Apply(at, nil))
	ok(t, l.RepairRange(t.Context(), repairs[0], []*raftpb.Entry{now}, at))
	if damages := l.Stats().Damages; len(damages) > 0 {
		t.Errorf("%v", damages)
	}
	for id, want := range map[int64][]byte{1: payload(1, 200), 3: payload(3, 200)} {
		if r, err := l.Get(id, GetOptions{}); err != nil || !bytes.Equal(r.Data, want) {
			t.Errorf("record %d: %q, %v", id, r.Data, err)
		}
	}
	ok(t, l.Close(false))
}
