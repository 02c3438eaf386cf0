package recordstore_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"sheaf.dev/sheaf/api/v1alpha1"
	"sheaf.dev/sheaf/client/recordv1"
	"sheaf.dev/sheaf/controllers/fleet"
	"sheaf.dev/sheaf/controllers/step"
	"sheaf.dev/sheaf/internal/kube/workload"
	"sheaf.dev/sheaf/internal/placement"
	"sheaf.dev/sheaf/internal/security/certs"
)

const (
	serving = v1alpha1.ShardServing
	loading = v1alpha1.ShardLoading
)

// with returns a function that creates the scene of a store with one copy and then changes it.
func with(change func(s *scene)) func() *scene {
	return func() *scene {
		s := newScene()
		change(s)
		return s
	}
}

// scenes returns the scenes of TestStatusGolden by name.
func scenes() map[string]func() *scene {
	all := map[string]func() *scene{
		"serves": newScene,
		"new": with(func(s *scene) {
			s.store.Status, s.store.Finalizers = v1alpha1.RecordStoreStatus{}, nil
			s.view.Groups = nil
		}),
		"new without pools": with(func(s *scene) {
			s.store.Status, s.store.Finalizers, s.pools, s.view.Groups = v1alpha1.RecordStoreStatus{}, nil, nil, nil
		}),
		"invalid members": with(func(s *scene) { s.store.Spec.Etcd.Managed.Members = 5 }),
		"deleted": with(func(s *scene) {
			s.store.DeletionTimestamp = &metav1.Time{Time: goldenNow}
			s.store.Finalizers = append(s.store.Finalizers, "other.example/waits")
			s.rounds = 1
		}),
		"pauses when groups move": with(func(s *scene) {
			s.view.Targets["1"] = placement.Target{Group: "1", Shards: []string{"ssd-1"}}
		}),
		"named without groups": with(func(s *scene) {
			s.store.Spec.Groups = v1alpha1.Groups{Routing: v1alpha1.RoutingNamed}
			s.view.Groups = nil
			s.pools[0].Status.ShardStatuses[0].Groups, s.pools[0].Status.ShardStatuses[0].ServingGroups = 0, 0
			s.pools[0].Status.ShardStatuses[1].Groups, s.pools[0].Status.ShardStatuses[1].ServingGroups = 0, 0
		}),
		"grants": with(func(s *scene) {
			key := client.ObjectKeyFromObject(s.store)
			s.grants.Put(key, fleet.GrantsInForce{Good: true, Reason: "InForce", Message: "version 7"})
			s.grants.PutIssuers(key, &fleet.GrantsInForce{Reason: "KeysMissing", Message: "issuer a"})
		}),
		"an object is refused": with(func(s *scene) { s.refuse = "NetworkPolicy" }),
		"a service is refused": with(func(s *scene) { s.refuse = "Service" }),
	}
	for _, more := range []map[string]func() *scene{shardScenes(), copyScenes(), placementScenes(), etcdScenes(),
		gatewayScenes(), tlsScenes(), restoreScenes()} {
		for name, s := range more {
			all[name] = s
		}
	}
	return all
}

func shardScenes() map[string]func() *scene {
	states := func(states ...v1alpha1.ShardState) func(s *scene) {
		return func(s *scene) {
			s.pools = nil
			s.pool("ssd", states...)
		}
	}
	return map[string]func() *scene{
		"loads":          with(states(serving, loading)),
		"a disk is lost": with(states(serving, v1alpha1.ShardDiskLost)),
		"lost and silent": with(func(s *scene) {
			states(serving, v1alpha1.ShardDiskLost)(s)
			delete(s.view.Shards, "ssd-1")
			for _, name := range []string{"4", "6", "7"} {
				s.view.Groups[name], s.view.Targets[name] = s.view.Groups["0"], s.view.Targets["0"]
			}
			s.view.Unplaced = map[string]string{"7": "no shard is left"}
		}),
		"groups wait for a shard": with(func(s *scene) {
			s.view.GroupsCreated = 3
			homeless(s, 3)
		}),
		"waits for the first placement": with(func(s *scene) {
			s.pool("hdd", v1alpha1.ShardPending)
			for n := range s.store.Status.Conditions {
				s.store.Status.Conditions[n].LastTransitionTime = metav1.NewTime(goldenNow.Add(-time.Second))
			}
			homeless(s, 8)
		}),
		"shards that cannot be asked": with(func(s *scene) {
			states(serving, v1alpha1.ShardUnreachable)(s)
			s.pools[0].Status.ShardStatuses[1].PodReady = true
		}),
		"pools differ": with(func(s *scene) {
			hdd := s.pool("hdd", loading)
			hdd.Status.Load, hdd.Status.Updated = "62%", 0
			step.SetFalse(&hdd.Status.Conditions, 1, v1alpha1.ConditionReady, "Loading", "one shard loads")
			step.SetFalse(&hdd.Status.Conditions, 1, v1alpha1.ConditionLoaded, "Loading", "62%")
			step.SetCondition(&hdd.Status.Conditions, 1, v1alpha1.ConditionMemoryFits, metav1.ConditionUnknown, "Odd", "?")
			step.SetTrue(&hdd.Status.Conditions, 1, v1alpha1.ConditionStalled, "Loading", "stuck")
		}),
		"a pool lists damaged groups": with(func(s *scene) {
			s.pools[0].Status.Groups.NotWell = []v1alpha1.GroupTrouble{{Group: "3", Shard: "ssd-0", State: fleet.GroupDamaged,
				Message: "segment 7"}}
			s.pools[0].Status.ShardStatuses[0].DamagedGroups = 1
		}),
		"no shards are wanted": with(func(s *scene) { s.pools[0].Spec.Shards = new(int32(0)) }),
	}
}

// copyScenes returns scenes with three copies of each group.
func copyScenes() map[string]func() *scene {
	whole := map[string]string{"1": "ssd-0 ssd-1 ssd-2", "2": "ssd-0 ssd-1 ssd-2"}
	three := []v1alpha1.ShardState{serving, serving, serving}
	heard := func(s *scene, state recordv1.GroupState, leads bool, times ...time.Duration) {
		for _, ago := range times {
			reports := map[string]*recordv1.ShardStatus{}
			for n, shard := range []string{"ssd-0", "ssd-1", "ssd-2"} {
				groups := make([]*recordv1.Group, 0, 2)
				for _, name := range []string{"1", "2"} {
					groups = append(groups, &recordv1.Group{Group: name, State: state, Records: 100,
						Leader: n == 0 && (leads || name == "1"), Copy: &recordv1.Copy{BytesTotal: 7}})
				}
				reports[shard] = &recordv1.ShardStatus{
					Shard: &recordv1.Shard{State: recordv1.ShardState_SHARD_STATE_SERVING}, Groups: groups}
			}
			s.groups.Note(client.ObjectKeyFromObject(s.store), "ssd", reports, goldenNow.Add(-ago))
		}
	}
	return map[string]func() *scene{
		"copies whole": func() *scene {
			s := copies("ssd-0 ssd-1 ssd-2", whole, three...)
			heard(s, recordv1.GroupState_GROUP_STATE_SERVING, true, time.Second)
			return s
		},
		"copies unreported": func() *scene { return copies("ssd-0 ssd-1 ssd-2", whole, three...) },
		"copies without a leader": func() *scene {
			s := copies("ssd-0 ssd-1 ssd-2", whole, three...)
			heard(s, recordv1.GroupState_GROUP_STATE_SERVING, false, time.Minute, time.Second)
			return s
		},
		"copies in an election": func() *scene {
			s := copies("ssd-0 ssd-1 ssd-2", whole, three...)
			heard(s, recordv1.GroupState_GROUP_STATE_SERVING, false, time.Second)
			return s
		},
		"copies without a shard": func() *scene {
			return copies("ssd-0 ssd-1", map[string]string{"1": "ssd-0 ssd-1 -ssd-2", "2": "ssd-0 ssd-1 -ssd-2"}, serving,
				serving, v1alpha1.ShardNodeDown)
		},
		"copies of a lost node": func() *scene {
			return copies("ssd-0 ssd-1", map[string]string{"1": "ssd-0 ssd-1 -ssd-2", "2": "ssd-0 ssd-1 -ssd-2"}, serving,
				serving, v1alpha1.ShardNodeLost)
		},
		"copies in too few domains": func() *scene {
			return copies("ssd-0@n1 ssd-1@n1 ssd-2@n2", map[string]string{"1": "ssd-0 ssd-2"}, three...)
		},
		"copies in unknown domains": func() *scene {
			s := copies("ssd-0@node-ssd-0 ssd-1@z1 ssd-2@z2", whole, three...)
			s.store.Spec.Replication.TopologyKey = corev1.LabelTopologyZone
			return s
		},
		"copies share a domain": func() *scene {
			return copies("ssd-0@n1 ssd-1@n1 ssd-2@n2 ssd-3@n3", map[string]string{"1": "ssd-0 ssd-1 ssd-2 > ssd-0 ssd-2 ssd-3"},
				serving, serving, serving, serving)
		},
		"copies of no group": func() *scene { return copies("ssd-0 ssd-1 ssd-2", nil, three...) },
		"copies move": func() *scene {
			s := copies("ssd-0 ssd-1 ssd-2 ssd-3", map[string]string{
				"1": "ssd-0 ssd-1 ssd-2 +ssd-3 > ssd-0 ssd-1 ssd-3"}, serving, serving, serving, serving)
			s.view.TargetsWritten = 1
			return s
		},
		"copies are all lost": func() *scene {
			return copies("", map[string]string{"1": "-ssd-0 -ssd-1 -ssd-2"}, v1alpha1.ShardDiskLost, v1alpha1.ShardDiskLost,
				v1alpha1.ShardDiskLost)
		},
		"copies on shards that cannot be asked": func() *scene {
			s := copies("ssd-0 ssd-1 ssd-2", whole, serving, v1alpha1.ShardUnreachable, v1alpha1.ShardUnreachable)
			s.pools[0].Status.ShardStatuses[1].PodReady, s.pools[0].Status.ShardStatuses[2].PodReady = true, true
			return s
		},
		"copies while etcd is away": func() *scene {
			s := copies("ssd-0 ssd-1 ssd-2", whole, three...)
			heard(s, recordv1.GroupState_GROUP_STATE_SERVING, false, time.Minute, time.Second)
			s.store.Status.Groups = v1alpha1.GroupCounts{Total: 2, Serving: 2}
			s.plan = errors.New("context deadline exceeded")
			return s
		},
	}
}

// homeless removes the copies of the given number of groups from a view, as if no shard had created these groups yet.
func homeless(s *scene, groups int) {
	for n := range groups {
		s.view.Groups[fmt.Sprint(n)] = placement.Group{}
	}
}

func placementScenes() map[string]func() *scene {
	planned := func(err error, changes ...func(*scene)) func() *scene {
		return with(func(s *scene) {
			s.plan = err
			for _, change := range changes {
				change(s)
			}
		})
	}
	replicated := func(s *scene) { s.store.Spec.Replication.Copies = 3 }
	return map[string]func() *scene{
		"etcd is closed":     with(func(s *scene) { s.open = errors.New("no route to host") }),
		"etcd is away":       planned(errors.New("context deadline exceeded")),
		"another store":      planned(fmt.Errorf("%w: 99999999", placement.ErrOtherStore)),
		"copies differ":      planned(fmt.Errorf("%w: 3, not 1", fleet.ErrCopiesDiffer)),
		"etcd was set back":  planned(fmt.Errorf("%w: to revision 7", placement.ErrFrozen)),
		"placement changed":  planned(placement.ErrChanged),
		"placement is lost":  planned(placement.ErrPlacementLost),
		"placement is built": planned(placement.ErrPlacementLost, replicated),
		"placement cannot be built": planned(placement.ErrPlacementLost, replicated, func(s *scene) {
			s.recover = fmt.Errorf("%w: shard ssd-1 does not answer", fleet.ErrVolumesIncomplete)
		}),
		"init of another store": with(func(s *scene) {
			s.store.Status.PlacementInitialized, s.initial = false, placement.ErrOtherStore
		}),
		"adopts": planned(placement.ErrPlacementLost, func(s *scene) {
			s.store.Status.PlacementInitialized, s.store.Spec.AdoptStoreUID = false, s.store.Status.StoreUID
			s.recover = fmt.Errorf("%w: ssd-1 is missing", fleet.ErrVolumesIncomplete)
		}),
		"allowed to begin anew": with(func(s *scene) {
			s.store.Annotations = map[string]string{v1alpha1.AnnotationAllowNewEtcd: s.store.Status.StoreUID}
		}),
		"external": with(func(s *scene) {
			s.store.Spec.Etcd = v1alpha1.Etcd{External: &v1alpha1.ExternalEtcd{Endpoints: []string{"http://etcd:2379"}}}
			s.open = errors.New("refused")
		}),
		"external without its secret": with(func(s *scene) {
			s.store.Spec.Etcd = v1alpha1.Etcd{External: &v1alpha1.ExternalEtcd{Endpoints: []string{"https://etcd:2379"},
				TLSSecretRef: &corev1.LocalObjectReference{Name: "etcd-tls"}}}
		}),
		"external without its authority": with(func(s *scene) {
			s.store.Spec.Etcd = v1alpha1.Etcd{External: &v1alpha1.ExternalEtcd{Endpoints: []string{"https://etcd:2379"},
				TLSSecretRef: &corev1.LocalObjectReference{Name: "etcd-tls"}}}
			s.objects = append(s.objects, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "prod", Name: "etcd-tls"}})
		}),
	}
}

func etcdScenes() map[string]func() *scene {
	return map[string]func() *scene{
		"etcd of three":       func() *scene { return newScene().three("ready", "ready", "ready") },
		"a member has no pod": func() *scene { return newScene().three("ready", "none", "ready") },
		"a member starts":     func() *scene { return newScene().three("ready", "ready", "starts") },
		"no majority":         func() *scene { return newScene().three("ready", "ended: sheaf: no space", "none") },
		"a member lost its data": func() *scene {
			s := newScene().three("ready", "ready", "ended: sheaf: etcd member quotes-etcd-2 in /data: the folder is "+
				"empty, and the cluster was formed before: nobody answers. Bring the folder back from a copy or a snapshot")
			s.members = []fleet.EtcdMember{{PeerAddress: workload.EtcdAddress("prod", "quotes", 2, workload.PortEtcdPeer),
				Trouble: "is a learner"}}
			return s
		},
		"the majority lost its data": func() *scene {
			return newScene().three("ready", "ended: {}\nsheaf: etcd member quotes-etcd-1 in /data: the "+
				"folder is empty, and the cluster was formed before: nobody answers. Bring the folder back from a copy "+
				"or a snapshot", "none")
		},
		"a member joins": func() *scene {
			s := newScene().three("ready", "ready", "joins")
			s.member = func(n int32, pod *corev1.Pod) bool {
				if n == 2 {
					pod.Status.Conditions[0].Status = corev1.ConditionFalse
				}
				return true
			}
			return s
		},
		"claims grow": with(func(s *scene) {
			claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "prod",
				Name: workload.ClaimTemplate + "-" + workload.EtcdMember("quotes", 0)}}
			claim.Spec.Resources.Requests = corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Mi")}
			claim.Status.Phase = corev1.ClaimBound
			s.objects = append(s.objects, claim)
		}),
	}
}

func gatewayScenes() map[string]func() *scene {
	return map[string]func() *scene{
		"no gateway is wanted": with(func(s *scene) { s.store.Spec.Gateway.Replicas = new(int32(0)) }),
		"no gateway serves": with(func(s *scene) {
			s.gateway = func(d *appsv1.Deployment) { d.Status.AvailableReplicas = 0 }
			pod := corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "prod", Name: "quotes-gateway-x",
				Labels: workload.Selector("quotes", workload.ContainerGateway)}}
			pod.Status.ContainerStatuses = []corev1.ContainerStatus{{State: corev1.ContainerState{
				Waiting: &corev1.ContainerStateWaiting{Reason: "ImagePullBackOff", Message: "not found"}}}}
			s.gateways = append(s.gateways, pod)
		}),
		"an older gateway serves": with(func(s *scene) {
			s.store.Status.Image = "sheaf:0"
			s.gateway = func(d *appsv1.Deployment) {
				d.Status.Replicas, d.Status.UpdatedReplicas = 2, 1
				d.Status.Conditions = []appsv1.DeploymentCondition{{Type: appsv1.DeploymentReplicaFailure,
					Status: corev1.ConditionTrue, Message: "exceeded quota"}}
			}
		}),
		"etcd runs an older image": func() *scene {
			s := newScene().three("ready", "ready", "ready")
			s.store.Status.Image = "sheaf:0"
			s.member = func(n int32, pod *corev1.Pod) bool {
				if n == 1 {
					pod.Spec.Containers[0].Image = "sheaf:0"
				}
				return true
			}
			return s
		},
	}
}

// tlsScenes returns scenes of an operator that creates certificates.
func tlsScenes() map[string]func() *scene {
	tls := func(change func(*certs.Report) error, more ...func(*scene)) func() *scene {
		return with(func(s *scene) {
			s.store.Spec.TLS = &v1alpha1.TLS{Mode: v1alpha1.TLSRequired, Clients: []string{"app"}}
			s.store.Status.StoreUID, s.store.Status.PlacementInitialized, s.rounds = "", false, 6
			s.tls = func(string) (r certs.Report, err error) {
				var store v1alpha1.RecordStore
				if err := s.c.Get(context.Background(), client.ObjectKeyFromObject(s.store), &store); err != nil {
					return r, err
				}
				if told := store.Status.TLS; told != nil {
					end, _ := s.keeper.NotAfter(&store, workload.EtcdTLS("quotes"))
					r = certs.Report{Mode: certs.Mode(told.Transport), Bundle: told.Bundle, ClientBundle: told.ClientBundle,
						NotAfter: end}
				}
				return r, change(&r)
			}
			for _, m := range more {
				m(s)
			}
		})
	}
	well := func(*certs.Report) error { return nil }
	return map[string]func() *scene{
		"tls": tls(well),
		"tls is not asked for": tls(well, func(s *scene) {
			s.store.Spec.TLS = nil
			s.store.Status.StoreUID, s.store.Status.PlacementInitialized = string(s.store.UID), true
		}),
		"tls of silent processes": tls(func(*certs.Report) error { return errors.New("no route to host") }),
		"tls that a process refuses": tls(func(r *certs.Report) error {
			r.Error = "the key does not fit"
			return nil
		}),
		"tls that ends": tls(func(r *certs.Report) error {
			r.NotAfter = goldenNow.Add(time.Hour)
			return nil
		}),
		"tls in plaintext still": tls(func(r *certs.Report) error {
			r.Mode, r.PlaintextConnections = certs.Plaintext, 4
			return nil
		}),
		"tls without its authorities": tls(well, func(s *scene) {
			s.between = func(ctx context.Context, c client.Client, round int) error {
				if round != 3 {
					return nil
				}
				s.keeper.Forget(s.store)
				return c.Delete(ctx, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "prod",
					Name: workload.Authority("quotes")}})
			}
		}),
		"tls with new authorities": tls(well, func(s *scene) {
			s.rounds = 12
			s.between = func(ctx context.Context, c client.Client, round int) error {
				if round != 4 {
					return nil
				}
				var store v1alpha1.RecordStore
				if err := c.Get(ctx, types.NamespacedName{Namespace: "prod", Name: "quotes"}, &store); err != nil {
					return err
				}
				store.Spec.TLS.Rotate, store.Spec.TLS.Clients = "now", nil
				return c.Update(ctx, &store)
			}
		}),
		"tls told elsewhere": tls(well, func(s *scene) {
			s.store.Spec.TLS.PublishTo = []string{"team-a"}
			s.between = func(ctx context.Context, c client.Client, round int) error {
				var store v1alpha1.RecordStore
				err := c.Get(ctx, types.NamespacedName{Namespace: "prod", Name: "quotes"}, &store)
				if err == nil && round == 3 && meta.IsStatusConditionTrue(store.Status.Conditions, v1alpha1.ConditionReady) {
					store.Spec.TLS.PublishTo = []string{"team-b"}
					err = c.Update(ctx, &store)
				}
				return err
			}
		}),
	}
}
