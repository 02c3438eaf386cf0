package format

import (
	"bytes"
	"errors"
	"fmt"
	"hash/crc32"
	"math"
	"math/rand/v2"
	"reflect"
	"testing"

	"github.com/google/uuid"
	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"

	"sheaf.dev/sheaf/internal/base/crc32c"
	"sheaf.dev/sheaf/internal/test/soaktest"
)

// sampleEntries returns entries of each kind, with the smallest and the greatest value of each field.
func sampleEntries() []Entry {
	attributes, err := EncodeAttributes(map[string][]byte{"path": []byte("a/b"), "mode": {0, 1}, "empty": {}})
	if err != nil {
		panic(err)
	}
	ref := BlobRef{ID: uuid.UUID{9, 8, 7}, Size: 5 << 30, CRC32C: 0xdeadbeef}
	state := StateRecord{Term: 3, Vote: 2, Commit: 7, SyncedOffset: 4096, SyncedIndex: 6}
	return []Entry{
		{Kind: KindEmpty, Index: 1, Term: 1},
		{Kind: KindConf, Index: 2, Term: 1, Data: []byte{1, 2, 3}},
		{Kind: KindPut, Used: true, ID: math.MinInt64, Index: 3, Term: 1, CommitTime: 1700000000123456789,
			Timestamp: math.MinInt64,
			RequestID: [16]byte{1, 2, 15: 3}, Attributes: attributes, Data: []byte("hello")},
		{Kind: KindPut, ID: math.MaxInt64, Index: 4, Term: 2, CommitTime: math.MaxInt64, Timestamp: -1},
		{Kind: KindPut, Used: true, Index: 5, Term: 2, CommitTime: 1, Data: bytes.Repeat([]byte{0xf5}, 8)},
		{Kind: KindPut, Used: true, ID: 5, Codec: CodecBlob, Index: 6, Term: 2, CommitTime: 1, Data: ref.Encode()},
		{Kind: KindDelete, Used: true, ID: -5, Index: NumberMax, Term: NumberMax, CommitTime: 2,
			RequestID: [16]byte{7}},
		{Kind: KindState, Data: state.Encode()},
	}
}

func TestFrameRoundTripsEveryKind(t *testing.T) {
	for _, e := range sampleEntries() {
		const offset = 128
		frame := AppendFrame([]byte("before"), testSegment, offset, &e)[6:]
		if int64(len(frame)) != FrameBytes(len(e.Attributes), len(e.Data)) || len(frame)%8 != 0 {
			t.Errorf("%s: frame of %d bytes", e.Kind, len(frame))
		}
		got, n, err := DecodeFrame(append(frame, 1, 2, 3), testSegment, offset)
		if err != nil || n != int64(len(frame)) || !sameEntry(got, e) {
			t.Errorf("%s: decoded %+v, %d bytes, %v; encoded %+v", e.Kind, got, n, err, e)
		}
		if _, _, err := DecodeFrame(frame, testSegment, offset+8); !errors.Is(err, errFrameHeader) {
			t.Errorf("%s: passes at another offset: %v", e.Kind, err)
		}
		if _, _, err := DecodeFrame(frame, SegmentID{1}, offset); !errors.Is(err, errFrameHeader) {
			t.Errorf("%s: passes in another segment: %v", e.Kind, err)
		}
	}
}

func sameEntry(a, b Entry) bool {
	if !bytes.Equal(a.Attributes, b.Attributes) || !bytes.Equal(a.Data, b.Data) {
		return false
	}
	a.Attributes, a.Data, b.Attributes, b.Data = nil, nil, nil, nil
	return reflect.DeepEqual(a, b)
}

func TestEveryBitOfAFrameIsChecked(t *testing.T) {
	for _, e := range sampleEntries() {
		frame := AppendFrame(nil, testSegment, 4096, &e)
		for bit := range len(frame) * 8 {
			frame[bit/8] ^= 1 << (bit % 8)
			got, n, err := DecodeFrame(frame, testSegment, 4096)
			switch {
			case err == nil:
				t.Fatalf("%s: bit %d of byte %d flipped and not seen", e.Kind, bit%8, bit/8)
			case bit/8 < FrameHeaderBytes && !errors.Is(err, errFrameHeader):
				t.Fatalf("%s: byte %d: %v", e.Kind, bit/8, err)
			case bit/8 >= FrameHeaderBytes && (!errors.Is(err, ErrFrameContent) || got.ID != e.ID || got.Index != e.Index ||
				n != int64(len(frame))):
				t.Fatalf("%s: byte %d: %v, %+v", e.Kind, bit/8, err, got)
			}
			frame[bit/8] ^= 1 << (bit % 8)
		}
		for n := range frame {
			if _, _, err := DecodeFrame(frame[:n], testSegment, 4096); err == nil {
				t.Fatalf("%s: %d of %d bytes pass", e.Kind, n, len(frame))
			}
		}
	}
}

func TestMoveFrameKeepsTheEntryChecksum(t *testing.T) {
	e := sampleEntries()[2]
	frame := AppendFrame(nil, testSegment, 128, &e)
	entryCRC := bytes.Clone(frame[AtEntryCRC : AtEntryCRC+4])
	other := SegmentID{8, 7}
	MoveFrame(frame, other, 256, false)
	e.Used = false
	got, _, err := DecodeFrame(frame, other, 256)
	if err != nil || !sameEntry(got, e) || !bytes.Equal(entryCRC, frame[AtEntryCRC:AtEntryCRC+4]) {
		t.Errorf("%+v, %v", got, err)
	}
}

func TestFrameCodecAllocatesNothing(t *testing.T) {
	e := sampleEntries()[2]
	buf := make([]byte, 0, 4096)
	frame := AppendFrame(nil, testSegment, 128, &e)
	var sum uint64
	n := testing.AllocsPerRun(100, func() {
		buf = AppendFrame(buf[:0], testSegment, 128, &e)
		buf = AppendStateFrame(buf, testSegment, 256, StateRecord{Term: 1})
		got, _, err := DecodeFrame(frame, testSegment, 128)
		if err != nil {
			panic(err)
		}
		sum += got.Index
	})
	if n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func TestEntryCheckRefusesWhatCannotBeReadAgain(t *testing.T) {
	bad := []Entry{
		{},
		{Kind: 9, Index: 1},
		{Kind: KindPut},
		{Kind: KindPut, Index: 1, Codec: 2},
		{Kind: KindPut, Index: 1, Codec: CodecBlob, Data: make([]byte, 39)},
		{Kind: KindPut, Index: 1, Data: make([]byte, DataBytesMax+1)},
		{Kind: KindPut, Index: 1, Attributes: make([]byte, AttributesBytesMax+1)},
		{Kind: KindDelete, Index: 1, Data: []byte{1}},
		{Kind: KindDelete, Index: 1, Codec: CodecBlob},
		{Kind: KindEmpty, Index: 1, Data: []byte{1}},
		{Kind: KindEmpty, Index: 1, ID: 1},
		{Kind: KindConf, Index: 1, CommitTime: 1},
		{Kind: KindState, Data: make([]byte, 41)},
		{Kind: KindState, Index: 1, Data: make([]byte, 40)},
	}
	for _, e := range bad {
		if e.Check() == nil {
			t.Errorf("%s entry %+v passes", e.Kind, e)
		}
		if _, _, err := DecodeFrame(AppendFrame(nil, testSegment, 128, &e), testSegment, 128); err == nil {
			t.Errorf("%s entry: its frame passes", e.Kind)
		}
	}
	for _, e := range sampleEntries() {
		if err := e.Check(); err != nil {
			t.Error(err)
		}
	}
}

func TestPayloadRoundTripsThroughRaft(t *testing.T) {
	for _, e := range sampleEntries() {
		r := RaftEntry(&e)
		if e.Kind == KindState {
			if r != nil {
				t.Error("a state record became a Raft entry")
			}
			continue
		}
		e.Used = false
		got, err := DecodePayload(r)
		if err != nil || !sameEntry(got, e) {
			t.Errorf("%s: %+v, %v", e.Kind, got, err)
		}
		again := RaftEntry(&got)
		if !proto.Equal(r, again) {
			t.Errorf("%s: %v became %v", e.Kind, r, again)
		}
	}
}

func TestPayloadOfAFirstKindMembershipChangeIsTheSecondKind(t *testing.T) {
	id := uint64(7)
	change := &raftpb.ConfChange{NodeId: &id}
	data, err := proto.Marshal(change)
	ok(t, err)
	kind, one := raftpb.EntryConfChange, uint64(1)
	e, err := DecodePayload(&raftpb.Entry{Type: &kind, Index: &one, Term: &one, Data: data})
	ok(t, err)
	var got raftpb.ConfChangeV2
	if err := proto.Unmarshal(e.Data, &got); err != nil || !proto.Equal(&got, change.AsV2()) {
		t.Errorf("%v, %v", &got, err)
	}
}

func TestAttributesLimits(t *testing.T) {
	full := map[string][]byte{"k": make([]byte, AttributesBytesMax-7)}
	b, err := EncodeAttributes(full)
	if err != nil || len(b) != AttributesBytesMax {
		t.Fatalf("%d bytes, %v", len(b), err)
	}
	got, err := DecodeAttributes(b)
	if err != nil || !reflect.DeepEqual(got, full) {
		t.Error("64 KiB of attributes do not round-trip", err)
	}
	for what, a := range map[string]map[string][]byte{
		"one byte too much": {"k": make([]byte, AttributesBytesMax-6)},
		"empty key":         {"": {1}},
		"long key":          {string(make([]byte, 256)): {1}},
		"key not UTF-8":     {"\xff": {1}},
	} {
		if _, err := EncodeAttributes(a); err == nil {
			t.Errorf("%s passes", what)
		}
	}
	for i, b := range [][]byte{{1}, {1, 0, 0, 0, 0, 0}, {1, 0, 255, 255, 255, 255, 'a'}, {0, 0, 0, 0, 0, 0},
		{1, 0, 0, 0, 0, 0, 'b', 1, 0, 0, 0, 0, 0, 'a'}, {1, 0, 0, 0, 0, 0, 'a', 1, 0, 0, 0, 0, 0, 'a'}} {
		if _, err := DecodeAttributes(b); !errors.Is(err, ErrCorrupt) {
			t.Errorf("%d: %v", i, err)
		}
	}
}

func TestEveryBitOfASegmentHeaderIsChecked(t *testing.T) {
	b := sampleHeader().Encode()
	if got, err := DecodeSegmentHeader(b); err != nil || got != sampleHeader() {
		t.Fatal(got, err)
	}
	flipEveryBit(t, b, func() error { _, err := DecodeSegmentHeader(b); return err })
}

func TestNewerVersionIsNotDamage(t *testing.T) {
	header := sampleHeader().Encode()
	header[8] = segmentVersionRequests + 1
	putUint32(header[124:], Checksum(header[:124]))
	_, headerErr := DecodeSegmentHeader(header)

	newer := func(b []byte, length int) []byte {
		b[8]++
		putUint32(b[12:], headChecksum(b[:length]))
		return b
	}
	manifest, err := sampleHistory().Encode()
	if err != nil {
		t.Fatal(err)
	}
	length := int(manifest[16]) + int(manifest[17])<<8
	newer(manifest, length)
	newer(manifest[len(manifest)/2:], length)
	_, _, manifestErr := DecodeManifest(manifest)

	hint, err := sampleHint().Encode()
	ok(t, err)
	_, hintErr := DecodeHint(newer(hint, len(hint)))
	_, markErr := DecodeMark(newer(EncodeMark(Mark{}), markFields), 0)
	for what, err := range map[string]error{"segment": headerErr, "manifest": manifestErr, "hint": hintErr,
		"mark": markErr} {
		if !errors.Is(err, ErrFormatVersion) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

func sampleManifest() *Manifest {
	autoLeave := true
	return &Manifest{
		Identity: Identity{Store: uuid.UUID{1}, Group: uuid.UUID{2, 15: 3}, Name: "quotes/ÄÖ"},
		Sequence: 9,
		Segments: []ManifestSegment{
			{Number: 4, ID: SegmentID{4}, FirstIndex: 1, LastIndex: 100, Bytes: 1 << 20},
			{Number: 2, ID: SegmentID{2}, FirstIndex: 101, LastIndex: 100, Bytes: 128},
			{Number: 5, ID: SegmentID{5}, FirstIndex: 101},
		},
		CompactedThrough: 50, CompactedTerm: 3, TombstoneFloor: 40, ConfIndex: 60, AcceptedThrough: 20, NextSegment: 6,
		Conf: &raftpb.ConfState{Voters: []uint64{1, 2}, Learners: []uint64{3}, VotersOutgoing: []uint64{1},
			LearnersNext: []uint64{4}, AutoLeave: &autoLeave},
		HardState: StateRecord{Term: 4, Vote: 1, Commit: 99, SyncedOffset: 128, SyncedIndex: 98},
	}
}

// sampleHistory returns a version 2 manifest.
func sampleHistory() *Manifest {
	m := sampleManifest()
	m.HistoryKnown, m.HistoryFloor = true, 77
	return m
}

func sameManifest(a, b *Manifest) bool {
	confA, confB := a.Conf, b.Conf
	x, y := *a, *b
	x.Conf, y.Conf = nil, nil
	return reflect.DeepEqual(x, y) && proto.Equal(confA, confB)
}

func TestEveryBitOfTheManifestIsHealedAndNoticed(t *testing.T) {
	for _, want := range []*Manifest{sampleManifest(), sampleHistory()} {
		everyBitOfTheManifest(t, want)
	}
}

func everyBitOfTheManifest(t *testing.T, want *Manifest) {
	t.Helper()
	b, err := want.Encode()
	ok(t, err)
	got, bad, err := DecodeManifest(b)
	if err != nil || bad != [2]error{} || !sameManifest(got, want) {
		t.Fatalf("%+v, %v, %v", got, bad, err)
	}
	step := 1
	if testing.Short() {
		step = 13
	}
	for bit := 0; bit < len(b)*8; bit += step {
		b[bit/8] ^= 1 << (bit % 8)
		got, bad, err := DecodeManifest(b)
		hit := bit / 8 / (len(b) / 2)
		if err != nil || !errors.Is(bad[hit], ErrCorrupt) || bad[1-hit] != nil || !sameManifest(got, want) {
			t.Fatalf("byte %d: %v, %v", bit/8, bad, err)
		}
		b[bit/8] ^= 1 << (bit % 8)
	}
}

// TestOnlyManifestsOfVersion2HaveAHistoryFloor checks that a manifest has a history floor if and only if its version is
// 2. A history floor of 0 also needs version 2.
func TestOnlyManifestsOfVersion2HaveAHistoryFloor(t *testing.T) {
	m := sampleManifest()
	for _, c := range []struct {
		known   bool
		floor   uint64
		version byte
		wants   error
	}{{false, 0, 1, nil}, {true, 0, 2, nil}, {true, NumberMax, 2, nil}, {false, 1, 0, ErrCorrupt},
		{true, NumberMax + 1, 0, ErrCorrupt}} {
		m.HistoryKnown, m.HistoryFloor = c.known, c.floor
		b, err := m.Encode()
		if !errors.Is(err, c.wants) {
			t.Errorf("%+v: %v", c, err)
		}
		if c.wants != nil {
			continue
		}
		if got, _, err := DecodeManifest(b); err != nil || b[8] != c.version || !sameManifest(got, m) {
			t.Errorf("%+v: version %d, %+v, %v", c, b[8], got, err)
		}
	}
}

func TestManifestOfEveryTruncatedLengthIsWholeOrRefused(t *testing.T) {
	want := sampleManifest()
	b, err := want.Encode()
	ok(t, err)
	for n := range len(b) {
		got, bad, err := DecodeManifest(b[:n])
		if err == nil && (!sameManifest(got, want) || bad == [2]error{}) {
			t.Fatalf("%d bytes: %+v, %v", n, got, bad)
		}
	}
}

func TestManifestRefusesWhatItCouldNotRead(t *testing.T) {
	for what, change := range map[string]func(*Manifest){
		"no name":              func(m *Manifest) { m.Identity.Name = "" },
		"long name":            func(m *Manifest) { m.Identity.Name = fmt.Sprintf("%254d", 1) },
		"number twice":         func(m *Manifest) { m.Segments[1].Number = 4 },
		"id twice":             func(m *Manifest) { m.Segments[1].ID = SegmentID{4} },
		"number above next":    func(m *Manifest) { m.NextSegment = 5 },
		"active in the middle": func(m *Manifest) { m.Segments[1].Bytes, m.Segments[1].LastIndex = 0, 0 },
		"indexes fall":         func(m *Manifest) { m.Segments[2].FirstIndex = 3 },
		"negative mark":        func(m *Manifest) { m.HardState.SyncedOffset = -1 },
	} {
		m := sampleManifest()
		change(m)
		if _, err := m.Encode(); !errors.Is(err, ErrCorrupt) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

func TestEveryBitOfAMarkIsChecked(t *testing.T) {
	want := Mark{Sequence: 7, Segment: testSegment, Offset: 4096, Index: 12}
	b := EncodeMark(want)
	if got, err := DecodeMark(b, 1); err != nil || got != want {
		t.Fatal(got, err)
	}
	if _, err := DecodeMark(b, 0); err == nil {
		t.Error("passes in the wrong slot")
	}
	flipEveryBit(t, b, func() error { _, err := DecodeMark(b, 1); return err })
}

func TestMarkFileTakesTheNewerWholeSlot(t *testing.T) {
	file := append(EncodeMark(Mark{Sequence: 8, Offset: 800}), EncodeMark(Mark{Sequence: 7, Offset: 700})...)
	if m, found, bad := DecodeMarkFile(file); m.Offset != 800 || !found || bad != [2]error{} {
		t.Error(m, found, bad)
	}
	file[3]++
	if m, found, bad := DecodeMarkFile(file); m.Offset != 700 || !found || bad[0] == nil || bad[1] != nil {
		t.Error(m, found, bad)
	}
	if _, found, bad := DecodeMarkFile(make([]byte, MarkFileBytes)); found || bad != [2]error{} {
		t.Error("an unwritten mark file", found, bad)
	}
}

func TestEveryBitOfABlobReferenceIsChecked(t *testing.T) {
	want := BlobRef{ID: uuid.UUID{1, 15: 2}, Size: 3 << 30, CRC32C: 77}
	b := want.Encode()
	if got, err := DecodeBlobRef(b); err != nil || got != want {
		t.Fatal(got, err)
	}
	flipEveryBit(t, b, func() error { _, err := DecodeBlobRef(b); return err })
}

func TestHardStateMergesInAnyOrder(t *testing.T) {
	records := []StateRecord{{Term: 1, Vote: 1, Commit: 3}, {Term: 2, Commit: 5}, {Term: 2, Vote: 4, Commit: 5},
		{Term: 2, Commit: 9}}
	random := rand.New(rand.NewPCG(soaktest.Seed(t, 1), 0))
	for range 20 {
		random.Shuffle(len(records), func(i, j int) { records[i], records[j] = records[j], records[i] })
		var s StateRecord
		for _, r := range records {
			s.MergeHardState(r)
		}
		if s.Term != 2 || s.Vote != 4 || s.Commit != 9 {
			t.Errorf("%+v from %+v", s, records)
		}
	}
}

func TestChecksumWordIsTheChecksumOfItsBytes(t *testing.T) {
	random := rand.New(rand.NewPCG(soaktest.Seed(t, 1), 0))
	for range 1000 {
		crc, w := random.Uint32(), random.Uint64()
		b := []byte{byte(w), byte(w >> 8), byte(w >> 16), byte(w >> 24), byte(w >> 32), byte(w >> 40), byte(w >> 48),
			byte(w >> 56)}
		if got, want := checksumWord(crc, w), crc32.Update(crc, crc32c.Table, b); got != want {
			t.Fatalf("%x, want %x", got, want)
		}
	}
}

func BenchmarkFrame(b *testing.B) {
	for _, size := range []int{100, 1000, 10000} {
		e := sampleEntries()[2]
		e.Data = make([]byte, size)
		frame := AppendFrame(nil, testSegment, 128, &e)
		b.Run(fmt.Sprintf("append/%d", size), func(b *testing.B) {
			b.SetBytes(int64(len(frame)))
			for b.Loop() {
				frame = AppendFrame(frame[:0], testSegment, 128, &e)
			}
		})
		b.Run(fmt.Sprintf("decode/%d", size), func(b *testing.B) {
			b.SetBytes(int64(len(frame)))
			for b.Loop() {
				if _, _, err := DecodeFrame(frame, testSegment, 128); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
