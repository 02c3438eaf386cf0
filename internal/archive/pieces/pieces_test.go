package pieces

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"reflect"
	"testing"
	"testing/iotest"
	"time"

	"github.com/google/uuid"

	"sheaf.dev/sheaf/internal/archive/object"
	"sheaf.dev/sheaf/internal/storage/group/format"
	"sheaf.dev/sheaf/internal/test/soaktest"
)

var (
	store = uuid.MustParse("11111111-2222-3333-4444-555555555555")
	group = uuid.MustParse("66666666-7777-8888-9999-aaaaaaaaaaaa")
)

// entries returns one entry of each kind. There are gaps between their indexes.
func entries() []format.Entry {
	put := func(at uint64, n int) format.Entry {
		return format.Entry{
			Kind: format.KindPut, ID: -7, Index: at, Term: 2, CommitTime: int64(at) * 10, Timestamp: 1, Used: true,
			RequestID: [16]byte{byte(at)}, Data: bytes.Repeat([]byte{byte(at)}, n),
			Attributes: []byte("\x01\x00\x01\x00\x00\x00ab"),
		}
	}
	old := put(9, 50)
	return []format.Entry{
		{Kind: format.KindEmpty, Index: 5, Term: 2, Data: []byte{}},
		put(7, 1001), format.RequestEntry(&old),
		{Kind: format.KindConf, Index: 10, Term: 2, Data: []byte("change")},
		{Kind: format.KindDelete, ID: 3, Index: 20, Term: 3, CommitTime: 200, Used: true, Data: []byte{}},
		put(21, format.DataBytesMax),
		{Kind: format.KindEmpty, Index: 22, Term: 4, Data: []byte{}},
	}
}

func build(t testing.TB, all []format.Entry) *Builder {
	t.Helper()
	b := NewBuilder(store, group, time.Unix(1, 2))
	for i := range all {
		if err := b.Append(&all[i]); err != nil {
			t.Fatal(err)
		}
	}
	return b
}

func finish(t testing.TB, b *Builder) ([]byte, Want) {
	t.Helper()
	segment, err := b.Finish()
	if err != nil {
		t.Fatal(err)
	}
	id := b.ID()
	return bytes.Clone(segment), Want{Store: store, Range: b.Range(), Bytes: int64(len(segment)), ID: &id}
}

func read(src io.Reader, want Want) (all []format.Entry, err error) {
	r := NewReader(src, want)
	for r.Next() {
		e := *r.Entry()
		e.Attributes, e.Data = bytes.Clone(e.Attributes), bytes.Clone(e.Data)
		all = append(all, e)
	}
	return all, r.Err()
}

func TestEntriesAreReadBack(t *testing.T) {
	segment, want := finish(t, build(t, entries()))
	behind := iotest.ErrReader(io.ErrNoProgress) // fails if a byte after the segment is read
	all, err := read(iotest.OneByteReader(io.MultiReader(bytes.NewReader(segment), behind)), want)
	if err != nil || !reflect.DeepEqual(all, entries()) {
		t.Fatalf("error %v; read %+v", err, all)
	}
	got := want.Range
	if got != (object.Range{Group: group, First: 5, Last: 22, FirstCommit: 70, LastCommit: 210, Records: 3}) {
		t.Errorf("range %+v", got)
	}
}

// A frame that is moved to another segment keeps its entry's checksum and used flag.
func TestACopyKeepsTheChecksumOfTheEntry(t *testing.T) {
	segment, want := finish(t, build(t, entries()))
	b := NewBuilder(store, group, time.Unix(3, 0))
	crcs := func(segment []byte, want Want, each func(r *Reader)) (all [][]byte) {
		r := NewReader(bytes.NewReader(segment), want)
		for r.Next() {
			all = append(all, bytes.Clone(r.Frame()[format.AtEntryCRC:format.AtEntryCRC+4]))
			each(r)
		}
		if r.Err() != nil {
			t.Fatal(r.Err())
		}
		return all
	}
	before := crcs(segment, want, func(r *Reader) {
		if r.Entry().Index == 5 {
			return // leave out this entry, so that the later frames move
		}
		e := *r.Entry()
		e.Used = e.Used && e.Index != 7
		if err := b.Copy(&e, r.Frame()); err != nil {
			t.Fatal(err)
		}
	})
	moved, want := finish(t, b)
	after := crcs(moved, want, func(r *Reader) {
		if e := r.Entry(); e.Used != (e.Index > 7 && e.Kind.IsVersion()) {
			t.Errorf("index %d: used is %v", e.Index, e.Used)
		}
	})
	if !reflect.DeepEqual(before[1:], after) {
		t.Error("the checksums of entries are not the same")
	}
}

func TestTruncate(t *testing.T) {
	for from, last := range map[uint64]uint64{0: 0, 5: 0, 6: 5, 7: 5, 8: 7, 20: 10, 22: 21, 23: 22, 99: 22} {
		b := build(t, entries())
		b.Truncate(from)
		if b.Last() != last || b.Empty() != (last == 0) {
			t.Fatalf("truncated from %d, the last entry is %d, not %d", from, b.Last(), last)
		}
		if err := b.Append(&format.Entry{Kind: format.KindEmpty, Index: 30, Term: 9}); err != nil {
			t.Fatal(err)
		}
		segment, want := finish(t, b)
		if _, err := read(bytes.NewReader(segment), want); err != nil {
			t.Errorf("truncated from %d: %v", from, err)
		}
	}
}

func TestEntriesThatFitIntoNoSegmentAreRefused(t *testing.T) {
	b := build(t, entries())
	before, _ := finish(t, b)
	for name, e := range map[string]format.Entry{
		"the last index again": {Kind: format.KindEmpty, Index: 22, Term: 4},
		"a lower index":        {Kind: format.KindEmpty, Index: 6, Term: 4},
		"a state record":       {Kind: format.KindState, Data: format.StateRecord{}.Encode()},
		"an absurd index":      {Kind: format.KindEmpty, Index: format.NumberMax + 1, Term: 4},
		"an absurd term":       {Kind: format.KindEmpty, Index: 23, Term: format.NumberMax + 1},
		"an empty with an id":  {Kind: format.KindEmpty, ID: 1, Index: 23, Term: 4},
		"a lower commit time":  {Kind: format.KindDelete, Index: 23, Term: 4, CommitTime: 209},
		"a negative time":      {Kind: format.KindDelete, Index: 23, Term: 4, CommitTime: -1},
		"an absurd time":       {Kind: format.KindDelete, Index: 23, Term: 4, CommitTime: format.NumberMax + 1},
		"an unknown kind":      {Kind: 99, Index: 23, Term: 4},
		"a jump of 2^32":       {Kind: format.KindEmpty, Index: 5 + 1<<32, Term: 4},
	} {
		err, copied := b.Append(&e), b.Copy(&e, make([]byte, 80))
		if err == nil || copied == nil {
			t.Errorf("%s passes", name)
		}
		if errors.Is(err, ErrSpan) != (name == "a jump of 2^32") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if after, _ := finish(t, b); !bytes.Equal(before, after) {
		t.Error("refused entries changed the segment")
	}
	if err := b.Append(&format.Entry{Kind: format.KindEmpty, Index: 4 + 1<<32, Term: 4}); err != nil {
		t.Error(err)
	}
}

// The final check before an object is created detects entries that were damaged in memory.
func TestSegmentDamagedInMemoryIsNotFinished(t *testing.T) {
	dice := rand.New(rand.NewPCG(soaktest.Seed(t, 1), 0))
	for range 50 {
		b := build(t, entries())
		at := format.SegmentHeaderBytes + dice.IntN(len(b.buf)-format.SegmentHeaderBytes)
		b.buf[at] ^= 1 << dice.IntN(8)
		if _, err := b.Finish(); !errors.Is(err, object.ErrCorrupt) {
			t.Fatalf("offset %d: error %v", at, err)
		}
	}
}

func TestAChangedSegmentIsRefused(t *testing.T) {
	all := entries()
	all[5].Data = all[5].Data[:100]
	segment, want := finish(t, build(t, all))
	for at := range segment {
		changed := bytes.Clone(segment)
		changed[at] ^= 0x10
		if _, err := read(bytes.NewReader(changed), want); !errors.Is(err, object.ErrCorrupt) {
			t.Fatalf("offset %d: error %v", at, err)
		}
	}
	for n := range segment {
		if _, err := read(bytes.NewReader(segment[:n]), want); !errors.Is(err, object.ErrCorrupt) {
			t.Fatalf("%d bytes: error %v", n, err)
		}
		short := want
		short.Bytes = int64(n)
		if _, err := read(bytes.NewReader(segment), short); !errors.Is(err, object.ErrCorrupt) {
			t.Fatalf("%d bytes are wanted: error %v", n, err)
		}
	}
	if _, err := read(bytes.NewReader(append(segment, make([]byte, 80)...)), Want{
		Store: store, Range: want.Range, Bytes: want.Bytes + 80,
	}); !errors.Is(err, object.ErrCorrupt) {
		t.Errorf("zeros behind the last frame: error %v", err)
	}
	broken := errors.New("broken")
	src := io.MultiReader(bytes.NewReader(segment[:300]), iotest.ErrReader(broken))
	if _, err := read(src, want); !errors.Is(err, broken) || errors.Is(err, object.ErrCorrupt) {
		t.Errorf("error of the source: %v", err)
	}
}

func TestSegmentThatContradictsItsHeaderIsRefused(t *testing.T) {
	segment, right := finish(t, build(t, entries()))
	for name, change := range map[string]func(w *Want){
		"store":        func(w *Want) { w.Store = group },
		"group":        func(w *Want) { w.Group = store },
		"id":           func(w *Want) { w.ID = &format.SegmentID{1} },
		"first":        func(w *Want) { w.First-- },
		"last above":   func(w *Want) { w.Last++ },
		"last below":   func(w *Want) { w.Last-- },
		"records":      func(w *Want) { w.Records++ },
		"first commit": func(w *Want) { w.FirstCommit-- },
		"last commit":  func(w *Want) { w.LastCommit++ },
	} {
		want := right
		change(&want)
		if _, err := read(bytes.NewReader(segment), want); !errors.Is(err, object.ErrCorrupt) {
			t.Errorf("another %s: error %v", name, err)
		}
	}
	right.ID, right.Name, right.Floor = nil, "any", 99
	if _, err := read(bytes.NewReader(segment), right); err != nil {
		t.Error(err)
	}
}

// Both checksums of each frame are correct. Only the order of the frames is wrong.
func TestFramesInAnotherOrderAreRefused(t *testing.T) {
	e := func(at uint64, commit int64) format.Entry {
		return format.Entry{Kind: format.KindDelete, ID: 1, Index: at, Term: 1, CommitTime: commit}
	}
	state := format.Entry{Kind: format.KindState, Data: format.StateRecord{}.Encode()}
	for name, all := range map[string][]format.Entry{
		"an index twice":         {e(5, 1), e(6, 1), e(6, 1), e(9, 9)},
		"a lower index":          {e(5, 1), e(7, 1), e(6, 1), e(9, 9)},
		"a lower commit time":    {e(5, 1), e(6, 5), e(7, 4), e(9, 9)},
		"a state record":         {e(5, 1), state, e(7, 4), e(9, 9)},
		"an index above last":    {e(5, 1), e(10, 1), e(11, 1), e(12, 9)},
		"an index below first":   {e(4, 1), e(5, 1), e(6, 1), e(9, 9)},
		"the last one is absent": {e(5, 1), e(6, 1), e(7, 1), e(8, 9)},
	} {
		h := format.SegmentHeader{Store: store, Group: group, FirstIndex: 5, Rewritten: true}
		segment := h.Encode()
		for i := range all {
			segment = format.AppendFrame(segment, h.ID, int64(len(segment)), &all[i])
		}
		want := Want{Store: store, Bytes: int64(len(segment)), Range: object.Range{
			Group: group, First: 5, Last: 9, FirstCommit: 1, LastCommit: 9, Records: 4,
		}}
		if _, err := read(bytes.NewReader(segment), want); !errors.Is(err, object.ErrCorrupt) {
			t.Errorf("%s: error %v", name, err)
		}
	}
}

func TestANewerSegmentIsReportedAsNewer(t *testing.T) {
	segment, want := finish(t, build(t, entries()))
	segment[8] = 3
	crc := format.Checksum(segment[:124])
	for i := range 4 {
		segment[124+i] = byte(crc >> (8 * i))
	}
	if _, err := read(bytes.NewReader(segment), want); !errors.Is(err, object.ErrVersion) {
		t.Errorf("error %v", err)
	}
}

func FuzzReader(f *testing.F) {
	all := entries()
	all[5].Data = all[5].Data[:100]
	segment, want := finish(f, build(f, all))
	f.Add(segment)
	f.Fuzz(func(t *testing.T, b []byte) {
		all, err := read(bytes.NewReader(b), want)
		if err != nil && !errors.Is(err, object.ErrCorrupt) && !errors.Is(err, object.ErrVersion) {
			t.Fatal(err)
		}
		if err == nil && len(all) != len(entries()) {
			t.Fatalf("%d entries", len(all))
		}
	})
}
