package format

import (
	"fmt"
	"strings"
)

// String describes the damage for logs, including the ids of affected records.
func (d Damage) String() string {
	var b strings.Builder
	b.WriteString(d.place())
	switch {
	case len(d.IDs) == 1:
		fmt.Fprintf(&b, ", id %d", d.IDs[0])
	case len(d.IDs) > 1:
		fmt.Fprintf(&b, ", %d ids from %d", len(d.IDs), d.IDs[0])
	}
	if d.IDsUnknown {
		fmt.Fprintf(&b, ", ids unknown")
	}
	if d.IndexLast != 0 {
		fmt.Fprintf(&b, ", indexes %d to %d", d.IndexFirst, d.IndexLast)
	}
	return b.String()
}

// place describes the damage without record ids, by group, file, offset, length and problem.
func (d Damage) place() string {
	return fmt.Sprintf("group %s: %s: %s at offset %d, %d bytes", d.Group, d.File, d.What, d.Offset, d.Length)
}

// CopyDamages returns the damage to a file that holds two copies of its content, with one Damage for each bad copy.
// Each copy has the given number of bytes.
func CopyDamages(file string, bytes int64, bad [2]error) (out []Damage) {
	for i, why := range bad {
		if why != nil {
			out = append(out, Damage{File: file, Offset: int64(i) * bytes, Length: bytes,
				What: fmt.Sprintf("copy %d does not count: %v", i, why)})
		}
	}
	return out
}

// DamageError means that stored bytes are bad. A request that needs these bytes fails with DATA_LOSS.
type DamageError struct {
	Damage Damage
	ID     int64 // the requested record
}

func (e *DamageError) Error() string { return "damaged: " + e.Damage.place() }

// Damage is one range of bad bytes. If the affected ids are not known, any entry with an index in [IndexFirst,
// IndexLast] may have been in the range.
type Damage struct {
	Group      string
	File       string // name of the file in the group's folder
	Offset     int64  // offset of the range in the file, in bytes
	Length     int64  // length of the range in bytes
	What       string
	IDs        []int64 // ids of affected records that are known from a valid header or a hint
	IDsUnknown bool
	IndexFirst uint64
	IndexLast  uint64
}

// MayVoid reports whether the damage may hide a frame that has made an entry void. The arguments at and offset are
// the entry's index and its frame's offset in the file.
func (d *Damage) MayVoid(file string, offset int64, at uint64) bool {
	return d.IDsUnknown && d.File == file && offset < d.Offset && d.IndexFirst <= at && at <= d.IndexLast
}

// LossJump is how far the next index is above all indexes that a client may have seen, once a loss has been accepted
// (rule 8).
const LossJump = 1 << 32
