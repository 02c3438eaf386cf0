package cursor

import (
	"encoding/binary"

	"sheaf.dev/sheaf/internal/base/crc32c"
)

// Place is the position of a watch in a group's changes.
type Place struct {
	Group [16]byte // UUID
	Index uint64   // all changes up to it were delivered
}

// A place's bytes: format (1), kind (1), group (16), index (8), CRC32C of all before (4). Little-endian.
const (
	placeFormat = 1
	placeKind   = 3
	placeBytes  = 30
)

// Encode makes the opaque bytes of a place.
func (p Place) Encode() []byte {
	b := make([]byte, 0, placeBytes)
	b = append(b, placeFormat, placeKind)
	b = append(b, p.Group[:]...)
	b = binary.LittleEndian.AppendUint64(b, p.Index)
	return binary.LittleEndian.AppendUint32(b, crc32c.Of(b))
}

// DecodePlace is the inverse of Encode; it returns ErrBad for anything else.
func DecodePlace(b []byte) (Place, error) {
	if len(b) != placeBytes || b[0] != placeFormat || b[1] != placeKind ||
		crc32c.Of(b[:placeBytes-4]) != binary.LittleEndian.Uint32(b[placeBytes-4:]) {
		return Place{}, ErrBad
	}
	p := Place{Index: binary.LittleEndian.Uint64(b[18:])}
	copy(p.Group[:], b[2:])
	return p, nil
}
