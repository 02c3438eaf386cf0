package flight

import (
	"cmp"
	"slices"

	"sheaf.dev/sheaf/client/recordv1"
)

// RowOf returns the row of a record that Scan or BatchGet has returned. Without data in the record, the row has neither
// data nor a checksum.
func RowOf(r *recordv1.Record) Row {
	row := Row{
		Group: r.GetKey().GetGroup(), ID: r.GetKey().GetId(), Version: r.GetVersion(), Timestamp: r.GetTimestampUnixNs(),
		CommitTime: r.GetCommitTimeUnixNs(), Size: r.GetSizeBytes(), Attributes: Sorted(r.GetAttributes()),
		Filled: AllColumns &^ (1<<CRC32C | 1<<Data),
	}
	if r.DataCrc32C != nil {
		row.CRC32C, row.Data = r.GetDataCrc32C(), r.GetData()
		row.Filled |= 1<<CRC32C | 1<<Data
	}
	return row
}

// Sorted returns attributes in the order of their keys.
func Sorted(attributes map[string][]byte) []Attribute {
	if len(attributes) == 0 {
		return nil
	}
	out := make([]Attribute, 0, len(attributes))
	for key, value := range attributes {
		out = append(out, Attribute{key, value})
	}
	slices.SortFunc(out, func(a, b Attribute) int { return cmp.Compare(a.Key, b.Key) })
	return out
}
