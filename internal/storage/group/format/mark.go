package format

import (
	"encoding/binary"
	"errors"
	"fmt"
	iofs "io/fs"
	"path"

	"sheaf.dev/sheaf/internal/storage/vfs"
)

// A slot of the mark file:
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

// Mark is the local synced mark of a group: everything before it was synced. A small file of two slots, written in turn
// in place; the newer whole slot counts. Kept up to date for idle groups (within 100 ms); busy ones have StateRecord.
type Mark struct {
	Sequence uint64 // raised with each write; picks the slot
	Segment  SegmentID
	Offset   int64
	Index    uint64
}

// EncodeMark makes the bytes of a slot.
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

// DecodeMark is the reverse of EncodeMark. slot is the place in the file, 0 or 1.
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
	if m.Offset < 0 || m.Sequence%MarkSlots != uint64(slot) || !IsZero(b[markFields:]) {
		return Mark{}, fmt.Errorf("mark: %w: offset, slot or padding", ErrCorrupt)
	}
	return m, nil
}

// ReadMark reads the newer whole mark of a group's folder. found is false where none was ever written. bad says, for
// each slot, why it does not count: torn by a crash while it was written, or damaged; nil where it is whole or was
// never written. err is for what hinders reading, and for a newer format.
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

// DecodeMarkFile takes the newer whole slot of a mark file. found is false where no slot was ever written; bad says
// what is wrong with each slot.
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

// CreateMark makes the mark file without a mark, durable when it returns. A whole new file replaces an old one.
func CreateMark(fs vfs.FS, dir string) error {
	return WriteReplace(fs, dir, MarkName, make([]byte, MarkFileBytes))
}

// WriteMark writes a mark into its slot of the open mark file and syncs it. After an error the file must be made anew
// by CreateMark.
func WriteMark(f vfs.File, m Mark) error {
	if _, err := f.WriteAt(EncodeMark(m), int64(m.Sequence%MarkSlots)*BlockBytes); err != nil {
		return NoSpace(err)
	}
	return f.Sync()
}

// Below is the offset in a segment up to which the mark says that everything was synced; the end of the header where it
// says nothing of this segment.
func (m Mark) Below(s ManifestSegment) int64 {
	if m.Segment != s.ID {
		return SegmentHeaderBytes
	}
	return max(m.Offset, SegmentHeaderBytes)
}
