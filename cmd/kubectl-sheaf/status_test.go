package main

import (
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sheaf.dev/sheaf/api/v1alpha1"
	"sheaf.dev/sheaf/client/recordv1"
	"sheaf.dev/sheaf/internal/kube/finding"
	"sheaf.dev/sheaf/internal/test/kubefindingtest"
	"sheaf.dev/sheaf/internal/test/must"
)

// healthyStore returns a healthy store, including its gateway's report.
func healthyStore() *snapshot {
	objects, volumes := kubefindingtest.Well()
	s := &snapshot{Objects: objects, Volumes: volumes}
	for n, shard := range s.Pools[0].Status.ShardStatuses {
		s.Live.Shards = append(s.Live.Shards, &recordv1.Shard{Name: shard.Name, Domain: shard.Node, Leaders: int32(21 + n/2),
			Alive: true, MemoryUsedBytes: 1 << 30})
		for range 64 {
			s.Live.Groups = append(s.Live.Groups, &recordv1.Group{Shard: shard.Name, Leader: len(s.Live.Groups)%3 == n})
		}
	}
	return s
}

// troubledStore returns the same store with several problems: a node is down, a member of etcd has ended, a disk is
// lost, and a pool is being drained.
func troubledStore() *snapshot {
	s := healthyStore()
	o := &s.Objects
	down := &o.Pools[0].Status.ShardStatuses[1]
	down.State, down.Message = v1alpha1.ShardNodeDown,
		"node n2 is not ready (NodeStatusUnknown). The shard waits for it and its data stays there. Repair the "+
			"node; or delete it, or taint it node.kubernetes.io/out-of-service, if it will not come back"
	loads := &o.Pools[0].Status.ShardStatuses[2]
	loads.State, loads.Load, loads.LoadPercent = v1alpha1.ShardLoading, "62% 1.9GiB/s ETA 2m", 62
	for i := range o.Pods {
		switch o.Pods[i].Name {
		case "quotes-etcd-1":
			kubefindingtest.Crash(&o.Pods[i],
				`{"level":"panic","msg":"tocommit(1021) is out of range [lastIndex(0)]. Was the raft log corrupted, truncated, or lost?"}`)
		case "quotes-ssd-1-0":
			o.Pods[i].Status.Conditions[0].Status = corev1.ConditionFalse
		case "quotes-gateway-6d4c9b-1":
			o.Pods[i].Spec.NodeName = "n1"
		}
	}
	old := o.Pools[0].DeepCopy()
	old.Name, old.Spec.State, old.Spec.Shards, old.Status.Serving = "quotes-hdd", v1alpha1.PoolDrained, new(int32(1)), 1
	old.Status.ShardStatuses = old.Status.ShardStatuses[:1]
	old.Status.ShardStatuses[0].Name, old.Status.ShardStatuses[0].State,
		old.Status.ShardStatuses[0].Groups = "quotes-hdd-0", v1alpha1.ShardDraining, 5
	o.Pools = append(o.Pools, *old)
	set(&o.Store.Status.Conditions, v1alpha1.ConditionReady, metav1.ConditionFalse, "NodeDown",
		"64 of 64 groups and 2 of 4 shards serve; pool quotes-ssd: shard quotes-ssd-1 is NodeDown")
	set(&o.Store.Status.Conditions, v1alpha1.ConditionRedundant, metav1.ConditionFalse, "CopiesMissing",
		"64 of 64 groups have fewer than 3 copies: groups 0, 1, 2, 3, 4 and 59 more; not registered in etcd: quotes-ssd-1")
	o.Store.Status.Groups = v1alpha1.GroupCounts{Total: 64, Serving: 64, Degraded: 64, Moving: 7}
	o.Store.Status.Shards = v1alpha1.ShardCounts{Total: 4, Serving: 2, Loading: 1}
	o.DiskSets[0].Status.Disks[6].State, o.DiskSets[0].Status.Disks[6].Message = v1alpha1.DiskFormatBlocked,
		"the disk holds an ext4 file system already: wipe it (wipefs -a) on node n1"
	s.Live.Moves = []*recordv1.Move{
		{Group: "3", From: []string{"quotes-hdd-0"}, To: []string{"quotes-ssd-2"}, Bytes: 3 << 30, BytesDone: 2 << 30,
			BytesPerSecond: 100 << 20,
			EtaSeconds:     new(10.5), Running: true, Phase: recordv1.MovePhase_MOVE_PHASE_COPYING, Reason: "Drain"},
		{Group: "12", From: []string{"quotes-hdd-0"}, To: []string{"quotes-ssd-0"}, Bytes: 1 << 30, Running: true,
			Phase: recordv1.MovePhase_MOVE_PHASE_WAITING, Reason: "Drain"},
		{Group: "17", From: []string{"quotes-hdd-0"}, To: []string{"quotes-ssd-0"}, Bytes: 1 << 30, Reason: "Drain"},
	}
	s.Missing = []string{
		`nodes: nodes is forbidden: User "jane" cannot list resource "nodes" in API group "" at the cluster scope`}
	return s
}

func set(list *[]metav1.Condition, kind string, status metav1.ConditionStatus, reason, message string) {
	*list = slices.DeleteFunc(*list, func(c metav1.Condition) bool { return c.Type == kind })
	*list = append(*list, kubefindingtest.Condition(kind, status, reason, message))
}

// The screens are tested at two usual widths of a terminal. Only commands may be wider than the screen, because they
// must stay on one line to be copied.
func TestScreens(t *testing.T) {
	silent := healthyStore()
	silent.Live = live{Err: errors.New("none of the 2 gateways of store quotes is ready")}
	for name, s := range map[string]*snapshot{"well": healthyStore(), "trouble": troubledStore(), "silent": silent} {
		for file, width := range map[string]int{"-80.txt": 80, "-140.txt": 140} {
			got := s.show(width, finding.Find(s.Objects))
			golden(t, name+file, got)
			for n, line := range strings.Split(got, "\n") {
				if utf8.RuneCountInString(line) > width && !strings.HasPrefix(strings.TrimSpace(line), "$ ") {
					t.Errorf("%s at %d columns: line %d has %d: %s", name, width, n+1, utf8.RuneCountInString(line), line)
				}
				if strings.ContainsAny(line, "\x1b\t\r") || strings.TrimRight(line, " ") != line {
					t.Errorf("%s at %d columns: line %d: %q", name, width, n+1, line)
				}
			}
		}
	}
}

// If a shard needs more memory than its limit, the screen shows the needed memory, and not the part that fits into
// the limit.
func TestMemoryAboveLimitShowsNeededMemory(t *testing.T) {
	s := healthyStore()
	small := &s.Pools[0].Status.ShardStatuses[1]
	small.State, small.MemoryNeedBytes = v1alpha1.ShardMemoryTooSmall, 9<<30
	if got := s.show(140, nil); !strings.Contains(got, "9.0 GiB of 6.0 GiB") {
		t.Error(got)
	}
}

// The same objects, read from an API server, produce the same screen.
func TestStatusFromAnAPIServer(t *testing.T) {
	a, out := newTestApp(t, "status")
	want := healthyStore()
	o := want.Objects
	create(t, a.objects, "status", o.Store.DeepCopy())
	for i := range o.Pools {
		create(t, a.objects, "status", o.Pools[i].DeepCopy())
	}
	for i := range o.DiskSets {
		create(t, a.objects, "status", o.DiskSets[i].DeepCopy())
	}
	for i := range o.Nodes {
		create(t, a.objects, "status", o.Nodes[i].DeepCopy())
	}
	for _, v := range want.Volumes {
		create(t, a.objects, "status", v.DeepCopy())
	}
	for i := range o.Claims {
		create(t, a.objects, "status", o.Claims[i].DeepCopy())
	}
	for i := range o.Pods {
		create(t, a.objects, "status", o.Pods[i].DeepCopy())
	}
	// This pod belongs to another store, so the status ignores it.
	other := kubefindingtest.Pod("other-ssd-0-0", "n1", map[string]string{v1alpha1.LabelStore: "other"}, "shard")
	create(t, a.objects, "status", &other)

	stores, err := a.stores(t.Context(), []string{"quotes"}, time.Minute)
	must.OK(t, err)
	got, err := a.gather(t.Context(), &stores[0], time.Minute)
	if err != nil || len(got.Missing) > 0 {
		t.Fatalf("%v, %v", err, got.Missing)
	}
	for i := range got.Pods {
		got.Pods[i].CreationTimestamp = metav1.NewTime(kubefindingtest.Now.Add(-24 * time.Hour))
	}
	got.Live = want.Live
	text := strings.ReplaceAll(got.show(140, finding.Find(got.Objects)), "RecordStore status/quotes",
		"RecordStore prod/quotes")
	golden(t, "well-140.txt", text)

	t.Run("the command", func(t *testing.T) {
		if err := a.call(t.Context(), "status", "--live=false", "--width=80"); err != nil {
			t.Errorf("all is well: %v", err)
		}
		for _, words := range []string{"RecordStore status/quotes: Ready", "3 of 3 serve", "--live is off",
			"3 of 3 members are ready", "FINDINGS  none"} {
			if !strings.Contains(out.String(), words) {
				t.Errorf("no %q in\n%s", words, out.String())
			}
		}
		if strings.Contains(out.String(), "other") {
			t.Errorf("another store's objects are shown:\n%s", out.String())
		}
	})
	t.Run("a problem is an exit code and a finding", func(t *testing.T) {
		store := stores[0].DeepCopy()
		set(&store.Status.Conditions, v1alpha1.ConditionStalled, metav1.ConditionTrue, "OtherStore",
			"etcd holds another store")
		must.OK(t, a.objects.Status().Update(t.Context(), store))
		out.Reset()
		err := a.call(t.Context(), "status", "quotes", "--live=false", "-o", "json")
		if err == nil || exitCode(err) != exitFailed || !strings.Contains(err.Error(), "1 problem, 0 warnings, 0 notes") {
			t.Errorf("%v", err)
		}
		var document statusDocument
		must.OK(t, json.Unmarshal(out.Bytes(), &document))
		if len(document.Findings) != 1 || !strings.Contains(document.Findings[0].What, "etcd holds another store") ||
			document.Live == "" {
			t.Errorf("%+v", document)
		}
	})
	t.Run("no gateway can be reached", func(t *testing.T) { // this API server has no kubelet, so no port can be forwarded
		if l := a.askGateway(t.Context(), &stores[0], 5*time.Second); l.Err == nil ||
			!strings.Contains(l.Err.Error(), "quotes-gateway-6d4c9b-0") {
			t.Errorf("%v", l.Err)
		}
	})
}
