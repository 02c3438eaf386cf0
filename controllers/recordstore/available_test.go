package recordstore

import (
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sheaf.dev/sheaf/api/v1alpha1"
	"sheaf.dev/sheaf/controllers/fleet"
	"sheaf.dev/sheaf/internal/test/fleettest"
)

func TestDecideAvailable(t *testing.T) {
	was := &metav1.Condition{Type: v1alpha1.ConditionAvailable, Status: metav1.ConditionTrue, Reason: reasonAvailable}
	starts := &metav1.Condition{Type: v1alpha1.ConditionAvailable, Status: metav1.ConditionFalse, Reason: reasonStarting}
	well := v1alpha1.GroupCounts{Total: 4, Serving: 4}
	some := v1alpha1.ShardCounts{Total: 2, Serving: 2}
	short := v1alpha1.GroupCounts{Total: 4, Serving: 3, Degraded: 4, NotWell: []v1alpha1.GroupTrouble{
		{Group: "1", State: fleet.GroupDegraded, Message: "2 of 3 copies"},
		{Group: "3", State: fleet.GroupNoLeader, Message: "no shard leads it"},
	}}
	for name, c := range map[string]struct {
		in   availableInput
		want metav1.ConditionStatus
		says string // expected reason and message
	}{
		"all serve": {availableInput{groups: well, shards: some, gateways: 2, wanted: 2, before: was},
			metav1.ConditionTrue, "Available all 4 groups serve"},
		"the only one serves": {availableInput{groups: v1alpha1.GroupCounts{Total: 1, Serving: 1}, shards: some, gateways: 1,
			wanted: 1, before: was}, metav1.ConditionTrue, "Available the only group serves"},
		"all serve, one shard restarts": {availableInput{groups: well, shards: v1alpha1.ShardCounts{Total: 3, Serving: 2},
			gateways: 1, wanted: 2, before: was}, metav1.ConditionTrue, "Available all 4"},
		"all serve, copies are missing": {availableInput{groups: v1alpha1.GroupCounts{Total: 4, Serving: 4, Degraded: 4},
			shards: some, gateways: 1, wanted: 1}, metav1.ConditionTrue, "Available"},
		"one does not": {availableInput{groups: short, shards: some, gateways: 1, wanted: 1,
			before: was}, metav1.ConditionFalse,
			"GroupsNotServing 3 of 4 groups serve, and 1 does not, such as group 3: no shard leads it"},
		"one does not yet": {availableInput{groups: short, shards: some, gateways: 1, wanted: 1,
			before: starts}, metav1.ConditionFalse, "Starting 3 of 4"},
		"never looked at": {availableInput{groups: v1alpha1.GroupCounts{},
			shards: v1alpha1.ShardCounts{Total: 2}, wanted: 1}, metav1.ConditionFalse, "Starting no shard of 2 serves"},
		"no groups, of Hash": {availableInput{routing: v1alpha1.RoutingHash, shards: some, gateways: 1,
			wanted: 1}, metav1.ConditionFalse, "Starting there is no group yet"},
		"no groups, of Named": {availableInput{routing: v1alpha1.RoutingNamed, shards: some, gateways: 1,
			wanted: 1}, metav1.ConditionTrue, "Available there is no group yet"},
		"no groups, of Named, and no shard": {availableInput{routing: v1alpha1.RoutingNamed, gateways: 1, wanted: 1,
			before: was}, metav1.ConditionFalse, "GroupsNotServing no shard of 0"},
		"no gateway": {availableInput{groups: well, shards: some, wanted: 2, before: was}, metav1.ConditionFalse,
			"NoGateway all 4 groups serve, but no gateway of 2"},
		"no gateway is asked for": {availableInput{groups: well, shards: some}, metav1.ConditionTrue, "Available"},
		"one does not, and may be on a shard that cannot be asked": {availableInput{groups: short, shards: some, gateways: 1,
			wanted: 1, before: was, unasked: []string{"ssd-1"}}, metav1.ConditionUnknown,
			"OperatorCannotAsk 3 of 4 groups are known to serve. The operator cannot reach ssd-1, whose"},
		"all serve, and a shard cannot be asked": {availableInput{groups: well, shards: some, gateways: 1, wanted: 1,
			before: was, unasked: []string{"ssd-1"}}, metav1.ConditionTrue, "Available all 4"},
		"groups load": {availableInput{groups: v1alpha1.GroupCounts{Total: 4, Serving: 1, Loading: 3},
			shards: v1alpha1.ShardCounts{Total: 1, Loading: 1}, gateways: 1, wanted: 1, before: was}, metav1.ConditionFalse,
			"GroupsNotServing 1 of 4"},
	} {
		got := decideAvailable(c.in)
		if got.available != c.want || !strings.HasPrefix(got.reason+" "+got.message, c.says) {
			t.Errorf("%s: %+v, want %s", name, got, c.says)
		}
	}
}

func TestUnasked(t *testing.T) {
	view := fleettest.View(3, "a b c d", map[string]string{"1": "a b c", "2": "b c d"})
	leaderless := func(groups ...string) fleet.GroupSum {
		sum := fleet.GroupSum{Known: true, Groups: map[string]fleet.BookedGroup{}}
		for _, g := range []string{"1", "2"} {
			sum.Groups[g] = fleet.BookedGroup{Leaderless: slices.Contains(groups, g)}
		}
		return sum
	}
	for name, c := range map[string]struct {
		cutOff  string // shards that the operator cannot reach; in upper case if the pod of the shard is not ready either
		serving int32
		noView  bool
		heard   fleet.GroupSum
		want    string
	}{
		"all can be asked":                              {"", 1, false, leaderless("1"), ""},
		"the leader may be on the one that cannot":      {"a", 1, false, leaderless("1"), "a"},
		"its shards all say that it has none":           {"a", 1, false, leaderless("2"), ""},
		"the kubelet does not reach it either":          {"A", 1, false, leaderless("1"), ""},
		"no shard can be asked":                         {"a b c d", 0, false, leaderless("1", "2"), "a b c d"},
		"etcd cannot be asked either":                   {"a b", 0, true, fleet.GroupSum{}, "a b"},
		"one copy each, those that do not serve are it": {"a", 1, true, fleet.GroupSum{}, "a"},
		"one copy each, more groups do not serve":       {"a", 0, true, fleet.GroupSum{}, ""},
	} {
		var states []v1alpha1.ShardStatus
		for _, shard := range []string{"a", "b", "c", "d"} {
			s := v1alpha1.ShardStatus{Name: shard, State: v1alpha1.ShardServing, PodReady: true, Groups: 1}
			if strings.Contains(strings.ToLower(c.cutOff), shard) {
				s.State, s.PodReady = v1alpha1.ShardUnreachable, strings.Contains(c.cutOff, shard)
			}
			states = append(states, s)
		}
		seen := &observed{store: &v1alpha1.RecordStore{}, shards: fleet.Observed{{Name: "ssd"}: states},
			reported: c.heard, places: *view, hasPlaces: !c.noView}
		seen.store.Spec.Replication.Copies = 3
		got := seen.unasked(v1alpha1.GroupCounts{Total: 2, Serving: c.serving})
		if strings.Join(got, " ") != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

func TestWhatAStartLacksIsNoWarning(t *testing.T) {
	for name, c := range map[string]struct {
		kind   string
		status metav1.ConditionStatus
		starts bool
		want   bool
	}{
		"copies are not made yet":   {v1alpha1.ConditionRedundant, metav1.ConditionFalse, true, false},
		"copies were lost":          {v1alpha1.ConditionRedundant, metav1.ConditionFalse, false, true},
		"etcd forms":                {v1alpha1.ConditionEtcdReady, metav1.ConditionFalse, true, false},
		"etcd is away":              {v1alpha1.ConditionEtcdReady, metav1.ConditionFalse, false, true},
		"no volume, from the start": {v1alpha1.ConditionVolumesReady, metav1.ConditionFalse, true, true},
		"a person has to act":       {v1alpha1.ConditionStalled, metav1.ConditionTrue, true, true},
		"a pod restarts":            {v1alpha1.ConditionReady, metav1.ConditionFalse, false, false},
		"well again":                {v1alpha1.ConditionRedundant, metav1.ConditionTrue, false, false},
	} {
		if got := worthWarning(metav1.Condition{Type: c.kind, Status: c.status}, c.starts); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

func TestColumnsOfPools(t *testing.T) {
	shards := func(nodes ...string) (list []v1alpha1.ShardStatus) {
		for _, n := range nodes {
			list = append(list, v1alpha1.ShardStatus{Name: n, Node: n, Version: "v" + n})
		}
		return list
	}
	for want, list := range map[string][]v1alpha1.ShardStatus{
		"": shards(""), "1, 2": shards("2", "1", "1"), "1, 2, 3, 4": shards("1", "2", "3", "4"),
		"1, 2, 3 and 2 more": shards("1", "2", "3", "4", "5"),
	} {
		if got := fleet.NodeWords(list); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	if got := fleet.VersionWords(map[string]v1alpha1.ShardStatus{"a": {Version: "v2"}, "b": {Version: "v1"}, "c": {},
		"d": {Version: "v2"}}); got != "v1,v2" {
		t.Error(got)
	}
}
