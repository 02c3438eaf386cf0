package group

import (
	"bytes"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"slices"
	"testing"

	"go.etcd.io/raft/v3/raftpb"
)

// Every decoder either refuses, or gives what encodes to the same bytes again. It never panics, and never allocates out of
// proportion to what it was given.

// bounded runs a decoder and fails where it allocates more than a multiple of its input.
func bounded(t *testing.T, input int, decode func()) {
	t.Helper()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	decode()
	runtime.ReadMemStats(&after)
	if n := after.TotalAlloc - before.TotalAlloc; n > uint64(64*input+1<<20) {
		t.Fatalf("%d bytes allocated for an input of %d", n, input)
	}
}

// addGolden seeds with the golden files whose name begins with prefix.
func addGolden(f *testing.F, prefix string, add func(b []byte)) {
	f.Helper()
	names, err := filepath.Glob(filepath.Join(goldenV1, prefix+"*"))
	if err != nil || len(names) == 0 {
		f.Fatal("no golden files", prefix, err)
	}
	for _, name := range names {
		b, err := os.ReadFile(name)
		if err != nil {
			f.Fatal(err)
		}
		add(b)
	}
}

// repair makes the checksum right, so that the fuzzer gets behind it.
func repair(b []byte) []byte {
	if len(b) < headBytes {
		return b
	}
	b = bytes.Clone(b)
	putUint32(b[12:], headChecksum(b))
	return b
}

func FuzzDecodeFrame(f *testing.F) {
	for _, e := range sampleEntries() {
		f.Add(AppendFrame(nil, testSegment, 128, &e), true)
	}
	f.Fuzz(func(t *testing.T, b []byte, fix bool) {
		if fix && len(b) >= FrameHeaderBytes {
			b = bytes.Clone(b)
			putUint32(b, frameMarker)
			putUint32(b[atFrameCRC:], frameChecksum(b, testSegment, 128))
			if _, a, d, _, err := DecodeHeader(b, testSegment, 128); err == nil && FrameHeaderBytes+a+d <= len(b) {
				putUint32(b[atEntryCRC:], checksum(b[atKind:FrameHeaderBytes+a+d]))
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
		if err := e.Check(); err != nil {
			t.Fatal(err)
		}
	})
}

func FuzzFrameReader(f *testing.F) {
	addGolden(f, segmentPrefix, func(b []byte) { f.Add(b) })
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) < SegmentHeaderBytes || len(b) > 1<<20 {
			return
		}
		id := SegmentID{1, 0x5e}
		bounded(t, len(b)+4<<20, func() {
			end := int64(len(b))
			a := walk(t, NewFrameReaderBytes(b, id, SegmentHeaderBytes), SegmentHeaderBytes, end)
			c := walk(t, NewFrameReader(alignedReader{image: b}, id, SegmentHeaderBytes, end), SegmentHeaderBytes, end)
			if !reflect.DeepEqual(a, c) {
				t.Fatal("memory and file differ")
			}
		})
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
		bounded(t, len(data), func() {
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
		bounded(t, len(b), func() { a, err = DecodeAttributes(b) })
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
			putUint32(b[36:], checksum(b[:36]))
		}
		if ref, err := DecodeBlobRef(b); err == nil && !bytes.Equal(ref.Encode(), b) {
			t.Fatalf("%x became %x", b, ref.Encode())
		}
	})
}

func FuzzBlob(f *testing.F) {
	addGolden(f, blobPrefix, func(b []byte) { f.Add(b, true) })
	f.Fuzz(func(t *testing.T, b []byte, fix bool) {
		if fix && len(b) >= blobHeaderBytes {
			b = append(repair(b[:blobHeaderBytes]), b[blobHeaderBytes:]...)
		}
		if ref, err := decodeBlobHeader(b); err == nil && !bytes.Equal(encodeBlobHeader(ref), b[:blobHeaderBytes]) {
			t.Fatalf("header %x became %x", b[:blobHeaderBytes], encodeBlobHeader(ref))
		}
		buffer := FrameBuffer()
		bounded(t, len(b), func() {
			if _, err := scanBlobFile(alignedReader{image: b}, int64(len(b)), buffer); err != nil {
				t.Skip(err)
			}
		})
	})
}

func FuzzSegmentHeader(f *testing.F) {
	f.Add(sampleHeader().Encode(), true)
	f.Fuzz(func(t *testing.T, b []byte, fix bool) {
		if fix && len(b) >= SegmentHeaderBytes {
			b = bytes.Clone(b)
			putUint32(b[124:], checksum(b[:124]))
		}
		if h, err := DecodeSegmentHeader(b); err == nil && !bytes.Equal(h.Encode(), b[:SegmentHeaderBytes]) {
			t.Fatalf("%x became %x", b, h.Encode())
		}
	})
}

func FuzzManifest(f *testing.F) {
	addGolden(f, ManifestName, func(b []byte) { f.Add(b, true) })
	b, err := sampleManifest().Encode()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b, true)
	f.Fuzz(func(t *testing.T, b []byte, fix bool) {
		if fix && len(b) >= manifestFixedBytes && uint64(len(b)) >= fuzzLength(b) && fuzzLength(b) >= manifestFixedBytes {
			n := fuzzLength(b)
			b = append(repair(b[:n]), b[n:]...)
		}
		var m *Manifest
		var bad [2]error
		var err error
		bounded(t, len(b), func() { m, bad, err = DecodeManifest(b) })
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
	return uint64(b[16]) | uint64(b[17])<<8 | uint64(b[18])<<16 | uint64(b[19])<<24 | uint64(b[20])<<32 | uint64(b[21]|b[22]|b[23])<<40
}

func FuzzHint(f *testing.F) {
	addGolden(f, hintPrefix, func(b []byte) { f.Add(b, true) })
	b, err := sampleHint().Encode()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b, true)
	f.Fuzz(func(t *testing.T, b []byte, fix bool) {
		if fix {
			b = repair(b)
		}
		var h *Hint
		var err error
		bounded(t, len(b), func() { h, err = DecodeHint(b) })
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
	addGolden(f, ActiveHintName, func(b []byte) { f.Add(b, true) })
	f.Add(samplePiece().encode(), true)
	f.Fuzz(func(t *testing.T, b []byte, fix bool) {
		if fix && len(b) >= pieceHeaderBytes+pieceTrailBytes {
			_, length, _, _, _ := pieceHead(b)
			b = repair(b[:max(pieceHeaderBytes+pieceTrailBytes, min(length, int64(len(b))))])
		}
		var p *hintPiece
		var length int64
		var err error
		bounded(t, len(b), func() { p, length, err = decodePiece(b) })
		if err != nil {
			return
		}
		again := p.encode()
		if q, n, err := decodePiece(again); err != nil || n != int64(len(again)) || !reflect.DeepEqual(p, q) || n > length {
			t.Fatalf("%x became %x, %v", b, again, err)
		}
	})
}

func FuzzReplicaFile(f *testing.F) {
	addGolden(f, ReplicaName, func(b []byte) {
		f.Add(b, true)
		f.Add(append(slices.Clone(b), 0), false)
	})
	f.Fuzz(func(t *testing.T, b []byte, fix bool) {
		if fix && len(b) >= ReplicaFileBytes {
			b = slices.Concat(repair(b[:blockBytes]), repair(b[blockBytes:ReplicaFileBytes]), b[ReplicaFileBytes:])
		}
		var r ReplicaFile
		var bad [2]error
		var err error
		bounded(t, len(b), func() { r, bad, err = DecodeReplicaFile(b) })
		if err != nil {
			return
		}
		again, err := r.Encode()
		if err != nil || bad == [2]error{} && !bytes.Equal(again, b) {
			t.Fatalf("%x became %x, %v", b, again, err)
		}
		for i := range bad {
			if bad[i] == nil && !bytes.Equal(again[i*blockBytes:(i+1)*blockBytes], b[i*blockBytes:min(len(b), (i+1)*blockBytes)]) {
				t.Fatalf("copy %d of %x became %x", i, b, again)
			}
		}
	})
}

func FuzzMark(f *testing.F) {
	addGolden(f, MarkName, func(b []byte) { f.Add(b, true) })
	f.Fuzz(func(t *testing.T, b []byte, fix bool) {
		if fix && len(b) >= MarkFileBytes {
			first := append(repair(b[:markFields]), b[markFields:blockBytes]...)
			second := append(repair(b[blockBytes:blockBytes+markFields]), b[blockBytes+markFields:]...)
			b = slices.Concat(first, second)
		}
		m, found, bad := decodeMarkFile(b)
		if !found {
			return
		}
		slot := int(m.Sequence % markSlots)
		if bad[slot] == nil && !bytes.Equal(EncodeMark(m), b[slot*blockBytes:(slot+1)*blockBytes]) {
			t.Fatalf("slot %d became %+v", slot, m)
		}
	})
}
