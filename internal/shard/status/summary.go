// Package status derives findings from the status that a shard reports, and summarizes the state of the shard in a
// sentence.
package status

import (
	"fmt"
	"time"

	"sheaf.dev/sheaf/client/recordv1"
	"sheaf.dev/sheaf/internal/status/finding"
	"sheaf.dev/sheaf/internal/status/page"
)

// Conclude sets the findings, which are the same as those of sheaf doctor, and the sentence about the state.
func Conclude(st *recordv1.ShardStatus) {
	found := finding.Of(finding.Facts{Shards: []*recordv1.Shard{st.GetShard()}, Groups: st.GetGroups()})
	st.Findings = finding.Messages(found)
	st.Summary = summarize(st, finding.Problems(found, "shard "+st.GetShard().GetName()))
}

func summarize(st *recordv1.ShardStatus, problems []string) *recordv1.StatusSummary {
	shard := st.GetShard()
	f := page.Facts{
		EtcdSilent: EtcdSilent(shard), Load: shard.GetLoad(), Groups: len(st.GetGroups()), Problems: problems,
	}
	f.Loading = shard.GetState() == recordv1.ShardState_SHARD_STATE_LOADING
	switch shard.GetState() {
	case recordv1.ShardState_SHARD_STATE_LOADING, recordv1.ShardState_SHARD_STATE_SERVING:
	case recordv1.ShardState_SHARD_STATE_MEMORY_TOO_SMALL: // groups that fit into memory are loaded and serve
		f.Loading = !shard.GetLoad().GetDone()
	case recordv1.ShardState_SHARD_STATE_DRAINING:
		f.And = "; the shard is being emptied"
	default:
		f.Waits = fmt.Sprintf("%s: %s", shard.GetState().Word(), shard.GetMessage())
	}
	if shard.GetStopping() {
		f.Waits = "the shard is stopping"
	}
	comes := make(map[string]bool, len(st.GetMoves()))
	for _, m := range st.GetMoves() {
		comes[m.GetGroup()] = true
	}
	for _, g := range st.GetGroups() {
		switch {
		case g.GetState() == recordv1.GroupState_GROUP_STATE_DAMAGED:
			f.Damaged = append(f.Damaged, g.GetGroup())
		case g.GetState().Serves():
		case comes[g.GetGroup()]:
			f.Groups-- // the group is served by other shards until the copy on this shard is complete
		default:
			f.Fail(g.GetGroup(), g.GetMessage())
		}
	}
	return page.Summarize(&f)
}

// EtcdSilent returns the time since etcd last responded to a shard, or 0 if that time is not known.
func EtcdSilent(shard *recordv1.Shard) time.Duration {
	return time.Duration(shard.GetEtcdSilentSeconds() * float64(time.Second))
}

// SilentSeconds returns the seconds since last, or nil if last is zero.
func SilentSeconds(last time.Time) *float64 {
	if last.IsZero() {
		return nil
	}
	return new(time.Since(last).Seconds())
}
