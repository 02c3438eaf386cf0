package format

import (
	"encoding/binary"
	"fmt"
	"path"
	"unsafe"

	"sheaf.dev/sheaf/internal/storage/index"
	"sheaf.dev/sheaf/internal/storage/vfs"
)

// A hint has this layout:
//
//	0       8         12    16           24            32           40     48            56     64           72         76     80
//	├ magic ┼ version ┼ CRC ┼ segment id ┼ first index ┼ last index ┼ size ┼ commit time ┼ rows ┼ runs,blobs ┼ requests ┼ zero ┤
//	80
//	├ ids (8 each) ┼ places (8 each) ┼ indexes (4 each), zeros to 8 ┼ used bitmap ┼ term runs (16 each) ┼ blobs (48 each) ┤
const (
	HintMagic       = "SHEAFHNT"
	hintHeaderBytes = 80
	termRunBytes    = 16
	hintBlobBytes   = 8 + BlobRefBytes
	HintBytesMax    = 2 << 30
)

// Hint is a sealed segment's sidecar file. It has one row for each put and delete. The rows are sorted by
// index.Hash(id), then by location. This order lets a start fill package index's table in memory order.
type Hint struct {
	Segment    SegmentID
	FirstIndex uint64
	LastIndex  uint64    // index of the last entry that the segment ever held
	LastCommit int64     // commit time of the last put, delete or remembered request, or 0 if there is none
	Bytes      int64     // size of the segment
	Requests   uint32    // number of entries of KindRequest, which have no row
	IDs        []int64   // record id of each row
	Places     []uint64  // location of each row's frame: an index.Loc with ordinal 0 (offset, length, tombstone)
	Indexes    []uint32  // index of each row's entry, minus FirstIndex
	Used       []uint64  // one bit per row; 1: newest version, as far as is known; 0: certainly superseded
	Terms      []TermRun // terms of all entries in the segment, including internal ones
	Blobs      []HintBlob
}

// TermRun is a run of entries with the same term, which begins at FirstIndex.
type TermRun struct{ FirstIndex, Term uint64 }

// HintBlob is a blob that an entry of the segment refers to.
type HintBlob struct {
	Index uint64
	Ref   BlobRef
}

// IsUsed returns the used flag of a row.
func (h *Hint) IsUsed(row int) bool { return h.Used[row/64]>>(row%64)&1 != 0 }

// SetUsed sets the used flag of a row.
func (h *Hint) SetUsed(row int, used bool) {
	if used {
		h.Used[row/64] |= 1 << (row % 64)
	} else {
		h.Used[row/64] &^= 1 << (row % 64)
	}
}

// ReadHint reads and checks a segment's hint. After any error the caller has to work without the hint. The hint's
// columns alias one buffer, which belongs to the caller.
func ReadHint(fs vfs.FS, dir string, segment ManifestSegment) (*Hint, error) {
	name := path.Join(dir, HintName(segment.Number))
	b, err := ReadAll(fs, name, HintBytesMax)
	if err != nil {
		return nil, err
	}
	h, err := DecodeHint(b)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	if h.Segment != segment.ID || h.FirstIndex != segment.FirstIndex || h.LastIndex != segment.LastIndex ||
		h.Bytes != segment.Bytes {
		return nil, fmt.Errorf("%s: %w: it is of another segment or another state of it", name, ErrCorrupt)
	}
	return h, nil
}

// WriteHint durably creates or replaces the hint of a segment. It writes a new file, syncs and renames it, and syncs
// the folder.
func WriteHint(fs vfs.FS, dir string, number uint64, h *Hint) error {
	b, err := h.Encode()
	if err != nil {
		return fmt.Errorf("%s: %w", path.Join(dir, HintName(number)), err)
	}
	return WriteReplace(fs, dir, HintName(number), b)
}

// hintLayout holds the offsets at which the columns begin in the file.
type hintLayout struct{ places, indexes, used, terms, blobs, end int64 }

func layoutHint(rows, terms, blobs int64) hintLayout {
	var l hintLayout
	l.places = hintHeaderBytes + 8*rows
	l.indexes = l.places + 8*rows
	l.used = l.indexes + (4*rows+7)&^7
	l.terms = l.used + 8*((rows+63)/64)
	l.blobs = l.terms + termRunBytes*terms
	l.end = l.blobs + hintBlobBytes*blobs
	return l
}

// HintBytes returns the file size of a hint with the given numbers of rows, term runs and blobs.
func HintBytes(rows, terms, blobs int64) int64 { return layoutHint(rows, terms, blobs).end }

// Encode returns the content of a hint file.
func (h *Hint) Encode() ([]byte, error) {
	rows := len(h.IDs)
	if len(h.Places) != rows || len(h.Indexes) != rows || len(h.Used) != (rows+63)/64 {
		return nil, fmt.Errorf("%w: columns of %d ids, %d places, %d indexes, %d words of used flags", ErrCorrupt,
			rows, len(h.Places), len(h.Indexes), len(h.Used))
	}
	if err := h.Check(); err != nil {
		return nil, err
	}
	b := make([]byte, hintHeaderBytes, HintBytes(int64(rows), int64(len(h.Terms)), int64(len(h.Blobs))))
	le := binary.LittleEndian
	copy(b[16:], h.Segment[:])
	le.PutUint64(b[24:], h.FirstIndex)
	le.PutUint64(b[32:], h.LastIndex)
	le.PutUint64(b[40:], uint64(h.Bytes))
	le.PutUint64(b[48:], uint64(h.LastCommit))
	le.PutUint64(b[56:], uint64(rows))
	le.PutUint32(b[64:], uint32(len(h.Terms)))
	le.PutUint32(b[68:], uint32(len(h.Blobs)))
	le.PutUint32(b[72:], h.Requests)
	b, _ = binary.Append(b, le, h.IDs) // never fails for slices of numbers
	b, _ = binary.Append(b, le, h.Places)
	b, _ = binary.Append(b, le, h.Indexes)
	b = append(b, make([]byte, -len(b)&7)...)
	b, _ = binary.Append(b, le, h.Used)
	b = appendTermsAndBlobs(b, h.Terms, h.Blobs)
	putHead(b, HintMagic)
	return b, nil
}

// DecodeHint is the inverse of Encode. The columns of the result may alias b.
func DecodeHint(b []byte) (*Hint, error) {
	if len(b) < hintHeaderBytes {
		return nil, fmt.Errorf("hint: %w: %d bytes are too few", ErrCorrupt, len(b))
	}
	if err := checkHead(b, HintMagic); err != nil {
		return nil, fmt.Errorf("hint: %w", err)
	}
	le := binary.LittleEndian
	rows, terms, blobs := le.Uint64(b[56:]), int64(le.Uint32(b[64:])), int64(le.Uint32(b[68:]))
	if rows > uint64(len(b)) || !IsZero(b[76:hintHeaderBytes]) {
		return nil, fmt.Errorf("hint: %w: counts or reserved bytes", ErrCorrupt)
	}
	l := layoutHint(int64(rows), terms, blobs)
	if l.end != int64(len(b)) || !IsZero(b[l.indexes+4*int64(rows):l.used]) {
		return nil, fmt.Errorf("hint: %w: counts do not fit the length, or padding", ErrCorrupt)
	}
	h := hintHead(b)
	h.IDs = column[int64](b[hintHeaderBytes:l.places])
	h.Places = column[uint64](b[l.places:l.indexes])
	h.Indexes = column[uint32](b[l.indexes : l.indexes+4*int64(rows)])
	h.Used = column[uint64](b[l.used:l.terms])
	var err error
	if h.Terms, h.Blobs, err = decodeTermsAndBlobs(b[l.terms:], int(terms), int(blobs)); err != nil {
		return nil, fmt.Errorf("hint: %w", err)
	}
	if err := h.Check(); err != nil {
		return nil, fmt.Errorf("hint: %w", err)
	}
	return h, nil
}

// hintHead decodes the header fields that describe the segment, without checking them.
func hintHead(b []byte) *Hint {
	le := binary.LittleEndian
	h := &Hint{
		FirstIndex: le.Uint64(b[24:]), LastIndex: le.Uint64(b[32:]),
		Bytes: int64(le.Uint64(b[40:])), LastCommit: int64(le.Uint64(b[48:])), Requests: le.Uint32(b[72:]),
	}
	copy(h.Segment[:], b[16:])
	return h
}

// Check validates the hint's fields. It makes only one pass over the rows, because every start calls it.
func (h *Hint) Check() error {
	if h.FirstIndex == 0 || h.LastIndex < h.FirstIndex-1 || h.Bytes < SegmentHeaderBytes || h.Bytes > index.OffsetMax ||
		int64(h.Requests) > h.Bytes/RequestFrameBytes {
		return fmt.Errorf("%w: indexes or size are impossible", ErrCorrupt)
	}
	span := h.LastIndex - h.FirstIndex + 1 // 0 if the segment has no entry, because LastIndex is then FirstIndex - 1
	const extra = 1<<16 - 1
	var before uint64 // hash of the previous row
	for i, place := range h.Places {
		hash := index.Hash(h.IDs[i])
		if i > 0 && (hash < before || hash == before && place <= h.Places[i-1]) {
			return fmt.Errorf("%w: row %d is out of order", ErrCorrupt, i)
		}
		before = hash
		loc := index.Loc(place)
		offset := loc.Offset()
		// The length in a location is an upper bound, and may exceed the frame's length by up to 63 bytes. No frame is
		// shorter than its header.
		if loc.Ordinal() != 0 || uint64(h.Indexes[i]) >= span || offset < SegmentHeaderBytes ||
			place&extra>>1 < FrameHeaderBytes/64+1 || offset+loc.LengthBound()-63 > h.Bytes {
			return fmt.Errorf("%w: row %d is impossible", ErrCorrupt, i)
		}
	}
	if n := len(h.IDs) % 64; n != 0 && h.Used[len(h.Used)-1]>>n != 0 {
		return fmt.Errorf("%w: used flags behind the last row", ErrCorrupt)
	}
	return checkTermsAndBlobs(h.Terms, h.Blobs, h.FirstIndex, h.LastIndex)
}

// appendTermsAndBlobs appends term runs and blobs in the encoding that hints and hint pieces share.
func appendTermsAndBlobs(b []byte, terms []TermRun, blobs []HintBlob) []byte {
	le := binary.LittleEndian
	for _, run := range terms {
		b = le.AppendUint64(b, run.FirstIndex)
		b = le.AppendUint64(b, run.Term)
	}
	for _, blob := range blobs {
		b = le.AppendUint64(b, blob.Index)
		b = append(b, blob.Ref.Encode()...)
	}
	return b
}

// decodeTermsAndBlobs decodes the given numbers of term runs and blobs at the beginning of b, which must be long enough
// for them. It does not check their indexes and terms.
func decodeTermsAndBlobs(b []byte, runs, count int) (terms []TermRun, blobs []HintBlob, err error) {
	le := binary.LittleEndian
	for range runs {
		terms = append(terms, TermRun{FirstIndex: le.Uint64(b), Term: le.Uint64(b[8:])})
		b = b[termRunBytes:]
	}
	for range count {
		ref, err := DecodeBlobRef(b[8:hintBlobBytes])
		if err != nil {
			return nil, nil, err
		}
		blobs = append(blobs, HintBlob{Index: le.Uint64(b), Ref: ref})
		b = b[hintBlobBytes:]
	}
	return terms, blobs, nil
}

// checkTermsAndBlobs checks that the term runs are in ascending order of index and of term, and that the blobs are in
// ascending order of index. All indexes must be in the range from first to last.
func checkTermsAndBlobs(terms []TermRun, blobs []HintBlob, first, last uint64) error {
	for i, run := range terms {
		if run.FirstIndex < first || run.FirstIndex > last ||
			i > 0 && (run.FirstIndex <= terms[i-1].FirstIndex || run.Term <= terms[i-1].Term) {
			return fmt.Errorf("%w: term run %d is impossible", ErrCorrupt, i)
		}
	}
	for i, blob := range blobs {
		if blob.Index < first || blob.Index > last || i > 0 && blob.Index <= blobs[i-1].Index {
			return fmt.Errorf("%w: blob %d is impossible", ErrCorrupt, i)
		}
	}
	return nil
}

// column returns little-endian numbers as a slice. It does not copy if the machine is little-endian and b is aligned,
// because a start from hints is limited by memory bandwidth, and a second copy of all rows would double its time.
func column[T int64 | uint64 | uint32](b []byte) []T {
	size := int(unsafe.Sizeof(T(0)))
	n := len(b) / size
	if n == 0 {
		return nil
	}
	p := unsafe.Pointer(unsafe.SliceData(b))
	if uintptr(p)%unsafe.Alignof(T(0)) == 0 && littleEndian {
		return unsafe.Slice((*T)(p), n)
	}
	out := make([]T, n)
	for i := range out {
		if size == 4 {
			out[i] = T(binary.LittleEndian.Uint32(b[4*i:]))
		} else {
			out[i] = T(binary.LittleEndian.Uint64(b[8*i:]))
		}
	}
	return out
}

var littleEndian = binary.NativeEndian.Uint16([]byte{1, 0}) == 1
