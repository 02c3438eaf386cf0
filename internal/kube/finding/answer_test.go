package finding_test

import (
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"sheaf.dev/sheaf/api/v1alpha1"
	"sheaf.dev/sheaf/client/recordv1"
	. "sheaf.dev/sheaf/internal/kube/finding"
	"sheaf.dev/sheaf/internal/status/finding"
	"sheaf.dev/sheaf/internal/test/kubefindingtest"
)

// healthyFacts returns a gateway's response for the healthy store, which has three shards, and one group with a copy on
// each.
func healthyFacts() *finding.Facts {
	facts := &finding.Facts{Whole: true}
	for n, shard := range []string{"quotes-ssd-0", "quotes-ssd-1", "quotes-ssd-2"} {
		facts.Shards = append(facts.Shards, &recordv1.Shard{Name: shard, Alive: true, Address: shard + ":7610", Groups: 1})
		facts.Groups = append(facts.Groups, &recordv1.Group{
			Group: "7", Shard: shard, State: recordv1.GroupState_GROUP_STATE_SERVING, Leader: n == 0,
		})
	}
	return facts
}

// TestGatewayFindingsMatchDoctor checks that kubectl sheaf finds the same problems in a gateway's response as
// sheaf doctor. It also checks that one cause has one finding. If a Kubernetes object explains the cause better, the
// finding about the object remains.
func TestGatewayFindingsMatchDoctor(t *testing.T) {
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
			o.Store.Status.Groups = v1alpha1.GroupCounts{Total: 64, Serving: 63} // the object's status shows the same problem
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
			setShard(v1alpha1.ShardNodeDown, "node n2 is not ready")(t, o)
		}, []want{{Warning, "shard quotes-ssd-1", "node n2 is not ready", "describe node n2"}}},
		"two silent shards whose nodes are down": {func(t *testing.T, o *Objects, f *finding.Facts) {
			silent(f)
			f.Shards[0].Alive, f.Groups[0].State = false, recordv1.GroupState_GROUP_STATE_UNAVAILABLE
			f.Groups[0].Leader = false
			setShard(v1alpha1.ShardNodeDown, "node n2 is not ready")(t, o)
			o.Pools[0].Status.ShardStatuses[0].State = v1alpha1.ShardNodeDown
		}, []want{
			{Problem, "shard quotes-ssd-0", "too few copies are well to serve group 7", "describe node n1"},
			{Problem, "shard quotes-ssd-1", "node n2 is not ready; it does not answer at quotes-ssd-1:7610; without it too " +
				"few copies are well to serve group 7", "describe node n2"},
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
			o.Answer = healthyFacts()
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

// TestOneCauseIsOneFinding creates causes that are visible both in Kubernetes objects and in a gateway's response. It
// checks that one cause has one finding, which is a problem if something is not served, and that a finding hides no
// other cause.
func TestOneCauseIsOneFinding(t *testing.T) {
	const etcdSilent = finding.EtcdSilent + "30 s: what starts waits"
	etcdReady := func(reason, message string) func(*testing.T, *Objects, *finding.Facts) {
		return func(_ *testing.T, o *Objects, f *finding.Facts) {
			o.Store.Spec.Etcd = v1alpha1.Etcd{External: &v1alpha1.ExternalEtcd{Endpoints: []string{"http://e:2379"}}}
			f.Store = []string{etcdSilent}
			set(&o.Store.Status.Conditions, v1alpha1.ConditionEtcdReady, "False", reason, message)
		}
	}
	down := func(f *finding.Facts, shard int) {
		f.Shards[shard].Alive, f.Groups[shard].State, f.Groups[shard].Leader = false,
			recordv1.GroupState_GROUP_STATE_UNAVAILABLE, false
	}
	lost := func(f *finding.Facts, shard int) {
		f.Groups[shard].State, f.Groups[shard].Lost, f.Groups[shard].Leader = recordv1.GroupState_GROUP_STATE_FAILED, true,
			false
		f.Groups[shard].Message = "this is another volume: bring the old volume back"
	}
	for name, c := range map[string]struct {
		change func(*testing.T, *Objects, *finding.Facts)
		want   []want
	}{
		"an external etcd is silent": {etcdReady("EtcdUnreachable", "etcd at http://e:2379 cannot be reached"),
			[]want{{Problem, "RecordStore quotes", "cannot be reached", "describe recordstore quotes"}}},
		"etcd is silent for the gateway, and was set back for the operator": {etcdReady("EtcdRolledBack", "older"),
			[]want{{Problem, "RecordStore quotes", "EtcdRolledBack", "describe recordstore quotes"},
				{Problem, "store", etcdSilent, "describe recordstore quotes"}}},
		"an etcd that was set back": {func(t *testing.T, o *Objects, f *finding.Facts) {
			etcdReady("EtcdRolledBack", "older")(t, o, f)
			f.Store = []string{finding.EtcdHeld + "older"}
		}, []want{{Problem, "RecordStore quotes", "EtcdRolledBack", "describe recordstore quotes"}}},
		"a managed etcd without a majority": {func(t *testing.T, o *Objects, f *finding.Facts) {
			set(&o.Store.Status.Conditions, v1alpha1.ConditionEtcdReady, "False", "EtcdNotReady", "1 of 3 members")
			f.Store = []string{etcdSilent}
			kubefindingtest.Crash(pod(t, o, "etcd-1"), "panic")
			o.Pods = slices.DeleteFunc(o.Pods, func(p corev1.Pod) bool { return p.Name == "quotes-etcd-2" })
		}, []want{
			{Problem, "etcd member quotes-etcd-1", "no majority", "logs quotes-etcd-1"},
			{Problem, "etcd member quotes-etcd-2", "it has no pod", "describe statefulset quotes-etcd"},
		}},
		"etcd is silent for the gateway alone": {func(t *testing.T, o *Objects, f *finding.Facts) {
			f.Store = []string{etcdSilent}
		}, []want{{Problem, "store", etcdSilent, "describe recordstore quotes"}}},
		"a managed etcd that only the operator cannot reach": {func(t *testing.T, o *Objects, f *finding.Facts) {
			set(&o.Store.Status.Conditions, v1alpha1.ConditionEtcdReady, "False", "EtcdUnreachable", "refused")
		}, []want{{Problem, "RecordStore quotes", "EtcdUnreachable: refused", "describe recordstore quotes"}}},
		"a key of etcd, beside its silence": {func(t *testing.T, o *Objects, f *finding.Facts) {
			etcdReady("EtcdUnreachable", "refused")(t, o, f)
			f.Store = append(f.Store, "key states/a in etcd cannot be used")
		}, []want{{Problem, "RecordStore quotes", "refused", "describe"},
			{Problem, "store", "key states/a", "describe recordstore quotes"}}},

		"the data of groups are lost, with their disk": {func(t *testing.T, o *Objects, f *finding.Facts) {
			o.Store.Status.Groups = v1alpha1.GroupCounts{Total: 64, Serving: 63, DataLost: 1}
			setShard(v1alpha1.ShardDiskLost, "the volume is blank")(t, o)
			f.Groups = f.Groups[1:2]
			down(&finding.Facts{Shards: f.Shards[1:2], Groups: f.Groups}, 0)
		}, []want{{Problem, "shard quotes-ssd-1", "the volume is blank; the data of 1 group are lost", `"replace":[1]`}}},
		"the data of a group are lost, and its shard runs with another volume": {
			func(t *testing.T, o *Objects, f *finding.Facts) {
				o.Store.Status.Groups = v1alpha1.GroupCounts{Total: 64, Serving: 63, DataLost: 1}
				f.Groups = f.Groups[1:2]
				lost(f, 0)
			}, []want{{Problem, "group 7 on shard quotes-ssd-1", "bring the old volume back", "restore its records"}}},
		"a copy is lost, and the others serve": {func(t *testing.T, o *Objects, f *finding.Facts) { lost(f, 1) },
			[]want{{Problem, "group 7 on shard quotes-ssd-1", "bring the old volume back", "logs quotes-ssd-1-0"}}},

		"a node is down, and copies are missing": {func(t *testing.T, o *Objects, f *finding.Facts) {
			down(f, 1)
			setShard(v1alpha1.ShardNodeDown, "node n2 is not ready")(t, o)
			copiesMissing(o, "; not registered in etcd: quotes-ssd-1")
		}, []want{{Warning, "shard quotes-ssd-1", "node n2 is not ready", "describe node n2"}}},
		"a shard is silent, and copies are missing": {func(t *testing.T, o *Objects, f *finding.Facts) {
			down(f, 1)
			copiesMissing(o, "; not registered in etcd: quotes-ssd-1")
		}, []want{{Problem, "shard quotes-ssd-1", "it does not answer", "logs quotes-ssd-1-0"}}},
		"a shard is parked, and copies are missing": {func(t *testing.T, o *Objects, f *finding.Facts) {
			down(f, 1)
			o.Pools[0].Spec.Parked = []int32{1}
			setShard(v1alpha1.ShardParked, "it is parked")(t, o)
			copiesMissing(o, "; not registered in etcd: quotes-ssd-1")
		}, []want{{Warning, "RecordStore quotes", "CopiesMissing", "moves quotes"},
			{Note, "shard quotes-ssd-1", "it is parked", `"parked":[]`}}},
		"a disk is nearly full, and copies are missing": {func(t *testing.T, o *Objects, f *finding.Facts) {
			f.Shards[1].CapacityBytes, f.Shards[1].FreeBytes, f.Shards[1].ReserveBytes = 1<<40, 3<<29, 1<<30
			copiesMissing(o, "; not registered in etcd: quotes-ssd-1")
		}, []want{{Warning, "shard quotes-ssd-1", "writes will be refused soon", "enlarge the volume"},
			{Warning, "RecordStore quotes", "CopiesMissing", "moves quotes"}}},
		"copies are missing on two shards, and one has a finding": {func(t *testing.T, o *Objects, f *finding.Facts) {
			down(f, 1)
			copiesMissing(o, ": group 7; not registered in etcd: quotes-ssd-1; quotes-ssd-2")
		}, []want{{Problem, "shard quotes-ssd-1", "it does not answer", "logs quotes-ssd-1-0"},
			{Warning, "RecordStore quotes", "CopiesMissing", "moves quotes"}}},
		"copies are missing, and no shard is named": {func(t *testing.T, o *Objects, f *finding.Facts) {
			down(f, 1)
			copiesMissing(o, "; group 7: no space")
		}, []want{{Problem, "shard quotes-ssd-1", "it does not answer", "logs quotes-ssd-1-0"},
			{Warning, "RecordStore quotes", "CopiesMissing", "moves quotes"}}},

		"a shard refuses its volume": {func(t *testing.T, o *Objects, f *finding.Facts) {
			setShard(v1alpha1.ShardForeign, "another store's")(t, o)
			f.Shards[1].State, f.Shards[1].Message = recordv1.ShardState_SHARD_STATE_FOREIGN, "another store's"
			f.Groups[1].State = recordv1.GroupState_GROUP_STATE_UNAVAILABLE
		}, []want{{Warning, "shard quotes-ssd-1", "Foreign: another store's", "get pvc"}}},
		"a shard refuses its volume, and is needed": {func(t *testing.T, o *Objects, f *finding.Facts) {
			setShard(v1alpha1.ShardForeign, "another store's")(t, o)
			f.Shards[1].State, f.Shards[1].Message = recordv1.ShardState_SHARD_STATE_FOREIGN, "another store's"
			f.Groups = f.Groups[1:2]
			f.Groups[0].State = recordv1.GroupState_GROUP_STATE_UNAVAILABLE
		}, []want{{Problem, "shard quotes-ssd-1", "too few copies are well to serve group 7", "get pvc"}}},
		"a disk is lost, after the operator wrote that its shard loads": {func(t *testing.T, o *Objects, f *finding.Facts) {
			setShard(v1alpha1.ShardLoading, "group 7")(t, o)
			f.Shards[1].State, f.Shards[1].Message = recordv1.ShardState_SHARD_STATE_DISK_LOST, "the volume is blank"
			f.Groups[1].State = recordv1.GroupState_GROUP_STATE_UNAVAILABLE
		}, []want{{Problem, "shard quotes-ssd-1", "the volume is blank", "logs quotes-ssd-1-0"},
			{Note, "shard quotes-ssd-1", "it loads: group 7", "--watch"}}},
		"a disk is lost, after the operator could not reach the shard": {func(t *testing.T, o *Objects, f *finding.Facts) {
			setShard(v1alpha1.ShardUnreachable, "refused")(t, o)
			f.Shards[1].State, f.Shards[1].Message = recordv1.ShardState_SHARD_STATE_DISK_LOST, "the volume is blank"
			f.Groups[1].State = recordv1.GroupState_GROUP_STATE_UNAVAILABLE
		}, []want{{Problem, "shard quotes-ssd-1", "the volume is blank", "logs quotes-ssd-1-0"},
			{Warning, "shard quotes-ssd-1", "refused", "logs quotes-ssd-1-0"}}},
		"a shard is silent, after the operator wrote that it loads": {func(t *testing.T, o *Objects, f *finding.Facts) {
			setShard(v1alpha1.ShardLoading, "group 7")(t, o)
			down(f, 1)
		}, []want{{Problem, "shard quotes-ssd-1", "it does not answer", "logs quotes-ssd-1-0"},
			{Note, "shard quotes-ssd-1", "it loads: group 7", "--watch"}}},
		"a shard is silent, as it is parked": {func(t *testing.T, o *Objects, f *finding.Facts) {
			o.Pools[0].Spec.Parked = []int32{1}
			setShard(v1alpha1.ShardParked, "it is parked")(t, o)
			down(f, 1)
		}, []want{{Note, "shard quotes-ssd-1", "it is parked", `"parked":[]`}}},
		"a shard that starts has a problem": {func(t *testing.T, o *Objects, f *finding.Facts) {
			setShard(v1alpha1.ShardPending, "its disk does not answer")(t, o)
			pod(t, o, "ssd-1").CreationTimestamp.Time = kubefindingtest.Now
			f.Shards[1].Problems = []string{"its disk does not answer"}
		}, []want{{Problem, "shard quotes-ssd-1", "its disk does not answer", "logs quotes-ssd-1-0"},
			{Note, "shard quotes-ssd-1", "Pending: its disk does not answer", "describe pod"}}},
		"a memory limit that is too small, and the shard is needed": {func(t *testing.T, o *Objects, f *finding.Facts) {
			setShard(v1alpha1.ShardMemoryTooSmall, "the limit is 1 GiB")(t, o)
			f.Shards[1].State, f.Shards[1].Message = recordv1.ShardState_SHARD_STATE_MEMORY_TOO_SMALL, "the limit is 1 GiB"
			f.Groups = f.Groups[1:2]
			f.Groups[0].State, f.Groups[0].Message = recordv1.GroupState_GROUP_STATE_FAILED, "needs 3 GiB: the limit is 1 GiB"
		}, []want{{Problem, "shard quotes-ssd-1", "too few copies are well to serve group 7", "limits"}}},
		"a full volume of a shard that the operator cannot reach": {func(t *testing.T, o *Objects, f *finding.Facts) {
			setShard(v1alpha1.ShardUnreachable, "refused")(t, o)
			f.Shards[1].CapacityBytes, f.Shards[1].ReserveBytes = 1<<40, 1<<30
		}, []want{{Problem, "shard quotes-ssd-1", "DISK_FULL", "enlarge"},
			{Warning, "shard quotes-ssd-1", "refused", "logs"}}},

		"no pool": {func(_ *testing.T, o *Objects, f *finding.Facts) { o.Pools, f.Shards, f.Groups = nil, nil, nil },
			[]want{{Problem, "RecordStore quotes", "no ShardPool gives this store shards", "get shardpools"}}},
		"no shard starts": {func(t *testing.T, o *Objects, f *finding.Facts) {
			f.Shards, f.Groups = nil, nil
			for n := range o.Pools[0].Status.ShardStatuses {
				s := &o.Pools[0].Status.ShardStatuses[n]
				s.State, s.Message = v1alpha1.ShardNoVolume, "no free volume"
			}
		}, []want{
			{Problem, "shard quotes-ssd-0", "no free volume; no shard runs, so that nothing is served", "get disksets"},
			{Warning, "shard quotes-ssd-1", "no free volume", "get disksets"},
			{Warning, "shard quotes-ssd-2", "no free volume", "get disksets"},
		}},
		"too few domains, so that a group is not made": {func(_ *testing.T, o *Objects, f *finding.Facts) {
			set(&o.Store.Status.Conditions, v1alpha1.ConditionRedundant, "False", "TooFewDomains", "2 domains")
			set(&o.Store.Status.Conditions, v1alpha1.ConditionStalled, "True", "TooFewDomains", "2 domains")
			f.Groups = []*recordv1.Group{{Group: "7", State: recordv1.GroupState_GROUP_STATE_PENDING, Message: "needs 3"}}
		}, []want{{Problem, "RecordStore quotes", "2 domains; group 7: it is not served yet", "describe recordstore"}}},
		"a drained pool": {func(_ *testing.T, o *Objects, f *finding.Facts) {
			o.Pools[0].Spec.State = v1alpha1.PoolDrained
			set(&o.Pools[0].Status.Conditions, v1alpha1.ConditionDrained, "True", "Drained", "")
			f.Groups = nil
			for _, s := range f.Shards {
				s.PlacementState = recordv1.PlacementState_PLACEMENT_STATE_DRAINING.Enum()
			}
		}, []want{{Note, "ShardPool quotes-ssd", "it can be deleted", "delete shardpool quotes-ssd"}}},
		"a pool that cannot be drained": {func(_ *testing.T, o *Objects, f *finding.Facts) {
			set(&o.Pools[0].Status.Conditions, v1alpha1.ConditionStalled, "True", "NowhereToGo", "2 groups have nowhere to go")
			f.Shards[1].PlacementState = recordv1.PlacementState_PLACEMENT_STATE_DRAINING.Enum()
			f.Shards[1].PlacedGroups = new(int32(2))
			f.Shards[1].PlacementWaits = new("needs 3 shards")
		}, []want{{Problem, "ShardPool quotes-ssd", "NowhereToGo", "describe shardpool"}}},
		"an update that is paused": {func(_ *testing.T, o *Objects, f *finding.Facts) {
			o.Pools[0].Spec.Update.Mode, o.Pools[0].Status.Updated = v1alpha1.UpdatePaused, 1
			f.Shards[0].Version, f.Shards[1].Version = "v1", "v2"
		}, []want{{Note, "ShardPool quotes-ssd", "run an older template", "OneByOne"}}},
		"a lost claim": {func(t *testing.T, o *Objects, f *finding.Facts) {
			setShard(v1alpha1.ShardDiskLost, "PersistentVolume pv is gone")(t, o)
			i := slices.IndexFunc(o.Claims, func(c corev1.PersistentVolumeClaim) bool { return c.Name == "data-quotes-ssd-1-0" })
			o.Claims[i].Status.Phase = corev1.ClaimLost
		}, []want{{Warning, "shard quotes-ssd-1", "PersistentVolume pv is gone", `"replace":[1]`}}},
	} {
		t.Run(name, func(t *testing.T) {
			o, _ := kubefindingtest.Well()
			o.Answer = healthyFacts()
			c.change(t, &o, o.Answer)
			compare(t, Find(o), c.want)
		})
	}
}
