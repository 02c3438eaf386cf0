package format

import (
	"bytes"
	"errors"
	"reflect"
	"testing"

	"sheaf.dev/sheaf/internal/test/must"
	"sheaf.dev/sheaf/internal/test/vfstest"
)

func TestEveryBitOfAPieceIsChecked(t *testing.T) {
	want := samplePiece()
	b := want.Encode()
	got, length, err := DecodePiece(append(bytes.Clone(b), "what follows"...))
	if err != nil || length != int64(len(b)) || !reflect.DeepEqual(got, want) {
		t.Fatalf("%+v, %d of %d bytes, %v", got, length, len(b), err)
	}
	flipEveryBit(t, b, func() error { _, _, err := DecodePiece(b); return err })
	for n := range b {
		if _, _, err := DecodePiece(b[:n]); !errors.Is(err, ErrCorrupt) {
			t.Fatalf("%d bytes: %v", n, err)
		}
	}
}

func TestPieceWithARightChecksumAndWrongContentIsRefused(t *testing.T) {
	good := samplePiece()
	for what, change := range map[string]func(p *HintPiece){
		"first index 0":                    func(p *HintPiece) { p.First = 0 },
		"last index below that before":     func(p *HintPiece) { p.Last = 29 },
		"index of a row behind the last":   func(p *HintPiece) { p.Last = 90 },
		"begin in the header":              func(p *HintPiece) { p.Begin = 64 },
		"end in front of begin":            func(p *HintPiece) { p.End = 1 << 11 },
		"a row that ends behind the end":   func(p *HintPiece) { p.End = 1<<12 + 88*70 },
		"end that is no offset of a frame": func(p *HintPiece) { p.End++ },
		"end above the greatest offset":    func(p *HintPiece) { p.End = 1 << 40 },
		"two rows at one place":            func(p *HintPiece) { p.Table.Places[7] = p.Table.Places[6] },
		"rows out of order": func(p *HintPiece) {
			p.Table.Places[7], p.Table.Places[6] = p.Table.Places[6], p.Table.Places[7]
		},
		"two rows of one index":             func(p *HintPiece) { p.Table.Indexes[7] = p.Table.Indexes[6] },
		"a row of an index before":          func(p *HintPiece) { p.Table.Indexes[0] = 20 },
		"a row shorter than a frame":        func(p *HintPiece) { p.Table.Places[3] &^= 1<<16 - 1 },
		"a term run of an entry before":     func(p *HintPiece) { p.Terms[0].FirstIndex = 30 },
		"a term run of an entry behind":     func(p *HintPiece) { p.Terms[1].FirstIndex = 201 },
		"terms that fall":                   func(p *HintPiece) { p.Terms[1].Term = 1 },
		"a blob of an entry before":         func(p *HintPiece) { p.Table.Blobs[0].Index = 30 },
		"a blob of an entry behind":         func(p *HintPiece) { p.Table.Blobs[0].Index = 201 },
		"negative count of the rows before": func(p *HintPiece) { p.RowsBefore = -1 },
	} {
		p := samplePiece()
		change(p)
		if _, _, err := DecodePiece(p.Encode()); !errors.Is(err, ErrCorrupt) {
			t.Errorf("%s: %v", what, err)
		}
	}
	b := good.Encode()
	for what, at := range map[string]int{"length": 80, "rows": 84, "runs": 88, "blobs": 92,
		"length at the end": len(b) - 8, "padding": len(b) - 9} {
		c := bytes.Clone(b)
		c[at] += 8
		putUint32(c[12:], headChecksum(c))
		if _, _, err := DecodePiece(c); !errors.Is(err, ErrCorrupt) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// TestLastPieceOfAHint checks that a plan reads only a hint's last piece, however long that piece is. If the plan
// cannot use the piece, it is the same as the plan without a hint.
func TestLastPieceOfAHint(t *testing.T) {
	fs, m := vfstest.NewMem(), ManifestSegment{Number: 3, ID: testSegment, FirstIndex: 10}
	must.OK(t, fs.MkdirAll("/g"))
	small, large := samplePiece(), samplePiece()
	large.Begin, large.LastBefore, large.RowsBefore, large.Last = small.End, small.Last, 86, 1<<20
	large.Table, large.Terms, large.End = Rows{}, nil, 1<<20
	for i := range 10_000 {
		large.Table.IDs = append(large.Table.IDs, int64(i))
		large.Table.Places = append(large.Table.Places, uint64(1<<14+88*i)/8<<16|2<<1)
		large.Table.Indexes = append(large.Table.Indexes, uint32(200+i))
	}
	for _, c := range []struct {
		what string
		file []byte
		want HintPart
	}{
		{"a small one", small.Encode(), HintPart{End: 1 << 14, Last: 200, Rows: 86}},
		{"a large one", append(small.Encode(), large.Encode()...), HintPart{End: 1 << 20, Last: 1 << 20, Rows: 10_086}},
		{"a torn one", large.Encode()[:30_000], HintPart{}},
		{"nothing", nil, HintPart{}},
		{"a few bytes", []byte("12345678"), HintPart{}},
		{"zeros", make([]byte, 20_000), HintPart{}},
		{"a length that is impossible", append(small.Encode(), 255, 255, 255, 255, 255, 255, 255, 255), HintPart{}},
	} {
		must.OK(t, WriteReplace(fs, "/g", ActiveHintName, c.file))
		h, found := LastPiece(fs, "/g", m)
		h.Bytes = 0
		if found != (c.want.End != 0) || found && h != c.want {
			t.Errorf("%s: %+v, %v", c.what, h, found)
		}
	}
	must.OK(t, WriteReplace(fs, "/g", ActiveHintName, small.Encode()))
	m.ID[0]++
	if h, found := LastPiece(fs, "/g", m); found {
		t.Errorf("of another segment: %+v", h)
	}
}

// TestPiecesContinueOneAnother checks that pieces are used up to the first piece that does not continue the piece
// before it.
func TestPiecesContinueOneAnother(t *testing.T) {
	m := ManifestSegment{Number: 3, ID: testSegment, FirstIndex: 10}
	first := &HintPiece{Segment: testSegment, First: 10, Begin: SegmentHeaderBytes, End: 1 << 12, LastBefore: 9, Last: 30,
		Terms: []TermRun{{10, 1}}}
	for range 15 {
		n := len(first.Table.IDs)
		first.Table.IDs = append(first.Table.IDs, int64(n))
		first.Table.Places = append(first.Table.Places, uint64(128+88*n)/8<<16|2<<1)
		first.Table.Indexes = append(first.Table.Indexes, uint32(n))
	}
	for what, c := range map[string]struct {
		change func(p *HintPiece)
		fits   bool
	}{
		"as it was":                 {func(p *HintPiece) { p.Terms = p.Terms[1:] }, true},
		"of another segment":        {func(p *HintPiece) { p.Terms, p.Segment[0] = p.Terms[1:], 77 }, false},
		"of another first index":    {func(p *HintPiece) { p.Terms, p.First = p.Terms[1:], 11 }, false},
		"begins elsewhere":          {func(p *HintPiece) { p.Terms, p.Begin = p.Terms[1:], 1<<12+8 }, false},
		"begins at another index":   {func(p *HintPiece) { p.Terms, p.LastBefore = p.Terms[1:], 29 }, false},
		"another count of rows":     {func(p *HintPiece) { p.Terms, p.RowsBefore = p.Terms[1:], 16 }, false},
		"a term that does not rise": {func(*HintPiece) {}, false},
	} {
		h := new(ActiveHint)
		if !h.add(first, m, 100) || h.HintPart != (HintPart{End: 1 << 12, Last: 30, Rows: 15, Bytes: 100}) {
			t.Fatalf("%s: the first piece: %+v", what, h.HintPart)
		}
		p := samplePiece()
		c.change(p)
		if fits := h.add(p, m, 10); fits != c.fits || len(h.Table.IDs) != int(h.Rows) {
			t.Errorf("%s: %v, %+v", what, fits, h.HintPart)
		}
	}
	if new(ActiveHint).add(samplePiece(), m, 10) {
		t.Error("a second piece counts as the first one")
	}
	first.Terms = nil
	if new(ActiveHint).add(first, m, 10) {
		t.Error("a hint without the term of its first entry")
	}
}
