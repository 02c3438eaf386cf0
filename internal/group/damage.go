package group

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
