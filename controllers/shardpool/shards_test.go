package shardpool

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"

	"sheaf.dev/sheaf/controllers/fleet"
	"sheaf.dev/sheaf/controllers/fleet/fleettest"

	corev1 "k8s.io/api/core/v1"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"sheaf.dev/sheaf/api/v1alpha1"
	"sheaf.dev/sheaf/internal/workload"
)

func TestDecideReplacement(t *testing.T) {
	claim := func(uid types.UID) *corev1.PersistentVolumeClaim {
		return &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: "data-ssd-1-0", UID: uid}}
	}
	for name, c := range map[string]struct {
		change func(*askedReplacement)
		want   replacement
		says   string
	}{
		"well":                     {func(*askedReplacement) {}, replaceGiveUp, "every group on it has a majority elsewhere"},
		"no such shard":            {func(a *askedReplacement) { a.Exists = false }, replaceRefused, "the pool has none of that number"},
		"a shard that goes":        {func(a *askedReplacement) { a.Leaves = true }, replaceRefused, "which is to be removed"},
		"a single copy":            {func(a *askedReplacement) { a.Copies = 1 }, replaceRefused, "one copy of each group"},
		"no claim":                 {func(a *askedReplacement) { a.Claim = nil }, replaceWaits, "has no claim yet"},
		"etcd is away":             {func(a *askedReplacement) { a.Known, a.Unknown = false, errors.New("no route") }, replaceWaits, "no route"},
		"copies that are not well": {func(a *askedReplacement) { a.Undecided = []string{"1", "2"} }, replaceWaits, "until 2 groups have a majority of copies without it (groups 1, 2)"},
		"given up, the pod runs":   {func(a *askedReplacement) { a.Replaced, a.Stopped = "old", false }, replaceWaits, "its pod is stopped first"},
		"given up":                 {func(a *askedReplacement) { a.Replaced = "old" }, replaceRemove, "claim data-ssd-1-0 is deleted"},
		// What is on the disk counts no more, so that nothing found later may stop half-way.
		"given up, and then copies fall behind": {func(a *askedReplacement) { a.Replaced, a.Known, a.Undecided = "old", false, []string{"1"} }, replaceRemove, ""},
		"given up, and then to be removed":      {func(a *askedReplacement) { a.Replaced, a.Leaves = "old", true }, replaceRemove, ""},
		"the claim is gone":                     {func(a *askedReplacement) { a.Replaced, a.Claim = "old", nil }, replaceDone, ""},
		"another claim":                         {func(a *askedReplacement) { a.Replaced, a.Claim = "old", claim("new") }, replaceDone, ""},
		"another claim, copies behind":          {func(a *askedReplacement) { a.Replaced, a.Claim, a.Undecided = "old", claim("new"), []string{"1"} }, replaceDone, ""},
	} {
		a := askedReplacement{Name: "ssd-1", Number: 1, Exists: true, Copies: 3, Claim: claim("old"), Stopped: true, Known: true}
		c.change(&a)
		got, words := decideReplacement(a)
		if got != c.want || !strings.Contains(words, c.says) || (got == replaceDone) != (words == "") {
			t.Errorf("%s: %v, %q", name, got, words)
		}
	}
}

func TestReplacedClaims(t *testing.T) {
	pool := &v1alpha1.ShardPool{}
	for text, want := range map[string]string{
		"": "", "1=a": "1=a", "10=c, 2=b": "2=b,10=c", "x=a,-1=b,3,4=": "", "7=u-i-d,nonsense": "7=u-i-d",
	} {
		pool.Annotations = map[string]string{fleet.AnnotationReplaced: text}
		if got := markWords(fleet.ReplacedClaims(pool)); got != want {
			t.Errorf("%q is %q, not %q", text, got, want)
		}
	}
}

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
			v1alpha1.ShardStatus{Groups: 4, ServingGroups: 3, LeadingGroups: 2, DamagedGroups: 1, LostGroups: 1, Records: 150, StoredBytes: 3000}},
		"loading": {v1alpha1.ShardLoading, report(v1alpha1.ShardLoading, whole, fleet.GroupReport{State: "Loading"}),
			v1alpha1.ShardStatus{Groups: 2, ServingGroups: 1, LeadingGroups: 1, Records: 1000, StoredBytes: 9000}},
		"silent": {v1alpha1.ShardUnreachable, nil, v1alpha1.ShardStatus{Groups: 4, DamagedGroups: 2, Records: 1000, StoredBytes: 9000}},
		"held":   {v1alpha1.ShardPending, report(v1alpha1.ShardPending), v1alpha1.ShardStatus{Groups: 4, DamagedGroups: 2, Records: 1000, StoredBytes: 9000}},
		"disk lost": {v1alpha1.ShardDiskLost, report(v1alpha1.ShardDiskLost),
			v1alpha1.ShardStatus{Groups: 4, LostGroups: 4}},
	} {
		o := &observedShard{Last: before, Report: c.report}
		got := v1alpha1.ShardStatus{State: c.state}
		o.countGroups(&got)
		if c.want.State = c.state; got != c.want {
			t.Errorf("%s: %+v, want %+v", name, got, c.want)
		}
	}
}

// With several copies others lead the groups of a shard that is silent, and count their records.
func TestASilentShardHasNoRecordsWhereOthersHaveCopies(t *testing.T) {
	for copies, want := range map[int32]int64{1: 1000, 3: 0} {
		o := &observedShard{Copies: copies, Last: v1alpha1.ShardStatus{Groups: 4, LeadingGroups: 2, Records: 1000, StoredBytes: 9000}}
		got := v1alpha1.ShardStatus{State: v1alpha1.ShardNodeDown}
		o.countGroups(&got)
		if got.Records != want || got.LeadingGroups != 0 || got.Groups != 4 || got.StoredBytes != 9000 {
			t.Errorf("%d copies: %+v", copies, got)
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
		// class: 0 needs a person, 1 is on its way, 2 is well.
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

// Every state has its place in the order, or a shard in it would count as the worst of all.
func TestEveryStateHasItsSeverity(t *testing.T) {
	for _, s := range statesByWorst {
		if fleet.NeedsPerson(s) != (severityOf(s) <= severityOf(v1alpha1.ShardMemoryTooSmall)) {
			t.Errorf("%s is not where it belongs", s)
		}
	}
	if len(statesByWorst) != 18 {
		t.Errorf("%d states are ordered", len(statesByWorst))
	}
}

// The status of a pool of 1,000 shards stays below 100 KB, also when each has much to say.
func TestTheStatusOfAThousandShardsIsSmall(t *testing.T) {
	many := int32(1000)
	store := &v1alpha1.RecordStore{ObjectMeta: metav1.ObjectMeta{Namespace: "prod", Name: "quotes"}}
	pool := fleettest.PoolOf("quotes-ssd", many)
	w := &poolWork{Reconciler: &Reconciler{}, pool: &pool, before: pool.DeepCopy(), store: store, decided: true}
	for n := range many {
		o := &observedShard{
			Name: workload.Shard(pool.Name, n), Number: n, StoreUID: "store", Now: decideNow, MessageMax: shardMessageMax,
			Report: &fleet.ShardReport{State: v1alpha1.ShardServing, Version: "v1"},
		}
		for g := range 256 {
			damaged := fleet.GroupReport{Group: fmt.Sprint(256*n + int32(g)), State: fleet.GroupDamaged, Message: strings.Repeat("bad ", 300)}
			o.Report.Groups = append(o.Report.Groups, damaged)
		}
		s := v1alpha1.ShardStatus{
			Name: o.Name, Number: n, State: statesByWorst[int(n)%len(statesByWorst)], Message: strings.Repeat("m", shardMessageMax),
			Node: strings.Repeat("n", 60), Groups: 256, Volume: &v1alpha1.VolumeStatus{
				UUID: strings.Repeat("u", 36), Claim: o.Name, PersistentVolume: strings.Repeat("v", 80), Source: strings.Repeat("s", 100),
				FileSystem: "xfs", MountOptions: strings.Split(strings.Repeat("noatime,", 12), ","), CapacityBytes: 1 << 40,
			},
		}
		w.shards, w.statuses = append(w.shards, o), append(w.statuses, s)
	}
	w.conditions(w.summary(t.Context()))
	text, err := json.Marshal(pool.Status)
	if err != nil {
		t.Fatal(err)
	}
	if len(pool.Status.ShardStatuses) != 20 || pool.Status.Shards != many || len(pool.Status.States) != len(statesByWorst) {
		t.Errorf("%d of %d shards are listed, in %d states", len(pool.Status.ShardStatuses), pool.Status.Shards, len(pool.Status.States))
	}
	if len(text) >= 100<<10 {
		t.Errorf("the status has %d bytes", len(text))
	}
}

// reportsOf makes turns: "a 1:500 2:20" is shard a with group 1 applied up to 500, and group 2 up to 20; "a 1:x" cannot
// serve it.
func reportsOf(words ...string) (turns []turn) {
	for _, w := range words {
		fields := strings.Fields(w)
		t := turn{Name: fields[0], State: v1alpha1.ShardServing, Report: &fleet.ShardReport{}}
		for _, f := range fields[1:] {
			name, applied, _ := strings.Cut(f, ":")
			g := fleet.GroupReport{Group: name, State: "Serving"}
			for _, c := range applied {
				if c == 'x' {
					g.State = "Loading"
					break
				}
				g.AppliedIndex = 10*g.AppliedIndex + uint64(c-'0')
			}
			t.Report.Groups = append(t.Report.Groups, g)
		}
		turns = append(turns, t)
	}
	return turns
}

func TestNeeded(t *testing.T) {
	view := fleettest.View(3, "a b c d", map[string]string{"1": "a b c", "2": "b c d", "3": "a -b d"})
	all := []string{"a 1:5000 3:7", "b 1:5000 2:20", "c 1:5000 2:20", "d 2:20 3:7"}
	for name, c := range map[string]struct {
		shard   string
		reports []string
		want    string
	}{
		"all well":                        {"c", all, ""},
		"a group lacks a copy":            {"d", all, "group 3 "},
		"another's copy is behind":        {"c", []string{"a 1:3999 3:7", "b 1:5000 2:20", "c 1:5000 2:20", "d 2:20 3:7"}, "group 1 "},
		"not by much":                     {"c", []string{"a 1:4000 3:7", "b 1:5000 2:20", "c 1:5000 2:20", "d 2:20 3:7"}, ""},
		"its own copy is behind":          {"c", []string{"a 1:5000 3:7", "b 1:5000 2:20", "c 1:1 2:20", "d 2:20 3:7"}, ""},
		"another's copy loads":            {"c", []string{"a 1:x 3:7", "b 1:5000 2:20", "c 1:5000 2:20", "d 2:20 3:7"}, "group 1 "},
		"another says nothing":            {"c", []string{"a 1:5000 3:7", "c 1:5000 2:20", "d 2:20 3:7"}, "groups 1, 2 "},
		"a shard without groups can go":   {"e", nil, ""},
		"nobody says anything, all wait":  {"c", nil, "groups 1, 2 "},
		"another one says what was asked": {"b", []string{"a 1:9 3:7", "b 1:5000 2:20", "c 1:9 2:20", "d 2:20 3:7"}, "group 1 "},
	} {
		if got := needed(view, c.shard, reportsOf(c.reports...)); (got == "") != (c.want == "") || !strings.Contains(got, c.want) {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}
