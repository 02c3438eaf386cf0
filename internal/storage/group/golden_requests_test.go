package group

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/google/uuid"
	"go.etcd.io/raft/v3/raftpb"

	"sheaf.dev/sheaf/internal/storage/group/format"
	"sheaf.dev/sheaf/internal/storage/group/fsck"
	"sheaf.dev/sheaf/internal/test/must"
	"sheaf.dev/sheaf/internal/test/vfstest"
)

// goldenV2 is the folder of a group with a version 2 segment. Every later version of Sheaf must be able to read it.
// The segment has entries in which compaction has kept only the request ids of writes.
var goldenV2 = filepath.Join("testdata", "v2")

// goldenRequests returns the content of the version 2 segment. This content must never change.
func goldenRequests() []format.Entry {
	return []format.Entry{
		{Kind: format.KindRequest, ID: 7, Index: 3, Term: 1, CommitTime: 1700000000000000001, RequestID: [16]byte{1, 15: 4},
			Data: []byte{1, 0, 0, 0, 0xef, 0xbe, 0xad, 0xde}},
		{Kind: format.KindRequest, ID: -7, Index: 5, Term: 2, CommitTime: 1700000000000000002, RequestID: [16]byte{2},
			Data: []byte{2, 0, 0, 0, 0, 0, 0, 0}},
		{Kind: format.KindPut, Used: true, ID: 7, Index: 6, Term: 2, CommitTime: 1700000000000000003, RequestID: [16]byte{3},
			Data: []byte("newest")},
		{Kind: format.KindRequest, ID: 8, Index: 7, Term: 2, CommitTime: 1700000000000000004, RequestID: [16]byte{9},
			Data: []byte{1, 0, 0, 0, 0, 0, 0, 0}},
	}
}

func goldenRequestFiles(t *testing.T) map[string][]byte {
	t.Helper()
	return requestFiles(t, func(*format.Manifest) {})
}

// requestFiles returns the files of a group with a version 2 segment. The function change is applied to the manifest.
func requestFiles(t *testing.T, change func(*format.Manifest)) map[string][]byte {
	t.Helper()
	m := &format.Manifest{
		Identity:         format.Identity{Store: uuid.UUID{1, 15: 0x57}, Group: uuid.UUID{2, 15: 0x67}, Name: "quotes"},
		CompactedThrough: 8, CompactedTerm: 2,
		Sequence: 5, NextSegment: 4, HardState: format.StateRecord{Term: 2, Vote: 1, Commit: 8},
		Conf: &raftpb.ConfState{Voters: []uint64{1}}, ConfIndex: 2,
	}
	header := format.SegmentHeader{Store: m.Identity.Store, Group: m.Identity.Group, Created: 1700000000000000000}
	sealed := format.ManifestSegment{Number: 3, ID: format.SegmentID{3, 0x5e}, FirstIndex: 1, LastIndex: 8}
	header.ID, header.FirstIndex, header.Rewritten = sealed.ID, 1, true
	b := header.Encode()
	for _, e := range goldenRequests() {
		b = format.AppendFrame(b, sealed.ID, int64(len(b)), &e)
	}
	sealed.Bytes = int64(len(b))
	active := format.ManifestSegment{Number: 2, ID: format.SegmentID{2, 0x5e}, FirstIndex: 9}
	header.ID, header.FirstIndex, header.Rewritten = active.ID, 9, false
	m.Segments = []format.ManifestSegment{sealed, active}
	files := map[string][]byte{format.SegmentName(3): b, format.SegmentName(2): header.Encode()}
	hint := &format.Hint{Segment: sealed.ID, FirstIndex: 1, LastIndex: 8, LastCommit: 1700000000000000004,
		Bytes: sealed.Bytes, Requests: 3,
		IDs: []int64{7}, Places: []uint64{(128+2*88)/8<<16 | 2<<1}, Indexes: []uint32{5}, Used: []uint64{1},
		Terms: []format.TermRun{{FirstIndex: 3, Term: 1}, {FirstIndex: 5, Term: 2}}}
	var err error
	files[format.HintName(3)], err = hint.Encode()
	must.OK(t, err)
	change(m)
	files[format.ManifestName], err = m.Encode()
	must.OK(t, err)
	files[format.MarkName] = append(format.EncodeMark(format.Mark{Sequence: 2, Segment: active.ID, Offset: 128, Index: 8}),
		make([]byte, format.BlockBytes)...)
	return files
}

func TestGoldenFilesOfVersion2AreWrittenTheSame(t *testing.T) {
	writtenTheSame(t, goldenV2, goldenRequestFiles(t))
}

// readGolden copies a folder's files to the folder /g on an in-memory disk.
func readGolden(t *testing.T, folder string) *vfstest.Mem {
	t.Helper()
	mem := vfstest.NewMem()
	must.OK(t, mem.MkdirAll("/g"))
	entries, err := os.ReadDir(folder)
	must.OK(t, err)
	for _, e := range entries {
		b, err := os.ReadFile(filepath.Join(folder, e.Name()))
		must.OK(t, err)
		must.OK(t, format.WriteReplace(mem, "/g", e.Name(), b))
	}
	return mem
}

func TestGoldenFilesOfVersion2AreRead(t *testing.T) {
	mem := readGolden(t, goldenV2)
	report, err := fsck.VerifyDir(t.Context(), mem, "/g", nil)
	if err != nil || len(report.Damages) != 0 || report.Entries != 4 {
		t.Errorf("%+v, %v", report, err)
	}
	for _, hint := range []bool{true, false} {
		if !hint {
			must.OK(t, mem.Remove("/g/"+format.HintName(3)))
		}
		m, err := format.ReadManifest(mem, "/g")
		must.OK(t, err)
		l, loaded, err := Load(t.Context(), Options{FS: mem, Dir: "/g", Identity: m.Identity}, nil)
		must.OK(t, err)
		if loaded.Outcome != Loaded {
			t.Errorf("%+v", loaded)
		}
		r, err := l.Get(7, GetOptions{})
		if err != nil || string(r.Data) != "newest" || r.Index != 6 {
			t.Errorf("%+v, %v", r, err)
		}
		got := slices.Collect(l.RecentRequests(format.DefaultRequestWindow, 1700000000000000005))
		want := []format.Request{
			{RequestID: [16]byte{1, 15: 4}, ID: 7, Index: 3, CommitTime: 1700000000000000001, CRC32C: 0xdeadbeef},
			{RequestID: [16]byte{2}, ID: -7, Index: 5, CommitTime: 1700000000000000002, Delete: true},
			{RequestID: [16]byte{3}, ID: 7, Index: 6, CommitTime: 1700000000000000003,
				CRC32C: format.Checksum([]byte("newest"))},
			{RequestID: [16]byte{9}, ID: 8, Index: 7, CommitTime: 1700000000000000004},
		}
		if !slices.Equal(got, want) {
			t.Errorf("%+v, want %+v", got, want)
		}
		if got := l.LastCommitTime(); got != 1700000000000000004 {
			t.Errorf("last commit time %d", got)
		}
		must.OK(t, l.Close(false))
	}
}
