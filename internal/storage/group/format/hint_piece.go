package format

import (
	"encoding/binary"
	"errors"
	"fmt"
	iofs "io/fs"
	"math"
	"path"
	"sort"

	"sheaf.dev/sheaf/internal/storage/index"
	"sheaf.dev/sheaf/internal/storage/vfs"
)

// The active segment's hint is a file of pieces. Each piece covers the part of the segment that follows the previous
// piece's part. All lengths are multiples of 8:
//
//	0       8         12    16           24            32      40    48            56
//	├ magic ┼ version ┼ CRC ┼ segment id ┼ first index ┼ begin ┼ end ┼ last before ┼ last index ┤
//	64            72            80       84     88     92      96
//	├ commit time ┼ rows before ┼ length ┼ rows ┼ runs ┼ blobs ┤
//	96
//	├ rows (id 8, three varints) ┼ term runs (16 each) ┼ blobs (48 each) ┼ zeros to 8 ┼ length (8) ┤
const (
	PieceMagic       = "SHEAFHNA"
	pieceHeaderBytes = 96
	pieceTrailBytes  = 8
	pieceRowBytesMin = 8 + 3 // minimum size of a row
	// pieceGuessBytes is the number of bytes at the end of the file that are read first. They usually contain the whole
	// last piece.
	pieceGuessBytes = 8 << 10
)

// HintPart is the part of the active segment that the pieces cover, which is everything before a certain state frame.
type HintPart struct {
	End   int64  // offset of that frame, or 0 if there are no pieces
	Last  uint64 // index of the last entry before that frame
	Rows  int64  // number of rows in all pieces
	Bytes int64  // size of all pieces in their file
}

// ActiveHint is the content of all pieces for an active segment.
type ActiveHint struct {
	HintPart
	Table Rows
	Terms []TermRun
}

// HintPiece is one piece of an active segment's hint. It covers the bytes from Begin to End.
type HintPiece struct {
	Segment    SegmentID
	First      uint64 // index of the first entry of the segment
	Begin      int64  // offset at which the previous piece ends
	End        int64  // the piece ends just before the state frame at this offset
	LastBefore uint64 // index of the last entry before Begin
	Last       uint64 // index of the last entry before End
	RowsBefore int64  // number of rows in the pieces before this one
	Table      Rows   // rows and blobs of this piece, and the segment's greatest commit time so far
	Terms      []TermRun
}

// MakePiece returns the piece that extends a part up to a state frame. It selects the piece's rows and terms from those
// of the whole segment.
func MakePiece(s ManifestSegment, from HintPart, to StateFrame, rows *Rows, terms []TermRun) *HintPiece {
	p := &HintPiece{Segment: s.ID, First: s.FirstIndex, Begin: from.End, End: to.Offset, LastBefore: from.Last,
		Last: to.Last, RowsBefore: from.Rows}
	if from.End == 0 {
		p.Begin, p.LastBefore = SegmentHeaderBytes, s.FirstIndex-1
	}
	row := func(offset int64) int {
		return sort.Search(len(rows.Places), func(i int) bool { return index.Loc(rows.Places[i]).Offset() >= offset })
	}
	blob := func(behind uint64) int {
		return sort.Search(len(rows.Blobs), func(i int) bool { return rows.Blobs[i].Index > behind })
	}
	i, k := row(p.Begin), row(p.End)
	p.Table = Rows{
		IDs: rows.IDs[i:k], Places: rows.Places[i:k], Indexes: rows.Indexes[i:k],
		Blobs: rows.Blobs[blob(p.LastBefore):blob(p.Last)], LastCommit: rows.syncedCommit,
	}
	for _, run := range terms {
		if run.FirstIndex > p.LastBefore && run.FirstIndex <= p.Last {
			p.Terms = append(p.Terms, run)
		}
	}
	return p
}

// Encode returns the bytes of a piece.
func (p *HintPiece) Encode() []byte {
	le := binary.LittleEndian
	const rowBytes = 8 + 2 + 2 + 1 // encoded length of most rows
	b := make([]byte, pieceHeaderBytes, pieceHeaderBytes+rowBytes*len(p.Table.IDs)+termRunBytes*len(p.Terms)+
		hintBlobBytes*len(p.Table.Blobs)+2*pieceTrailBytes)
	offset, at := p.Begin, p.LastBefore
	for i, id := range p.Table.IDs {
		place, entry := index.Loc(p.Table.Places[i]), p.First+uint64(p.Table.Indexes[i])
		b = le.AppendUint64(b, uint64(id))
		b = binary.AppendUvarint(b, uint64(place.Offset()-offset)/8)
		b = binary.AppendUvarint(b, uint64(place)&placeLengthMask)
		b = binary.AppendUvarint(b, entry-at)
		offset, at = place.Offset(), entry
	}
	b = appendTermsAndBlobs(b, p.Terms, p.Table.Blobs)
	b = append(b, make([]byte, -len(b)&7)...)
	b = le.AppendUint64(b, uint64(len(b)+pieceTrailBytes))
	copy(b[16:], p.Segment[:])
	le.PutUint64(b[24:], p.First)
	le.PutUint64(b[32:], uint64(p.Begin))
	le.PutUint64(b[40:], uint64(p.End))
	le.PutUint64(b[48:], p.LastBefore)
	le.PutUint64(b[56:], p.Last)
	le.PutUint64(b[64:], uint64(p.Table.LastCommit))
	le.PutUint64(b[72:], uint64(p.RowsBefore))
	le.PutUint32(b[80:], uint32(len(b)))
	le.PutUint32(b[84:], uint32(len(p.Table.IDs)))
	le.PutUint32(b[88:], uint32(len(p.Terms)))
	le.PutUint32(b[92:], uint32(len(p.Table.Blobs)))
	putHead(b, PieceMagic)
	return b
}

// placeLengthMask selects the bits of a location that hold the length and the tombstone flag.
const placeLengthMask = 1<<16 - 1

// pieceHead reads the header of a piece without checking it.
func pieceHead(b []byte) (p HintPiece, length, rows, runs, blobs int64) {
	le := binary.LittleEndian
	copy(p.Segment[:], b[16:])
	p.First, p.Begin, p.End = le.Uint64(b[24:]), int64(le.Uint64(b[32:])), int64(le.Uint64(b[40:]))
	p.LastBefore, p.Last = le.Uint64(b[48:]), le.Uint64(b[56:])
	p.Table.LastCommit, p.RowsBefore = int64(le.Uint64(b[64:])), int64(le.Uint64(b[72:]))
	return p, int64(le.Uint32(b[80:])), int64(le.Uint32(b[84:])), int64(le.Uint32(b[88:])), int64(le.Uint32(b[92:]))
}

// DecodePiece decodes the piece at the beginning of b, and returns the piece's length. It returns an error if b does
// not begin with a whole piece.
func DecodePiece(b []byte) (p *HintPiece, length int64, err error) {
	if len(b) < pieceHeaderBytes+pieceTrailBytes {
		return nil, 0, fmt.Errorf("piece of a hint: %w: %d bytes are too few", ErrCorrupt, len(b))
	}
	head, length, rows, runs, blobs := pieceHead(b)
	if length%8 != 0 || length < pieceHeaderBytes+pieceTrailBytes || length > int64(len(b)) {
		return nil, 0, fmt.Errorf("piece of a hint: %w: a length of %d", ErrCorrupt, length)
	}
	b = b[:length]
	if err := checkHead(b, PieceMagic); err != nil {
		return nil, 0, fmt.Errorf("piece of a hint: %w", err)
	}
	rest := b[pieceHeaderBytes : length-pieceTrailBytes]
	if pieceRowBytesMin*rows+termRunBytes*runs+hintBlobBytes*blobs > int64(len(rest)) ||
		binary.LittleEndian.Uint64(b[length-pieceTrailBytes:]) != uint64(length) {
		return nil, 0, fmt.Errorf("piece of a hint: %w: counts do not fit the length", ErrCorrupt)
	}
	p = &head
	if err = p.check(); err == nil {
		rest, err = p.decodeRows(rest, int(rows))
	}
	if tail := termRunBytes*int(runs) + hintBlobBytes*int(blobs); err == nil && len(rest) < tail {
		err = fmt.Errorf("%w: term runs or blobs are missing", ErrCorrupt)
	} else if err == nil {
		p.Terms, p.Table.Blobs, err = decodeTermsAndBlobs(rest, int(runs), int(blobs))
		rest = rest[tail:]
	}
	if err == nil {
		err = checkTermsAndBlobs(p.Terms, p.Table.Blobs, p.LastBefore+1, p.Last)
	}
	if err == nil && (len(rest) >= 8 || !IsZero(rest)) {
		err = fmt.Errorf("%w: padding", ErrCorrupt)
	}
	if err != nil {
		return nil, 0, fmt.Errorf("piece of a hint: %w", err)
	}
	return p, length, nil
}

// check validates the header.
func (p *HintPiece) check() error {
	if p.First == 0 || p.LastBefore < p.First-1 || p.Last < p.LastBefore || p.Last-p.First+1 > math.MaxUint32 ||
		p.Begin < SegmentHeaderBytes || p.End < p.Begin || p.End > index.OffsetMax || p.Begin%8 != 0 || p.End%8 != 0 ||
		p.RowsBefore < 0 {
		return fmt.Errorf("%w: indexes or offsets are impossible", ErrCorrupt)
	}
	return nil
}

var errPieceRow = fmt.Errorf("%w: a row is impossible", ErrCorrupt)

func (p *HintPiece) decodeRows(b []byte, rows int) (rest []byte, err error) {
	t := &p.Table
	t.IDs, t.Places, t.Indexes = make([]int64, rows), make([]uint64, rows), make([]uint32, rows)
	offset, at := p.Begin, p.LastBefore
	for i := range rows {
		if len(b) < pieceRowBytesMin {
			return nil, errPieceRow
		}
		t.IDs[i] = int64(binary.LittleEndian.Uint64(b))
		b = b[8:]
		// The first number is the offset minus the offset of the previous row, in units of 8 bytes. The second one holds the
		// length and the tombstone flag. The third one is the index minus the index of the previous row.
		var numbers [3]uint64
		for k := range numbers {
			n, used := binary.Uvarint(b)
			if used <= 0 || n > math.MaxUint32 {
				return nil, errPieceRow
			}
			numbers[k], b = n, b[used:]
		}
		if i > 0 && numbers[0] == 0 || numbers[1] > placeLengthMask || numbers[1]>>1 < FrameHeaderBytes/64+1 ||
			numbers[2] == 0 {
			return nil, errPieceRow
		}
		offset, at = offset+8*int64(numbers[0]), at+numbers[2]
		// The length in a location is an upper bound, and may exceed the frame's length by up to 63 bytes.
		if offset+int64(numbers[1]>>1)*64-63 > p.End || at > p.Last {
			return nil, errPieceRow
		}
		t.Places[i], t.Indexes[i] = uint64(offset/8)<<16|numbers[1], uint32(at-p.First)
	}
	return b, nil
}

// add appends a segment's next piece, which has the given number of bytes in the file. It returns false if the piece
// does not continue the previous ones.
func (h *ActiveHint) add(p *HintPiece, s ManifestSegment, bytes int64) bool {
	begin, last := h.End, h.Last
	if begin == 0 {
		begin, last = SegmentHeaderBytes, s.FirstIndex-1
	}
	n := len(h.Terms)
	switch {
	case p.Segment != s.ID || p.First != s.FirstIndex || p.Begin != begin || p.LastBefore != last ||
		p.RowsBefore != h.Rows:
		return false
	case len(p.Terms) > 0 && n > 0 && p.Terms[0].Term <= h.Terms[n-1].Term:
		return false
	case n == 0 && p.Last >= s.FirstIndex && (len(p.Terms) == 0 || p.Terms[0].FirstIndex != s.FirstIndex):
		return false
	}
	t := &h.Table
	t.IDs, t.Places, t.Indexes = append(t.IDs, p.Table.IDs...), append(t.Places, p.Table.Places...),
		append(t.Indexes, p.Table.Indexes...)
	t.Blobs, t.LastCommit = append(t.Blobs, p.Table.Blobs...), max(t.LastCommit, p.Table.LastCommit)
	h.Terms = append(h.Terms, p.Terms...)
	h.End, h.Last, h.Rows, h.Bytes = p.End, p.Last, h.Rows+int64(len(p.Table.IDs)), h.Bytes+bytes
	return true
}

// ReadPieces reads the active segment's hint. It ignores bytes after the last whole piece, because a crash may have
// torn them, or they may still be in the process of being written. It returns nil if there is no whole piece for this
// segment, and an error only if it cannot read the file.
func ReadPieces(fs vfs.FS, dir string, s ManifestSegment) (*ActiveHint, error) {
	name := path.Join(dir, ActiveHintName)
	b, err := ReadAll(fs, name, HintBytesMax)
	if errors.Is(err, iofs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	h := new(ActiveHint)
	rows := len(b) / pieceRowBytesMin
	h.Table = Rows{IDs: make([]int64, 0, rows), Places: make([]uint64, 0, rows), Indexes: make([]uint32, 0, rows)}
	for {
		p, length, err := DecodePiece(b[h.Bytes:])
		if err != nil || !h.add(p, s, length) {
			break // the rest is torn, or belongs to a different segment
		}
	}
	if h.End == 0 {
		return nil, nil
	}
	return h, nil
}

// LastPiece reads the header of the last piece in the file, to plan a start. It checks neither this piece nor the
// pieces before it. It returns false if no piece can belong to this segment.
func LastPiece(fs vfs.FS, dir string, s ManifestSegment) (h HintPart, ok bool) {
	f, err := fs.Open(path.Join(dir, ActiveHintName))
	if err != nil {
		return h, false
	}
	defer f.Close() //nolint:errcheck // the file was only read
	if h.Bytes, err = f.Size(); err != nil {
		return h, false
	}
	b := make([]byte, min(h.Bytes, pieceGuessBytes))
	if len(b) < pieceHeaderBytes+pieceTrailBytes || ReadFull(f, b, h.Bytes-int64(len(b))) != nil {
		return h, false
	}
	length := binary.LittleEndian.Uint64(b[len(b)-pieceTrailBytes:])
	switch {
	case length < pieceHeaderBytes+pieceTrailBytes || length > uint64(h.Bytes):
		return h, false
	case length <= uint64(len(b)):
		b = b[len(b)-int(length):]
	case ReadFull(f, b[:pieceHeaderBytes], h.Bytes-int64(length)) != nil:
		return h, false
	}
	p, _, rows, _, _ := pieceHead(b)
	h.End, h.Last, h.Rows = p.End, p.Last, p.RowsBefore+rows
	ok = string(b[:MagicBytes]) == PieceMagic && p.check() == nil && p.Segment == s.ID && p.First == s.FirstIndex &&
		p.Last >= s.FirstIndex
	return h, ok
}

// WritePiece writes a piece at the given offset, which is the end of the existing pieces, and truncates a torn piece
// that follows the offset. It does not sync the file, because losing a hint in a power cut does no harm.
func WritePiece(fs vfs.FS, dir string, at int64, b []byte) (err error) {
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

// SyncPieces makes the active segment's hint durable, so that the next start finds it even if a power cut follows an
// orderly stop.
func SyncPieces(fs vfs.FS, dir string) (err error) {
	f, err := fs.OpenWrite(path.Join(dir, ActiveHintName))
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

// StateFrame locates a state frame in the active segment.
type StateFrame struct {
	Offset int64  // 0 if there is no state frame
	Last   uint64 // index of the last entry before the state frame
}
