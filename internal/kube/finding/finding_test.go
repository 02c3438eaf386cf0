package finding_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sheaf.dev/sheaf/api/v1alpha1"
	. "sheaf.dev/sheaf/internal/kube/finding"
	"sheaf.dev/sheaf/internal/kube/workload"
	"sheaf.dev/sheaf/internal/status/finding"
	"sheaf.dev/sheaf/internal/test/kubefindingtest"
)

// want describes an expected finding, with strings that its evidence must contain.
type want struct {
	severity finding.Severity
	object   string
	evidence string
	command  string // a part of the expected command; empty if there must be no command
}

// pod returns the pod of the store whose name contains the string part.
func pod(t *testing.T, o *Objects, part string) *corev1.Pod {
	t.Helper()
	for i := range o.Pods {
		if strings.Contains(o.Pods[i].Name, part) {
			return &o.Pods[i]
		}
	}
	t.Fatalf("no pod %q", part)
	return nil
}

func set(list *[]metav1.Condition, kind string, status metav1.ConditionStatus, reason, message string) {
	*list = slices.DeleteFunc(*list, func(c metav1.Condition) bool { return c.Type == kind })
	*list = append(*list, kubefindingtest.Condition(kind, status, reason, message))
}

// setShard returns a function that puts shard 1 into the given state.
func setShard(state v1alpha1.ShardState, message string) func(*testing.T, *Objects) {
	return func(_ *testing.T, o *Objects) {
		s := &o.Pools[0].Status.ShardStatuses[1]
		s.State, s.Message = state, message
		set(&o.Pools[0].Status.Conditions, v1alpha1.ConditionStalled, metav1.ConditionTrue, string(state),
			"shard quotes-ssd-1 is "+string(state))
	}
}

// setAllShards puts all shards into a state.
func setAllShards(o *Objects, state v1alpha1.ShardState, message string) {
	for n := range o.Pools[0].Status.ShardStatuses {
		s := &o.Pools[0].Status.ShardStatuses[n]
		s.State, s.Message = state, message
	}
}

// copiesMissing makes the store's condition say that all groups lack copies. The argument detail is the rest of the
// condition's message.
func copiesMissing(o *Objects, detail string) {
	set(&o.Store.Status.Conditions, v1alpha1.ConditionRedundant, metav1.ConditionFalse, "CopiesMissing",
		"64 of 64 groups have fewer than 3 copies"+detail)
}

func TestFindings(t *testing.T) {
	const shard = "shard quotes-ssd-1"
	missing := func(o *Objects, causes string) {
		copiesMissing(o, ": groups 0, 1, 2, 3, 4 and 59 more; "+causes)
	}
	loseClaim := func(o *Objects) {
		i := slices.IndexFunc(o.Claims, func(c corev1.PersistentVolumeClaim) bool { return c.Name == "data-quotes-ssd-1-0" })
		o.Claims[i].Status.Phase = corev1.ClaimLost
	}
	// failed returns a function that adds an event: a probe of shard 0 failed at the given time after the start of
	// its container.
	failed := func(probe string, after time.Duration) func(*testing.T, *Objects) {
		return func(t *testing.T, o *Objects) {
			began := kubefindingtest.Now.Add(-5 * time.Minute)
			pod(t, o, "ssd-0").Status.ContainerStatuses[0].State.Running = &corev1.ContainerStateRunning{
				StartedAt: metav1.NewTime(began),
			}
			o.Events = []corev1.Event{{
				InvolvedObject: corev1.ObjectReference{Kind: "Pod", Name: "quotes-ssd-0-0"}, Type: "Warning", Reason: "Unhealthy",
				Message: probe + " probe failed: connection refused", LastTimestamp: metav1.NewTime(began.Add(after)),
			}}
		}
	}
	for name, c := range map[string]struct {
		change func(*testing.T, *Objects)
		want   []want
	}{
		"all is well": {func(*testing.T, *Objects) {}, nil},
		"no operator has looked": {func(_ *testing.T, o *Objects) {
			set(&o.Store.Status.Conditions, v1alpha1.ConditionReady, metav1.ConditionUnknown, v1alpha1.ReasonPending,
				"Waiting for the operator")
		}, []want{{Problem, "RecordStore quotes", "none watches namespace prod", "component=operator"}}},
		"a change that the operator has not seen": {func(_ *testing.T, o *Objects) { o.Store.Generation = 2 },
			[]want{{Warning, "RecordStore quotes", "generation 2, it saw 1", "component=operator"}}},

		"a shard that loads": {func(_ *testing.T, o *Objects) {
			s := &o.Pools[0].Status.ShardStatuses[1]
			s.State, s.Load = v1alpha1.ShardLoading, "62% 1.9GiB/s ETA 2m"
		}, []want{{Note, shard, "62% 1.9GiB/s ETA 2m", "get shardpool quotes-ssd --watch"}}},
		"a damaged shard": {func(_ *testing.T, o *Objects) { o.Pools[0].Status.ShardStatuses[1].DamagedGroups = 2 },
			[]want{{Problem, shard, "2 of its 64 groups hold damaged entries", "kubectl sheaf -n prod report quotes"}}},
		"a shard that its pool does not list": {func(_ *testing.T, o *Objects) {
			pool := &o.Pools[0]
			s := v1alpha1.Shard{Spec: v1alpha1.ShardSpec{Pool: pool.Name, Number: 40}, Status: pool.Status.ShardStatuses[1]}
			s.Namespace, s.Name = pool.Namespace, "quotes-ssd-40"
			s.Status.State, s.Status.Message = v1alpha1.ShardUnreachable, "it does not answer"
			o.Shards = append(o.Shards, s)
		}, []want{{Warning, "shard quotes-ssd-40", "Unreachable: it does not answer", "logs quotes-ssd-40-0"}}},
		"a node is down, three copies": {setShard(v1alpha1.ShardNodeDown, "node n2 is not ready"),
			[]want{{Warning, shard, "node n2 is not ready", "describe node n2"}}},
		"a node is down, one copy": {func(t *testing.T, o *Objects) {
			o.Store.Spec.Replication.Copies = 1
			setShard(v1alpha1.ShardNodeDown, "node n2 is not ready")(t, o)
		}, []want{{Problem, shard, "node n2 is not ready", "describe node n2"},
			{Note, "RecordStore quotes", "single copy", ""}}},
		"a disk is lost": {setShard(v1alpha1.ShardDiskLost, "the volume is blank"),
			[]want{{Warning, shard, "the volume is blank",
				`patch shardpool quotes-ssd --type=merge -p '{"spec":{"replace":[1]}}'`}}},
		"a foreign volume": {setShard(v1alpha1.ShardForeign, "another store's"),
			[]want{{Warning, shard, "another store's", "get pvc data-quotes-ssd-1-0"}}},
		"no volume": {setShard(v1alpha1.ShardNoVolume, "no free volume"),
			[]want{{Warning, shard, "no free volume", "kubectl get disksets"}}},
		"not formatted": {setShard(v1alpha1.ShardFormatBlocked, "a partition table"),
			[]want{{Warning, shard, "a partition table", "describe pod quotes-ssd-1-0"}}},
		"ends again": {setShard(v1alpha1.ShardCrashLooping, "exit code 1"),
			[]want{{Warning, shard, "exit code 1", "logs quotes-ssd-1-0 --previous"}}},
		"a state of future": {setShard("Singing", "la"), []want{{Warning, shard, "Singing: la",
			"describe pod quotes-ssd-1-0"}}},
		"too little memory": {func(t *testing.T, o *Objects) {
			o.Pools[0].Status.ShardStatuses[1].MemoryNeedBytes = 3 << 30
			setShard(v1alpha1.ShardMemoryTooSmall, "needs 3GiB")(t, o)
		}, []want{{Warning, shard, "needs 3GiB", `"limits":{"memory":"4096Mi"}`}}},
		"a parked shard": {func(t *testing.T, o *Objects) {
			o.Pools[0].Spec.Parked = []int32{0, 1}
			o.Pools[0].Status.ShardStatuses[1].State = v1alpha1.ShardParked
		}, []want{{Note, shard, "Parked", `'{"spec":{"parked":[0]}}'`}}},
		"a pool that is stalled by itself": {func(_ *testing.T, o *Objects) {
			set(&o.Pools[0].Status.Conditions, v1alpha1.ConditionStalled, metav1.ConditionTrue, "NowhereToGo",
				"2 groups have nowhere to go")
		}, []want{{Problem, "ShardPool quotes-ssd", "NowhereToGo: 2 groups", "describe shardpool quotes-ssd"}}},
		"a full volume": {func(_ *testing.T, o *Objects) {
			set(&o.Pools[0].Status.Conditions, v1alpha1.ConditionSpaceAvailable, metav1.ConditionFalse, "VolumeFull",
				"puts are refused")
		}, []want{{Problem, "ShardPool quotes-ssd", "puts are refused", "describe shardpool"}}},
		"a drained pool": {func(_ *testing.T, o *Objects) {
			o.Pools[0].Spec.State = v1alpha1.PoolDrained
			set(&o.Pools[0].Status.Conditions, v1alpha1.ConditionDrained, metav1.ConditionTrue, "Drained", "")
		}, []want{{Note, "ShardPool quotes-ssd", "it can be deleted", "delete shardpool quotes-ssd"}}},
		"an update that is paused": {func(_ *testing.T, o *Objects) {
			o.Pools[0].Spec.Update.Mode, o.Pools[0].Status.Updated = v1alpha1.UpdatePaused, 1
		}, []want{{Note, "ShardPool quotes-ssd", "2 of 3 shards run an older template", `"mode":"OneByOne"`}}},

		"a member of etcd that ends": {func(t *testing.T, o *Objects) {
			kubefindingtest.Crash(pod(t, o, "etcd-1"), "panic: tocommit(5) is out of range")
		},
			[]want{{Warning, "etcd member quotes-etcd-1", "tocommit(5) is out of range; 2 of 3 members are ready",
				"logs quotes-etcd-1 --previous"}}},
		"no majority of etcd": {func(t *testing.T, o *Objects) {
			kubefindingtest.Crash(pod(t, o, "etcd-1"), "panic")
			o.Pods = slices.DeleteFunc(o.Pods, func(p corev1.Pod) bool { return p.Name == "quotes-etcd-2" })
		}, []want{
			{Problem, "etcd member quotes-etcd-1", "1 of 3 members are ready, and no majority", "logs quotes-etcd-1"},
			{Problem, "etcd member quotes-etcd-2", "it has no pod", "describe statefulset quotes-etcd"},
		}},
		"a member that waits for a volume": {func(t *testing.T, o *Objects) {
			p := pod(t, o, "etcd-0")
			p.Spec.NodeName, p.Status = "", corev1.PodStatus{Phase: corev1.PodPending, Conditions: []corev1.PodCondition{{
				Type: corev1.PodScheduled, Status: corev1.ConditionFalse,
				Message: "pod has unbound immediate PersistentVolumeClaims",
			}}}
		}, []want{{Warning, "etcd member quotes-etcd-0", "unbound immediate PersistentVolumeClaims",
			"describe pod quotes-etcd-0"}}},
		"gateways on one node": {func(t *testing.T, o *Objects) { pod(t, o, "gateway-6d4c9b-1").Spec.NodeName = "n1" },
			[]want{{Warning, "gateway quotes-gateway", "all 2 gateways are on node n1",
				"rollout restart deployment quotes-gateway"}}},
		"no gateway is ready": {func(t *testing.T, o *Objects) {
			for _, n := range []string{"0", "1"} {
				kubefindingtest.Crash(pod(t, o, "gateway-6d4c9b-"+n), "no such host")
			}
		}, []want{
			{Problem, "gateway quotes-gateway-6d4c9b-0", "0 of 2 gateways are ready", "--previous"},
			{Problem, "gateway quotes-gateway-6d4c9b-1", "no such host", "--previous"},
		}},
		"lost groups": {func(_ *testing.T, o *Objects) {
			o.Store.Status.Groups = v1alpha1.GroupCounts{Total: 64, Serving: 62, DataLost: 2,
				NotWell: []v1alpha1.GroupTrouble{{Group: "7", Shard: "quotes-ssd-0", State: "DataLost"}}}
		}, []want{{Problem, "RecordStore quotes", "the data of 2 groups are lost", "notWell"}}},
		"lost groups on a disk that is lost": {func(t *testing.T, o *Objects) {
			o.Store.Status.Groups = v1alpha1.GroupCounts{Total: 64, Serving: 63, DataLost: 1,
				NotWell: []v1alpha1.GroupTrouble{{Group: "7", Shard: "quotes-ssd-1", State: "DataLost"}}}
			setShard(v1alpha1.ShardDiskLost, "the volume is blank")(t, o)
		}, []want{{Problem, shard, "the volume is blank; the data of 1 group are lost, as every copy is on a disk that is " +
			"lost: bring it back, or restore the records from a backup; group 7 is DataLost", `"replace":[1]`}}},
		"lost groups on another volume than the disk that is lost": {func(t *testing.T, o *Objects) {
			o.Store.Status.Groups = v1alpha1.GroupCounts{Total: 64, Serving: 63, DataLost: 1,
				NotWell: []v1alpha1.GroupTrouble{{Group: "7", Shard: "quotes-ssd-2", State: "DataLost"}}}
			setShard(v1alpha1.ShardDiskLost, "the volume is blank")(t, o)
		}, []want{{Problem, "RecordStore quotes", "group 7 is DataLost on shard quotes-ssd-2", "notWell"},
			{Warning, shard, "the volume is blank", `"replace":[1]`}}},
		"lost groups on three disks that are lost": {func(_ *testing.T, o *Objects) {
			o.Store.Status.Groups = v1alpha1.GroupCounts{Total: 64, Serving: 63, DataLost: 1,
				NotWell: []v1alpha1.GroupTrouble{{Group: "7", Shard: "quotes-ssd-1", State: "DataLost"}}}
			setAllShards(o, v1alpha1.ShardDiskLost, "the volume is blank")
		}, []want{{Problem, "RecordStore quotes", "every copy is on a volume that is gone. Bring one back, or restore the " +
			"records from a backup; group 7 is DataLost on shard quotes-ssd-1", "notWell"},
			{Warning, "shard quotes-ssd-0", "the volume is blank", `"replace":[0]`},
			{Warning, shard, "the volume is blank", `"replace":[1]`},
			{Warning, "shard quotes-ssd-2", "the volume is blank", `"replace":[2]`}}},
		"one damaged group": {func(_ *testing.T, o *Objects) {
			o.Store.Status.Groups = v1alpha1.GroupCounts{Total: 64, Serving: 64, Damaged: 1}
		}, []want{{Problem, "RecordStore quotes", "1 group has damaged entries, whose records answer DATA_LOSS", "notWell"}}},
		"groups that load": {func(_ *testing.T, o *Objects) {
			o.Store.Status.Groups = v1alpha1.GroupCounts{Total: 64, Serving: 60, Loading: 4}
		}, []want{{Note, "RecordStore quotes", "4 of 64 groups do not serve", "notWell"}}},
		"two copies in one domain": {func(_ *testing.T, o *Objects) {
			set(&o.Store.Status.Conditions, v1alpha1.ConditionRedundant, metav1.ConditionFalse, "SharedDomain", "4 of 12 groups")
		}, []want{{Warning, "RecordStore quotes", "SharedDomain: 4 of 12 groups", "kubectl sheaf -n prod moves quotes"}}},
		"copies are missing on shards that have a finding": {func(_ *testing.T, o *Objects) {
			setAllShards(o, v1alpha1.ShardNodeDown, "the node is not ready")
			missing(o, "not registered in etcd: quotes-ssd-0; quotes-ssd-1; on a disk that does not answer: quotes-ssd-2")
		}, []want{{Warning, "shard quotes-ssd-0", "NodeDown", "n1"}, {Warning, shard, "NodeDown", "n2"},
			{Warning, "shard quotes-ssd-2", "NodeDown", "n3"}}},
		"copies are missing on more shards than are named": {func(_ *testing.T, o *Objects) {
			setAllShards(o, v1alpha1.ShardNodeDown, "the node is not ready")
			missing(o, "not registered in etcd: quotes-ssd-0; quotes-ssd-1; quotes-ssd-2; and 2 more")
		}, []want{{Warning, "shard quotes-ssd-0", "NodeDown", "n1"}, {Warning, shard, "NodeDown", "n2"},
			{Warning, "shard quotes-ssd-2", "NodeDown", "n3"}, {Warning, "RecordStore quotes", "and 2 more", "moves quotes"}}},
		"copies are missing for a further cause": {func(t *testing.T, o *Objects) {
			setShard(v1alpha1.ShardNodeDown, "node n2 is not ready")(t, o)
			missing(o, "not registered in etcd: quotes-ssd-1; group 0: no space")
		}, []want{{Warning, shard, "NodeDown", "n2"}, {Warning, "RecordStore quotes", "group 0: no space", "moves quotes"}}},
		"copies are missing on a shard that starts": {func(t *testing.T, o *Objects) {
			setShard(v1alpha1.ShardPending, "starts")(t, o)
			pod(t, o, "ssd-1").CreationTimestamp.Time = kubefindingtest.Now
			missing(o, "not registered in etcd: quotes-ssd-1")
		}, []want{{Warning, "RecordStore quotes", "CopiesMissing", "moves quotes"}, {Note, shard, "starts", "describe pod"}}},
		"copies are missing on a shard that is damaged": {func(_ *testing.T, o *Objects) {
			o.Pools[0].Status.ShardStatuses[1].DamagedGroups = 2
			missing(o, "not registered in etcd: quotes-ssd-1")
		}, []want{{Problem, shard, "2 of its 64 groups", "report quotes"},
			{Warning, "RecordStore quotes", "CopiesMissing", "moves quotes"}}},
		"stalled by what another condition says too": {func(_ *testing.T, o *Objects) {
			set(&o.Store.Status.Conditions, v1alpha1.ConditionRedundant, metav1.ConditionFalse, "TooFewDomains", "2 domains")
			set(&o.Store.Status.Conditions, v1alpha1.ConditionStalled, metav1.ConditionTrue, "TooFewDomains", "2 domains")
		}, []want{{Problem, "RecordStore quotes", "TooFewDomains", "describe recordstore quotes"}}},
		"no pool": {func(_ *testing.T, o *Objects) { o.Pools = nil },
			[]want{{Problem, "RecordStore quotes", "no ShardPool gives this store shards", "get shardpools"}}},

		"a claim of a deleted pool": {func(_ *testing.T, o *Objects) {
			o.Claims = append(o.Claims, corev1.PersistentVolumeClaim{
				ObjectMeta: metav1.ObjectMeta{Name: "data-old-0-0", Labels: workload.ShardLabels("quotes", "old", 0)},
				Status:     corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimPending},
			})
		}, []want{{Warning, "claim data-old-0-0", "its pool old is gone", "delete pvc data-old-0-0"}}},
		"a claim that somebody has deleted": {func(_ *testing.T, o *Objects) {
			i := slices.IndexFunc(o.Claims, func(c corev1.PersistentVolumeClaim) bool { return c.Name == "data-quotes-ssd-1-0" })
			o.Claims[i].DeletionTimestamp = &metav1.Time{Time: kubefindingtest.Now}
		}, []want{{Warning, "claim data-quotes-ssd-1-0", "somebody has deleted it", "describe pvc"}}},
		"the volume of a parked shard is lost": {func(t *testing.T, o *Objects) {
			o.Pools[0].Spec.Parked = []int32{1}
			setShard(v1alpha1.ShardParked, "it is parked")(t, o)
			loseClaim(o)
		}, []want{{Warning, "claim data-quotes-ssd-1-0", "is gone", "describe pvc"}, {Note, shard, "Parked", `"parked":[]`}}},
		"the volume of a shard on a node that is down is lost": {func(t *testing.T, o *Objects) {
			setShard(v1alpha1.ShardNodeDown, "node n2 is not ready")(t, o)
			loseClaim(o)
		}, []want{{Warning, shard, "NodeDown", "n2"}, {Warning, "claim data-quotes-ssd-1-0", "is gone", "describe pvc"}}},
		"a disk that is not blank": {func(_ *testing.T, o *Objects) {
			o.DiskSets[0].Status.Disks[6].State, o.DiskSets[0].Status.Disks[6].Message = v1alpha1.DiskFormatBlocked, "holds ntfs"
		}, []want{{Warning, "disk /dev/disk/by-id/nvme-6 of node n1", "holds ntfs", "describe diskset local-xfs"}}},
		"killed for its memory, and back": {func(t *testing.T, o *Objects) {
			pod(t, o, "ssd-2").Status.ContainerStatuses[0].LastTerminationState.Terminated = &corev1.ContainerStateTerminated{
				ExitCode: 137, Reason: "OOMKilled", FinishedAt: metav1.NewTime(kubefindingtest.Now.Add(-5 * time.Minute)),
			}
		}, []want{{Warning, "pod quotes-ssd-2-0", "OOMKilled) 5m0s ago, and runs again: raise its memory limit",
			"logs quotes-ssd-2-0 --previous"}}},
		"events": {func(_ *testing.T, o *Objects) {
			event := func(name, kind, reason string, ago time.Duration) corev1.Event {
				return corev1.Event{
					InvolvedObject: corev1.ObjectReference{Kind: "Pod", Name: name}, Type: kind, Reason: reason, Message: "words",
					LastTimestamp: metav1.NewTime(kubefindingtest.Now.Add(-ago)),
				}
			}
			o.Events = []corev1.Event{
				event("quotes-ssd-0-0", "Warning", "Unhealthy", time.Minute),
				event("quotes-ssd-0-0", "Warning", "Unhealthy", 2*time.Minute),
				event("quotes-ssd-0-0", "Normal", "Pulled", time.Minute), event("quotes-ssd-0-0", "Warning", "Old", time.Hour),
			}
		}, []want{{Note, "event of Pod quotes-ssd-0-0", "Unhealthy, 1m0s ago: words", "events --for pod/quotes-ssd-0-0"}}},
		"its startup probe failed while a pod started": {failed("Startup", 10*time.Second), nil},
		"liveness failed just after a start": {failed("Liveness", 10*time.Second),
			[]want{{Note, "event of Pod quotes-ssd-0-0", "Liveness probe failed", "events --for pod/quotes-ssd-0-0"}}},
		"readiness failed before the last start": {failed("Readiness", -10*time.Second),
			[]want{{Note, "event of Pod quotes-ssd-0-0", "Readiness probe failed", "events --for pod/quotes-ssd-0-0"}}},
		"readiness failed while a pod started": {func(t *testing.T, o *Objects) {
			began := kubefindingtest.Now.Add(-5 * time.Minute)
			pod(t, o, "ssd-0").Status.ContainerStatuses[0].State.Running = &corev1.ContainerStateRunning{
				StartedAt: metav1.NewTime(began),
			}
			unhealthy := corev1.Event{
				InvolvedObject: corev1.ObjectReference{Kind: "Pod", Name: "quotes-ssd-0-0"}, Type: "Warning", Reason: "Unhealthy",
				Message: "Readiness probe failed: HTTP probe failed with statuscode: 503",
			}
			later := unhealthy
			unhealthy.LastTimestamp = metav1.NewTime(began.Add(10 * time.Second))
			later.InvolvedObject.Name, later.LastTimestamp = "quotes-ssd-1-0", unhealthy.LastTimestamp // pod 1 has run for a day
			o.Events = []corev1.Event{unhealthy, later}
		}, []want{{Note, "event of Pod quotes-ssd-1-0", "statuscode: 503", "events --for pod/quotes-ssd-1-0"}}},
	} {
		t.Run(name, func(t *testing.T) {
			o, _ := kubefindingtest.Well()
			c.change(t, &o)
			compare(t, Find(o), c.want)
		})
	}
}

func compare(t *testing.T, got []Finding, wanted []want) {
	t.Helper()
	if len(got) != len(wanted) {
		t.Errorf("%d findings, not %d: %+v", len(got), len(wanted), got)
		return
	}
	for n, w := range wanted {
		g := got[n]
		if g.Severity != w.severity || g.Where != w.object || !strings.Contains(g.What, w.evidence) {
			t.Errorf("%+v, not %+v", g, w)
		}
		if !strings.Contains(g.Do, w.command) || w.command == "" && g.Do != "" {
			t.Errorf("%s: command %q, not %q", g.Where, g.Do, w.command)
		}
	}
}

// The worst finding comes first, and a long message is shortened so that it fits on one line.
func TestTheWorstComesFirst(t *testing.T) {
	o, _ := kubefindingtest.Well()
	setShard(v1alpha1.ShardNodeDown, strings.Repeat("long words ", 200)+"\nend")(t, &o)
	o.Pools[0].Spec.Update.Mode, o.Pools[0].Status.Updated = v1alpha1.UpdatePaused, 1
	set(&o.Store.Status.Conditions, v1alpha1.ConditionStalled, metav1.ConditionTrue, "OtherStore", "it holds another")
	got := Find(o)
	var order []finding.Severity
	for _, f := range got {
		order = append(order, f.Severity)
		if len(f.What) > 600 || strings.Contains(f.What, "\n") {
			t.Errorf("evidence of %d bytes: %q", len(f.What), f.What)
		}
	}
	if !slices.Equal(order, []finding.Severity{Problem, Warning, Note}) {
		t.Errorf("order %v: %+v", order, got)
	}
	if finding.Count(got, Problem) != 1 || finding.Count(got, Note) != 1 {
		t.Errorf("counts of %+v", got)
	}
}

// Every shard state in the API is reported, except those in which the shard is healthy.
func TestEveryStateIsReported(t *testing.T) {
	quiet := []v1alpha1.ShardState{v1alpha1.ShardServing, v1alpha1.ShardDraining}
	for _, state := range []v1alpha1.ShardState{
		v1alpha1.ShardPending, v1alpha1.ShardLoading, v1alpha1.ShardServing, v1alpha1.ShardDraining, v1alpha1.ShardParked,
		v1alpha1.ShardNodeDown,
		v1alpha1.ShardNodeLost, v1alpha1.ShardDiskLost, v1alpha1.ShardDiskMissing, v1alpha1.ShardForeign,
		v1alpha1.ShardFormatBlocked,
		v1alpha1.ShardFileSystemMismatch,
		v1alpha1.ShardMemoryTooSmall, v1alpha1.ShardNoStorageClass, v1alpha1.ShardNoVolume, v1alpha1.ShardUnschedulable,
		v1alpha1.ShardImagePull,
		v1alpha1.ShardCrashLooping, v1alpha1.ShardUnreachable,
	} {
		o, _ := kubefindingtest.Well()
		o.Pools[0].Status.ShardStatuses[1].State = state
		if told := len(Find(o)) > 0; told == slices.Contains(quiet, state) {
			t.Errorf("%s: told is %v", state, told)
		}
	}
}
