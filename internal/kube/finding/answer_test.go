package finding_test

import (
	"slices"
	"strings"
	"testing"

	"sheaf.dev/sheaf/api/v1alpha1"
	"sheaf.dev/sheaf/client/recordv1"
	. "sheaf.dev/sheaf/internal/kube/finding"
	"sheaf.dev/sheaf/internal/status/finding"
	"sheaf.dev/sheaf/internal/test/kubefindingtest"
)

// answered returns what a gateway of the healthy store answers: three shards, and one group with a copy on each.
func answered() *finding.Facts {
	facts := &finding.Facts{Whole: true}
	for n, shard := range []string{"quotes-ssd-0", "quotes-ssd-1", "quotes-ssd-2"} {
		facts.Shards = append(facts.Shards, &recordv1.Shard{Name: shard, Alive: true, Address: shard + ":7610", Groups: 1})
		facts.Groups = append(facts.Groups, &recordv1.Group{
			Group: "7", Shard: shard, State: recordv1.GroupState_GROUP_STATE_SERVING, Leader: n == 0,
		})
	}
	return facts
}

// TestOneEngineDecidesWhatAGatewayShows checks that kubectl sheaf finds in a gateway's answer what sheaf doctor finds
// there, and that one cause has one finding: what the objects of Kubernetes explain better is theirs.
func TestOneEngineDecidesWhatAGatewayShows(t *testing.T) {
	silent := func(f *finding.Facts) {
		f.Shards[1].Alive, f.Groups[1].State = false, recordv1.GroupState_GROUP_STATE_UNAVAILABLE
	}
	for name, c := range map[string]struct {
		change func(*testing.T, *Objects, *finding.Facts)
		want   []want
	}{
		"all is well": {func(*testing.T, *Objects, *finding.Facts) {}, nil},
		"a group that no copy leads": {func(_ *testing.T, o *Objects, f *finding.Facts) {
			f.Groups[0].Leader = false
			o.Store.Status.Groups = v1alpha1.GroupCounts{Total: 64, Serving: 63} // the same cause
		}, []want{{Problem, "group 7", "no copy of it leads", "describe recordstore quotes"}}},
		"a group that has failed": {func(_ *testing.T, _ *Objects, f *finding.Facts) {
			f.Groups[1].State, f.Groups[1].Message = recordv1.GroupState_GROUP_STATE_FAILED, "the disk is read-only"
		}, []want{{Problem, "group 7 on shard quotes-ssd-1", "the disk is read-only", "logs quotes-ssd-1-0"}}},
		"a damaged group": {func(_ *testing.T, o *Objects, f *finding.Facts) {
			f.Groups[1].State = recordv1.GroupState_GROUP_STATE_DAMAGED
			o.Pools[0].Status.ShardStatuses[1].DamagedGroups = 1
			o.Store.Status.Groups = v1alpha1.GroupCounts{Total: 64, Serving: 64, Damaged: 1}
		}, []want{{Problem, "group 7 on shard quotes-ssd-1", "its state is damaged", "sheaf group verify 7"}}},
		"a silent shard whose node is down": {func(t *testing.T, o *Objects, f *finding.Facts) {
			silent(f)
			shardIs(v1alpha1.ShardNodeDown, "node n2 is not ready")(t, o)
		}, []want{{Warning, "shard quotes-ssd-1", "node n2 is not ready", "describe node n2"}}},
		"two silent shards whose nodes are down": {func(t *testing.T, o *Objects, f *finding.Facts) {
			silent(f)
			f.Shards[0].Alive, f.Groups[0].State = false, recordv1.GroupState_GROUP_STATE_UNAVAILABLE
			f.Groups[0].Leader = false
			shardIs(v1alpha1.ShardNodeDown, "node n2 is not ready")(t, o)
			o.Pools[0].Status.ShardStatuses[0].State = v1alpha1.ShardNodeDown
		}, []want{
			{Problem, "shard quotes-ssd-0", "too few copies are well to serve group 7", "logs quotes-ssd-0-0"},
			{Problem, "shard quotes-ssd-1", "too few copies are well to serve group 7", "logs quotes-ssd-1-0"},
			{Warning, "shard quotes-ssd-0", "NodeDown", "describe node"},
			{Warning, "shard quotes-ssd-1", "node n2 is not ready", "describe node n2"},
		}},
		"a silent shard of which no object says why": {func(_ *testing.T, _ *Objects, f *finding.Facts) { silent(f) },
			[]want{{Problem, "shard quotes-ssd-1", "it does not answer", "logs quotes-ssd-1-0"}}},
		"a full volume": {func(_ *testing.T, o *Objects, f *finding.Facts) {
			f.Shards[2].CapacityBytes, f.Shards[2].ReserveBytes = 1<<40, 1<<30
			set(&o.Pools[0].Status.Conditions, v1alpha1.ConditionSpaceAvailable, "False", "VolumeFull", "puts are refused")
		}, []want{{Problem, "shard quotes-ssd-2", "writes are refused as DISK_FULL", "enlarge the volume"}}},
		"no shard runs": {func(_ *testing.T, o *Objects, f *finding.Facts) { f.Shards, f.Groups = nil, nil },
			[]want{{Problem, "store", "no shard runs", "describe recordstore quotes"}}},
	} {
		t.Run(name, func(t *testing.T) {
			o, _ := kubefindingtest.Well()
			o.Answer = answered()
			c.change(t, &o, o.Answer)
			found := Find(o)
			compare(t, found, c.want)
			doctor := finding.Of(*o.Answer)
			for _, f := range found {
				if slices.ContainsFunc(doctor, func(d Finding) bool { return d.Where == f.Where && d.What == f.What }) {
					continue
				}
				if !strings.HasPrefix(f.Where, "shard ") || !strings.Contains(f.Do, "describe node") {
					t.Errorf("sheaf doctor does not find %+v, but %+v", f, doctor)
				}
			}
		})
	}
}
