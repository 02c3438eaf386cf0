// Package index implements the off-heap table that maps a record id to the location of the record's newest entry. The
// garbage collector does not scan the table, because it has 16 bytes per slot in anonymous mappings and no pointer per
// record.
package index

// Loc is the packed location of an entry. A greater Loc is a later entry of the log. It consists of the segment's
// ordinal (20 bits, from 1), the offset in the segment in units of 8 bytes (28 bits), the frame's length in units of 64
// bytes, rounded up (15 bits), and the tombstone bit. Length and tombstone bit do not affect the order. 0 means that
// there is no location.
type Loc uint64

const (
	// OrdinalMax is the greatest segment ordinal.
	OrdinalMax = 1<<20 - 1
	// OffsetMax is the greatest offset of a frame in a segment, in bytes.
	OffsetMax = (1<<28 - 1) * 8
	// LengthMax is the greatest length of a frame, in bytes.
	LengthMax = (1<<15 - 1) * 64
)

// MakeLoc packs a location. The argument offset must be a multiple of 8 in [0, OffsetMax], and length must be in [0,
// LengthMax]. Both are in bytes.
func MakeLoc(ordinal uint32, offset, length int64, tombstone bool) Loc {
	loc := Loc(ordinal)<<44 | Loc(offset/8)<<16 | Loc((length+63)/64)<<1
	if tombstone {
		loc |= 1
	}
	return loc
}

// Ordinal returns the ordinal of the segment.
func (l Loc) Ordinal() uint32 { return uint32(l >> 44) }

// In converts a location with ordinal 0 to a location in the segment with the given ordinal.
func (l Loc) In(ordinal uint32) Loc { return l | Loc(ordinal)<<44 }

// Offset returns the offset of the frame in its segment in bytes.
func (l Loc) Offset() int64 { return int64(l>>16&(1<<28-1)) * 8 }

// LengthBound returns an upper bound on the frame's length in bytes. It is at most 63 bytes too high.
func (l Loc) LengthBound() int64 { return int64(l>>1&(1<<15-1)) * 64 }

// Tombstone reports whether the entry is a delete.
func (l Loc) Tombstone() bool { return l&1 != 0 }

// Less reports whether the location l is earlier in the log than the location other. It ignores the length and the
// tombstone bit.
func (l Loc) Less(other Loc) bool { return l>>16 < other>>16 }
