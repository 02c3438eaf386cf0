package shard

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	recordv1 "sheaf.dev/sheaf/api/sheaf/record/v1"
	"sheaf.dev/sheaf/internal/finding"
	"sheaf.dev/sheaf/internal/page"
)

// moveStatuses are the copies that are being made here.
func (s *Shard) moveStatuses() []MoveStatus {
	var out []MoveStatus
	for _, m := range s.copies() {
		for _, c := range m.GetCopies() {
			out = append(out, MoveStatus{
				Group: m.GetGroup(), From: c.GetFrom(), To: c.GetShard(), Phase: word(c.GetPhase().String(), "COPY_PHASE_"),
				BytesTotal: c.GetBytesTotal(), BytesDone: c.GetBytesDone(), BytesPerSecond: c.GetBytesPerSecond(), ETASeconds: c.EtaSeconds,
			})
		}
	}
	return out
}

// uncompacted sums up by reason why superseded bytes of all groups are still stored.
func (c *compactor) uncompacted() []Uncompacted {
	type most struct {
		Uncompacted
		bytes int64
	}
	byReason := map[string]*most{}
	for _, g := range c.servedGroups(nil) {
		for _, h := range c.holds(g.name, &g.stats) {
			sum := byReason[h.reason]
			if sum == nil {
				sum = &most{Uncompacted: Uncompacted{Reason: h.reason}}
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
	out := make([]Uncompacted, 0, len(byReason))
	for sum := range maps.Values(byReason) {
		out = append(out, sum.Uncompacted)
	}
	slices.SortFunc(out, func(a, b Uncompacted) int {
		return cmp.Or(cmp.Compare(b.Bytes, a.Bytes), cmp.Compare(a.Reason, b.Reason))
	})
	return out
}

// find says what is wrong, as sheaf doctor does.
func (st *Status) find(groups []*recordv1.Group) {
	st.Findings = finding.Of(finding.Seen{Shards: []*recordv1.Shard{shardOf(*st)}, Groups: groups})
}

// summarize puts the state into a sentence.
func (st *Status) summarize() {
	f := page.Facts{
		EtcdSilent: time.Duration(max(0, st.EtcdSilentSeconds) * float64(time.Second)), Load: st.Load.page(),
		Groups: len(st.Groups), Problems: finding.Problems(st.Findings, "shard "+st.Name),
	}
	f.Load.Runs = st.state == recordv1.ShardState_SHARD_STATE_LOADING
	switch st.state {
	case recordv1.ShardState_SHARD_STATE_LOADING, recordv1.ShardState_SHARD_STATE_SERVING:
	case recordv1.ShardState_SHARD_STATE_MEMORY_TOO_SMALL: // those that fit are loaded and served
		f.Load.Runs = !st.Load.Done
	case recordv1.ShardState_SHARD_STATE_DRAINING:
		f.And = "; the shard is being emptied"
	default:
		f.Waits = fmt.Sprintf("%s: %s", st.State, st.Message)
	}
	if st.Stopping {
		f.Waits = "the shard is stopping"
	}
	comes := make(map[string]bool, len(st.Moves))
	for i := range st.Moves {
		comes[st.Moves[i].Group] = true
	}
	for i := range st.Groups {
		switch g := &st.Groups[i]; {
		case g.State == "Serving":
		case g.State == "Damaged":
			f.Damaged = append(f.Damaged, g.Group)
		case comes[g.Group]:
			f.Groups-- // it is served elsewhere until it is here
		default:
			f.Fail(g.Group, g.Message)
		}
	}
	st.Summary = page.Summarize(&f)
}

// page is the progress as a sentence needs it.
func (l *LoadStatus) page() page.Load {
	return page.Load{
		GroupsDone: l.GroupsLoaded, GroupsAll: l.GroupsTotal, BytesDone: l.BytesDone, BytesAll: l.BytesTotal, LeftSeconds: l.ETASeconds,
	}
}

// silentSeconds since a time; -1 where it never was.
func silentSeconds(last time.Time) float64 {
	if last.IsZero() {
		return -1
	}
	return time.Since(last).Seconds()
}
