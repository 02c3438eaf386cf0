package group

import (
	"bytes"
	"context"
	"errors"
	"io"
	"path"
	"slices"
	"testing"

	"sheaf.dev/sheaf/internal/storage/group/format"
	"sheaf.dev/sheaf/internal/storage/vfs"
	"sheaf.dev/sheaf/internal/test/vfstest"
)

// repairTwin supplies a repair with the data of an undamaged log.
type repairTwin struct {
	peer, log *Log
	blobs     int
	gone      bool // whether the twin no longer has the blob
	through   uint64
}

func (m *repairTwin) Entries(_ context.Context, r IndexRange) (RangeAnswer, error) {
	entries, applied, err := fetch(m.peer, []IndexRange{r})
	return RangeAnswer{Entries: entries, Through: min(r.Last, m.through), Applied: applied}, err
}

func (m *repairTwin) FetchBlob(_ context.Context, ref format.BlobRef) error {
	if m.gone {
		return ErrVersionNotFound
	}
	m.blobs++
	return fetchBlob(m.peer, m.log, ref)
}

// spoil damages all entries of a record. If open is true, it does so while the log is open, and otherwise before it
// loads the log without hints. When it returns, the log has found all of the damage.
func (b *damageBed) spoil(t *testing.T, id int64, open bool) (l *Log) {
	t.Helper()
	opts := b.opts
	disk := b.mem.CrashClone(vfstest.Survival{Kind: vfstest.SurviveAll})
	opts.FS = disk
	load := func() {
		var err error
		l, _, err = Load(t.Context(), opts, nil)
		ok(t, err)
		last, _ := l.LastIndex()
		ok(t, l.Apply(max(last, l.AppliedIndex()), nil))
	}
	if open {
		load()
	}
	for name, frames := range b.frames {
		for _, f := range frames {
			at := f.offset + f.bytes - 1
			if f.kind == format.KindDelete {
				at = f.offset + 30 // the frame of a delete consists only of a header
			}
			if (f.kind == format.KindPut || f.kind == format.KindDelete) && f.id == id {
				ok(t, b.inflict(disk, name, func(file vfs.File) error { return flip(file, at) }, false))
			}
		}
	}
	if !open {
		for _, name := range b.names {
			if format.IsHintName(name) {
				ok(t, disk.Remove(path.Join(b.opts.Dir, name)))
			}
		}
		load()
	}
	_, err := l.Verify(t.Context(), 0)
	ok(t, err)
	return l
}

// TestRepairOfAllVersionsOfARecord damages all versions of a record. The index has only the newest version, which must
// be found at its new location after the repair.
func TestRepairOfAllVersionsOfARecord(t *testing.T) {
	b := newDamageBed(t)
	twin := b.twin(t)
	l := b.spoil(t, 3, true) // this record has a put and a delete in one segment
	repairs, err := l.Repairs(t.Context())
	ok(t, err)
	if !slices.ContainsFunc(repairs, func(r Repair) bool { return len(r.Ranges) == 2 }) {
		t.Fatalf("two versions in one segment are to be hit: %v", repairs)
	}
	ok(t, repairFrom(twin, l))
	if err := sameLogs(twin, l); err != nil {
		t.Error(err)
	}
	want, _, err := twin.Head(3)
	ok(t, err)
	if got, _, err := l.Head(3); err != nil || got != want {
		t.Errorf("the newest version is that with index %d, %v, not %d", got, err, want)
	}
	ok(t, errors.Join(l.Close(false), twin.Close(false)))
}

// TestRepairFetchesTheBlobsOfEntries checks that a repair fetches the blob of an unreadable entry if the blob is also
// missing.
func TestRepairFetchesTheBlobsOfEntries(t *testing.T) {
	b := newDamageBed(t)
	twin := b.twin(t)
	l := b.spoil(t, 15, false)
	head, err := twin.Get(15, GetOptions{})
	ok(t, err)
	ok(t, l.folder.fs.Remove(path.Join(l.folder.dir, format.BlobName(head.Blob.ID))))
	m := &repairTwin{peer: twin, log: l, through: 1 << 40}
	repairs, err := l.Repairs(t.Context())
	ok(t, err)
	for _, r := range repairs {
		m.gone = true
		if err := l.RepairFrom(t.Context(), r, m); !errors.Is(err, ErrRepairLater) {
			t.Errorf("the entry is there and its blob is not: %v", err)
		}
		m.gone, m.through = false, 1
		if err := l.RepairFrom(t.Context(), r, m); !errors.Is(err, ErrRepairLater) {
			t.Errorf("the entry was not applied there: %v", err)
		}
		m.through = 1 << 40
		ok(t, l.RepairFrom(t.Context(), r, m))
	}
	if m.blobs != 1 || l.Damaged() {
		t.Errorf("%d blobs were fetched, damage %v", m.blobs, l.Stats().Damages)
	}
	if err := sameLogs(twin, l); err != nil {
		t.Error(err)
	}
	ok(t, errors.Join(l.Close(false), twin.Close(false)))
}

func TestRepairOfABlobThatIsNowhere(t *testing.T) {
	b := newDamageBed(t)
	l := b.twin(t)
	repair := Repair{File: "blob", Blob: &format.BlobRef{}}
	if err := l.RepairFrom(t.Context(), repair, &repairTwin{gone: true}); !errors.Is(err, ErrRepairByInstall) {
		t.Errorf("the peer has compacted it away: %v", err)
	}
	ok(t, l.Close(false))
}

// TestTheBlobOfAnEntryThatCannotBeReadStays checks that neither a load nor a compaction removes the blob to which an
// unreadable entry may refer, because the device may be able to read the entry later.
func TestTheBlobOfAnEntryThatCannotBeReadStays(t *testing.T) {
	for _, residency := range []Residency{Index, Resident} {
		for _, repaired := range []bool{false, true} {
			mem := vfstest.NewMem()
			disk := vfstest.NewFaulty(mem)
			d := newDriver(t, driverOptions(disk, residency, 1<<20))
			data := payload(1, 5000)
			ref := d.putBlob(1, data)
			// This entry is so large that the bad block damages only part of the segment.
			d.put(format.Entry{ID: 3, Data: payload(3, 9000)})
			ok(t, d.log.Seal())
			d.put(format.Entry{ID: 2, Data: []byte("a")}, format.Entry{ID: 2, Data: []byte("b")})
			ok(t, d.log.Seal())
			ok(t, d.log.Close(false))
			ok(t, disk.Remove(path.Join(d.opts.Dir, format.HintName(1))))
			twin := d.opts
			twin.FS = mem.CrashClone(vfstest.Survival{Kind: vfstest.SurviveAll})
			peer := mustLoad(t, twin)
			fault := disk.Add(&vfstest.Fault{Match: func(op vfstest.Op) bool {
				return op.Kind == vfstest.OpRead && path.Base(op.Name) == format.SegmentName(1) && op.Offset < 4096
			}})
			d.load()
			fault.Remove()
			if fault.Fired() == 0 || !d.log.Damaged() {
				t.Fatalf("%d reads failed, damage %v", fault.Fired(), d.log.Stats().Damages)
			}
			_, err := d.log.Compact(t.Context(), CompactOptions{All: true})
			if err != nil && !isDamageError(err) {
				t.Fatal(err)
			}
			if repaired {
				repairs, err := d.log.Repairs(t.Context())
				ok(t, err)
				for _, r := range repairs {
					ok(t, d.log.RepairFrom(t.Context(), r, &repairTwin{peer: peer, log: d.log, gone: true, through: 1 << 40}))
				}
			} else {
				ok(t, d.log.Close(false))
				d.load()
			}
			b, err := d.log.OpenBlob(ref)
			ok(t, err)
			got, err := io.ReadAll(io.NewSectionReader(b, 0, ref.Size))
			ok(t, errors.Join(err, b.Close()))
			if !bytes.Equal(got, data) || d.log.Damaged() || !d.log.blobs.isReferred(ref.ID) {
				t.Errorf("%v, repaired %v: %d bytes, damage %v", residency, repaired, len(got), d.log.Stats().Damages)
			}
			ok(t, errors.Join(d.log.Close(false), peer.Close(false)))
		}
	}
}

func isDamageError(err error) bool {
	var damage *format.DamageError
	return errors.As(err, &damage)
}

// TestABlobThatWasCompactedAwayIsNoDamage checks that a request for a blob that was compacted away does not make the
// log count as damaged, not even after a restart.
func TestABlobThatWasCompactedAwayIsNoDamage(t *testing.T) {
	d := newDriver(t, driverOptions(vfstest.NewMem(), Index, 1<<20))
	ref := d.putBlob(1, payload(1, 5000))
	kept := d.putBlob(2, payload(2, 5000))
	d.put(format.Entry{ID: 1, Data: []byte("small")})
	ok(t, d.log.Seal())
	_, err := d.log.Compact(t.Context(), CompactOptions{All: true})
	ok(t, err)
	for range 2 {
		if _, err := d.log.OpenBlob(ref); !errors.Is(err, ErrVersionNotFound) {
			t.Errorf("%v", err)
		}
		if d.log.Damaged() {
			t.Errorf("%v", d.log.Stats().Damages)
		}
		ok(t, d.log.Close(false))
		d.load()
	}
	ok(t, d.opts.FS.Remove(path.Join(d.opts.Dir, format.BlobName(kept.ID))))
	var damage *format.DamageError
	if _, err := d.log.OpenBlob(kept); !errors.As(err, &damage) || !d.log.Damaged() {
		t.Errorf("it is gone, and an entry refers to it: %v", err)
	}
	ok(t, d.log.Close(false))
}

// TestDamageThatAPeerMeetsIsKnown checks that a log records the damage that it finds when it reads entries for another
// member. A leader then knows that its log is damaged, and can transfer the leadership.
func TestDamageThatAPeerMeetsIsKnown(t *testing.T) {
	b := newDamageBed(t)
	for what, read := range map[string]func(*Log) error{
		"entries": func(l *Log) error {
			_, err := l.Entries(l.state.floor+1, l.state.last+1, 1<<40)
			return err
		},
		"range": func(l *Log) error {
			_, err := l.ReadRange(IndexRange{First: 1, Last: l.state.last}, 1<<40)
			return err
		},
	} {
		l := b.spoil(t, 4, true)
		l.damages.forget(func(*format.Damage) bool { return true })
		var damage *format.DamageError
		if err := read(l); !errors.As(err, &damage) {
			t.Errorf("%s: %v", what, err)
		}
		if !l.Damaged() {
			t.Errorf("%s: the log takes itself for whole", what)
		}
		ok(t, l.Close(false))
	}
}
