package group

import (
	"bytes"
	"errors"
	"reflect"
	"testing"

	"github.com/google/uuid"

	"sheaf.dev/sheaf/internal/vfs/vfstest"
)

// samplePiece is a second piece, with a row every 88 bytes.
func samplePiece() *hintPiece {
	p := &hintPiece{segment: testSegment, first: 10, begin: 1 << 12, end: 1 << 14, lastBefore: 30, last: 200, rowsBefore: 15,
		terms: []TermRun{{31, 1}, {50, 3}},
		table: rowTable{lastCommit: 99, blobs: []HintBlob{{Index: 42, Ref: BlobRef{ID: uuid.UUID{1}, Size: 2 << 20, CRC32C: 5}}}}}
	for i := range 71 {
		p.table.ids = append(p.table.ids, int64(i)*7-100)
		p.table.places = append(p.table.places, uint64(1<<12+88*i)/8<<16|2<<1|uint64(i%2))
		p.table.indexes = append(p.table.indexes, uint32(21+i+i/50))
	}
	return p
}

func TestEveryBitOfAPieceIsChecked(t *testing.T) {
	want := samplePiece()
	b := want.encode()
	got, length, err := decodePiece(append(bytes.Clone(b), "what follows"...))
	if err != nil || length != int64(len(b)) || !reflect.DeepEqual(got, want) {
		t.Fatalf("%+v, %d of %d bytes, %v", got, length, len(b), err)
	}
	flipEveryBit(t, b, func() error { _, _, err := decodePiece(b); return err })
	for n := range b {
		if _, _, err := decodePiece(b[:n]); !errors.Is(err, ErrCorrupt) {
			t.Fatalf("%d bytes: %v", n, err)
		}
	}
}

func TestPieceWithARightChecksumAndWrongContentIsRefused(t *testing.T) {
	good := samplePiece()
	for what, change := range map[string]func(p *hintPiece){
		"first index 0":                     func(p *hintPiece) { p.first = 0 },
		"last index below that before":      func(p *hintPiece) { p.last = 29 },
		"index of a row behind the last":    func(p *hintPiece) { p.last = 90 },
		"begin in the header":               func(p *hintPiece) { p.begin = 64 },
		"end in front of begin":             func(p *hintPiece) { p.end = 1 << 11 },
		"a row that ends behind the end":    func(p *hintPiece) { p.end = 1<<12 + 88*70 },
		"end that is no offset of a frame":  func(p *hintPiece) { p.end++ },
		"end above the greatest offset":     func(p *hintPiece) { p.end = 1 << 40 },
		"two rows at one place":             func(p *hintPiece) { p.table.places[7] = p.table.places[6] },
		"rows out of order":                 func(p *hintPiece) { p.table.places[7], p.table.places[6] = p.table.places[6], p.table.places[7] },
		"two rows of one index":             func(p *hintPiece) { p.table.indexes[7] = p.table.indexes[6] },
		"a row of an index before":          func(p *hintPiece) { p.table.indexes[0] = 20 },
		"a row shorter than a frame":        func(p *hintPiece) { p.table.places[3] &^= 1<<16 - 1 },
		"a term run of an entry before":     func(p *hintPiece) { p.terms[0].FirstIndex = 30 },
		"a term run of an entry behind":     func(p *hintPiece) { p.terms[1].FirstIndex = 201 },
		"terms that fall":                   func(p *hintPiece) { p.terms[1].Term = 1 },
		"a blob of an entry before":         func(p *hintPiece) { p.table.blobs[0].Index = 30 },
		"a blob of an entry behind":         func(p *hintPiece) { p.table.blobs[0].Index = 201 },
		"negative count of the rows before": func(p *hintPiece) { p.rowsBefore = -1 },
	} {
		p := samplePiece()
		change(p)
		if _, _, err := decodePiece(p.encode()); !errors.Is(err, ErrCorrupt) {
			t.Errorf("%s: %v", what, err)
		}
	}
	b := good.encode()
	for what, at := range map[string]int{"length": 80, "rows": 84, "runs": 88, "blobs": 92, "length at the end": len(b) - 8, "padding": len(b) - 9} {
		c := bytes.Clone(b)
		c[at] += 8
		putUint32(c[12:], headChecksum(c))
		if _, _, err := decodePiece(c); !errors.Is(err, ErrCorrupt) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// A plan looks at the last piece alone, however long it is; what it cannot use says nothing.
func TestLastPieceOfAHint(t *testing.T) {
	fs, m := vfstest.NewMem(), ManifestSegment{Number: 3, ID: testSegment, FirstIndex: 10}
	must(t, fs.MkdirAll("/g"))
	small, large := samplePiece(), samplePiece()
	large.begin, large.lastBefore, large.rowsBefore, large.last = small.end, small.last, 86, 1<<20
	large.table, large.terms, large.end = rowTable{}, nil, 1<<20
	for i := range 10_000 {
		large.table.ids = append(large.table.ids, int64(i))
		large.table.places = append(large.table.places, uint64(1<<14+88*i)/8<<16|2<<1)
		large.table.indexes = append(large.table.indexes, uint32(200+i))
	}
	for _, c := range []struct {
		what string
		file []byte
		want hintPart
	}{
		{"a small one", small.encode(), hintPart{end: 1 << 14, last: 200, rows: 86}},
		{"a large one", append(small.encode(), large.encode()...), hintPart{end: 1 << 20, last: 1 << 20, rows: 10_086}},
		{"a torn one", large.encode()[:30_000], hintPart{}},
		{"nothing", nil, hintPart{}},
		{"a few bytes", []byte("12345678"), hintPart{}},
		{"zeros", make([]byte, 20_000), hintPart{}},
		{"a length that is impossible", append(small.encode(), 255, 255, 255, 255, 255, 255, 255, 255), hintPart{}},
	} {
		must(t, writeReplace(fs, "/g", ActiveHintName, c.file))
		h, found := lastPiece(fs, "/g", m)
		h.bytes = 0
		if found != (c.want.end != 0) || found && h != c.want {
			t.Errorf("%s: %+v, %v", c.what, h, found)
		}
	}
	must(t, writeReplace(fs, "/g", ActiveHintName, small.encode()))
	m.ID[0]++
	if h, found := lastPiece(fs, "/g", m); found {
		t.Errorf("of another segment: %+v", h)
	}
}

// Pieces count as far as one continues the other.
func TestPiecesContinueOneAnother(t *testing.T) {
	m := ManifestSegment{Number: 3, ID: testSegment, FirstIndex: 10}
	first := &hintPiece{segment: testSegment, first: 10, begin: SegmentHeaderBytes, end: 1 << 12, lastBefore: 9, last: 30, terms: []TermRun{{10, 1}}}
	for range 15 {
		n := len(first.table.ids)
		first.table.ids = append(first.table.ids, int64(n))
		first.table.places = append(first.table.places, uint64(128+88*n)/8<<16|2<<1)
		first.table.indexes = append(first.table.indexes, uint32(n))
	}
	for what, c := range map[string]struct {
		change func(p *hintPiece)
		fits   bool
	}{
		"as it was":                 {func(p *hintPiece) { p.terms = p.terms[1:] }, true},
		"of another segment":        {func(p *hintPiece) { p.terms, p.segment[0] = p.terms[1:], 77 }, false},
		"of another first index":    {func(p *hintPiece) { p.terms, p.first = p.terms[1:], 11 }, false},
		"begins elsewhere":          {func(p *hintPiece) { p.terms, p.begin = p.terms[1:], 1<<12+8 }, false},
		"begins at another index":   {func(p *hintPiece) { p.terms, p.lastBefore = p.terms[1:], 29 }, false},
		"another count of rows":     {func(p *hintPiece) { p.terms, p.rowsBefore = p.terms[1:], 16 }, false},
		"a term that does not rise": {func(*hintPiece) {}, false},
	} {
		h := new(activeHint)
		if !h.add(first, m, 100) || h.hintPart != (hintPart{end: 1 << 12, last: 30, rows: 15, bytes: 100}) {
			t.Fatalf("%s: the first piece: %+v", what, h.hintPart)
		}
		p := samplePiece()
		c.change(p)
		if fits := h.add(p, m, 10); fits != c.fits || len(h.table.ids) != int(h.rows) {
			t.Errorf("%s: %v, %+v", what, fits, h.hintPart)
		}
	}
	if new(activeHint).add(samplePiece(), m, 10) {
		t.Error("a second piece counts as the first one")
	}
	first.terms = nil
	if new(activeHint).add(first, m, 10) {
		t.Error("a hint without the term of its first entry")
	}
}
