package cli

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"sheaf.dev/sheaf/client/recordv1"
)

// SortedKeys returns the keys of a map, sorted.
func SortedKeys[K cmp.Ordered, V any](m map[K]V) []K { return slices.Sorted(maps.Keys(m)) }

// DamageJSON describes one place of damage, as the commands print it.
type DamageJSON struct {
	Group       string   `json:"group"`
	Shard       string   `json:"shard,omitempty"`
	File        string   `json:"file"`
	OffsetBytes int64    `json:"offsetBytes"`
	LengthBytes int64    `json:"lengthBytes"`
	What        string   `json:"what"`
	IDs         []string `json:"ids"`
	IDsUnknown  bool     `json:"idsUnknown"`
}

// DamagesJSON turns damages into their printed form.
func DamagesJSON(damages []*recordv1.Damage) []DamageJSON {
	rows := make([]DamageJSON, 0, len(damages))
	for _, d := range damages {
		row := DamageJSON{
			Group: d.GetGroup(), Shard: d.GetShard(), File: d.GetFile(), OffsetBytes: d.GetOffsetBytes(),
			LengthBytes: d.GetLengthBytes(), What: d.GetWhat(),
			IDs: make([]string, 0, len(d.GetIds())), IDsUnknown: d.GetIdsUnknown(),
		}
		for _, id := range d.GetIds() {
			row.IDs = append(row.IDs, strconv.FormatInt(id, 10))
		}
		rows = append(rows, row)
	}
	return rows
}

// DamageWords returns a text that names the group, the shard if known, the file, the offset, the kind of damage, and
// the affected ids.
func DamageWords(d *recordv1.Damage) string {
	of := ""
	if d.GetShard() != "" {
		of = " on shard " + d.GetShard()
	}
	return fmt.Sprintf("group %s%s, %s, offset %d, %d bytes: %s%s", d.GetGroup(), of, d.GetFile(), d.GetOffsetBytes(),
		d.GetLengthBytes(), d.GetWhat(),
		IDsWords(d.GetIds(), d.GetIdsUnknown()))
}

// IDsWords names the records that damage affects, as the end of a sentence. It returns an empty text if the damage
// affects none.
func IDsWords(ids []int64, unknown bool) string {
	switch {
	case unknown:
		return "; ids unknown"
	case len(ids) == 0:
		return ""
	case len(ids) == 1:
		return fmt.Sprintf("; id %d", ids[0])
	}
	return "; ids " + strings.Trim(fmt.Sprint(ids), "[]")
}
