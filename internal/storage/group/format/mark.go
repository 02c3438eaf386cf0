package format

import (
	"encoding/binary"
	"errors"
	"fmt"
	iofs "io/fs"
	"path"

	"sheaf.dev/sheaf/internal/storage/vfs"
)

// A slot of the mark file has this layout:
//
//	0       8         12    16         24           32       40      48     4096
//	├ magic ┼ version ┼ CRC ┼ sequence ┼ segment id ┼ offset ┼ index ┼ zero ┤
const (
	MarkMagic  = "SHEAFMRK"
	markFields = 48
	MarkSlots  = 2

	// MarkFileBytes is the size of the mark file.
	MarkFileBytes = MarkSlots * BlockBytes
)

// Mark is a group's local synced mark. Everything before the mark was synced. The mark file has two slots, which are
// overwritten in turn. The newer valid slot is the current one. When a group becomes idle, its mark file is updated
// within 100 ms. While a group is busy, its last StateRecord holds a newer mark.
type Mark struct {
	Sequence uint64 // grows with each write, and selects the slot
	Segment  SegmentID
	Offset   int64
	Index    uint64
}

// EncodeMark returns the bytes of a slot.
func EncodeMark(m Mark) []byte {
	b := make([]byte, BlockBytes)
	le := binary.LittleEndian
	le.PutUint64(b[16:], m.Sequence)
	copy(b[24:], m.Segment[:])
	le.PutUint64(b[32:], uint64(m.Offset))
	le.PutUint64(b[40:], m.Index)
	putHead(b[:markFields], MarkMagic)
	return b
}

// DecodeMark is the inverse of EncodeMark. The argument slot is the slot's number in the file, 0 or 1.
func DecodeMark(b []byte, slot int) (Mark, error) {
	if len(b) != BlockBytes {
		return Mark{}, fmt.Errorf("mark: %w: %d bytes, not %d", ErrCorrupt, len(b), BlockBytes)
	}
	if err := checkHead(b[:markFields], MarkMagic); err != nil {
		return Mark{}, fmt.Errorf("mark: %w", err)
	}
	le := binary.LittleEndian
	m := Mark{Sequence: le.Uint64(b[16:]), Offset: int64(le.Uint64(b[32:])), Index: le.Uint64(b[40:])}
	copy(m.Segment[:], b[24:])
	if m.Offset < 0 || max(m.Sequence, m.Index) > NumberMax || m.Sequence%MarkSlots != uint64(slot) ||
		!IsZero(b[markFields:]) {
		return Mark{}, fmt.Errorf("mark: %w: offset, index, sequence, slot or padding", ErrCorrupt)
	}
	return m, nil
}

// ReadMark reads the newer valid slot of a group's mark file. The result found is false if no mark was ever written.
// The result bad says why each slot is invalid, either because a crash tore the slot or because it is damaged. The
// element of bad is nil for a slot that is valid or was never written. ReadMark returns an error if the read fails or
// the format is newer.
func ReadMark(fs vfs.FS, dir string) (m Mark, found bool, bad [MarkSlots]error, err error) {
	b, err := ReadAll(fs, path.Join(dir, MarkName), 1<<20)
	if errors.Is(err, iofs.ErrNotExist) {
		return Mark{}, false, bad, nil
	}
	if err != nil {
		return Mark{}, false, bad, err
	}
	m, found, bad = DecodeMarkFile(b)
	for _, e := range bad {
		if errors.Is(e, ErrFormatVersion) {
			return Mark{}, false, bad, fmt.Errorf("%s: %w", path.Join(dir, MarkName), e)
		}
	}
	return m, found, bad, nil
}

// DecodeMarkFile returns the newer valid slot of a mark file. The result found is false if no slot was ever written.
// The result bad says why each slot is invalid. Its element is nil for a slot that is valid or was never written.
func DecodeMarkFile(b []byte) (m Mark, found bool, bad [MarkSlots]error) {
	for slot := range MarkSlots {
		at := slot * BlockBytes
		if len(b) < at+BlockBytes {
			bad[slot] = fmt.Errorf("mark: %w: file of %d bytes is too short", ErrCorrupt, len(b))
			continue
		}
		part := b[at : at+BlockBytes]
		if IsZero(part) {
			continue
		}
		read, err := DecodeMark(part, slot)
		if err != nil {
			bad[slot] = err
			continue
		}
		if !found || read.Sequence > m.Sequence {
			m, found = read, true
		}
	}
	if len(b) > MarkFileBytes {
		bad[MarkSlots-1] = fmt.Errorf("mark: %w: file of %d bytes is too long", ErrCorrupt, len(b))
	}
	return m, found, bad
}

// CreateMark durably creates a mark file without a mark. It replaces an existing mark file.
func CreateMark(fs vfs.FS, dir string) error {
	return WriteReplace(fs, dir, MarkName, make([]byte, MarkFileBytes))
}

// WriteMark writes a mark into its slot of the open mark file, and syncs the file. After an error the caller has to
// replace the file with CreateMark.
func WriteMark(f vfs.File, m Mark) error {
	if _, err := f.WriteAt(EncodeMark(m), int64(m.Sequence%MarkSlots)*BlockBytes); err != nil {
		return MarkShortage(err)
	}
	return f.Sync()
}

// Below returns the offset in a segment below which everything is known to be synced. If the mark refers to a
// different segment, only the header is known to be synced.
func (m Mark) Below(s ManifestSegment) int64 {
	if m.Segment != s.ID {
		return SegmentHeaderBytes
	}
	return max(m.Offset, SegmentHeaderBytes)
}
