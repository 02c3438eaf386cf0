package recordstore

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sheaf.dev/sheaf/api/v1alpha1"
	"sheaf.dev/sheaf/controllers/fleet"
	"sheaf.dev/sheaf/controllers/step"
	"sheaf.dev/sheaf/internal/kube/workload"
	"sheaf.dev/sheaf/internal/placement"
	"sheaf.dev/sheaf/internal/test/fleettest"
)

func testStore() *v1alpha1.RecordStore {
	store := &v1alpha1.RecordStore{ObjectMeta: metav1.ObjectMeta{Namespace: "prod", Name: "quotes"}}
	store.Status.StoreUID = "11111111-2222-3333-4444-555555555555"
	store.Spec.Etcd.Managed = &v1alpha1.ManagedEtcd{Members: 3}
	return store
}

func TestEtcdState(t *testing.T) {
	for name, c := range map[string]struct {
		formed  bool
		allowed string
		want    string
	}{
		"a new store":              {false, "", "new"},
		"formed":                   {true, "", "existing"},
		"allowed for this store":   {true, "11111111-2222-3333-4444-555555555555", "new"},
		"allowed for another":      {true, "true", "existing"},
		"new, with an old consent": {false, "true", "new"},
	} {
		store := testStore()
		store.Status.PlacementInitialized = c.formed
		if c.allowed != "" {
			store.Annotations = map[string]string{v1alpha1.AnnotationAllowNewEtcd: c.allowed}
		}
		if got := etcdState(store); got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
	empty := &v1alpha1.RecordStore{Status: v1alpha1.RecordStoreStatus{PlacementInitialized: true}}
	if got := etcdState(empty); got != "existing" {
		t.Errorf("no annotation is taken for one: %s", got)
	}
}

// etcdPods returns pods that are described by texts such as "0 ready old", "1 running old since 5m", "2 crashed other",
// "0 pending old" or "1 ready deleted".
func etcdPods(now time.Time, words ...string) []corev1.Pod {
	pods := make([]corev1.Pod, 0, len(words))
	for _, word := range words {
		has := func(s string) bool { return strings.Contains(word, s) }
		pod := corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "quotes-etcd-" + word[:1], Annotations: map[string]string{
			workload.AnnotationTemplate: "new", workload.AnnotationEtcdState: "existing",
		}}}
		if has("old") {
			pod.Annotations[workload.AnnotationTemplate] = "old"
		}
		if has("other") {
			pod.Annotations[workload.AnnotationEtcdState] = "new"
		}
		if has("deleted") {
			pod.DeletionTimestamp = &metav1.Time{Time: now}
		}
		since, status, container := now, corev1.ConditionFalse, corev1.ContainerStatus{}
		if has("since 5m") {
			since = now.Add(-5 * time.Minute)
		}
		switch {
		case has("ready"):
			status, container.State.Running = corev1.ConditionTrue, &corev1.ContainerStateRunning{}
		case has("running"):
			container.State.Running = &corev1.ContainerStateRunning{}
		case has("crashed"):
			container.State.Waiting = &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff"}
			container.LastTerminationState.Terminated = &corev1.ContainerStateTerminated{ExitCode: 1}
		}
		pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: status,
			LastTransitionTime: metav1.NewTime(since)}}
		pod.Status.ContainerStatuses = []corev1.ContainerStatus{container}
		pods = append(pods, pod)
	}
	return pods
}

func TestEtcdPodToReplace(t *testing.T) {
	now := time.Unix(1000000, 0)
	set := &appsv1.StatefulSet{}
	set.Spec.Replicas = new(int32(3))
	set.Spec.Template.Annotations = map[string]string{workload.AnnotationTemplate: "new",
		workload.AnnotationEtcdState: "existing"}
	for name, c := range map[string]struct {
		pods []string
		want string
	}{
		"all well":                               {[]string{"0 ready", "1 ready", "2 ready"}, ""},
		"all outdated: the first":                {[]string{"2 ready old", "0 ready old", "1 ready old"}, "0"},
		"the next, when the first is ready":      {[]string{"0 ready", "1 ready old", "2 ready old"}, "1"},
		"not before":                             {[]string{"0 running", "1 ready old", "2 ready old"}, ""},
		"one is missing":                         {[]string{"1 ready old", "2 ready old"}, ""},
		"one is going":                           {[]string{"0 ready deleted", "1 ready old", "2 crashed old"}, ""},
		"a blip of an outdated one":              {[]string{"0 running", "1 running old", "2 ready old"}, ""},
		"a blip of all":                          {[]string{"0 running other", "1 running other", "2 running other"}, ""},
		"never gets ready":                       {[]string{"0 ready", "1 running old since 5m", "2 ready old"}, "1"},
		"crashes with what was wrong":            {[]string{"0 crashed old", "1 ready", "2 ready"}, "0"},
		"all crash with what was wrong":          {[]string{"0 running", "1 crashed old", "2 crashed old"}, "1"},
		"waits for an image that is wrong":       {[]string{"0 pending old", "1 pending old", "2 pending old"}, "0"},
		"ready, does not know that it formed":    {[]string{"0 ready other", "1 ready other", "2 ready other"}, ""},
		"starts, does not know that it formed":   {[]string{"0 pending other", "1 ready other", "2 ready other"}, ""},
		"crashes, does not know that it formed":  {[]string{"0 ready", "1 ready", "2 crashed other"}, "2"},
		"crashes, and knows all there is":        {[]string{"0 ready", "1 ready", "2 crashed"}, ""},
		"a crashed one goes before a ready one":  {[]string{"0 ready old", "1 ready old", "2 crashed old"}, "2"},
		"unready for long, but nothing is newer": {[]string{"0 running since 5m", "1 ready", "2 ready"}, ""},
	} {
		pods, got := etcdPods(now, c.pods...), ""
		if victim := etcdPodToReplace(pods, set, now); victim != nil {
			got = strings.TrimPrefix(victim.Name, "quotes-etcd-")
		}
		if got != c.want {
			t.Errorf("%s: deletes %q, want %q", name, got, c.want)
		}
	}
}

func TestEtcdTroubleSaysTheLastWords(t *testing.T) {
	pod := etcdPods(time.Now(), "0 crashed")[0]
	pod.Status.ContainerStatuses[0].LastTerminationState.Terminated.Message = "sheaf: the folder is empty"
	if got := podTrouble(&pod); got != "quotes-etcd-0: sheaf: the folder is empty" {
		t.Error(got)
	}
	pod = etcdPods(time.Now(), "0 ready")[0]
	if got := podTrouble(&pod); got != "" {
		t.Error(got)
	}
	pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse,
		Message: "no node fits"}}
	if got := podTrouble(&pod); !strings.Contains(got, "no node fits") {
		t.Error(got)
	}
}

func TestRollUp(t *testing.T) {
	pools := []v1alpha1.ShardPool{
		fleettest.PoolOf("ssd", 2, v1alpha1.ShardServing, v1alpha1.ShardLoading),
		fleettest.PoolOf("hdd", 1, v1alpha1.ShardDiskLost),
	}
	places := fleettest.View(1, "", map[string]string{"g8": "-hdd-0"})
	places.Unplaced = map[string]string{"g9": "no shard", "g8": "x"}
	seen := &observed{store: &v1alpha1.RecordStore{}, pools: pools, shards: fleet.ObservedOf(pools, nil), places: *places}
	seen.store.Status.Groups.Total = 12
	groups, shards := seen.rollUp()
	if groups.Total != 12 || groups.Serving != 5 || groups.Loading != 3 || groups.Degraded != 0 || groups.DataLost != 4 {
		t.Errorf("%+v", groups)
	}
	if shards != (v1alpha1.ShardCounts{Total: 3, Serving: 1, Loading: 1}) {
		t.Errorf("%+v", shards)
	}
	want := []v1alpha1.GroupTrouble{
		{Group: "g8", Shard: "hdd-0", State: "DiskLost", Message: "words of DiskLost"},
		{Group: "g9", State: "Unplaced", Message: "no shard"},
	}
	if !slices.Equal(groups.NotWell, want) {
		t.Errorf("%+v", groups.NotWell)
	}
	// The counts never become negative, even if the status is outdated.
	seen.places, seen.store.Status.Groups.Total = fleet.Places{}, 2
	groups, _ = seen.rollUp()
	if groups.Serving != 2 || groups.Loading != 0 || groups.Degraded != 0 || groups.DataLost != 0 {
		t.Errorf("%+v", groups)
	}
	many := map[string]string{}
	for n := range 100 {
		many[fmt.Sprintf("g%d", n)] = "-ssd-9"
	}
	places = fleettest.View(1, "", many)
	places.Unplaced = many
	seen = &observed{store: seen.store, places: *places}
	if groups, _ = seen.rollUp(); len(groups.NotWell) != 20 {
		t.Errorf("%d groups are named", len(groups.NotWell))
	}
}

func TestRollUpCondition(t *testing.T) {
	with := func(statuses ...metav1.ConditionStatus) []v1alpha1.ShardPool {
		pools := make([]v1alpha1.ShardPool, len(statuses))
		for n, s := range statuses {
			pools[n].Name = fmt.Sprintf("p%d", n)
			if s != "" {
				reason := "Because"
				if s == "rests" {
					s, reason = metav1.ConditionUnknown, fleet.ReasonNoShards
				}
				step.SetCondition(&pools[n].Status.Conditions, 1, v1alpha1.ConditionLoaded, s, reason, "words")
			}
		}
		return pools
	}
	for name, c := range map[string]struct {
		pools []v1alpha1.ShardPool
		want  string
	}{
		"no pools":    {nil, ""},
		"none has it": {with("", ""), ""},
		"all":         {with("True", "True"), "True Pools so in all 2 pools"},
		"one is not":  {with("True", "False"), "False Because pool p1: words"},
		"one unknown": {with("Unknown", "True"), "Unknown Because pool p0: words"},
		"one is new":  {with("True", ""), "Unknown Pending pool p1: the operator has not looked at it yet"},
		"the worst":   {with("Unknown", "", "False"), "False Because pool p2: words"},
		"one rests":   {with("True", "rests"), "True Pools so in the only pool that is to run shards"},
		"all rest":    {with("rests", "rests"), "Unknown NoShards pool p0: words"},
		"no rest":     {with("rests", "Unknown"), "Unknown Because pool p1: words"},
	} {
		store := &v1alpha1.RecordStore{}
		sayTrue(store, v1alpha1.ConditionLoaded, "Old", "old")
		rollUpCondition(store, c.pools, v1alpha1.ConditionLoaded)
		got := ""
		if now := meta.FindStatusCondition(store.Status.Conditions, v1alpha1.ConditionLoaded); now != nil {
			got = fmt.Sprintf("%s %s %s", now.Status, now.Reason, now.Message)
		}
		if got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

func TestShardStates(t *testing.T) {
	cordoned := fleettest.PoolOf("hdd", 2, v1alpha1.ShardServing)
	cordoned.Spec.State = v1alpha1.PoolCordoned
	shrunk := fleettest.PoolOf("ssd", 1, v1alpha1.ShardServing, v1alpha1.ShardServing)
	shrunk.Spec.State = v1alpha1.PoolActive
	pools := []v1alpha1.ShardPool{cordoned, shrunk}
	got := fleet.ShardStates(pools, fleet.ObservedOf(pools, nil))
	want := map[string]v1alpha1.PoolState{
		"hdd-0": v1alpha1.PoolCordoned, "hdd-1": v1alpha1.PoolCordoned, "ssd-0": v1alpha1.PoolActive,
		"ssd-1": v1alpha1.PoolDrained,
	}
	if !maps.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

func TestPoolShardNamesFollowTheNumbers(t *testing.T) {
	pool := fleettest.PoolOf("ssd", 2, v1alpha1.ShardServing, v1alpha1.ShardServing, v1alpha1.ShardServing)
	pool.Status.ShardStatuses = slices.Delete(pool.Status.ShardStatuses, 1, 2) // shard 1 was removed
	if got := fleet.PoolShardNames(&pool, pool.Status.ShardStatuses); !slices.Equal(got, []string{"ssd-0", "ssd-2"}) {
		t.Errorf("%q", got)
	}
}

// The first placement waits for all shards, but no longer than two minutes after the latest of three events: etcd
// received the placement, the last pool was created, and the last shard registered. It never waits longer than fifteen
// minutes after the later of the first two events.
func TestFirstPlacement(t *testing.T) {
	at := func(seconds int64) metav1.Time { return metav1.NewTime(time.Unix(1000+seconds, 0)) }
	ready := func(status metav1.ConditionStatus, since int64) []metav1.Condition {
		return []metav1.Condition{{Type: v1alpha1.ConditionPlacementReady, Status: status, LastTransitionTime: at(since)}}
	}
	const never = -1
	for _, test := range []struct {
		name       string
		conditions []metav1.Condition
		made       int64 // when the last pool was created
		came       int64 // when the last new shard registered
		now        int64
		shards     int32
	}{
		{"no placement yet", nil, 0, 0, 9999, 3},
		{"the placement is lost", ready(metav1.ConditionFalse, 0), 0, 0, 9999, 3},
		{"just begun", ready(metav1.ConditionTrue, 0), 0, 0, 119, 3},
		{"two minutes", ready(metav1.ConditionTrue, 0), 0, 0, 120, 0},
		{"a pool came later", ready(metav1.ConditionTrue, 0), 60, 0, 179, 3},
		{"and waited too", ready(metav1.ConditionTrue, 0), 60, 0, 180, 0},
		{"a shard came later", ready(metav1.ConditionTrue, 0), 0, 119, 238, 3},
		{"and was the last for two minutes", ready(metav1.ConditionTrue, 0), 0, 119, 239, 0},
		{"the placement came after the shards", ready(metav1.ConditionTrue, 100), 0, 10, 219, 3},
		{"shards keep coming", ready(metav1.ConditionTrue, 0), 0, 899, 899, 3},
		{"for fifteen minutes", ready(metav1.ConditionTrue, 0), 0, 899, 900, 0},
		{"the operator has just started", ready(metav1.ConditionTrue, 0), 0, never, 899, 3},
		{"and another one has waited before", ready(metav1.ConditionTrue, 0), 0, never, 900, 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			pool := fleettest.PoolOf("ssd", 3)
			pool.CreationTimestamp = at(test.made)
			store := testStore()
			store.Status.Conditions = test.conditions
			var came time.Time
			if test.came != never {
				came = at(test.came).Time
			}
			first := decideFirst(store, []v1alpha1.ShardPool{pool}, came, at(test.now).Time)
			if first.shards != test.shards {
				t.Errorf("waits for %d shards, want %d", first.shards, test.shards)
			}
			groups := map[string]string{"0": "", "1": "", "2": "", "3": ""}
			if words := first.words(fleettest.View(1, "ssd-0", groups).View); (words != "") != (test.shards > 0) {
				t.Errorf("says %q", words)
			}
			groups["3"] = "ssd-0"
			if words := first.words(fleettest.View(1, "ssd-0", groups).View); words != "" {
				t.Errorf("a store that is placed says %q", words)
			}
		})
	}
}

// arrivals remembers when the last new shard registered. It forgets this once a group is placed.
func TestArrivals(t *testing.T) {
	var a arrivals
	second := func(n int64) time.Time { return time.Unix(1000+n, 0) }
	waiting := func(names ...string) placement.View {
		return fleettest.View(1, strings.Join(names, " "), map[string]string{"0": "", "1": ""}).View
	}
	for n, look := range []struct {
		at    int64
		alive []string
		last  int64
	}{
		{0, nil, 0},
		{5, nil, 0},
		{10, []string{"a"}, 10},
		{20, []string{"a"}, 10},
		{30, []string{"b"}, 30},      // the number of shards is the same, but b is new
		{40, []string{"a", "b"}, 30}, // a is not new: it has registered before
		{50, []string{"c", "a"}, 50},
	} {
		a.note("store", waiting(look.alive...), second(look.at))
		if got := a.last("store"); !got.Equal(second(look.last)) {
			t.Errorf("look %d: the last came at %v, want %v", n, got, second(look.last))
		}
	}
	if !a.last("another").IsZero() {
		t.Error("something is known of a store that nobody has looked at")
	}
	a.note("store", fleettest.View(1, "a", map[string]string{"0": "a", "1": ""}).View, second(60))
	if !a.last("store").IsZero() || len(a.of) != 0 {
		t.Error("what is placed is remembered")
	}
}

func TestLostMessage(t *testing.T) {
	store := testStore()
	run := &observed{store: store, access: workload.EtcdAccessOf(store, nil),
		pools: []v1alpha1.ShardPool{fleettest.PoolOf("ssd", 2)}}
	got := run.lostMessage()
	for _, want := range []string{
		"kubectl -n prod exec deploy/quotes-gateway -c gateway -- /sheaf recover placement " +
			"--etcd=quotes-etcd-0.quotes-etcd.prod.svc:2379,",
		"--store=prod.quotes", "--store-uid=11111111-2222-3333-4444-555555555555",
		"--shards=ssd-0-0.ssd.prod.svc:7610,ssd-1-0.ssd.prod.svc:7610 --yes",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q in %s", want, got)
		}
	}
	run.pools = []v1alpha1.ShardPool{fleettest.PoolOf(strings.Repeat("p", 40), 64)}
	if got := run.lostMessage(); len(got) > step.MessageMax || !strings.Contains(got, "all 64 shards") {
		t.Errorf("%d bytes: %s", len(got), got)
	}
}

func TestStoreLoadText(t *testing.T) {
	pool := func(name, load string) v1alpha1.ShardPool {
		p := v1alpha1.ShardPool{ObjectMeta: metav1.ObjectMeta{Name: name}}
		p.Status.Load = load
		return p
	}
	for want, pools := range map[string][]v1alpha1.ShardPool{
		"":                   {pool("a", "")},
		"62%":                {pool("a", "62%")},
		"a: 62%":             {pool("a", "62%"), pool("b", "")},
		"a: 62%; b: 1% slow": {pool("a", "62%"), pool("b", "1% slow")},
	} {
		if got := storeLoadText(pools); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
