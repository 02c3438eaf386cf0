package group

import (
	"encoding/binary"
	"errors"
	"fmt"
	iofs "io/fs"
	"math"
	"path"
	"sort"

	"sheaf.dev/sheaf/internal/index"
	"sheaf.dev/sheaf/internal/vfs"
)

// The hint of the active segment is a file of pieces. Each tells of a part of the segment, which begins where that of
// the one before it ends. All lengths are multiples of 8:
//
//	0       8         12    16           24            32      40    48            56
//	├ magic ┼ version ┼ CRC ┼ segment id ┼ first index ┼ begin ┼ end ┼ last before ┼ last index ┤
//	64            72            80       84     88     92      96
//	├ commit time ┼ rows before ┼ length ┼ rows ┼ runs ┼ blobs ┤
//	96
//	├ rows (id 8, three varints) ┼ term runs (16 each) ┼ blobs (48 each) ┼ zeros to 8 ┼ length (8) ┤
const (
	pieceMagic       = "SHEAFHNA"
	pieceHeaderBytes = 96
	pieceTrailBytes  = 8
	pieceRowBytesMin = 8 + 3 // of a row
	// pieceGuessBytes at the end of the file hold its last piece, mostly.
	pieceGuessBytes = 8 << 10
)

// hintPart is the part of the active segment that pieces tell of: all in front of a state frame.
type hintPart struct {
	end   int64  // offset of that frame; 0: there are no pieces
	last  uint64 // index of the last entry in front of it
	rows  int64  // of all pieces
	bytes int64  // of all pieces in their file
}

// activeHint is what the pieces of an active segment tell.
type activeHint struct {
	hintPart
	table rowTable
	terms []TermRun
}

// hintPiece is one piece: what an active segment holds from the end of a part to that of a greater one.
type hintPiece struct {
	segment    SegmentID
	first      uint64   // index of the segment
	begin      int64    // offset
	end        int64    // offset of a state frame
	lastBefore uint64   // index of the last entry in front of begin
	last       uint64   // and in front of end
	rowsBefore int64    // of the pieces before it
	table      rowTable // its rows and blobs, and the last commit time
	terms      []TermRun
}

// makePiece makes the piece that continues a part up to a state frame. rows and terms are those of the segment.
func makePiece(s ManifestSegment, from hintPart, to stateFrame, rows *rowTable, terms []TermRun) *hintPiece {
	p := &hintPiece{segment: s.ID, first: s.FirstIndex, begin: from.end, end: to.offset, lastBefore: from.last, last: to.last, rowsBefore: from.rows}
	if from.end == 0 {
		p.begin, p.lastBefore = SegmentHeaderBytes, s.FirstIndex-1
	}
	row := func(offset int64) int {
		return sort.Search(len(rows.places), func(i int) bool { return index.Loc(rows.places[i]).Offset() >= offset })
	}
	blob := func(behind uint64) int {
		return sort.Search(len(rows.blobs), func(i int) bool { return rows.blobs[i].Index > behind })
	}
	i, k := row(p.begin), row(p.end)
	p.table = rowTable{
		ids: rows.ids[i:k], places: rows.places[i:k], indexes: rows.indexes[i:k],
		blobs: rows.blobs[blob(p.lastBefore):blob(p.last)], lastCommit: rows.syncedCommit,
	}
	for _, run := range terms {
		if run.FirstIndex > p.lastBefore && run.FirstIndex <= p.last {
			p.terms = append(p.terms, run)
		}
	}
	return p
}

// encode makes the bytes of a piece.
func (p *hintPiece) encode() []byte {
	le := binary.LittleEndian
	const rowBytes = 8 + 2 + 2 + 1 // mostly
	b := make([]byte, pieceHeaderBytes, pieceHeaderBytes+rowBytes*len(p.table.ids)+termRunBytes*len(p.terms)+hintBlobBytes*len(p.table.blobs)+2*pieceTrailBytes)
	offset, at := p.begin, p.lastBefore
	for i, id := range p.table.ids {
		place, entry := index.Loc(p.table.places[i]), p.first+uint64(p.table.indexes[i])
		b = le.AppendUint64(b, uint64(id))
		b = binary.AppendUvarint(b, uint64(place.Offset()-offset)/8)
		b = binary.AppendUvarint(b, uint64(place)&placeLengthMask)
		b = binary.AppendUvarint(b, entry-at)
		offset, at = place.Offset(), entry
	}
	for _, run := range p.terms {
		b = le.AppendUint64(b, run.FirstIndex)
		b = le.AppendUint64(b, run.Term)
	}
	for _, blob := range p.table.blobs {
		b = le.AppendUint64(b, blob.Index)
		b = append(b, make([]byte, BlobRefBytes)...)
		blob.Ref.encode(b[len(b)-BlobRefBytes:])
	}
	b = append(b, make([]byte, -len(b)&7)...)
	b = le.AppendUint64(b, uint64(len(b)+pieceTrailBytes))
	copy(b[16:], p.segment[:])
	le.PutUint64(b[24:], p.first)
	le.PutUint64(b[32:], uint64(p.begin))
	le.PutUint64(b[40:], uint64(p.end))
	le.PutUint64(b[48:], p.lastBefore)
	le.PutUint64(b[56:], p.last)
	le.PutUint64(b[64:], uint64(p.table.lastCommit))
	le.PutUint64(b[72:], uint64(p.rowsBefore))
	le.PutUint32(b[80:], uint32(len(b)))
	le.PutUint32(b[84:], uint32(len(p.table.ids)))
	le.PutUint32(b[88:], uint32(len(p.terms)))
	le.PutUint32(b[92:], uint32(len(p.table.blobs)))
	putHead(b, pieceMagic)
	return b
}

// placeLengthMask are the bits of a place that are its length and whether it is a tombstone.
const placeLengthMask = 1<<16 - 1

// pieceHead reads the header of a piece, without a check.
func pieceHead(b []byte) (p hintPiece, length, rows, runs, blobs int64) {
	le := binary.LittleEndian
	copy(p.segment[:], b[16:])
	p.first, p.begin, p.end = le.Uint64(b[24:]), int64(le.Uint64(b[32:])), int64(le.Uint64(b[40:]))
	p.lastBefore, p.last = le.Uint64(b[48:]), le.Uint64(b[56:])
	p.table.lastCommit, p.rowsBefore = int64(le.Uint64(b[64:])), int64(le.Uint64(b[72:]))
	return p, int64(le.Uint32(b[80:])), int64(le.Uint32(b[84:])), int64(le.Uint32(b[88:])), int64(le.Uint32(b[92:]))
}

// decodePiece is the reverse of encode, for the piece with which b begins, and gives its length. An error says that no
// whole piece begins there.
func decodePiece(b []byte) (p *hintPiece, length int64, err error) {
	if len(b) < pieceHeaderBytes+pieceTrailBytes {
		return nil, 0, fmt.Errorf("piece of a hint: %w: %d bytes are too few", ErrCorrupt, len(b))
	}
	head, length, rows, runs, blobs := pieceHead(b)
	if length%8 != 0 || length < pieceHeaderBytes+pieceTrailBytes || length > int64(len(b)) {
		return nil, 0, fmt.Errorf("piece of a hint: %w: a length of %d", ErrCorrupt, length)
	}
	b = b[:length]
	if err := checkHead(b, pieceMagic); err != nil {
		return nil, 0, fmt.Errorf("piece of a hint: %w", err)
	}
	rest := b[pieceHeaderBytes : length-pieceTrailBytes]
	if pieceRowBytesMin*rows+termRunBytes*runs+hintBlobBytes*blobs > int64(len(rest)) || binary.LittleEndian.Uint64(b[length-pieceTrailBytes:]) != uint64(length) {
		return nil, 0, fmt.Errorf("piece of a hint: %w: counts do not fit the length", ErrCorrupt)
	}
	p = &head
	if err = p.check(); err == nil {
		rest, err = p.decodeRows(rest, int(rows))
	}
	if err == nil {
		rest, err = p.decodeTerms(rest, int(runs))
	}
	if err == nil {
		rest, err = p.decodeBlobs(rest, int(blobs))
	}
	if err == nil && (len(rest) >= 8 || !isZero(rest)) {
		err = fmt.Errorf("%w: padding", ErrCorrupt)
	}
	if err != nil {
		return nil, 0, fmt.Errorf("piece of a hint: %w", err)
	}
	return p, length, nil
}

// check checks the header.
func (p *hintPiece) check() error {
	if p.first == 0 || p.lastBefore < p.first-1 || p.last < p.lastBefore || p.last-p.first+1 > math.MaxUint32 ||
		p.begin < SegmentHeaderBytes || p.end < p.begin || p.end > index.OffsetMax || p.begin%8 != 0 || p.end%8 != 0 || p.rowsBefore < 0 {
		return fmt.Errorf("%w: indexes or offsets are impossible", ErrCorrupt)
	}
	return nil
}

var errPieceRow = fmt.Errorf("%w: a row is impossible", ErrCorrupt)

func (p *hintPiece) decodeRows(b []byte, rows int) (rest []byte, err error) {
	t := &p.table
	t.ids, t.places, t.indexes = make([]int64, rows), make([]uint64, rows), make([]uint32, rows)
	offset, at := p.begin, p.lastBefore
	for i := range rows {
		if len(b) < pieceRowBytesMin {
			return nil, errPieceRow
		}
		t.ids[i] = int64(binary.LittleEndian.Uint64(b))
		b = b[8:]
		var numbers [3]uint64 // units of 8 from the row before, length and tombstone, indexes from the row before
		for k := range numbers {
			n, used := binary.Uvarint(b)
			if used <= 0 || n > math.MaxUint32 {
				return nil, errPieceRow
			}
			numbers[k], b = n, b[used:]
		}
		if i > 0 && numbers[0] == 0 || numbers[1] > placeLengthMask || numbers[1]>>1 < FrameHeaderBytes/64+1 || numbers[2] == 0 {
			return nil, errPieceRow
		}
		offset, at = offset+8*int64(numbers[0]), at+numbers[2]
		// The bound is at most 63 above the length.
		if offset+int64(numbers[1]>>1)*64-63 > p.end || at > p.last {
			return nil, errPieceRow
		}
		t.places[i], t.indexes[i] = uint64(offset/8)<<16|numbers[1], uint32(at-p.first)
	}
	return b, nil
}

func (p *hintPiece) decodeTerms(b []byte, runs int) (rest []byte, err error) {
	if len(b) < termRunBytes*runs {
		return nil, fmt.Errorf("%w: term runs are missing", ErrCorrupt)
	}
	before := TermRun{FirstIndex: p.lastBefore}
	for i := range runs {
		run := TermRun{FirstIndex: binary.LittleEndian.Uint64(b), Term: binary.LittleEndian.Uint64(b[8:])}
		if run.FirstIndex <= before.FirstIndex || run.FirstIndex > p.last || i > 0 && run.Term <= before.Term {
			return nil, fmt.Errorf("%w: a term run is impossible", ErrCorrupt)
		}
		p.terms = append(p.terms, run)
		before, b = run, b[termRunBytes:]
	}
	return b, nil
}

func (p *hintPiece) decodeBlobs(b []byte, blobs int) (rest []byte, err error) {
	if len(b) < hintBlobBytes*blobs {
		return nil, fmt.Errorf("%w: blobs are missing", ErrCorrupt)
	}
	before := p.lastBefore
	for range blobs {
		at := binary.LittleEndian.Uint64(b)
		ref, err := DecodeBlobRef(b[8:hintBlobBytes])
		if err != nil {
			return nil, err
		}
		if at <= before || at > p.last {
			return nil, fmt.Errorf("%w: a blob is impossible", ErrCorrupt)
		}
		p.table.blobs = append(p.table.blobs, HintBlob{Index: at, Ref: ref})
		before, b = at, b[hintBlobBytes:]
	}
	return b, nil
}

// add takes the next piece of a segment, which has so many bytes in the file. False: it does not continue what is
// there.
func (h *activeHint) add(p *hintPiece, s ManifestSegment, bytes int64) bool {
	begin, last := h.end, h.last
	if begin == 0 {
		begin, last = SegmentHeaderBytes, s.FirstIndex-1
	}
	n := len(h.terms)
	switch {
	case p.segment != s.ID || p.first != s.FirstIndex || p.begin != begin || p.lastBefore != last || p.rowsBefore != h.rows:
		return false
	case len(p.terms) > 0 && n > 0 && p.terms[0].Term <= h.terms[n-1].Term:
		return false
	case n == 0 && p.last >= s.FirstIndex && (len(p.terms) == 0 || p.terms[0].FirstIndex != s.FirstIndex):
		return false
	}
	t := &h.table
	t.ids, t.places, t.indexes = append(t.ids, p.table.ids...), append(t.places, p.table.places...), append(t.indexes, p.table.indexes...)
	t.blobs, t.lastCommit = append(t.blobs, p.table.blobs...), max(t.lastCommit, p.table.lastCommit)
	h.terms = append(h.terms, p.terms...)
	h.end, h.last, h.rows, h.bytes = p.end, p.last, h.rows+int64(len(p.table.ids)), h.bytes+bytes
	return true
}

// readPieces reads the hint of the active segment. What is behind the last whole piece was torn by a crash, or is being
// written: it does not count. Nil: there is no whole piece of this segment, and why where that is an error.
func readPieces(fs vfs.FS, dir string, s ManifestSegment) (*activeHint, error) {
	name := path.Join(dir, ActiveHintName)
	b, err := readAll(fs, name, hintBytesMax)
	if errors.Is(err, iofs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	h := new(activeHint)
	rows := len(b) / pieceRowBytesMin
	h.table = rowTable{ids: make([]int64, 0, rows), places: make([]uint64, 0, rows), indexes: make([]uint32, 0, rows)}
	for {
		p, length, err := decodePiece(b[h.bytes:])
		if err != nil || !h.add(p, s, length) {
			break // torn, or of another segment
		}
	}
	if h.end == 0 {
		return nil, nil
	}
	return h, nil
}

// lastPiece reads the header of the last piece in the file, for a plan: it is not checked, nor are the pieces before
// it. False: there is none that can be of this segment.
func lastPiece(fs vfs.FS, dir string, s ManifestSegment) (h hintPart, ok bool) {
	f, err := fs.Open(path.Join(dir, ActiveHintName))
	if err != nil {
		return h, false
	}
	defer f.Close() //nolint:errcheck // only read from
	if h.bytes, err = f.Size(); err != nil {
		return h, false
	}
	b := make([]byte, min(h.bytes, pieceGuessBytes))
	if len(b) < pieceHeaderBytes+pieceTrailBytes || readFull(f, b, h.bytes-int64(len(b))) != nil {
		return h, false
	}
	length := binary.LittleEndian.Uint64(b[len(b)-pieceTrailBytes:])
	switch {
	case length < pieceHeaderBytes+pieceTrailBytes || length > uint64(h.bytes):
		return h, false
	case length <= uint64(len(b)):
		b = b[len(b)-int(length):]
	case readFull(f, b[:pieceHeaderBytes], h.bytes-int64(length)) != nil:
		return h, false
	}
	p, _, rows, _, _ := pieceHead(b)
	h.end, h.last, h.rows = p.end, p.last, p.rowsBefore+rows
	ok = string(b[:magicBytes]) == pieceMagic && p.check() == nil && p.segment == s.ID && p.first == s.FirstIndex && p.last >= s.FirstIndex
	return h, ok
}

// writePiece writes a piece behind those that are there, which have so many bytes, without a sync: a hint that a power
// cut takes is missed by nobody. What was torn behind them is cut off.
func writePiece(fs vfs.FS, dir string, at int64, b []byte) (err error) {
	name := path.Join(dir, ActiveHintName)
	f, err := fs.OpenWrite(name)
	if errors.Is(err, iofs.ErrNotExist) && at == 0 {
		f, err = fs.Create(name)
	}
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	size, err := f.Size()
	switch {
	case err != nil:
		return err
	case size < at:
		return fmt.Errorf("%s: %w: it has %d bytes, and had %d", name, ErrCorrupt, size, at)
	case size > at:
		if err := f.Truncate(at); err != nil {
			return err
		}
	}
	_, err = f.WriteAt(b, at)
	return err
}

// syncPieces makes the hint of the active segment durable, so that it is there after an orderly stop.
func syncPieces(fs vfs.FS, dir string) (err error) {
	f, err := fs.OpenWrite(path.Join(dir, ActiveHintName))
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}
