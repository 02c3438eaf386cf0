package poolstatus

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sheaf.dev/sheaf/api/v1alpha1"
	"sheaf.dev/sheaf/client/recordv1"
	"sheaf.dev/sheaf/controllers/fleet"
	"sheaf.dev/sheaf/controllers/shardpool/observed"
	"sheaf.dev/sheaf/internal/kube/workload"
	"sheaf.dev/sheaf/internal/test/fleettest"
	"sheaf.dev/sheaf/internal/test/must"
)

func TestSpaceIsAvailable(t *testing.T) {
	const mib = 1 << 20
	for name, c := range map[string]struct {
		free   int64
		status metav1.ConditionStatus
		reason string
	}{
		"room":                        {500 * mib, metav1.ConditionTrue, "SpaceAvailable"},
		"little above the reserve":    {100 * mib, metav1.ConditionFalse, "VolumeNearlyFull"},
		"too little for the next Put": {51*mib - 1, metav1.ConditionFalse, "VolumeFull"},
		"the reserve alone":           {50 * mib, metav1.ConditionFalse, "VolumeFull"},
	} {
		o := &observed.Shard{Name: "ssd-0",
			Report: &recordv1.ShardStatus{Shard: &recordv1.Shard{State: recordv1.ShardState_SHARD_STATE_SERVING}}}
		o.Report.Shard.FileSystem = "ext4"
		o.Report.Shard.FreeBytes, o.Report.Shard.CapacityBytes, o.Report.Shard.ReserveBytes = c.free, 2000*mib, 50*mib
		f := &Found{Seen: &observed.Pool{Shards: []*observed.Shard{o}}, Statuses: []v1alpha1.ShardStatus{observed.Decide(o)}}
		got := space(f)
		if got.Type != v1alpha1.ConditionSpaceAvailable || got.Status != c.status || got.Reason != c.reason {
			t.Errorf("%s: %s %s %s, want %s %s", name, got.Type, got.Status, got.Reason, c.status, c.reason)
		}
		if got.Status == metav1.ConditionFalse &&
			(!strings.Contains(got.Message, "ssd-0") || !strings.Contains(got.Message, "keeps 50.0MiB") ||
				!strings.Contains(got.Message, "Delete records")) {
			t.Errorf("%s: says %q", name, got.Message)
		}
	}
}

func TestTheWorstShardsAreListed(t *testing.T) {
	for seed := range uint64(300) {
		random := rand.New(rand.NewPCG(seed, 11))
		var all []v1alpha1.ShardStatus
		for n := range int32(random.IntN(60)) {
			s := v1alpha1.ShardStatus{Number: n, State: statesByWorst[random.IntN(len(statesByWorst))]}
			if random.IntN(8) == 0 {
				s.DamagedGroups = 1
			}
			all = append(all, s)
		}
		list := worstShards(all)
		if len(list) != min(20, len(all)) {
			t.Fatalf("seed %d: %d of %d shards are listed", seed, len(list), len(all))
		}
		if !slices.IsSortedFunc(list, func(a, b v1alpha1.ShardStatus) int { return int(a.Number - b.Number) }) {
			t.Fatalf("seed %d: not by number: %+v", seed, list)
		}
		in := map[int32]bool{}
		for _, s := range list {
			in[s.Number] = true
		}
		// class returns 0 for a shard that needs an administrator, 1 for a shard in progress, and 2 for a healthy shard.
		class := func(s v1alpha1.ShardStatus) int {
			switch {
			case fleet.NeedsPerson(s.State) || s.DamagedGroups > 0:
				return 0
			case s.State == v1alpha1.ShardServing || s.State == v1alpha1.ShardParked:
				return 2
			}
			return 1
		}
		for _, left := range all {
			for _, kept := range list {
				if !in[left.Number] && class(left) < class(kept) {
					t.Fatalf("seed %d: shard %d, which is %s, is listed, and %d, which is %s, is not",
						seed, kept.Number, kept.State, left.Number, left.State)
				}
			}
		}
		random.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
		if again := worstShards(all); !reflect.DeepEqual(again, list) {
			t.Fatalf("seed %d: the list depends on the order in which shards were looked at", seed)
		}
		total := int32(0)
		for _, c := range countStates(all) {
			total += c.Shards
		}
		if int(total) != len(all) {
			t.Fatalf("seed %d: %d shards are counted of %d", seed, total, len(all))
		}
	}
}

// Every state needs a place in the order, because a shard in an unlisted state counts as the worst of all.
func TestEveryStateHasItsSeverity(t *testing.T) {
	for _, s := range statesByWorst {
		if fleet.NeedsPerson(s) != (severityOf(s) <= severityOf(v1alpha1.ShardMemoryTooSmall)) {
			t.Errorf("%s is not where it belongs", s)
		}
	}
	if len(statesByWorst) != 19 {
		t.Errorf("%d states are ordered", len(statesByWorst))
	}
}

// The status of a pool of 1,000 shards is smaller than 100 KB, even if each shard has long messages.
func TestTheStatusOfAThousandShardsIsSmall(t *testing.T) {
	many, messageMax := int32(1000), 900
	store := &v1alpha1.RecordStore{ObjectMeta: metav1.ObjectMeta{Namespace: "prod", Name: "quotes"}}
	pool := fleettest.PoolOf("quotes-ssd", many)
	f := &Found{Seen: &observed.Pool{Pool: &pool, Store: store}}
	for n := range many {
		o := &observed.Shard{
			Name: workload.Shard(pool.Name, n), Number: n, StoreUID: "store", MessageMax: messageMax,
			Report: &recordv1.ShardStatus{Shard: &recordv1.Shard{
				State: recordv1.ShardState_SHARD_STATE_SERVING, Version: "v1"}},
		}
		for g := range 256 {
			damaged := &recordv1.Group{Group: fmt.Sprint(256*n + int32(g)), State: recordv1.GroupState_GROUP_STATE_DAMAGED,
				Message: strings.Repeat("bad ", 300)}
			o.Report.Groups = append(o.Report.Groups, damaged)
		}
		s := v1alpha1.ShardStatus{
			Name: o.Name, Number: n, State: statesByWorst[int(n)%len(statesByWorst)], Message: strings.Repeat("m", messageMax),
			Node: strings.Repeat("n", 60), Groups: 256, Volume: &v1alpha1.VolumeStatus{
				UUID: strings.Repeat("u", 36), Claim: o.Name, PersistentVolume: strings.Repeat("v", 80),
				Source:     strings.Repeat("s", 100),
				FileSystem: "xfs", MountOptions: strings.Split(strings.Repeat("noatime,", 12), ","), CapacityBytes: 1 << 40,
			},
		}
		f.Seen.Shards, f.Statuses = append(f.Seen.Shards, o), append(f.Statuses, s)
	}
	status := Of(&pool, f, Summary(f))
	text, err := json.Marshal(status)
	must.OK(t, err)
	if len(status.ShardStatuses) != 20 || status.Shards != many || len(status.States) != len(statesByWorst) {
		t.Errorf("%d of %d shards are listed, in %d states", len(status.ShardStatuses), status.Shards, len(status.States))
	}
	if len(text) >= 100<<10 {
		t.Errorf("the status has %d bytes", len(text))
	}
}
