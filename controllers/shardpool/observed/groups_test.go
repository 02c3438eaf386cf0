package observed

import (
	"testing"

	"sheaf.dev/sheaf/api/v1alpha1"
	"sheaf.dev/sheaf/client/recordv1"
)

func TestCountGroups(t *testing.T) {
	whole := &recordv1.Group{Group: "1", State: recordv1.GroupState_GROUP_STATE_SERVING, Leader: true,
		Records: 100, StoredBytes: 1000}
	follower := &recordv1.Group{Group: "2", State: recordv1.GroupState_GROUP_STATE_SERVING,
		Records: 100, StoredBytes: 1000}
	damaged := &recordv1.Group{Group: "3", State: recordv1.GroupState_GROUP_STATE_DAMAGED, Leader: true,
		Records: 50, StoredBytes: 1000}
	gone := &recordv1.Group{Group: "4", State: recordv1.GroupState_GROUP_STATE_FAILED, Lost: true}
	before := v1alpha1.ShardStatus{Groups: 4, DamagedGroups: 2, Records: 1000, StoredBytes: 9000}
	report := func(state recordv1.ShardState, groups ...*recordv1.Group) *recordv1.ShardStatus {
		return &recordv1.ShardStatus{Shard: &recordv1.Shard{State: state}, Groups: groups}
	}
	for name, c := range map[string]struct {
		state  v1alpha1.ShardState
		report *recordv1.ShardStatus
		want   v1alpha1.ShardStatus
	}{
		"serving": {v1alpha1.ShardServing, report(recordv1.ShardState_SHARD_STATE_SERVING, whole, follower,
			damaged, gone),
			v1alpha1.ShardStatus{Groups: 4, ServingGroups: 3, LeadingGroups: 2, DamagedGroups: 1, LostGroups: 1, Records: 150,
				StoredBytes: 3000}},
		"loading": {v1alpha1.ShardLoading, report(recordv1.ShardState_SHARD_STATE_LOADING, whole,
			&recordv1.Group{State: recordv1.GroupState_GROUP_STATE_LOADING}),
			v1alpha1.ShardStatus{Groups: 2, ServingGroups: 1, LeadingGroups: 1, Records: 1000, StoredBytes: 9000}},
		"silent": {v1alpha1.ShardUnreachable, nil, v1alpha1.ShardStatus{Groups: 4, DamagedGroups: 2, Records: 1000,
			StoredBytes: 9000}},
		"held": {v1alpha1.ShardPending, report(recordv1.ShardState_SHARD_STATE_PENDING),
			v1alpha1.ShardStatus{Groups: 4, DamagedGroups: 2, Records: 1000, StoredBytes: 9000}},
		"disk lost": {v1alpha1.ShardDiskLost, report(recordv1.ShardState_SHARD_STATE_DISK_LOST),
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
func TestRecordsOfSilentShardAreCountedByOtherCopies(t *testing.T) {
	for copies, want := range map[int32]int64{1: 1000, 3: 0} {
		o := &Shard{Copies: copies, Last: v1alpha1.ShardStatus{Groups: 4, LeadingGroups: 2, Records: 1000, StoredBytes: 9000}}
		got := v1alpha1.ShardStatus{State: v1alpha1.ShardNodeDown}
		o.countGroups(&got)
		if got.Records != want || got.LeadingGroups != 0 || got.Groups != 4 || got.StoredBytes != 9000 {
			t.Errorf("%d copies: %+v", copies, got)
		}
	}
}
