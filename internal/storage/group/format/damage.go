package format

import (
	"fmt"
	"strings"
)

// String names group, file, offset, length and what.
func (d Damage) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "group %s: %s: %s at offset %d, %d bytes", d.Group, d.File, d.What, d.Offset, d.Length)
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

// CopyDamages names the bad ones of two copies, of so many bytes each, that a file is to have.
func CopyDamages(file string, bytes int64, bad [2]error) (out []Damage) {
	for i, why := range bad {
		if why != nil {
			out = append(out, Damage{File: file, Offset: int64(i) * bytes, Length: bytes,
				What: fmt.Sprintf("copy %d does not count: %v", i, why)})
		}
	}
	return out
}

// DamageError says that stored bytes are bad: DATA_LOSS for whoever needs them.
type DamageError struct {
	Damage Damage
	ID     int64 // the record asked for
}

func (e *DamageError) Error() string { return "damaged: " + e.Damage.String() }

// Damage is one place of bad bytes. Where the ids hit are not known, any entry with an index in
// [IndexFirst, IndexLast] may have been there.
type Damage struct {
	Group      string
	File       string // name within the group's folder
	Offset     int64  // bytes
	Length     int64  // bytes
	What       string
	IDs        []int64 // ids known to be hit, from a whole header or a hint
	IDsUnknown bool
	IndexFirst uint64
	IndexLast  uint64
}

// MayVoid tells whether damage may hide what made an entry void whose frame stands in a file at an offset.
func (d *Damage) MayVoid(file string, offset int64, at uint64) bool {
	return d.IDsUnknown && d.File == file && offset < d.Offset && d.IndexFirst <= at && at <= d.IndexLast
}

// LossJump is how far new indexes jump ahead of all that a client may have seen (rule 8).
const LossJump = 1 << 32
