package controllers

import (
	"context"
	"fmt"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"sheaf.dev/sheaf/api/v1alpha1"
)

func threeCopies(store *v1alpha1.RecordStore) { store.Spec.Replication.Copies = 3 }

// stateOf returns a client that reads objects as if the given shard were in the given state.
func stateOf(shard string, state v1alpha1.ShardState) client.Client {
	return alteringClient(acting, func(o client.Object) {
		switch o := o.(type) {
		case *v1alpha1.Shard:
			if o.Name == shard {
				o.Status.State = state
			}
		case *v1alpha1.ShardPool:
			for i := range o.Status.ShardStatuses {
				if s := &o.Status.ShardStatuses[i]; s.Name == shard {
					s.State = state
				}
			}
		}
	})
}

var _ = Describe("A store with several copies", func() {
	var p *storePlay
	BeforeEach(func(ctx context.Context) { p = newStorePlay(ctx) })

	// away stops a shard's pod permanently, and removes the shard's registration, as the end of its lease would.
	away := func(ctx context.Context, shard string) {
		GinkgoHelper()
		p.NoSets = true
		Expect(api.Delete(ctx, p.pod(ctx, shard))).To(Succeed())
		Expect(p.etcd.Leave(ctx, p.Namespace, "quotes", shard)).To(Succeed())
	}
	budget := func(ctx context.Context) int {
		GinkgoHelper()
		var b policyv1.PodDisruptionBudget
		Expect(api.Get(ctx, types.NamespacedName{Namespace: p.Namespace, Name: "quotes-shards"}, &b)).To(Succeed())
		return b.Spec.MinAvailable.IntValue()
	}

	seen := func(ctx context.Context, shard string) v1alpha1.ShardStatus {
		GinkgoHelper()
		var s v1alpha1.Shard
		Expect(api.Get(ctx, types.NamespacedName{Namespace: p.Namespace, Name: shard}, &s)).To(Succeed())
		return s.Status
	}

	It("is redundant when every group has all of them, says when one is missing, and then lets no shard be evicted",
		func(ctx context.Context) {
			p.create(ctx, threeCopies)
			p.settle(ctx)
			p.expect(ctx, v1alpha1.ConditionRedundant, metav1.ConditionFalse, "TooFewDomains", "copies is 3",
				"0 failure domains")
			p.pool(ctx, 3)
			p.settle(ctx)
			p.ready(ctx)
			p.expect(ctx, v1alpha1.ConditionRedundant, metav1.ConditionTrue, "Redundant", "all 8 groups have 3 copies")
			Expect(p.get(ctx).Status.Groups).To(Equal(v1alpha1.GroupCounts{Total: 8, Serving: 8}))
			Expect(budget(ctx)).To(Equal(2))

			away(ctx, "ssd-1")
			p.settle(ctx)
			p.expect(ctx, v1alpha1.ConditionRedundant, metav1.ConditionFalse, "CopiesMissing", "8 of 8 groups", "ssd-1")
			p.expect(ctx, v1alpha1.ConditionReady, metav1.ConditionFalse, "Pending")
			status := p.get(ctx).Status.Groups
			Expect(status.Serving).To(Equal(int32(8)), "a majority is there")
			Expect(status.Degraded).To(Equal(int32(8)))
			Expect(status.NotWell).To(HaveLen(8))
			Expect(status.NotWell[0].Message).To(ContainSubstring("2 of 3 copies are there; shard ssd-1"))
			Expect(budget(ctx)).To(Equal(3))

			By("it comes back")
			p.NoSets = false
			p.settle(ctx)
			p.ready(ctx)
			p.expect(ctx, v1alpha1.ConditionRedundant, metav1.ConditionTrue, "Redundant")
			Expect(budget(ctx)).To(Equal(2))
		})

	It("lets the rest of a failure domain be evicted when one of its shards is, and no other shard",
		func(ctx context.Context) {
			left := func(ctx context.Context) []string {
				GinkgoHelper()
				var b policyv1.PodDisruptionBudget
				Expect(api.Get(ctx, types.NamespacedName{Namespace: p.Namespace, Name: "quotes-shards"}, &b)).To(Succeed())
				if len(b.Spec.Selector.MatchExpressions) == 0 {
					return nil
				}
				return b.Spec.Selector.MatchExpressions[0].Values
			}
			p.create(ctx, threeCopies)
			p.pool(ctx, 3)
			p.poolNamed(ctx, "near", 2) // both shards are in one domain
			p.settle(ctx)
			p.ready(ctx)
			Expect(budget(ctx)).To(Equal(4))
			Expect(left(ctx)).To(BeEmpty())

			away(ctx, "near-0")
			p.settle(ctx)
			Expect(left(ctx)).To(Equal([]string{"near-1-0"}))
			Expect(budget(ctx)).To(Equal(4), "of the 3 that it counts: none of them may be evicted")

			By("a shard of a second domain is away, too")
			away(ctx, "ssd-1")
			p.settle(ctx)
			Expect(left(ctx)).To(BeEmpty())
			Expect(budget(ctx)).To(Equal(5))

			By("all are back")
			p.NoSets = false
			p.settle(ctx)
			p.ready(ctx)
			Expect(left(ctx)).To(BeEmpty())
			Expect(budget(ctx)).To(Equal(4))
		})

	It("misses the copies on a disk that does not answer, though their shard is registered, and lets no shard be "+
		"evicted then", func(ctx context.Context) {
		p.running(ctx, 4, threeCopies)
		Expect(budget(ctx)).To(Equal(3))

		p.hangs["ssd-1"] = true
		p.settle(ctx)
		shard := seen(ctx, "ssd-1")
		Expect(shard.State).To(Equal(v1alpha1.ShardUnreachable))
		has := int(shard.Groups)
		Expect(has).To(BeNumerically(">", 0))
		p.expect(ctx, v1alpha1.ConditionRedundant, metav1.ConditionFalse, "CopiesMissing", fmt.Sprintf("%d of 8 groups", has),
			"does not answer: ssd-1")
		Expect(shard.Volume.Silent).To(BeTrue())
		p.expect(ctx, v1alpha1.ConditionVolumesReady, metav1.ConditionFalse, "VolumeSilent", "shard ssd-1 is Unreachable",
			"does not answer")
		status := p.get(ctx).Status.Groups
		Expect(status.Degraded).To(Equal(int32(has)))
		Expect(status.NotWell[0].Message).To(ContainSubstring(
			"2 of 3 copies are there; the disk of shard ssd-1 does not answer"))
		Expect(budget(ctx)).To(Equal(4))

		By("a node is lost beside it: groups that had no majority without both stay where they are")
		p.r.Client = stateOf("ssd-2", v1alpha1.ShardNodeLost)
		for range 10 {
			_, err := p.reconcile(ctx)
			Expect(err).NotTo(HaveOccurred())
			p.playShards(ctx)
		}
		p.r.Client = acting
		view, err := p.etcd.Register().Look(ctx, p.get(ctx))
		Expect(err).NotTo(HaveOccurred())
		Expect(view.Holds("ssd-2")).NotTo(BeEmpty(), "four shards share eight groups: some are on both")

		By("the shard answers nothing at all: what it said last counts")
		p.silent["ssd-1"] = true
		p.settle(ctx)
		p.expect(ctx, v1alpha1.ConditionRedundant, metav1.ConditionFalse, "CopiesMissing", "ssd-1")
		p.silent["ssd-1"] = false

		By("the disk answers again")
		p.hangs["ssd-1"] = false
		p.settle(ctx)
		p.ready(ctx)
		p.expect(ctx, v1alpha1.ConditionRedundant, metav1.ConditionTrue, "Redundant")
		p.expect(ctx, v1alpha1.ConditionVolumesReady, metav1.ConditionTrue, "Pools")
		Expect(seen(ctx, "ssd-1").Volume.Silent).To(BeFalse())
		Expect(budget(ctx)).To(Equal(3))
	})

	It("says that there are too few failure domains, loses nothing, and goes on when there are enough",
		func(ctx context.Context) {
			p.create(ctx, threeCopies)
			p.poolNamed(ctx, "near", 3)
			p.settle(ctx)
			p.expect(ctx, v1alpha1.ConditionRedundant, metav1.ConditionFalse, "TooFewDomains",
				"3 shards are in 1 failure domain ", "near", "2 more")
			p.expect(ctx, v1alpha1.ConditionStalled, metav1.ConditionTrue, "TooFewDomains")
			p.poolNamed(ctx, "far", 2)
			p.settle(ctx)
			p.ready(ctx)
			p.expect(ctx, v1alpha1.ConditionRedundant, metav1.ConditionTrue, "Redundant")
			By("a domain goes: groups stay as they are")
			Expect(p.etcd.Leave(ctx, p.Namespace, "quotes", "far-0")).To(Succeed())
			p.away = true
			p.settle(ctx)
			p.expect(ctx, v1alpha1.ConditionRedundant, metav1.ConditionFalse, "CopiesMissing", "far-0")
			Expect(p.get(ctx).Status.Groups.Serving).To(Equal(int32(8)))
		})

	It("asks for a label where nodes have none", func(ctx context.Context) {
		p.create(ctx, threeCopies, func(s *v1alpha1.RecordStore) {
			s.Spec.Replication.TopologyKey = corev1.LabelTopologyZone
		})
		p.poolNamed(ctx, "node-bare", 3) // the shards' domains are their nodes
		p.settle(ctx)
		p.expect(ctx, v1alpha1.ConditionRedundant, metav1.ConditionFalse, "DomainUnknown", corev1.LabelTopologyZone,
			"node-bare-0")
	})

	It("does not know whether it is while etcd is away, and forgets nothing", func(ctx context.Context) {
		p.create(ctx, threeCopies)
		p.pool(ctx, 3)
		p.settle(ctx)
		before := p.get(ctx).Status.Groups
		p.r.Placements = unreachablePlacements{}
		p.settle(ctx)
		p.expect(ctx, v1alpha1.ConditionRedundant, metav1.ConditionUnknown, "EtcdNotReady")
		Expect(p.get(ctx).Status.Groups).To(Equal(before))
	})

	It("keeps the number of copies that it was made with", needs("CEL"), func(ctx context.Context) {
		p.create(ctx)
		p.pool(ctx, 1)
		p.settle(ctx)
		store := p.get(ctx)
		store.Spec.Replication.Copies = 3
		Expect(api.Update(ctx, store)).To(MatchError(ContainSubstring("replication.copies cannot be changed")))
		By("and says so where etcd holds another number")
		p.r.Client = alteringClient(acting, func(o client.Object) {
			if store, ok := o.(*v1alpha1.RecordStore); ok {
				store.Spec.Replication.Copies = 3
			}
		})
		p.settle(ctx)
		p.expect(ctx, v1alpha1.ConditionStalled, metav1.ConditionTrue, "CopiesDiffer", "made with 1 copies", "export")
	})

	It("gives groups of a lost node, or of a device that nobody mounts, to other shards, and takes that back when it is "+
		"back", func(ctx context.Context) {
		p.create(ctx, threeCopies)
		p.pool(ctx, 4)
		p.settle(ctx)
		lost := func(state v1alpha1.ShardState) {
			p.r.Client = stateOf("ssd-1", state)
			for range 30 {
				_, err := p.reconcile(ctx)
				Expect(err).NotTo(HaveOccurred())
				p.playShards(ctx)
			}
			p.r.Client = acting
		}
		on := func() int {
			v, err := p.etcd.Register().Look(ctx, p.get(ctx))
			Expect(err).NotTo(HaveOccurred())
			return len(v.Holds("ssd-1"))
		}
		Expect(on()).To(BeNumerically(">", 0))
		for _, state := range []v1alpha1.ShardState{v1alpha1.ShardNodeLost, v1alpha1.ShardFormatBlocked} {
			away(ctx, "ssd-1")
			lost(v1alpha1.ShardNodeDown)
			Expect(on()).To(BeNumerically(">", 0), "a node that is down keeps its copies")
			lost(state)
			Expect(on()).To(BeZero(), "%s", state)
			p.NoSets = false
			p.settle(ctx)
			p.ready(ctx)
			Expect(on()).To(BeNumerically(">", 0), "balanced again")
		}
	})
})
