package shard

import (
	"cmp"
	"maps"
	"slices"

	recordv1 "sheaf.dev/sheaf/api/sheaf/record/v1"
	"sheaf.dev/sheaf/internal/shard/status"
)

// movesOf tells of the copies that are being made here.
func movesOf(copies []*recordv1.Move) (out []status.Move) {
	for _, m := range copies {
		for _, c := range m.GetCopies() {
			out = append(out, status.Move{
				Group: m.GetGroup(), From: c.GetFrom(), To: c.GetShard(), Phase: c.GetPhase().Word(),
				BytesTotal: c.GetBytesTotal(), BytesDone: c.GetBytesDone(), BytesPerSecond: c.GetBytesPerSecond(), ETASeconds: c.EtaSeconds,
			})
		}
	}
	return out
}

// uncompacted sums up by reason why superseded bytes of all groups are still stored.
func (c *compactor) uncompacted() []status.Uncompacted {
	type most struct {
		status.Uncompacted
		bytes int64
	}
	byReason := map[string]*most{}
	for _, g := range c.servedGroups(nil) {
		for _, h := range c.holds(g.name, &g.stats) {
			sum := byReason[h.reason]
			if sum == nil {
				sum = &most{Uncompacted: status.Uncompacted{Reason: h.reason}}
				byReason[h.reason] = sum
			}
			sum.Bytes += h.bytes
			sum.Groups++
			// The names break ties: groups come in no order, and the answer is to stay the same.
			if h.bytes > sum.bytes || h.bytes == sum.bytes && g.name < sum.Group {
				sum.bytes, sum.Group, sum.Text = h.bytes, g.name, h.text
			}
		}
	}
	out := make([]status.Uncompacted, 0, len(byReason))
	for sum := range maps.Values(byReason) {
		out = append(out, sum.Uncompacted)
	}
	slices.SortFunc(out, func(a, b status.Uncompacted) int {
		return cmp.Or(cmp.Compare(b.Bytes, a.Bytes), cmp.Compare(a.Reason, b.Reason))
	})
	return out
}
