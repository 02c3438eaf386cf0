package format

import (
	"bytes"
	"reflect"
	"slices"
	"testing"

	"go.etcd.io/raft/v3/raftpb"

	"sheaf.dev/sheaf/internal/test/grouptest"
)

// FuzzDecodeFrame, like all fuzz tests of decoders, checks that the decoder either refuses its input, or returns a
// value that encodes to the same bytes. A decoder must never panic, and must never allocate much more memory than the
// size of its input.

func FuzzDecodeFrame(f *testing.F) {
	for _, e := range sampleEntries() {
		f.Add(AppendFrame(nil, testSegment, 128, &e), true)
	}
	f.Fuzz(func(t *testing.T, b []byte, fix bool) {
		if fix && len(b) >= FrameHeaderBytes {
			b = bytes.Clone(b)
			putUint32(b, FrameMarker)
			putUint32(b[atFrameCRC:], frameChecksum(b, testSegment, 128))
			if _, a, d, _, err := DecodeHeader(b, testSegment, 128); err == nil && FrameHeaderBytes+a+d <= len(b) {
				putUint32(b[AtEntryCRC:], Checksum(b[AtKind:FrameHeaderBytes+a+d]))
				putUint32(b[atFrameCRC:], frameChecksum(b, testSegment, 128))
			}
		}
		e, n, err := DecodeFrame(b, testSegment, 128)
		if err != nil {
			return
		}
		if again := AppendFrame(nil, testSegment, 128, &e); !bytes.Equal(again, b[:n]) {
			t.Fatalf("%x became %x", b[:n], again)
		}
		ok(t, e.Check())
	})
}

func FuzzPayload(f *testing.F) {
	for _, e := range sampleEntries() {
		if r := RaftEntry(&e); r != nil {
			f.Add(r.Data, int32(r.GetType()))
		}
	}
	f.Fuzz(func(t *testing.T, data []byte, kind int32) {
		index, term, entryType := uint64(3), uint64(1), raftpb.EntryType(kind)
		var e Entry
		var err error
		grouptest.Bounded(t, len(data), func() {
			e, err = DecodePayload(&raftpb.Entry{Index: &index, Term: &term, Type: &entryType, Data: data})
		})
		if err != nil {
			return
		}
		if entryType != raftpb.EntryConfChange && !bytes.Equal(EncodePayload(&e), data) {
			t.Fatalf("%x became %x", data, EncodePayload(&e))
		}
		frame := AppendFrame(nil, testSegment, 128, &e)
		if got, _, err := DecodeFrame(frame, testSegment, 128); err != nil || !sameEntry(got, e) {
			t.Fatalf("what DecodePayload passes cannot be stored: %+v, %v", e, err)
		}
	})
}

func FuzzAttributes(f *testing.F) {
	for _, e := range sampleEntries() {
		f.Add(e.Attributes)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var a map[string][]byte
		var err error
		grouptest.Bounded(t, len(b), func() { a, err = DecodeAttributes(b) })
		if err != nil {
			return
		}
		if again, err := EncodeAttributes(a); err != nil || !bytes.Equal(again, b) {
			t.Fatalf("%x became %x, %v", b, again, err)
		}
	})
}

func FuzzBlobRef(f *testing.F) {
	f.Add(BlobRef{Size: 5}.Encode(), true)
	f.Fuzz(func(t *testing.T, b []byte, fix bool) {
		if fix && len(b) == BlobRefBytes {
			b = bytes.Clone(b)
			putUint32(b[36:], Checksum(b[:36]))
		}
		if ref, err := DecodeBlobRef(b); err == nil && !bytes.Equal(ref.Encode(), b) {
			t.Fatalf("%x became %x", b, ref.Encode())
		}
	})
}

func FuzzSegmentHeader(f *testing.F) {
	f.Add(sampleHeader().Encode(), true)
	f.Fuzz(func(t *testing.T, b []byte, fix bool) {
		if fix && len(b) >= SegmentHeaderBytes {
			b = bytes.Clone(b)
			putUint32(b[124:], Checksum(b[:124]))
		}
		if h, err := DecodeSegmentHeader(b); err == nil && !bytes.Equal(h.Encode(), b[:SegmentHeaderBytes]) {
			t.Fatalf("%x became %x", b, h.Encode())
		}
	})
}

func FuzzManifest(f *testing.F) {
	for _, folder := range []string{goldenV1, goldenHistory} {
		grouptest.AddGolden(f, folder, ManifestName, func(b []byte) { f.Add(b, true) })
	}
	for _, m := range []*Manifest{sampleManifest(), sampleHistory()} {
		b, err := m.Encode()
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b, true)
	}
	f.Fuzz(func(t *testing.T, b []byte, fix bool) {
		if fix && len(b) >= manifestFixedBytes && uint64(len(b)) >= fuzzLength(b) && fuzzLength(b) >= manifestFixedBytes {
			n := fuzzLength(b)
			b = append(repair(b[:n]), b[n:]...)
		}
		var m *Manifest
		var bad [2]error
		var err error
		grouptest.Bounded(t, len(b), func() { m, bad, err = DecodeManifest(b) })
		if err != nil {
			return
		}
		again, err := m.Encode()
		if err != nil || bad == [2]error{} && !bytes.Equal(again, b) {
			t.Fatalf("%x became %x, %v", b, again, err)
		}
	})
}

func fuzzLength(b []byte) uint64 {
	return uint64(b[16]) | uint64(b[17])<<8 | uint64(b[18])<<16 | uint64(b[19])<<24 | uint64(b[20])<<32 | uint64(
		b[21]|b[22]|b[23])<<40
}

func FuzzHint(f *testing.F) {
	grouptest.AddGolden(f, goldenV1, HintPrefix, func(b []byte) { f.Add(b, true) })
	b, err := sampleHint().Encode()
	ok(f, err)
	f.Add(b, true)
	f.Fuzz(func(t *testing.T, b []byte, fix bool) {
		if fix {
			b = repair(b)
		}
		var h *Hint
		var err error
		grouptest.Bounded(t, len(b), func() { h, err = DecodeHint(b) })
		if err != nil {
			return
		}
		again, err := h.Encode()
		if err != nil || !bytes.Equal(again, b) {
			t.Fatalf("%x became %x, %v", b, again, err)
		}
		for row := range h.IDs {
			h.IsUsed(row)
		}
	})
}

func FuzzHintPiece(f *testing.F) {
	grouptest.AddGolden(f, goldenV1, ActiveHintName, func(b []byte) { f.Add(b, true) })
	f.Add(samplePiece().Encode(), true)
	f.Fuzz(func(t *testing.T, b []byte, fix bool) {
		if fix && len(b) >= pieceHeaderBytes+pieceTrailBytes {
			_, length, _, _, _ := pieceHead(b)
			b = repair(b[:max(pieceHeaderBytes+pieceTrailBytes, min(length, int64(len(b))))])
		}
		var p *HintPiece
		var length int64
		var err error
		grouptest.Bounded(t, len(b), func() { p, length, err = DecodePiece(b) })
		if err != nil {
			return
		}
		again := p.Encode()
		if q, n, err := DecodePiece(again); err != nil || n != int64(len(again)) || !reflect.DeepEqual(p, q) || n > length {
			t.Fatalf("%x became %x, %v", b, again, err)
		}
	})
}

func FuzzReplicaFile(f *testing.F) {
	grouptest.AddGolden(f, goldenV1, ReplicaName, func(b []byte) {
		f.Add(b, true)
		f.Add(append(slices.Clone(b), 0), false)
	})
	f.Fuzz(func(t *testing.T, b []byte, fix bool) {
		if fix && len(b) >= ReplicaFileBytes {
			b = slices.Concat(repair(b[:BlockBytes]), repair(b[BlockBytes:ReplicaFileBytes]), b[ReplicaFileBytes:])
		}
		var r ReplicaFile
		var bad [2]error
		var err error
		grouptest.Bounded(t, len(b), func() { r, bad, err = DecodeReplicaFile(b) })
		if err != nil {
			return
		}
		again, err := r.Encode()
		if err != nil || bad == [2]error{} && !bytes.Equal(again, b) {
			t.Fatalf("%x became %x, %v", b, again, err)
		}
		for i := range bad {
			if bad[i] == nil && !bytes.Equal(again[i*BlockBytes:(i+1)*BlockBytes],
				b[i*BlockBytes:min(len(b), (i+1)*BlockBytes)]) {
				t.Fatalf("copy %d of %x became %x", i, b, again)
			}
		}
	})
}

func FuzzMark(f *testing.F) {
	grouptest.AddGolden(f, goldenV1, MarkName, func(b []byte) { f.Add(b, true) })
	f.Fuzz(func(t *testing.T, b []byte, fix bool) {
		if fix && len(b) >= MarkFileBytes {
			first := append(repair(b[:markFields]), b[markFields:BlockBytes]...)
			second := append(repair(b[BlockBytes:BlockBytes+markFields]), b[BlockBytes+markFields:]...)
			b = slices.Concat(first, second)
		}
		m, found, bad := DecodeMarkFile(b)
		if !found {
			return
		}
		slot := int(m.Sequence % MarkSlots)
		if bad[slot] == nil && !bytes.Equal(EncodeMark(m), b[slot*BlockBytes:(slot+1)*BlockBytes]) {
			t.Fatalf("slot %d became %+v", slot, m)
		}
	})
}

func FuzzBlobHeader(f *testing.F) {
	grouptest.AddGolden(f, goldenV1, BlobPrefix, func(b []byte) { f.Add(b[:BlobHeaderBytes], true) })
	f.Fuzz(func(t *testing.T, b []byte, fix bool) {
		if len(b) < BlobHeaderBytes {
			return
		}
		b = b[:BlobHeaderBytes]
		if fix {
			b = repair(b)
		}
		if ref, err := DecodeBlobHeader(b); err == nil && !bytes.Equal(encodeBlobHeader(ref), b) {
			t.Fatalf("header %x became %x", b, encodeBlobHeader(ref))
		}
	})
}

func FuzzStateRecord(f *testing.F) {
	f.Add(StateRecord{Term: 3, Vote: 1, Commit: 9, SyncedOffset: 4096, SyncedIndex: 8}.Encode())
	f.Add(bytes.Repeat([]byte{0xff}, StateRecordBytes))
	f.Fuzz(func(t *testing.T, b []byte) {
		s, err := DecodeStateRecord(b)
		if err != nil {
			return
		}
		if !bytes.Equal(s.Encode(), b) {
			t.Fatalf("%x became %+v", b, s)
		}
		if s.SyncedOffset < 0 || max(s.Term, s.Commit, s.SyncedIndex) > NumberMax {
			t.Fatalf("%+v is taken", s)
		}
	})
}
