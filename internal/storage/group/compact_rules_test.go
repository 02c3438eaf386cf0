package group

import (
	"bytes"
	"context"
	"errors"
	"path"
	"slices"
	"strings"
	"testing"

	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"

	"sheaf.dev/sheaf/internal/storage/group/format"
	"sheaf.dev/sheaf/internal/test/vfstest"
)

func compactAll(t *testing.T, l *Log) CompactReport {
	t.Helper()
	report, err := l.Compact(context.Background(), CompactOptions{All: true})
	ok(t, err)
	l.hints.writing.Wait()
	return report
}

func TestCompactRevivesNoVoidEntry(t *testing.T) {
	d := newDriver(t, driverOptions(vfstest.NewMem(), Index, 64<<10))
	d.put(format.Entry{ID: 1, Data: []byte("first")})
	ok(t, d.append(format.Entry{ID: 2, Data: []byte("void")}))
	d.term++
	second := d.entry(2, format.Entry{ID: 1, Data: []byte("second")}) // a new leader replaces index 2
	ok(t, d.log.Append(&raftpb.HardState{Term: &d.term}, []*raftpb.Entry{second}))
	ok(t, d.log.Sync())
	ok(t, d.log.Apply(2, nil))
	d.put(format.Entry{ID: 1, Data: []byte("third")})
	ok(t, d.log.Seal())
	if n := compactAll(t, d.log).EntriesDropped; n != 2 {
		t.Errorf("%d entries dropped, want 2", n)
	}
	ok(t, d.log.Close(false))
	names, err := d.opts.FS.List(d.opts.Dir)
	ok(t, err)
	for _, name := range names { // without hints, only the frames show which entries are void
		if format.IsHintName(name) {
			ok(t, d.opts.FS.Remove(path.Join(d.opts.Dir, name)))
		}
	}
	d.load()
	d.wants(1, []byte("third"))
	d.wants(2, nil)
	ok(t, d.log.Close(false))
}

func TestCompactRaisesTheFirstIndexOfRaft(t *testing.T) {
	bothResidencies(t, func(t *testing.T, residency Residency) {
		d := newDriver(t, driverOptions(vfstest.NewMem(), residency, 64<<10))
		for range 9 {
			d.put(format.Entry{ID: 1, Data: payload(1, 50)})
		}
		ok(t, d.log.Seal())
		d.put(format.Entry{ID: 2, Data: payload(2, 50)})
		compactAll(t, d.log)
		for range 2 { // first in the open log, and then in the log after a reload
			first, err := d.log.FirstIndex()
			ok(t, err)
			term, termErr := d.log.Term(first - 1)
			ok(t, termErr)
			if first != 10 || term != d.term {
				t.Errorf("first index is %d, the term before it %d", first, term)
			}
			if _, err := d.log.Entries(9, 11, 1<<20); !errors.Is(err, raft.ErrCompacted) {
				t.Errorf("entries that are gone: %v", err)
			}
			if got, err := d.log.Entries(10, 11, 1<<20); err != nil || len(got) != 1 {
				t.Errorf("entries that stay: %v", err)
			}
			ok(t, d.log.Close(false))
			d.load()
			ok(t, d.log.Apply(10, nil))
			d.wants(1, payload(1, 50))
		}
		ok(t, d.log.Close(false))
	})
}

func TestCompactKeepsABlobThatAnotherEntryRefersTo(t *testing.T) {
	d := newDriver(t, driverOptions(vfstest.NewMem(), Index, 64<<10))
	data := bytes.Repeat([]byte("shared"), 1000)
	ref, err := writeBlobOf(d.log, data)
	ok(t, err)
	d.put(format.Entry{ID: 1, Codec: format.CodecBlob, Data: ref.Encode()})
	d.put(format.Entry{ID: 2, Codec: format.CodecBlob, Data: ref.Encode()})
	d.put(format.Entry{ID: 1, Data: []byte("new")})
	ok(t, d.log.Seal())
	compactAll(t, d.log)
	r, err := d.log.Get(2, GetOptions{})
	ok(t, err)
	ok(t, compareBlob(d.log, r, data))
	ok(t, d.log.Close(false))
}

func TestCompactKeepsABlobWhileItIsRead(t *testing.T) {
	mem := vfstest.NewMem()
	d := newDriver(t, driverOptions(mem, Index, 64<<10))
	data := bytes.Repeat([]byte("blob"), 5000)
	ref, err := writeBlobOf(d.log, data)
	ok(t, err)
	d.put(format.Entry{ID: 1, Codec: format.CodecBlob, Data: ref.Encode()}, format.Entry{ID: 1, Data: []byte("new")})
	ok(t, d.log.Seal())
	r, err := d.log.OpenBlob(ref)
	ok(t, err)
	_, err = d.log.Compact(context.Background(), CompactOptions{All: true})
	ok(t, err)
	got := make([]byte, len(data))
	if _, err := r.ReadAt(got, 0); err != nil || !bytes.Equal(got, data) {
		t.Fatalf("a blob that is being read is gone: %v", err)
	}
	ok(t, r.Close())
	names, err := mem.List(d.opts.Dir)
	ok(t, err)
	if slices.ContainsFunc(names, func(n string) bool { return strings.HasPrefix(n, "blob-") }) {
		t.Errorf("the blob stays: %v", names)
	}
	ok(t, d.log.Close(false))
}

func TestRule10_CompactChecksTheSpaceBeforeItWrites(t *testing.T) {
	mem := vfstest.NewMem()
	d := newDriver(t, driverOptions(mem, Index, 64<<10))
	for range 20 {
		d.put(format.Entry{ID: 1, Data: payload(1, 100)})
	}
	ok(t, d.log.Seal())
	d.log.hints.writing.Wait()
	mem.SetCapacity(1)
	before := mem.OpCount()
	_, err := d.log.Compact(context.Background(), CompactOptions{All: true})
	if !errors.Is(err, format.ErrNoSpace) || mem.OpCount() != before {
		t.Fatalf("no room: %v after %d operations", err, mem.OpCount()-before)
	}
	mem.SetCapacity(0)
	d.wants(1, payload(1, 100))
	if n := compactAll(t, d.log).EntriesDropped; n != 19 {
		t.Errorf("with room: %d entries dropped, want 19", n)
	}
	ok(t, d.log.Close(false))
}

func TestRule4_CompactRefusesADamagedGroup(t *testing.T) {
	mem := vfstest.NewMem()
	d := newDriver(t, driverOptions(mem, Index, 64<<10))
	for range 3 {
		d.put(format.Entry{ID: 1, Data: payload(1, 100)}, format.Entry{ID: 2, Data: payload(2, 100)})
	}
	ok(t, d.log.Seal())
	d.log.hints.writing.Wait()
	f, err := mem.OpenWrite(path.Join(d.opts.Dir, format.SegmentName(1)))
	ok(t, err)
	_, err = f.WriteAt([]byte{0xff}, format.SegmentHeaderBytes+format.FrameHeaderBytes+200)
	ok(t, errors.Join(err, f.Sync(), f.Close()))
	for range 2 { // the first compaction finds the damage, and the second one knows of it from the start
		var damage *format.DamageError
		if _, err := d.log.Compact(context.Background(), CompactOptions{All: true}); !errors.As(err, &damage) {
			t.Fatalf("damage: %v", err)
		}
		if _, err := mem.Stat(path.Join(d.opts.Dir, format.SegmentName(1))); err != nil {
			t.Fatalf("the damaged segment is gone: %v", err)
		}
		d.wants(2, payload(2, 100))
	}
	ok(t, d.log.Close(false))
}

// TestVoidEntriesBelowTheFloorStayVoid lets compaction skip a segment from which little can be dropped. The segment
// also holds entries that another leader has truncated. They must not reappear as completed writes.
func TestVoidEntriesBelowTheFloorStayVoid(t *testing.T) {
	d := newDriver(t, driverOptions(vfstest.NewMem(), Index, 64<<10))
	d.put(format.Entry{ID: 1, Data: payload(1, 1000)})
	ok(t, d.append(format.Entry{ID: 2, Data: []byte("void"), RequestID: [16]byte{1}},
		format.Entry{ID: 3, Data: []byte("void"), RequestID: [16]byte{2}}))
	from := d.last() - 1
	d.term = 2
	ok(t, d.log.Append(nil, []*raftpb.Entry{d.entry(from, format.Entry{ID: 2, Data: payload(2, 1000),
		RequestID: [16]byte{3}})}))
	ok(t, d.log.Sync())
	ok(t, d.log.Apply(from, nil))
	ok(t, d.log.Seal())
	for range 20 {
		d.put(format.Entry{ID: 9, Data: payload(9, 100)})
	}
	ok(t, d.log.Seal())
	for range 2 {
		_, err := d.log.Compact(t.Context(), CompactOptions{})
		ok(t, err)
		if first, _ := d.log.FirstIndex(); first <= from {
			t.Fatalf("first index is %d", first)
		}
		var ids []byte
		for _, e := range d.requests() {
			ids = append(ids, e.RequestID[0])
		}
		if !bytes.Equal(ids, []byte{3}) {
			t.Errorf("requests %v count as done", ids)
		}
		a, err := d.log.ReadRange(IndexRange{1, from}, 1<<20)
		if err != nil || len(a.Entries) != 2 || a.Entries[1].GetTerm() != 2 {
			t.Errorf("%+v, %v", a, err)
		}
		ok(t, d.log.Close(false))
		d.load()
	}
	ok(t, d.log.Close(false))
}

// TestCompactStopsBeforeAMembershipChangeThatIsNotInTheManifest checks that the floor stays below such a change, even
// if much could be dropped from later segments, because Raft must receive the change again after a crash.
func TestCompactStopsBeforeAMembershipChangeThatIsNotInTheManifest(t *testing.T) {
	d := newDriver(t, driverOptions(vfstest.NewMem(), Index, 4<<10))
	d.put(format.Entry{ID: 1, Data: payload(1, 100)}, format.Entry{ID: 1, Data: payload(1, 100)})
	at := d.last() + 1
	conf := raftpb.Entry{Type: raftpb.EntryConfChangeV2.Enum(), Index: &at, Term: &d.term}
	ok(t, d.log.Append(nil, []*raftpb.Entry{&conf}))
	ok(t, d.log.Sync())
	ok(t, d.log.Apply(at, nil))
	for i := range int64(100) {
		d.put(format.Entry{ID: i % 3, Data: payload(i, 100)})
	}
	_, err := d.log.Compact(t.Context(), CompactOptions{})
	ok(t, err)
	if first, _ := d.log.FirstIndex(); first > at {
		t.Errorf("first index is %d, the membership change has %d", first, at)
	}
	ok(t, d.log.SetConf(&raftpb.ConfState{Voters: []uint64{1}}, at))
	_, err = d.log.Compact(t.Context(), CompactOptions{})
	ok(t, err)
	if first, _ := d.log.FirstIndex(); first <= at {
		t.Errorf("first index is still %d", first)
	}
	ok(t, d.log.Close(false))
}
