package format

import (
	"bytes"
	"cmp"
	"errors"
	"path/filepath"
	"slices"
	"testing"

	"github.com/google/uuid"

	"sheaf.dev/sheaf/internal/storage/index"
	"sheaf.dev/sheaf/internal/storage/vfs"
	"sheaf.dev/sheaf/internal/test/must"
)

// writeBlob writes data in pieces of the given length.
func writeBlob(t testing.TB, fs vfs.FS, dir string, data []byte, piece int) BlobRef {
	t.Helper()
	w, err := CreateBlob(fs, dir)
	ok(t, err)
	for rest := data; len(rest) > 0; {
		n, err := w.Write(rest[:min(piece, len(rest))])
		ok(t, err)
		rest = rest[n:]
	}
	ref, err := w.Commit()
	ok(t, err)
	ok(t, w.Close())
	return ref
}

func putUint32(b []byte, v uint32) {
	b[0], b[1], b[2], b[3] = byte(v), byte(v>>8), byte(v>>16), byte(v>>24)
}

func sampleHeader() SegmentHeader {
	return SegmentHeader{Store: uuid.UUID{1, 15: 9}, Group: uuid.UUID{2}, ID: testSegment, FirstIndex: 77,
		Created: 1700000000123456789}
}

// orderRows sorts rows and their used flags as a hint requires.
func orderRows(h *Hint) {
	rows := make([]int, len(h.IDs))
	for i := range rows {
		rows[i] = i
	}
	slices.SortFunc(rows, func(a, b int) int {
		return cmp.Or(cmp.Compare(index.Hash(h.IDs[a]), index.Hash(h.IDs[b])), cmp.Compare(h.Places[a], h.Places[b]))
	})
	old := *h
	h.IDs, h.Places, h.Indexes, h.Used = nil, nil, nil, make([]uint64, len(old.Used))
	for i, row := range rows {
		h.IDs = append(h.IDs, old.IDs[row])
		h.Places = append(h.Places, old.Places[row])
		h.Indexes = append(h.Indexes, old.Indexes[row])
		h.SetUsed(i, old.IsUsed(row))
	}
}

// samplePiece returns a piece that continues another one, with one row for every 88 bytes.
func samplePiece() *HintPiece {
	p := &HintPiece{Segment: testSegment, First: 10, Begin: 1 << 12, End: 1 << 14, LastBefore: 30, Last: 200,
		RowsBefore: 15,
		Terms:      []TermRun{{31, 1}, {50, 3}},
		Table: Rows{LastCommit: 99, Blobs: []HintBlob{{Index: 42,
			Ref: BlobRef{ID: uuid.UUID{1}, Size: 2 << 20, CRC32C: 5}}}}}
	for i := range 71 {
		p.Table.IDs = append(p.Table.IDs, int64(i)*7-100)
		p.Table.Places = append(p.Table.Places, uint64(1<<12+88*i)/8<<16|2<<1|uint64(i%2))
		p.Table.Indexes = append(p.Table.Indexes, uint32(21+i+i/50))
	}
	return p
}

// flipEveryBit flips each bit of b in turn, and expects that decode returns ErrCorrupt and never ErrFormatVersion.
func flipEveryBit(t *testing.T, b []byte, decode func() error) {
	t.Helper()
	for bit := range len(b) * 8 {
		b[bit/8] ^= 1 << (bit % 8)
		if err := decode(); !errors.Is(err, ErrCorrupt) || errors.Is(err, ErrFormatVersion) {
			t.Fatalf("bit %d of byte %d: %v", bit%8, bit/8, err)
		}
		b[bit/8] ^= 1 << (bit % 8)
	}
}

var testSegment = SegmentID{1, 2, 3, 4, 5, 6, 7, 8}

// repair corrects the checksum in b, so that the fuzzer reaches the checks that follow it.
func repair(b []byte) []byte {
	if len(b) < headBytes {
		return b
	}
	b = bytes.Clone(b)
	putUint32(b[12:], headChecksum(b))
	return b
}

// goldenV1 is the folder with files of version 1.
var goldenV1 = filepath.Join("..", "testdata", "v1")

// goldenHistory is the folder with a manifest of version 2.
var goldenHistory = filepath.Join("..", "testdata", "history")

func ok(t testing.TB, err error) {
	t.Helper()
	must.OK(t, err)
}
