package group

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"path"
	"strings"
	"testing"

	"go.etcd.io/raft/v3/raftpb"

	"sheaf.dev/sheaf/internal/storage/group/format"
	"sheaf.dev/sheaf/internal/test/grouptest"
	"sheaf.dev/sheaf/internal/test/vfstest"
)

// follower installs d's log as a new log, which contains everything up to d's applied index, and returns the new log.
func follower(t *testing.T, d *logDriver) *Log {
	t.Helper()
	opts := joinerOptions(d.opts, vfstest.NewMem())
	ok(t, install(d.log, opts))
	l := mustLoad(t, opts)
	return l
}

// blobEntry creates a blob on the leader, and returns the reference to it and an entry with that reference.
func blobEntry(t *testing.T, d *logDriver, data []byte) (format.BlobRef, *raftpb.Entry) {
	t.Helper()
	w, err := d.log.CreateBlob()
	ok(t, err)
	_, err = w.Write(data)
	ok(t, err)
	ref, err := w.Commit()
	ok(t, errors.Join(err, w.Close()))
	return ref, d.entry(d.last()+1, format.Entry{ID: 50, Codec: format.CodecBlob, Data: ref.Encode()})
}

func TestAMemberReceivesABlobBeforeItsEntry(t *testing.T) {
	d := exporter(t)
	l := follower(t, d)
	data := grouptest.RandomBytes(4, 2<<20)
	ref, entry := blobEntry(t, d, data)
	plain := d.entry(d.last()+2, format.Entry{ID: 1, Data: []byte("x")})
	missing, err := l.MissingBlobs([]*raftpb.Entry{plain, entry, entry})
	if err != nil || len(missing) != 1 || missing[0] != ref {
		t.Fatal(missing, err)
	}
	if missing, err := d.log.MissingBlobs([]*raftpb.Entry{entry}); err != nil || missing != nil {
		t.Fatal("on the leader:", missing, err)
	}
	ok(t, receiveBlobs(d.log, l, []*raftpb.Entry{entry}))
	if missing, err := l.MissingBlobs([]*raftpb.Entry{entry}); err != nil || missing != nil {
		t.Fatal(missing, err)
	}
	// The blob remains although no applied entry refers to it, even after it was read.
	for range 2 {
		r, err := l.OpenBlob(ref)
		ok(t, err)
		got, err := io.ReadAll(io.NewSectionReader(r, 0, ref.Size))
		if err := errors.Join(err, r.Close()); err != nil || !bytes.Equal(got, data) {
			t.Fatal(len(got), err)
		}
	}
	// Before the entry arrives, compaction drops other blobs.
	drop := d.entry(d.last()+1, format.Entry{ID: 20, Kind: format.KindDelete})
	ok(t, l.Append(nil, []*raftpb.Entry{drop}))
	ok(t, l.Sync())
	ok(t, l.Apply(drop.GetIndex(), nil))
	ok(t, l.Seal())
	for range 2 {
		_, err := l.Compact(t.Context(), CompactOptions{All: true})
		ok(t, err)
	}
	*entry.Index = drop.GetIndex() + 1
	ok(t, l.Append(nil, []*raftpb.Entry{entry}))
	ok(t, l.Sync())
	// A load keeps the blob although the entry that refers to it is not applied yet.
	ok(t, l.Close(false))
	l, report, err := Load(t.Context(), l.opts, nil)
	if err != nil || report.Outcome != Loaded {
		t.Fatal(report, err)
	}
	ok(t, l.Apply(entry.GetIndex(), nil))
	got, err := l.Get(50, GetOptions{})
	if err != nil || got.Blob == nil || *got.Blob != ref {
		t.Fatal(got, err)
	}
	if err := sameBlob(d.log, l, ref); err != nil {
		t.Error(err)
	}
	ok(t, l.Close(false))
}

func TestABlobThatIsReceivedWrongIsNotThere(t *testing.T) {
	d := exporter(t)
	l := follower(t, d)
	data := grouptest.RandomBytes(4, 1<<20+7)
	ref, entry := blobEntry(t, d, data)
	before := len(dirNames(t, l))
	for what, bad := range map[string][]byte{
		"short": data[:len(data)-1], "long": append(bytes.Clone(data), 1, 2), "other": append(bytes.Clone(data[1:]), 9),
		"none": nil,
	} {
		w, err := l.BlobWriter(ref)
		ok(t, err)
		_, err = w.Write(bad)
		if _, commitErr := w.Commit(); !errors.Is(errors.Join(err, commitErr), format.ErrCorrupt) {
			t.Errorf("%s: %v, %v", what, err, commitErr)
		}
		ok(t, w.Close())
		if missing, err := l.MissingBlobs([]*raftpb.Entry{entry}); err != nil || len(missing) != 1 {
			t.Errorf("%s: %v, %v", what, missing, err)
		}
	}
	if names := dirNames(t, l); len(names) != before {
		t.Errorf("left over: %v", names)
	}
	// Two writers receive the blob at the same time.
	first, err := l.BlobWriter(ref)
	ok(t, err)
	second, err := l.BlobWriter(ref)
	ok(t, err)
	for _, w := range []format.BlobWriter{first, second} {
		_, err := w.Write(data)
		ok(t, err)
	}
	for _, w := range []format.BlobWriter{second, first} {
		_, err := w.Commit()
		ok(t, errors.Join(err, w.Close()))
	}
	if err := sameBlob(d.log, l, ref); err != nil {
		t.Error(err)
	}
	if len(dirNames(t, l)) != before+1 {
		t.Error(dirNames(t, l))
	}
	ok(t, l.Close(false))
}

func dirNames(t *testing.T, l *Log) []string {
	t.Helper()
	names, err := l.folder.fs.List(l.folder.dir)
	ok(t, err)
	return names
}

func TestABlobThatIsDamagedIsReceivedAnew(t *testing.T) {
	d := exporter(t)
	ref := *mustGet(t, d.log, 20).Blob
	l := follower(t, d)
	f, err := l.folder.fs.OpenWrite(path.Join(l.folder.dir, format.BlobName(ref.ID)))
	ok(t, err)
	ok(t, errors.Join(flip(f, format.BlobChunkBytes), f.Close()))
	report, err := l.Verify(t.Context(), 0)
	if err != nil || len(report.Damages) == 0 {
		t.Fatal(report, err)
	}
	repairs, err := l.Repairs(t.Context())
	if err != nil || len(repairs) != 1 || repairs[0].Blob == nil || *repairs[0].Blob != ref {
		t.Fatal(repairs, err)
	}
	ok(t, repairFrom(d.log, l))
	if err := sameLogs(d.log, l); err != nil {
		t.Error(err)
	}
	ok(t, l.Close(false))
}

func mustGet(t *testing.T, l *Log, id int64) Record {
	t.Helper()
	r, err := l.Get(id, GetOptions{})
	ok(t, err)
	return r
}

func TestMissingBlobsOfABadReference(t *testing.T) {
	d := exporter(t)
	entry := d.entry(d.last()+1, format.Entry{ID: 1, Codec: format.CodecBlob, Data: make([]byte, format.BlobRefBytes)})
	if _, err := d.log.MissingBlobs([]*raftpb.Entry{entry}); err == nil || !strings.Contains(err.Error(), "reference") {
		t.Error(err)
	}
}

// TestTombstonesStayUntilEveryMemberHasAppliedThem checks that a group with several members drops only tombstones up
// to the tombstone limit. The only member of a group needs no limit.
func TestTombstonesStayUntilEveryMemberHasAppliedThem(t *testing.T) {
	tombstones := func(l *Log) (n int) {
		for id := range int64(5) {
			vs, err := l.Versions(id, 0, 10)
			if err != nil && !errors.Is(err, ErrNotFound) {
				t.Fatal(err)
			}
			for _, v := range vs {
				if v.Deleted {
					n++
				}
			}
		}
		return n
	}
	for _, c := range []struct {
		conf  *raftpb.ConfState
		limit uint64
		left  int
	}{
		{&raftpb.ConfState{Voters: []uint64{1}}, 0, 0},
		{&raftpb.ConfState{Voters: []uint64{1, 2, 3}}, 0, 5},
		{&raftpb.ConfState{Voters: []uint64{1}, Learners: []uint64{2}}, 0, 5},
		{&raftpb.ConfState{Voters: []uint64{1, 2, 3}}, 8, 2},
		{&raftpb.ConfState{Voters: []uint64{1, 2, 3}}, 1 << 40, 0},
	} {
		d := newDriver(t, driverOptions(vfstest.NewMem(), Index, 64<<10))
		// Indexes 1 to 5 are puts, and 6 to 10 are deletes.
		for _, kind := range []format.Kind{format.KindPut, format.KindDelete} {
			for id := range int64(5) {
				d.put(format.Entry{Kind: kind, ID: id})
			}
		}
		d.put(format.Entry{ID: 9, Data: []byte("stays")})
		ok(t, d.log.SetConf(c.conf, 1))
		d.log.SetTombstoneLimit(c.limit)
		ok(t, d.log.Seal())
		for range 3 {
			_, err := d.log.Compact(t.Context(), CompactOptions{All: true})
			ok(t, err)
		}
		if left := tombstones(d.log); left != c.left {
			t.Errorf("%s, limit %d: %d tombstones are left, want %d", fmt.Sprint(c.conf), c.limit, left, c.left)
		}
		ok(t, d.log.Close(false))
	}
}

func TestCompactLeavesWhatSlowMembersNeed(t *testing.T) {
	d := newDriver(t, driverOptions(vfstest.NewMem(), Index, 4<<10))
	for i := range int64(60) {
		d.put(format.Entry{ID: i % 3, Data: payload(i, 100)})
	}
	_, err := d.log.Compact(t.Context(), CompactOptions{All: true, Through: 30})
	ok(t, err)
	if first, _ := d.log.FirstIndex(); first > 31 || first == 1 {
		t.Errorf("first index is %d", first)
	}
	if _, err := d.log.Entries(31, d.last()+1, 1<<40); err != nil {
		t.Error(err)
	}
	ok(t, d.log.Close(false))
}
