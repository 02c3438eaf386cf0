package group

import (
	"bytes"
	"flag"
	"math"
	"os"
	"path"
	"path/filepath"
	"reflect"
	"slices"
	"testing"

	"github.com/google/uuid"
	"go.etcd.io/raft/v3/raftpb"

	"sheaf.dev/sheaf/internal/storage/group/format"
	"sheaf.dev/sheaf/internal/storage/group/fsck"
	"sheaf.dev/sheaf/internal/storage/group/segio"
	"sheaf.dev/sheaf/internal/storage/vfs"
	"sheaf.dev/sheaf/internal/test/foldertest"
	"sheaf.dev/sheaf/internal/test/must"
	"sheaf.dev/sheaf/internal/test/vfstest"
)

// The flag -update rewrites the version 1 golden files. Every later version of Sheaf must be able to read these files.
// A change to an existing file is a format change, which needs a new version and a new folder.
var update = flag.Bool("update", false, "rewrite the golden files of the current version")

var goldenV1 = filepath.Join("testdata", "v1")

// goldenEntries returns the content of the golden segments, with every kind and codec. This content must never change.
func goldenEntries() [2][]format.Entry {
	attributes := []byte("\x04\x00\x02\x00\x00\x00mode\x01\xa4\x04\x00\x05\x00\x00\x00patha/b/c")
	ref := format.BlobRef{ID: uuid.UUID{0xb1, 0x0b, 15: 1}, Size: 10, CRC32C: format.Checksum([]byte("0123456789"))}
	return [2][]format.Entry{
		{
			{Kind: format.KindEmpty, Index: 1, Term: 1},
			{Kind: format.KindConf, Index: 2, Term: 1, Data: []byte{0x12, 0x02, 0x10, 0x01}},
			{Kind: format.KindState, Data: format.StateRecord{Term: 1, Vote: 1, Commit: 1, SyncedOffset: 208,
				SyncedIndex: 1}.Encode()},
			{Kind: format.KindPut, ID: 7, Index: 3, Term: 1, CommitTime: 1700000000000000001, Timestamp: -5,
				Data: []byte("first")},
			{Kind: format.KindPut, Used: true, ID: math.MinInt64, Index: 4, Term: 1, CommitTime: 1700000000000000002,
				Timestamp: 1600000000000000000, RequestID: [16]byte{1, 2, 3, 15: 4}, Attributes: attributes,
				Data: []byte("with attributes")},
			{Kind: format.KindPut, Used: true, ID: math.MaxInt64, Index: 5, Term: 1, CommitTime: 1700000000000000002},
			{Kind: format.KindPut, Used: true, ID: 8, Index: 6, Term: 2, Codec: format.CodecBlob,
				CommitTime: 1700000000000000003, Data: ref.Encode()},
			{Kind: format.KindDelete, Used: true, ID: 9, Index: 7, Term: 2, CommitTime: 1700000000000000004,
				RequestID: [16]byte{9}},
		},
		{
			{Kind: format.KindPut, Used: true, ID: 7, Index: 8, Term: 2, CommitTime: 1700000000000000005,
				Data: []byte("second")},
			{Kind: format.KindState, Data: format.StateRecord{Term: 2, Vote: 1, Commit: 8, SyncedOffset: 128,
				SyncedIndex: 7}.Encode()},
		},
	}
}

func goldenFiles(t *testing.T) map[string][]byte {
	t.Helper()
	files := map[string][]byte{}
	m := &format.Manifest{
		Identity: format.Identity{Store: uuid.UUID{1, 15: 0x57}, Group: uuid.UUID{2, 15: 0x67}, Name: "quotes"},
		Sequence: 3, NextSegment: 3, HardState: format.StateRecord{Term: 2, Vote: 1, Commit: 7},
		Conf: &raftpb.ConfState{Voters: []uint64{1}}, ConfIndex: 2,
	}
	for i, entries := range goldenEntries() {
		number := uint64(i + 1)
		s := format.ManifestSegment{Number: number, ID: format.SegmentID{byte(number), 0x5e}, FirstIndex: []uint64{1, 8}[i]}
		b := format.SegmentHeader{Store: m.Identity.Store, Group: m.Identity.Group, ID: s.ID, FirstIndex: s.FirstIndex,
			Created: 1700000000000000000}.Encode()
		for _, e := range entries {
			b = format.AppendFrame(b, s.ID, int64(len(b)), &e)
		}
		if number == 1 {
			s.LastIndex, s.Bytes = 7, int64(len(b))
		} else {
			b = append(b, make([]byte, 512)...) // free space
		}
		files[format.SegmentName(number)] = b
		m.Segments = append(m.Segments, s)
	}
	var active []byte
	for _, p := range goldenPieces(m.Segments[1], files[format.SegmentName(2)]) {
		active = append(active, p.Encode()...)
	}
	files[format.ActiveHintName] = active
	hint := goldenHint(m.Segments[0], files[format.SegmentName(1)])
	var err error
	files[format.HintName(1)], err = hint.Encode()
	must.OK(t, err)
	files[format.ManifestName], err = m.Encode()
	must.OK(t, err)
	files[format.MarkName] = append(format.EncodeMark(format.Mark{Sequence: 2, Segment: m.Segments[1].ID, Offset: 216,
		Index: 8}),
		format.EncodeMark(format.Mark{Sequence: 1, Segment: m.Segments[0].ID, Offset: 128})...)
	ref := hint.Blobs[0].Ref
	data := []byte("0123456789")
	files[format.ReplicaName], err = format.ReplicaFile{RaftID: 0x1122334455667789, Volume: uuid.UUID{3, 15: 0x77},
		Store: m.Identity.Store, Group: m.Identity.Group}.Encode()
	must.OK(t, err)
	files[format.BlobName(ref.ID)] = goldenBlob(t, ref, data)
	return files
}

// goldenBlob returns the content of a blob's file. The argument ref holds the blob's id.
func goldenBlob(t *testing.T, ref format.BlobRef, data []byte) []byte {
	fs := vfstest.NewMem()
	must.OK(t, fs.MkdirAll("g"))
	w, err := format.ReceiveBlob(fs, "g", ref, format.TmpSuffix)
	must.OK(t, err)
	_, err = w.Write(data)
	must.OK(t, err)
	_, err = w.Commit()
	must.OK(t, err)
	must.OK(t, w.Close())
	b, err := format.ReadAll(fs, path.Join("g", format.BlobName(ref.ID)), format.BlobFileBytes(ref.Size))
	must.OK(t, err)
	return b
}

// goldenHint builds a hint by hand, without the production code. The order of its rows detects a change to the hash
// function, which is part of the format.
func goldenHint(s format.ManifestSegment, image []byte) *format.Hint {
	h := &format.Hint{Segment: s.ID, FirstIndex: s.FirstIndex, LastIndex: s.LastIndex, LastCommit: 1700000000000000004,
		Bytes: s.Bytes,
		Terms: []format.TermRun{{FirstIndex: 1, Term: 1}, {FirstIndex: 6, Term: 2}}, Used: []uint64{0b11110}}
	for r := segio.NewFrameReaderBytes(image, s.ID, format.SegmentHeaderBytes); r.Next(); {
		step := r.Step()
		if e := step.Entry; e.Kind.IsVersion() {
			h.IDs = append(h.IDs, e.ID)
			length := uint64(step.Bytes+63) / 64
			place := uint64(step.Offset)/8<<16 | length<<1
			if e.Kind == format.KindDelete {
				place |= 1
			}
			h.Places = append(h.Places, place)
			h.Indexes = append(h.Indexes, uint32(e.Index-s.FirstIndex))
			if e.Codec == format.CodecBlob {
				ref, _ := format.DecodeBlobRef(e.Data) // if this fails, the test notices when it reads the file
				h.Blobs = append(h.Blobs, format.HintBlob{Index: e.Index, Ref: ref})
			}
		}
	}
	foldertest.OrderRows(h)
	return h
}

// goldenPieces builds pieces by hand, without the production code. The first piece contains the put, and the second one
// covers a part without a put.
func goldenPieces(s format.ManifestSegment, image []byte) []*format.HintPiece {
	length := format.FrameBytes(0, len("second"))
	state := format.SegmentHeaderBytes + length
	return []*format.HintPiece{{
		Segment: s.ID, First: 8, Begin: format.SegmentHeaderBytes, End: state, LastBefore: 7, Last: 8,
		Table: format.Rows{IDs: []int64{7}, Places: []uint64{format.SegmentHeaderBytes/8<<16 | uint64(length+63)/64<<1},
			Indexes: []uint32{0}, LastCommit: 1700000000000000005},
		Terms: []format.TermRun{{FirstIndex: 8, Term: 2}},
	}, {Segment: s.ID, First: 8, Begin: state, End: int64(len(image)) - 512, LastBefore: 8, Last: 8, RowsBefore: 1}}
}

func TestGoldenFilesOfVersion1AreWrittenTheSame(t *testing.T) {
	writtenTheSame(t, goldenV1, goldenFiles(t))
}

// writtenTheSame checks that the codec still produces the golden files in a folder, and no others. With -update it
// writes them.
func writtenTheSame(t *testing.T, dir string, files map[string][]byte) {
	t.Helper()
	for name, want := range files {
		golden := filepath.Join(dir, name)
		if *update {
			must.OK(t, os.MkdirAll(dir, 0o755))
			must.OK(t, os.WriteFile(golden, want, 0o644))
		}
		got, err := os.ReadFile(golden)
		must.OK(t, err)
		if !bytes.Equal(got, want) {
			t.Errorf("%s is not what the codec writes now", golden)
		}
	}
	entries, err := os.ReadDir(dir)
	must.OK(t, err)
	if len(entries) != len(files) {
		t.Errorf("%d golden files, %d written", len(entries), len(files))
	}
}

func TestGoldenFilesOfVersion1AreRead(t *testing.T) {
	fs := vfs.OS{}
	m, err := format.ReadManifest(fs, goldenV1)
	must.OK(t, err)
	if m.Identity.Name != "quotes" || len(m.Segments) != 2 || m.HardState.Commit != 7 ||
		!slices.Equal(m.Conf.GetVoters(), []uint64{1}) {
		t.Errorf("%+v", m)
	}
	for i, want := range goldenEntries() {
		b, err := os.ReadFile(path.Join(goldenV1, format.SegmentName(m.Segments[i].Number)))
		must.OK(t, err)
		must.OK(t, format.CheckSegmentHeader(b, m.Identity, m.Segments[i]))
		var got []format.Entry
		r := segio.NewFrameReaderBytes(b, m.Segments[i].ID, format.SegmentHeaderBytes)
		for r.Next() && r.Step().Status == segio.FrameWhole {
			got = append(got, r.Step().Entry)
		}
		if !slices.EqualFunc(got, want, sameEntry) {
			t.Errorf("segment %d: %+v", i, got)
		}
	}
	if _, err := format.ReadHint(fs, goldenV1, m.Segments[0]); err != nil {
		t.Error(err)
	}
	if h, err := format.ReadPieces(fs, goldenV1, m.Segments[1]); err != nil || h == nil || h.Rows != 1 || h.Last != 8 ||
		h.Table.IDs[0] != 7 {
		t.Error(h, err)
	}
	mark, found, bad, err := format.ReadMark(fs, goldenV1)
	if err != nil || !found || bad != [2]error{} || mark.Offset != 216 || mark.Segment != m.Segments[1].ID {
		t.Error(mark, found, bad, err)
	}
	replica, found, err := format.ReadReplicaFile(fs, goldenV1)
	if err != nil || !found || replica.RaftID != 0x1122334455667789 || replica.Joining ||
		replica.Group != m.Identity.Group {
		t.Error(replica, found, err)
	}
	report, err := fsck.VerifyDir(t.Context(), fs, goldenV1, nil)
	if err != nil || len(report.Damages) != 0 || report.TornBytes != 0 || report.Entries != 8 || report.Blobs != 1 {
		t.Errorf("%+v, %v", report, err)
	}
}

func sameEntry(a, b format.Entry) bool {
	if !bytes.Equal(a.Attributes, b.Attributes) || !bytes.Equal(a.Data, b.Data) {
		return false
	}
	a.Attributes, a.Data, b.Attributes, b.Data = nil, nil, nil, nil
	return reflect.DeepEqual(a, b)
}
