package controllers

import (
	"context"
	"slices"

	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"sheaf.dev/sheaf/api/v1alpha1"
)

// changePool changes the spec of the pool.
func (p *storePlay) changePool(ctx context.Context, change func(*v1alpha1.ShardPoolSpec)) {
	GinkgoHelper()
	pool := p.getPool(ctx)
	change(&pool.Spec)
	Expect(api.Update(ctx, pool)).To(Succeed())
}

// expectPool checks that the pool's condition of type kind has the given status and reason, and that its message
// contains all the words.
func (p *storePlay) expectPool(ctx context.Context, name, kind string, status metav1.ConditionStatus, reason string,
	words ...string) {
	GinkgoHelper()
	pool := &v1alpha1.ShardPool{}
	Expect(api.Get(ctx, types.NamespacedName{Namespace: p.Namespace, Name: name}, pool)).To(Succeed())
	c := meta.FindStatusCondition(pool.Status.Conditions, kind)
	Expect(c).NotTo(BeNil(), "%s: %+v", kind, pool.Status.Conditions)
	Expect(string(c.Status)+" "+c.Reason).To(Equal(string(status)+" "+reason), "%s: %s", kind, c.Message)
	for _, w := range words {
		Expect(c.Message).To(ContainSubstring(w), kind)
	}
}

// holdingShards returns the shards that have groups according to etcd, or to which groups are assigned.
func (p *storePlay) holdingShards(ctx context.Context) (shards []string) {
	GinkgoHelper()
	v, err := p.etcd.Register().Look(ctx, p.get(ctx))
	Expect(err).NotTo(HaveOccurred())
	for _, shard := range []string{"ssd-0", "ssd-1", "ssd-2", "ssd-3", "ssd-4", "xfs-0", "xfs-1", "xfs-2"} {
		if len(v.Holds(shard)) > 0 {
			shards = append(shards, shard)
		}
	}
	return shards
}

// runningShards returns the shards that have pods.
func (p *storePlay) runningShards(ctx context.Context) (shards []string) {
	for _, shard := range []string{"ssd-0", "ssd-1", "ssd-2", "ssd-3", "ssd-4", "xfs-0", "xfs-1", "xfs-2"} {
		if pod := p.pod(ctx, shard); pod != nil && pod.DeletionTimestamp == nil {
			shards = append(shards, shard)
		}
	}
	return shards
}

var _ = Describe("Shards whose groups can move", func() {
	var p *storePlay
	BeforeEach(func(ctx context.Context) {
		p = newStorePlay(ctx)
		DeferCleanup(p.etcd.Stick, false)
	})

	It("fill themselves when they are new, and are emptied before they go", func(ctx context.Context) {
		p.create(ctx, threeCopies)
		p.pool(ctx, 3)
		p.settle(ctx)
		p.changePool(ctx, func(s *v1alpha1.ShardPoolSpec) { *s.Shards = 5 })
		p.settle(ctx)
		p.ready(ctx)
		Expect(p.holdingShards(ctx)).To(Equal([]string{"ssd-0", "ssd-1", "ssd-2", "ssd-3", "ssd-4"}))

		By("shard 1 is to go: it stays while it holds a group")
		p.etcd.Stick(true)
		p.changePool(ctx, func(s *v1alpha1.ShardPoolSpec) { *s.Shards, s.Remove = 4, []int32{1} })
		p.settle(ctx)
		p.expectPool(ctx, "ssd", v1alpha1.ConditionReady, metav1.ConditionFalse, "Draining", "ssd-1", "are left")
		Expect(p.runningShards(ctx)).To(ContainElement("ssd-1"))
		Expect(p.get(ctx).Status.Groups.Moving).To(BeNumerically(">", 0))

		By("it is taken back half-way")
		p.changePool(ctx, func(s *v1alpha1.ShardPoolSpec) { *s.Shards = 5 })
		p.settle(ctx)
		p.ready(ctx)
		Expect(p.get(ctx).Status.Groups.Moving).To(BeZero())

		By("and asked for again")
		p.etcd.Stick(false)
		p.changePool(ctx, func(s *v1alpha1.ShardPoolSpec) { *s.Shards = 4 })
		p.settle(ctx)
		p.ready(ctx)
		Expect(p.runningShards(ctx)).To(Equal([]string{"ssd-0", "ssd-2", "ssd-3", "ssd-4"}))
		Expect(p.holdingShards(ctx)).NotTo(ContainElement("ssd-1"))
		p.expect(ctx, v1alpha1.ConditionRedundant, metav1.ConditionTrue, "Redundant")
	})

	It("stay where their groups have nowhere to go, and say so", func(ctx context.Context) {
		p.create(ctx, threeCopies)
		p.pool(ctx, 3)
		p.settle(ctx)
		before := p.holdingShards(ctx)
		for name, change := range map[string]func(*v1alpha1.ShardPoolSpec){
			"one too many goes":  func(s *v1alpha1.ShardPoolSpec) { *s.Shards = 2 },
			"the last goes":      func(s *v1alpha1.ShardPoolSpec) { *s.Shards = 0 },
			"all are drained":    func(s *v1alpha1.ShardPoolSpec) { s.State = v1alpha1.PoolDrained },
			"the pool goes away": nil,
		} {
			By(name)
			if change == nil {
				continue
			}
			p.changePool(ctx, change)
			p.settle(ctx)
			p.expectPool(ctx, "ssd", v1alpha1.ConditionStalled, metav1.ConditionTrue, "NowhereToGo", "nowhere to go",
				"needs 3 shards in different failure domains")
			Expect(p.runningShards(ctx)).To(HaveLen(3))
			Expect(p.holdingShards(ctx)).To(Equal(before))
			p.changePool(ctx, func(s *v1alpha1.ShardPoolSpec) { *s.Shards, s.State = 3, v1alpha1.PoolActive })
			p.settle(ctx)
			p.ready(ctx)
		}
		Expect(api.Delete(ctx, p.getPool(ctx))).To(Succeed())
		p.settle(ctx)
		p.expectPool(ctx, "ssd", v1alpha1.ConditionStalled, metav1.ConditionTrue, "NowhereToGo",
			v1alpha1.AnnotationDeleteWithGroups)
		Expect(p.runningShards(ctx)).To(HaveLen(3))
		By("until others can take them")
		p.poolNamed(ctx, "xfs", 3)
		p.settle(ctx)
		Expect(client.IgnoreNotFound(api.Get(ctx, types.NamespacedName{Namespace: p.Namespace, Name: "ssd"},
			&v1alpha1.ShardPool{}))).To(Succeed())
		p.ready(ctx)
		Expect(p.holdingShards(ctx)).To(Equal([]string{"xfs-0", "xfs-1", "xfs-2"}))
	})

	for _, copies := range []int32{1, 3} {
		It("move to a second pool when the first is drained, and back half-way", func(ctx context.Context) {
			p.create(ctx, func(s *v1alpha1.RecordStore) { s.Spec.Replication.Copies = copies })
			p.pool(ctx, 3)
			p.settle(ctx)
			p.changePool(ctx, func(s *v1alpha1.ShardPoolSpec) { s.State = v1alpha1.PoolCordoned })
			p.settle(ctx)
			p.poolNamed(ctx, "xfs", 3)
			p.settle(ctx)
			Expect(p.holdingShards(ctx)).To(Equal([]string{"ssd-0", "ssd-1", "ssd-2"}), "cordoned: they keep what they have")
			p.etcd.Stick(true)
			p.changePool(ctx, func(s *v1alpha1.ShardPoolSpec) { s.State = v1alpha1.PoolDrained })
			p.settle(ctx)
			p.expectPool(ctx, "ssd", v1alpha1.ConditionDrained, metav1.ConditionFalse, "HoldsGroups", "ssd-0 holds")
			p.expectPool(ctx, "ssd", v1alpha1.ConditionReady, metav1.ConditionFalse, "Draining")
			p.changePool(ctx, func(s *v1alpha1.ShardPoolSpec) { s.State = v1alpha1.PoolCordoned })
			p.settle(ctx)
			p.ready(ctx)
			Expect(p.holdingShards(ctx)).To(Equal([]string{"ssd-0", "ssd-1", "ssd-2"}))
			p.etcd.Stick(false)
			p.changePool(ctx, func(s *v1alpha1.ShardPoolSpec) { s.State = v1alpha1.PoolDrained })
			p.settle(ctx)
			p.expectPool(ctx, "ssd", v1alpha1.ConditionDrained, metav1.ConditionTrue, "Drained")
			p.ready(ctx)
			Expect(p.holdingShards(ctx)).To(Equal([]string{"xfs-0", "xfs-1", "xfs-2"}))
			Expect(p.runningShards(ctx)).To(HaveLen(6), "drained shards stay until they are removed")
		})
	}

	It("that are away with the only copy are not removed", func(ctx context.Context) {
		p.create(ctx)
		p.pool(ctx, 2)
		p.settle(ctx)
		p.NoSets = true
		Expect(api.Delete(ctx, p.pod(ctx, "ssd-1"))).To(Succeed())
		Expect(p.etcd.Leave(ctx, p.Namespace, "quotes", "ssd-1")).To(Succeed())
		p.changePool(ctx, func(s *v1alpha1.ShardPoolSpec) { *s.Shards = 1 })
		p.settle(ctx)
		p.expectPool(ctx, "ssd", v1alpha1.ConditionStalled, metav1.ConditionTrue, "ShardHoldsGroups", "ssd-1",
			"cannot do without", "bring it back")
		p.NoSets = false
		p.settle(ctx)
		p.ready(ctx)
		Expect(p.runningShards(ctx)).To(Equal([]string{"ssd-0"}))
	})

	It("come to the same end when the pool's controller is killed after any of its writes", func(ctx context.Context) {
		run := func(die killPlan) (runs, held []string, writes int) {
			p := newStorePlay(ctx)
			p.create(ctx, threeCopies)
			p.pool(ctx, 4)
			p.settle(ctx)
			k := &killer{at: die()}
			p.pools.Client = k.client()
			wait := func() {
				for n, quiet := 0, 0; quiet < 2; n++ {
					Expect(n).To(BeNumerically("<", roundsMax), "it does not settle: %v", p.words(ctx))
					before := writeCount.Load()
					err := p.round(ctx)
					if quiet++; err != nil || writeCount.Load() != before {
						quiet = 0
					}
					if k.dead() {
						writes, k, quiet = writes+k.writes, &killer{at: die()}, 0
						p.pools.Client = k.client()
					}
				}
			}
			p.changePool(ctx, func(s *v1alpha1.ShardPoolSpec) { *s.Shards, s.Remove = 3, []int32{2} })
			wait()
			p.changePool(ctx, func(s *v1alpha1.ShardPoolSpec) { *s.Shards, s.Remove = 4, nil })
			wait()
			p.ready(ctx)
			return p.runningShards(ctx), p.holdingShards(ctx), writes + k.writes
		}
		runs, held, writes := run(killOnce(0))
		Expect(runs).To(Equal([]string{"ssd-0", "ssd-1", "ssd-2", "ssd-3"}))
		Expect(writes).To(BeNumerically(">", 3))
		for how, die := range aliveUntil(writes) {
			r, h, _ := run(die)
			Expect(slices.Equal(r, runs) && slices.Equal(h, held)).To(BeTrue(), "%s: %v %v", how, r, h)
		}
	})
})
