package format

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"path"
	"time"

	"github.com/google/uuid"

	"sheaf.dev/sheaf/internal/storage/vfs"
)

// SegmentMagic is the byte string with which each segment file begins.
const SegmentMagic = "SHEAFSEG"

// segmentVersionRequests is the version of segments that may hold entries of KindRequest. Compaction and repair write
// such segments. An older version of Sheaf reports that it cannot read such a segment, because it is too new. Segments
// that were only appended to have FormatVersion.
const segmentVersionRequests = 2

// SegmentHeader is the header of a segment. It takes SegmentHeaderBytes bytes:
//
//	0       8         12     16           32           48           56            64        72     124   128
//	├ magic ┼ version ┼ zero ┼ store UUID ┼ group UUID ┼ segment id ┼ first index ┼ created ┼ zero ┼ CRC ┤
type SegmentHeader struct {
	Store      uuid.UUID
	Group      uuid.UUID
	ID         SegmentID
	FirstIndex uint64
	Created    int64 // Unix time in ns
	Rewritten  bool  // compaction or repair has written the segment, with segmentVersionRequests
}

// Encode returns the SegmentHeaderBytes bytes of the header.
func (h SegmentHeader) Encode() []byte {
	b := make([]byte, SegmentHeaderBytes)
	le := binary.LittleEndian
	copy(b, SegmentMagic)
	le.PutUint32(b[8:], FormatVersion)
	if h.Rewritten {
		le.PutUint32(b[8:], segmentVersionRequests)
	}
	copy(b[16:], h.Store[:])
	copy(b[32:], h.Group[:])
	copy(b[48:], h.ID[:])
	le.PutUint64(b[56:], h.FirstIndex)
	le.PutUint64(b[64:], uint64(h.Created))
	le.PutUint32(b[124:], Checksum(b[:124]))
	return b
}

// DecodeSegmentHeader decodes the header at the beginning of b. It returns ErrCorrupt or ErrFormatVersion if the header
// is invalid.
func DecodeSegmentHeader(b []byte) (SegmentHeader, error) {
	if len(b) < SegmentHeaderBytes {
		return SegmentHeader{}, fmt.Errorf("segment header: %w: %d bytes are too few", ErrCorrupt, len(b))
	}
	le := binary.LittleEndian
	if string(b[:MagicBytes]) != SegmentMagic {
		return SegmentHeader{}, fmt.Errorf("segment header: %w: magic is %q, not %q", ErrCorrupt, b[:MagicBytes],
			SegmentMagic)
	}
	if le.Uint32(b[124:]) != Checksum(b[:124]) {
		return SegmentHeader{}, fmt.Errorf("segment header: %w: checksum", ErrCorrupt)
	}
	if err := checkVersion(le.Uint32(b[8:]), segmentVersionRequests); err != nil {
		return SegmentHeader{}, fmt.Errorf("segment header: %w", err)
	}
	if !IsZero(b[12:16]) || !IsZero(b[72:124]) {
		return SegmentHeader{}, fmt.Errorf("segment header: %w: reserved bytes are not zero", ErrCorrupt)
	}
	h := SegmentHeader{FirstIndex: le.Uint64(b[56:]), Created: int64(le.Uint64(b[64:])),
		Rewritten: le.Uint32(b[8:]) == segmentVersionRequests}
	copy(h.Store[:], b[16:])
	copy(h.Group[:], b[32:])
	copy(h.ID[:], b[48:])
	return h, nil
}

// CheckSegmentHeader compares the header at the beginning of b with the manifest. If the header is damaged or differs
// from the manifest, it returns ErrCorrupt. The frames can then still be read, because the manifest takes precedence.
// It can also return ErrFormatVersion and ErrForeign.
func CheckSegmentHeader(b []byte, identity Identity, segment ManifestSegment) error {
	h, err := DecodeSegmentHeader(b)
	if err != nil {
		return err
	}
	identity.Name = "" // a segment header contains no name
	if err := CheckIdentity(Identity{Store: h.Store, Group: h.Group}, identity); err != nil {
		return fmt.Errorf("segment header: %w", err)
	}
	if h.ID != segment.ID || h.FirstIndex != segment.FirstIndex {
		return fmt.Errorf("segment header: %w: segment %x from index %d, the manifest says %x from %d",
			ErrCorrupt, h.ID, h.FirstIndex, segment.ID, segment.FirstIndex)
	}
	return nil
}

// NewSegmentID returns a random segment id.
func NewSegmentID() SegmentID {
	var id SegmentID
	_, _ = rand.Read(id[:]) // rand.Read never returns an error
	return id
}

// MakeSegment durably creates the file of an empty segment.
func MakeSegment(fs vfs.FS, dir string, identity Identity, m ManifestSegment, created time.Time) error {
	f, err := WriteSegmentHeader(fs, dir, identity, m, created, false)
	if err != nil {
		return err
	}
	return f.Close()
}

// WriteSegmentHeader durably creates a segment file that contains only its header.
func WriteSegmentHeader(fs vfs.FS, dir string, identity Identity, m ManifestSegment, created time.Time,
	rewritten bool) (vfs.File, error) {
	name := path.Join(dir, SegmentName(m.Number))
	f, err := vfs.CreateReplacing(fs, name)
	if err != nil {
		return nil, MarkShortage(err)
	}
	header := SegmentHeader{
		Store: identity.Store, Group: identity.Group, ID: m.ID,
		FirstIndex: m.FirstIndex, Created: created.UnixNano(), Rewritten: rewritten,
	}
	_, err = f.WriteAt(header.Encode(), 0)
	if err == nil {
		err = f.Sync()
	}
	if err == nil {
		err = fs.SyncDir(dir)
	}
	if err != nil {
		return nil, MarkShortage(errors.Join(err, f.Close(), fs.Remove(name)))
	}
	return f, nil
}
