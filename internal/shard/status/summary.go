package status

import (
	"fmt"
	"time"

	"sheaf.dev/sheaf/client/recordv1"
	"sheaf.dev/sheaf/internal/status/finding"
	"sheaf.dev/sheaf/internal/status/page"
)

// Find sets the findings, as sheaf doctor computes them.
func (st *Shard) Find(groups []*recordv1.Group) {
	st.Findings = finding.Of(finding.Facts{Shards: []*recordv1.Shard{st.Row()}, Groups: groups})
}

// Summarize describes the state in a sentence.
func (st *Shard) Summarize() {
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
			f.Groups-- // it is served elsewhere until it is complete here
		default:
			f.Fail(g.Group, g.Message)
		}
	}
	st.Summary = page.Summarize(&f)
}

// page converts the progress for a sentence.
func (l *Load) page() page.Load {
	return page.Load{
		GroupsDone: l.GroupsLoaded, GroupsAll: l.GroupsTotal, BytesDone: l.BytesDone, BytesAll: l.BytesTotal,
		LeftSeconds: l.ETASeconds,
	}
}

// SilentSeconds returns the seconds since last; -1 if last is zero.
func SilentSeconds(last time.Time) float64 {
	if last.IsZero() {
		return -1
	}
	return time.Since(last).Seconds()
}
