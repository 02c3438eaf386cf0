package observed

import (
	"testing"

	"sheaf.dev/sheaf/api/v1alpha1"
	"sheaf.dev/sheaf/controllers/fleet"
)

func TestCountGroups(t *testing.T) {
	whole := fleet.GroupReport{Group: "1", State: "Serving", Leader: true, Records: 100, StoredBytes: 1000}
	follower := fleet.GroupReport{Group: "2", State: "Serving", Records: 100, StoredBytes: 1000}
	damaged := fleet.GroupReport{Group: "3", State: "Damaged", Leader: true, Records: 50, StoredBytes: 1000}
	gone := fleet.GroupReport{Group: "4", State: "Failed", Lost: true}
	before := v1alpha1.ShardStatus{Groups: 4, DamagedGroups: 2, Records: 1000, StoredBytes: 9000}
	report := func(state v1alpha1.ShardState, groups ...fleet.GroupReport) *fleet.ShardReport {
		return &fleet.ShardReport{State: state, Groups: groups}
	}
	for name, c := range map[string]struct {
		state  v1alpha1.ShardState
		report *fleet.ShardReport
		want   v1alpha1.ShardStatus
	}{
		"serving": {v1alpha1.ShardServing, report(v1alpha1.ShardServing, whole, follower, damaged, gone),
			v1alpha1.ShardStatus{Groups: 4, ServingGroups: 3, LeadingGroups: 2, DamagedGroups: 1, LostGroups: 1, Records: 150,
				StoredBytes: 3000}},
		"loading": {v1alpha1.ShardLoading, report(v1alpha1.ShardLoading, whole, fleet.GroupReport{State: "Loading"}),
			v1alpha1.ShardStatus{Groups: 2, ServingGroups: 1, LeadingGroups: 1, Records: 1000, StoredBytes: 9000}},
		"silent": {v1alpha1.ShardUnreachable, nil, v1alpha1.ShardStatus{Groups: 4, DamagedGroups: 2, Records: 1000,
			StoredBytes: 9000}},
		"held": {v1alpha1.ShardPending, report(v1alpha1.ShardPending),
			v1alpha1.ShardStatus{Groups: 4, DamagedGroups: 2, Records: 1000, StoredBytes: 9000}},
		"disk lost": {v1alpha1.ShardDiskLost, report(v1alpha1.ShardDiskLost),
			v1alpha1.ShardStatus{Groups: 4, LostGroups: 4}},
	} {
		o := &Shard{Last: before, Report: c.report}
		got := v1alpha1.ShardStatus{State: c.state}
		o.countGroups(&got)
		if c.want.State = c.state; got != c.want {
			t.Errorf("%s: %+v, want %+v", name, got, c.want)
		}
	}
}

// With several copies, other shards lead the groups of a silent shard and count their records.
func TestASilentShardHasNoRecordsWhereOthersHaveCopies(t *testing.T) {
	for copies, want := range map[int32]int64{1: 1000, 3: 0} {
		o := &Shard{Copies: copies, Last: v1alpha1.ShardStatus{Groups: 4, LeadingGroups: 2, Records: 1000, StoredBytes: 9000}}
		got := v1alpha1.ShardStatus{State: v1alpha1.ShardNodeDown}
		o.countGroups(&got)
		if got.Records != want || got.LeadingGroups != 0 || got.Groups != 4 || got.StoredBytes != 9000 {
			t.Errorf("%d copies: %+v", copies, got)
		}
	}
}
