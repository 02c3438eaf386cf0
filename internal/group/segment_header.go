package group

import (
	"encoding/binary"
	"fmt"

	"github.com/google/uuid"
)

const segmentMagic = "SHEAFSEG"

// SegmentVersionRequests is the version of a segment that may hold entries of KindRequest: those that compaction and
// repair write. A program from before them says of it that it is newer. Segments that were only appended to have
// FormatVersion.
const SegmentVersionRequests = 2

// SegmentHeader begins every segment, in SegmentHeaderBytes:
//
//	0       8         12     16           32           48           56            64        72     124   128
//	├ magic ┼ version ┼ zero ┼ store UUID ┼ group UUID ┼ segment id ┼ first index ┼ created ┼ zero ┼ CRC ┤
type SegmentHeader struct {
	Store      uuid.UUID
	Group      uuid.UUID
	ID         SegmentID
	FirstIndex uint64
	Created    int64 // Unix ns
	Rewritten  bool  // by compaction or repair: its version is SegmentVersionRequests
}

// Encode makes the SegmentHeaderBytes of a header.
func (h SegmentHeader) Encode() []byte {
	b := make([]byte, SegmentHeaderBytes)
	le := binary.LittleEndian
	copy(b, segmentMagic)
	le.PutUint32(b[8:], FormatVersion)
	if h.Rewritten {
		le.PutUint32(b[8:], SegmentVersionRequests)
	}
	copy(b[16:], h.Store[:])
	copy(b[32:], h.Group[:])
	copy(b[48:], h.ID[:])
	le.PutUint64(b[56:], h.FirstIndex)
	le.PutUint64(b[64:], uint64(h.Created))
	le.PutUint32(b[124:], checksum(b[:124]))
	return b
}

// DecodeSegmentHeader is the reverse of Encode; b may be longer. Errors: ErrCorrupt, ErrFormatVersion.
func DecodeSegmentHeader(b []byte) (SegmentHeader, error) {
	if len(b) < SegmentHeaderBytes {
		return SegmentHeader{}, fmt.Errorf("segment header: %w: %d bytes are too few", ErrCorrupt, len(b))
	}
	le := binary.LittleEndian
	if string(b[:magicBytes]) != segmentMagic {
		return SegmentHeader{}, fmt.Errorf("segment header: %w: magic is %q, not %q", ErrCorrupt, b[:magicBytes], segmentMagic)
	}
	if le.Uint32(b[124:]) != checksum(b[:124]) {
		return SegmentHeader{}, fmt.Errorf("segment header: %w: checksum", ErrCorrupt)
	}
	rewritten := le.Uint32(b[8:]) == SegmentVersionRequests
	if !rewritten {
		if err := checkVersion(le.Uint32(b[8:]), SegmentVersionRequests); err != nil {
			return SegmentHeader{}, fmt.Errorf("segment header: %w", err)
		}
	}
	if !isZero(b[12:16]) || !isZero(b[72:124]) {
		return SegmentHeader{}, fmt.Errorf("segment header: %w: reserved bytes are not zero", ErrCorrupt)
	}
	h := SegmentHeader{FirstIndex: le.Uint64(b[56:]), Created: int64(le.Uint64(b[64:])), Rewritten: rewritten}
	copy(h.Store[:], b[16:])
	copy(h.Group[:], b[32:])
	copy(h.ID[:], b[48:])
	return h, nil
}

// CheckSegmentHeader checks the first bytes of a segment against what the manifest says of it. Errors: ErrCorrupt (the
// manifest's word counts, the frames can be read), ErrFormatVersion, ErrForeign.
func CheckSegmentHeader(b []byte, identity Identity, segment ManifestSegment) error {
	h, err := DecodeSegmentHeader(b)
	if err != nil {
		return err
	}
	switch {
	case h.Store != identity.Store:
		return fmt.Errorf("segment header: %w: store is %s, not %s", ErrForeign, h.Store, identity.Store)
	case h.Group != identity.Group:
		return fmt.Errorf("segment header: %w: group is %s, not %s", ErrForeign, h.Group, identity.Group)
	case h.ID != segment.ID || h.FirstIndex != segment.FirstIndex:
		return fmt.Errorf("segment header: %w: segment %x from index %d, the manifest says %x from %d",
			ErrCorrupt, h.ID, h.FirstIndex, segment.ID, segment.FirstIndex)
	}
	return nil
}
