package controllers

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"sheaf.dev/sheaf/api/v1alpha1"
	"sheaf.dev/sheaf/client/recordv1"
	"sheaf.dev/sheaf/controllers/fleet"
)

// reconcilePool reconciles one pool once.
func (p *storePlay) reconcilePool(ctx context.Context, name string) ctrl.Result {
	GinkgoHelper()
	result, err := p.pools.Reconcile(ctx, ctrl.Request{NamespacedName: types.NamespacedName{Namespace: p.Namespace,
		Name: name}})
	Expect(err).NotTo(HaveOccurred())
	return result
}

// stalled returns the reason why a pool is stalled, or "" if it is not stalled.
func (p *storePlay) stalled(ctx context.Context, name string) string {
	GinkgoHelper()
	pool := &v1alpha1.ShardPool{}
	Expect(api.Get(ctx, types.NamespacedName{Namespace: p.Namespace, Name: name}, pool)).To(Succeed())
	if c := meta.FindStatusCondition(pool.Status.Conditions, v1alpha1.ConditionStalled); c != nil {
		return c.Reason + ": " + c.Message
	}
	return ""
}

var _ = Describe("The status of a store with several copies", func() {
	var (
		p      *storePlay
		led    map[string]string // maps a group to the shard that leads it; empty if no shard does
		silent map[string]bool
		clock  time.Duration
	)
	BeforeEach(func(ctx context.Context) {
		p = newStorePlay(ctx)
		led, silent, clock = map[string]string{}, map[string]bool{}, 0
		p.pools.Now = func() time.Time { return time.Now().Add(clock) }
		p.reported = func(shard string, r *recordv1.ShardStatus) {
			for _, g := range r.Groups {
				leader, chosen := led[g.Group]
				if silent[leader] || !chosen {
					leader = "ssd-1"
				}
				g.Leader, g.Records, g.AppliedIndex = leader == shard, 100, 10
			}
		}
		p.create(ctx, threeCopies)
		p.pool(ctx, 3)
		for _, group := range []string{"0", "1", "2", "3"} {
			led[group] = "ssd-0"
		}
		p.settle(ctx)
		p.ready(ctx)
		p.expect(ctx, v1alpha1.ConditionAvailable, metav1.ConditionTrue, "Available", "all 8 groups serve")
		Expect(p.get(ctx).Status.Records).To(Equal(int64(800)))
	})
	// later settles several times, and lets some time pass in between.
	later := func(ctx context.Context) {
		GinkgoHelper()
		p.settle(ctx)
		clock += 2 * fleet.LeaderGrace
		p.settle(ctx)
		clock += 2 * fleet.LeaderGrace
		p.settle(ctx)
	}

	It("counts records once while a node is down, and stays available", func(ctx context.Context) {
		silent["ssd-0"] = true
		p.mu.Lock()
		p.silent["ssd-0"] = true
		p.mu.Unlock()
		later(ctx)
		status := p.get(ctx).Status
		Expect(status.Records).To(Equal(int64(800)))
		Expect(status.Groups.Serving).To(Equal(int32(8)))
		p.expect(ctx, v1alpha1.ConditionReady, metav1.ConditionFalse, string(v1alpha1.ShardUnreachable))
		p.expect(ctx, v1alpha1.ConditionAvailable, metav1.ConditionTrue, "Available")
	})

	It("says that a group without a leader does not serve, with etcd and without", func(ctx context.Context) {
		led["3"] = "nobody"
		later(ctx)
		Expect(p.get(ctx).Status.Groups.Serving).To(Equal(int32(7)))
		p.expect(ctx, v1alpha1.ConditionAvailable, metav1.ConditionFalse, "GroupsNotServing",
			"7 of 8 groups serve, and 1 does not, such as group 3: no shard leads it")
		p.expect(ctx, v1alpha1.ConditionReady, metav1.ConditionFalse, "Loading", "7 of 8 groups")

		By("etcd goes, and another one loses its leader")
		p.r.Placements = unreachablePlacements{}
		led["5"] = "nobody"
		later(ctx)
		Expect(p.get(ctx).Status.Groups).To(And(HaveField("Total", int32(8)), HaveField("Serving", int32(6)),
			HaveField("Degraded", int32(2))))
		p.expect(ctx, v1alpha1.ConditionAvailable, metav1.ConditionFalse, "GroupsNotServing", "6 of 8")

		By("both have one again")
		led["3"], led["5"] = "ssd-2", "ssd-1"
		later(ctx)
		Expect(p.get(ctx).Status.Groups.Serving).To(Equal(int32(8)))
		p.expect(ctx, v1alpha1.ConditionAvailable, metav1.ConditionTrue, "Available")
		p.expect(ctx, v1alpha1.ConditionReady, metav1.ConditionFalse, "EtcdUnreachable")
	})

	It("looks again soon where a leader was lost just now, and calls that no outage yet", func(ctx context.Context) {
		led["3"] = "nobody"
		p.playShards(ctx)
		Expect(p.reconcilePool(ctx, "ssd").RequeueAfter).To(BeNumerically("<=", fleet.LeaderGrace))
		result, err := p.reconcile(ctx)
		Expect(err).NotTo(HaveOccurred())
		Expect(result.RequeueAfter).To(BeNumerically("<=", fleet.LeaderGrace))
		p.expect(ctx, v1alpha1.ConditionAvailable, metav1.ConditionTrue, "Available")
	})

	It("does not know whether groups serve on shards that it cannot reach, while their pods are ready",
		func(ctx context.Context) {
			Expect(p.takeEvents()).NotTo(BeNil())
			reach := func(can bool) {
				p.mu.Lock()
				defer p.mu.Unlock()
				for n := range 3 {
					p.silent[fmt.Sprintf("ssd-%d", n)] = !can
				}
			}
			reach(false)
			later(ctx)
			p.expect(ctx, v1alpha1.ConditionAvailable, metav1.ConditionUnknown, "OperatorCannotAsk",
				"0 of 8 groups are known to serve", "ssd-0; ssd-1; ssd-2")
			Expect(p.takeEvents()).NotTo(ContainElement(ContainSubstring("Available is False")))

			By("and knows that they do not, once the kubelet does not find these ready either")
			for n := range 3 {
				pod := p.pod(ctx, fmt.Sprintf("ssd-%d", n))
				pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionFalse}}
				Expect(api.Status().Update(ctx, pod)).To(Succeed())
			}
			later(ctx)
			p.expect(ctx, v1alpha1.ConditionAvailable, metav1.ConditionFalse, "GroupsNotServing", "0 of 8 groups serve")
		})

	It("stays as it was while a new operator has no certificate to ask with", func(ctx context.Context) {
		before := p.get(ctx).Status
		p.operator(acting)
		p.pools.Now = func() time.Time { return time.Now().Add(clock) }
		p.keyless = true
		Expect(p.reconcilePool(ctx, "ssd").RequeueAfter).To(Equal(time.Second))
		later(ctx)
		Expect(p.get(ctx).Status.Groups).To(Equal(before.Groups))
		p.expect(ctx, v1alpha1.ConditionAvailable, metav1.ConditionTrue, "Available", "all 8 groups serve")

		By("and says after a minute what it lacks")
		clock += time.Minute
		later(ctx)
		p.expectPool(ctx, "ssd", v1alpha1.ConditionReady, metav1.ConditionFalse, string(v1alpha1.ShardUnreachable),
			"has no certificate")
		p.expect(ctx, v1alpha1.ConditionAvailable, metav1.ConditionUnknown, "OperatorCannotAsk")

		By("and asks as soon as it has one")
		p.keyless = false
		later(ctx)
		p.expect(ctx, v1alpha1.ConditionAvailable, metav1.ConditionTrue, "Available")
	})

	It("shows the nodes, the versions and the leaders of shards", func(ctx context.Context) {
		pool := p.getPool(ctx)
		Expect(pool.Status.Nodes).To(Equal(p.Node))
		Expect(pool.Status.Version + " " + p.get(ctx).Status.Version).To(Equal("played played"))
		Expect([]int32{pool.Status.ShardStatuses[0].LeadingGroups, pool.Status.ShardStatuses[1].LeadingGroups}).
			To(Equal([]int32{4, 4}))
	})
})

var _ = Describe("What a store says as it comes up, and of plans", func() {
	var p *storePlay
	BeforeEach(func(ctx context.Context) {
		p = newStorePlay(ctx)
		p.pools.Recorder = p.events
	})

	It("is no warning where nothing is wrong", func(ctx context.Context) {
		p.NoBinding, p.NoKubelet = true, true
		p.create(ctx, threeCopies)
		p.pool(ctx, 3)
		p.settle(ctx)
		p.expect(ctx, v1alpha1.ConditionAvailable, metav1.ConditionFalse, "Starting")
		var pods corev1.PodList
		Expect(api.List(ctx, &pods, client.InNamespace(p.Namespace), client.MatchingLabels{v1alpha1.LabelPool: "ssd"})).
			To(Succeed())
		Expect(pods.Items).To(HaveLen(3))
		for n := range pods.Items {
			pods.Items[n].Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse,
				Reason:             "Unschedulable",
				Message:            "0/3 nodes are available: 3 node(s) didn't find available persistent volumes to bind.",
				LastTransitionTime: metav1.Now()}}
			Expect(api.Status().Update(ctx, &pods.Items[n])).To(Succeed())
		}
		p.settle(ctx)
		p.expectPool(ctx, "ssd", v1alpha1.ConditionVolumesReady, metav1.ConditionUnknown, "VolumeUnknown")
		By("the scheduler finds volumes and nodes")
		p.NoBinding, p.NoKubelet = false, false
		for n := range pods.Items {
			Expect(api.Delete(ctx, &pods.Items[n], client.GracePeriodSeconds(0))).To(Succeed())
		}
		p.settle(ctx)
		p.ready(ctx)
		lines := p.takeEvents()
		Expect(lines).NotTo(BeEmpty())
		Expect(slices.DeleteFunc(lines, func(l string) bool {
			return !strings.HasPrefix(l, corev1.EventTypeWarning)
		})).To(BeEmpty())

		By("and is one where something was lost")
		Expect(p.etcd.Leave(ctx, p.Namespace, "quotes", "ssd-1")).To(Succeed())
		p.away = true
		p.settle(ctx)
		Expect(p.takeEvents()).To(ContainElement(HavePrefix("Warning CopiesMissing Redundant is False")))
	})

	It("is not that groups have nowhere to go while the plan is older than what is asked for", func(ctx context.Context) {
		p.create(ctx, threeCopies)
		p.pool(ctx, 2)
		p.poolNamed(ctx, "near", 2) // the shards share one failure domain
		p.settle(ctx)
		p.ready(ctx)
		By("a shard that nothing can do without")
		p.changePool(ctx, func(s *v1alpha1.ShardPoolSpec) { *s.Shards, s.Remove = 1, []int32{1} })
		p.reconcilePool(ctx, "ssd")
		Expect(p.stalled(ctx, "ssd")).To(BeEmpty(), "not planned for yet")
		p.settle(ctx)
		Expect(p.stalled(ctx, "ssd")).To(HavePrefix("NowhereToGo"))
		By("another one instead, which others can stand in for")
		p.changePool(ctx, func(s *v1alpha1.ShardPoolSpec) { *s.Shards, s.Remove = 2, nil })
		near := &v1alpha1.ShardPool{}
		Expect(api.Get(ctx, types.NamespacedName{Namespace: p.Namespace, Name: "near"}, near)).To(Succeed())
		*near.Spec.Shards = 1
		Expect(api.Update(ctx, near)).To(Succeed())
		Expect(p.reconcilePool(ctx, "near").RequeueAfter).To(BeNumerically("<=", 2*time.Second))
		p.reconcilePool(ctx, "ssd")
		Expect(p.stalled(ctx, "near") + p.stalled(ctx, "ssd")).To(BeEmpty())
		p.settle(ctx)
		p.ready(ctx)
		Expect(p.stalled(ctx, "near") + p.stalled(ctx, "ssd")).To(BeEmpty())
	})

	It("is not that groups have nowhere to go while shards are on their way", func(ctx context.Context) {
		p.create(ctx)
		p.pool(ctx, 1)
		p.settle(ctx)
		p.changePool(ctx, func(s *v1alpha1.ShardPoolSpec) { s.State = v1alpha1.PoolDrained })
		p.NoKubelet = true
		p.poolNamed(ctx, "xfs", 1)
		p.settle(ctx)
		Expect(p.stalled(ctx, "ssd")).To(BeEmpty())
		p.expectPool(ctx, "ssd", v1alpha1.ConditionReconciling, metav1.ConditionTrue, "Draining", "on their way: xfs-0")
		p.NoKubelet = false
		Expect(api.Delete(ctx, p.pod(ctx, "xfs-0"), client.GracePeriodSeconds(0))).To(Succeed())
		p.settle(ctx)
		p.ready(ctx)
		p.expectPool(ctx, "ssd", v1alpha1.ConditionDrained, metav1.ConditionTrue, "Drained")
	})
})

var _ = Describe("The status of a pool", func() {
	var p *poolPlay
	BeforeEach(func(ctx context.Context) { p = newPoolPlay(ctx) })

	It("knows nothing of pods and claims before there are some", func(ctx context.Context) {
		p.NoSets = true
		p.settledPool(ctx, "ssd", 2)
		p.expect(ctx, "ssd", v1alpha1.ConditionUpdated, metav1.ConditionUnknown, "NoPod", "ssd-0")
		p.expect(ctx, "ssd", v1alpha1.ConditionVolumesGrown, metav1.ConditionUnknown, "NoVolume", "ssd-0")
		p.NoSets = false
		p.settle(ctx, 0)
		p.ready(ctx, "ssd")
		p.expect(ctx, "ssd", v1alpha1.ConditionUpdated, metav1.ConditionTrue, "Updated")
		p.expect(ctx, "ssd", v1alpha1.ConditionVolumesGrown, metav1.ConditionTrue, "Grown")
	})

	It("is not Ready where no shard is to serve", func(ctx context.Context) {
		p.pool(ctx, "ssd", 0)
		p.settledPool(ctx, "hdd", 2, func(pool *v1alpha1.ShardPool) { pool.Spec.Parked = []int32{0, 1} })
		for name, reason := range map[string]string{"ssd": "NoShards", "hdd": "AllParked"} {
			p.expect(ctx, name, v1alpha1.ConditionReady, metav1.ConditionFalse, reason)
			for _, kind := range []string{v1alpha1.ConditionReconciling, v1alpha1.ConditionStalled} {
				Expect(meta.FindStatusCondition(p.get(ctx, name).Status.Conditions, kind)).To(BeNil(), "%s of %s", kind, name)
			}
		}
	})

	It("is looked at again soon while a shard drains though nobody asks that of it any more", func(ctx context.Context) {
		p.settledPool(ctx, "ssd", 1)
		result, err := p.reconcile(ctx, "ssd")
		Expect(err).NotTo(HaveOccurred())
		Expect(result.RequeueAfter).To(Equal(30 * time.Second))
		p.setReport("ssd-0", func(r *recordv1.ShardStatus) { r.Shard.State = recordv1.ShardState_SHARD_STATE_DRAINING })
		result, err = p.reconcile(ctx, "ssd")
		Expect(err).NotTo(HaveOccurred())
		Expect(result.RequeueAfter).To(Equal(2 * time.Second))
	})
})

var _ = Describe("What nobody could ask yet", func() {
	// claims returns the types of the conditions that are True, except those that only say that work is in progress.
	claims := func(conditions []metav1.Condition) (kinds []string) {
		for _, c := range conditions {
			if c.Status == metav1.ConditionTrue && c.Type != v1alpha1.ConditionReconciling &&
				c.Type != v1alpha1.ConditionStalled {
				kinds = append(kinds, c.Type)
			}
		}
		return kinds
	}

	It("is not True of a store, its pool and a DiskSet that were made a moment ago", func(ctx context.Context) {
		p := newStorePlay(ctx)
		p.create(ctx, threeCopies)
		p.pool(ctx, 3)
		for range 2 {
			_, _ = p.reconcile(ctx)
			p.reconcilePool(ctx, "ssd")
		}
		Expect(claims(p.get(ctx).Status.Conditions)).To(BeEmpty())
		Expect(claims(p.getPool(ctx).Status.Conditions)).To(BeEmpty())
		var shards v1alpha1.ShardList
		Expect(api.List(ctx, &shards, client.InNamespace(p.Namespace))).To(Succeed())
		Expect(shards.Items).To(HaveLen(3))
		disks := newDiskPlay(ctx)
		disks.create(ctx, disks.disk("a"))
		_, err := disks.reconcile(ctx)
		Expect(err).NotTo(HaveOccurred())
		Expect(claims(disks.get(ctx).Status.Conditions)).To(BeEmpty())
	})

	It("is not Ready while somebody else's finalizer keeps it from going", func(ctx context.Context) {
		p := newStorePlay(ctx)
		p.running(ctx, 3, threeCopies)
		disks := newDiskPlay(ctx)
		disks.create(ctx, disks.disk("a"))
		disks.settle(ctx)
		for _, o := range []client.Object{p.getPool(ctx), p.get(ctx), disks.get(ctx)} {
			o.SetFinalizers(append(o.GetFinalizers(), "example.org/theirs"))
			Expect(api.Update(ctx, o)).To(Succeed())
		}
		Expect(api.Delete(ctx, p.get(ctx))).To(Succeed())
		Expect(api.Delete(ctx, p.getPool(ctx))).To(Succeed())
		Expect(api.Delete(ctx, disks.get(ctx))).To(Succeed())
		for range 2 {
			_, err := p.reconcile(ctx)
			Expect(err).NotTo(HaveOccurred())
			p.reconcilePool(ctx, "ssd")
			_, err = disks.reconcile(ctx)
			Expect(err).NotTo(HaveOccurred())
		}
		for kind, conditions := range map[string][]metav1.Condition{"store": p.get(ctx).Status.Conditions,
			"pool": p.getPool(ctx).Status.Conditions, "DiskSet": disks.get(ctx).Status.Conditions} {
			ready := meta.FindStatusCondition(conditions, v1alpha1.ConditionReady)
			Expect(ready).To(And(HaveField("Status", metav1.ConditionFalse), HaveField("Reason", "Deleting"),
				HaveField("Message", ContainSubstring("example.org/theirs"))), kind)
		}
		for _, o := range []client.Object{p.getPool(ctx), p.get(ctx), disks.get(ctx)} {
			o.SetFinalizers(nil)
			Expect(api.Update(ctx, o)).To(Succeed())
		}
	})
})
