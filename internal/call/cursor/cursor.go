// Package cursor encodes the opaque values that a shard gives to callers: versions, scan cursors and splits, and page
// tokens. The gateway reads only the group from a cursor. All functions are pure and never panic.
package cursor

import (
	"encoding/base64"
	"encoding/binary"
	"errors"
	"math/bits"
	"time"

	"sheaf.dev/sheaf/internal/base/crc32c"
)

// ErrBad is returned for a value that was not created by this program, or was changed in transit.
var ErrBad = errors.New("not a value that a shard gave out")

const digits = "0123456789abcdefghjkmnpqrstvwxyz" // base 32, without the letters i, l, o and u

// digitOf maps each digit to its value, and other bytes to 255.
var digitOf = func() (t [256]byte) {
	for i := range t {
		t[i] = 255
	}
	for i := range len(digits) {
		t[digits[i]] = byte(i)
	}
	return t
}()

// VersionBytesMax is the maximum length of a version: 13 digits and the check digit.
const VersionBytesMax = 14

// checkDigit returns a digit that detects a single wrong digit in 31 of 32 cases. It is not meant to detect forgery,
// because a version is not secret.
func checkDigit(index uint64) byte { return digits[index*0x9e3779b97f4a7c15>>59] }

// Version encodes an index as a version, which consists of the index in base 32 without leading zeros and a check
// digit. Version returns "" for index 0.
func Version(index uint64) string {
	if index == 0 {
		return ""
	}
	var buf [VersionBytesMax]byte
	version := buf[:0]
	for shift := (bits.Len64(index) - 1) / 5 * 5; shift >= 0; shift -= 5 {
		version = append(version, digits[index>>shift&31])
	}
	return string(append(version, checkDigit(index)))
}

// ParseVersion is the inverse of Version. Each version has only one spelling. The index is not 0 unless err is set.
func ParseVersion(version string) (index uint64, err error) {
	n := len(version) - 1
	if n < 1 || n >= VersionBytesMax || version[0] == '0' {
		return 0, ErrBad
	}
	for i := range n {
		d := digitOf[version[i]]
		if d > 31 || index>>59 != 0 {
			return 0, ErrBad
		}
		index = index<<5 | uint64(d)
	}
	if version[n] != checkDigit(index) {
		return 0, ErrBad
	}
	return index, nil
}

// Kind is the purpose of a Cursor.
type Kind byte

// These are the kinds of cursors.
const (
	Split  Kind = 1 // created by PlanScan: a range in one group's snapshot
	Resume Kind = 2 // created by Scan: the rest of a range
)

// Cursor is a position in a scan. It represents the entries in a group's snapshot with an index in (After, Through].
type Cursor struct {
	Kind    Kind
	All     bool // whether the scan continues with the next groups, ordered by name, after this one
	Own     bool // whether the snapshot was taken only for this scan
	Damaged bool // the scan found damage before this position, so it must not end with OK
	View    bool // Scan is the id of a view, which any copy of the group can open, and not of one shard's snapshot
	Group   string
	Scan    [16]byte
	After   uint64
	Through uint64
}

// snapshotSealed is the lifetime of signed splits and cursors of snapshots. Their snapshots expire earlier.
const snapshotSealed = 7 * 24 * time.Hour

// Lasts returns the lifetime of a signed split or cursor, if callers are authenticated; 0 means forever. A split of a
// view lives as long as the view, which may be renewed again and again. Whether the view still exists is decided at
// each use.
func (c *Cursor) Lasts() time.Duration {
	if c.View {
		return 0
	}
	return snapshotSealed
}

// The bytes of a cursor are: format (1), kind (1), flags (1), scan (16), after (8), through (8), length of the group's
// name (1), the name, CRC32C of all bytes before it (4). Numbers are little-endian.
const (
	cursorFormat  = 1
	fixedBytes    = 36
	groupBytesMax = 253
)

// Encode returns the opaque bytes of a cursor. The group's name must have 1 to 253 bytes.
func (c *Cursor) Encode() []byte {
	b := make([]byte, 0, fixedBytes+len(c.Group)+4)
	var flags byte
	for i, set := range []bool{c.All, c.Own, c.Damaged, c.View} {
		if set {
			flags |= 1 << i
		}
	}
	b = append(b, cursorFormat, byte(c.Kind), flags)
	b = append(b, c.Scan[:]...)
	b = binary.LittleEndian.AppendUint64(b, c.After)
	b = binary.LittleEndian.AppendUint64(b, c.Through)
	b = append(b, byte(len(c.Group)))
	b = append(b, c.Group...)
	return binary.LittleEndian.AppendUint32(b, crc32c.Of(b))
}

// Decode is the inverse of Encode. It returns ErrBad if Encode cannot have returned these bytes.
func Decode(b []byte) (Cursor, error) {
	if len(b) < fixedBytes+1+4 || b[0] != cursorFormat || b[2] > 15 {
		return Cursor{}, ErrBad
	}
	body := b[:len(b)-4]
	if crc32c.Of(body) != binary.LittleEndian.Uint32(b[len(body):]) {
		return Cursor{}, ErrBad
	}
	c := Cursor{
		Kind:    Kind(b[1]),
		All:     b[2]&1 != 0,
		Own:     b[2]&2 != 0,
		Damaged: b[2]&4 != 0,
		View:    b[2]&8 != 0,
		After:   binary.LittleEndian.Uint64(b[19:]),
		Through: binary.LittleEndian.Uint64(b[27:]),
		Group:   string(body[fixedBytes:]),
	}
	copy(c.Scan[:], b[3:])
	if int(b[35]) != len(c.Group) || len(c.Group) > groupBytesMax || c.After > c.Through {
		return Cursor{}, ErrBad
	}
	if c.Kind != Split && c.Kind != Resume {
		return Cursor{}, ErrBad
	}
	return c, nil
}

// Place is the position of a watch in a group's changes.
type Place struct {
	Group [16]byte // the group's UUID
	Index uint64   // all changes up to this index were delivered
}

// The bytes of a place are: format (1), kind (1), group (16), index (8), CRC32C of all bytes before it (4). Numbers are
// little-endian.
const (
	placeFormat = 1
	placeKind   = 3
	placeBytes  = 30
)

// Encode returns the opaque bytes of a place.
func (p Place) Encode() []byte {
	b := make([]byte, 0, placeBytes)
	b = append(b, placeFormat, placeKind)
	b = append(b, p.Group[:]...)
	b = binary.LittleEndian.AppendUint64(b, p.Index)
	return binary.LittleEndian.AppendUint32(b, crc32c.Of(b))
}

// DecodePlace is the inverse of Encode. It returns ErrBad if Encode cannot have returned these bytes.
func DecodePlace(b []byte) (Place, error) {
	if len(b) != placeBytes || b[0] != placeFormat || b[1] != placeKind ||
		crc32c.Of(b[:placeBytes-4]) != binary.LittleEndian.Uint32(b[placeBytes-4:]) {
		return Place{}, ErrBad
	}
	p := Place{Index: binary.LittleEndian.Uint64(b[18:])}
	copy(p.Group[:], b[2:])
	return p, nil
}

// PageToken returns the token for the page of ListVersions with a record's versions below the given index.
func PageToken(id int64, below uint64) string {
	b := make([]byte, 0, 20)
	b = binary.LittleEndian.AppendUint64(b, uint64(id))
	b = binary.LittleEndian.AppendUint64(b, below)
	b = binary.LittleEndian.AppendUint32(b, crc32c.Of(b))
	return base64.RawURLEncoding.EncodeToString(b)
}

// ParsePageToken is the inverse of PageToken. It returns ErrBad for another record's token and for anything that is not
// a token.
func ParsePageToken(token string, id int64) (below uint64, err error) {
	var buf [20]byte
	if len(token) != base64.RawURLEncoding.EncodedLen(len(buf)) {
		return 0, ErrBad
	}
	if _, err := base64.RawURLEncoding.Decode(buf[:], []byte(token)); err != nil {
		return 0, ErrBad
	}
	b := buf[:]
	if crc32c.Of(b[:16]) != binary.LittleEndian.Uint32(b[16:]) ||
		int64(binary.LittleEndian.Uint64(b)) != id {
		return 0, ErrBad
	}
	if below = binary.LittleEndian.Uint64(b[8:]); below == 0 {
		return 0, ErrBad
	}
	return below, nil
}
