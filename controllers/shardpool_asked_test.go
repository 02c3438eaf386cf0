package controllers

import (
	"context"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"sheaf.dev/sheaf/api/v1alpha1"
	"sheaf.dev/sheaf/client/recordv1"
	"sheaf.dev/sheaf/controllers/fleet"
)

var _ = Describe("A disk that is to be replaced", func() {
	var p *storePlay
	claim := func(ctx context.Context, shard string) types.UID {
		var c corev1.PersistentVolumeClaim
		Expect(api.Get(ctx, types.NamespacedName{Namespace: p.Namespace, Name: "data-" + shard + "-0"}, &c)).To(Succeed())
		return c.UID
	}
	start := func(ctx context.Context, copies int32) {
		p = newStorePlay(ctx)
		p.create(ctx, func(s *v1alpha1.RecordStore) { s.Spec.Replication.Copies = copies })
		p.pool(ctx, 3)
		p.settle(ctx)
		p.ready(ctx)
	}
	// fresh makes each shard report a different volume after its next restart.
	fresh := func() {
		p.reported = func(name string, r *recordv1.ShardStatus) {
			if p.started[name] >= 2 {
				r.Shard.VolumeUuid = "another-of-" + name
			}
		}
	}

	It("gets another volume, once for each time that it is named", func(ctx context.Context) {
		start(ctx, 3)
		was, pod := claim(ctx, "ssd-1"), p.pod(ctx, "ssd-1").UID
		volume := p.getPool(ctx).Status.ShardStatuses[1].Volume.UUID
		fresh()
		p.changePool(ctx, func(s *v1alpha1.ShardPoolSpec) { s.Replace = []int32{1} })
		p.settle(ctx)
		p.ready(ctx)
		Expect(claim(ctx, "ssd-1")).NotTo(Equal(was))
		Expect(p.pod(ctx, "ssd-1").UID).NotTo(Equal(pod))
		Expect(p.getPool(ctx).Status.ShardStatuses[1].Volume.UUID).To(Equal("another-of-ssd-1"))
		Expect(p.getPool(ctx).Annotations[v1alpha1.AnnotationForgetVolumes]).To(Equal(volume))
		Expect(p.started).To(And(HaveKeyWithValue("ssd-0", 1), HaveKeyWithValue("ssd-1", 2), HaveKeyWithValue("ssd-2", 1)))

		By("and not once more while it stays there, nor by another operator")
		p.operator(acting)
		now := claim(ctx, "ssd-1")
		p.settle(ctx)
		Expect(claim(ctx, "ssd-1")).To(Equal(now))

		By("but when it is taken out and named again")
		p.changePool(ctx, func(s *v1alpha1.ShardPoolSpec) { s.Replace = nil })
		p.settle(ctx)
		Expect(p.getPool(ctx).Annotations).NotTo(HaveKey(fleet.AnnotationReplaced))
		Expect(claim(ctx, "ssd-1")).To(Equal(now))
		p.changePool(ctx, func(s *v1alpha1.ShardPoolSpec) { s.Replace = []int32{1} })
		p.settle(ctx)
		Expect(claim(ctx, "ssd-1")).NotTo(Equal(now))
		Expect(p.started["ssd-1"]).To(Equal(3))
	})

	It("is not where the store has a single copy of each group", func(ctx context.Context) {
		start(ctx, 1)
		was := claim(ctx, "ssd-1")
		p.changePool(ctx, func(s *v1alpha1.ShardPoolSpec) { s.Replace = []int32{1, 7} })
		p.settle(ctx)
		Expect(claim(ctx, "ssd-1")).To(Equal(was))
		Expect(p.started["ssd-1"]).To(Equal(1))
		p.expectPool(ctx, "ssd", v1alpha1.ConditionStalled, metav1.ConditionTrue, "ReplaceRefused", "one copy of each group")
		p.changePool(ctx, func(s *v1alpha1.ShardPoolSpec) { s.Replace = nil })
		p.settle(ctx)
		p.ready(ctx)
	})

	It("waits where a group has no majority without it, and goes on when it has", func(ctx context.Context) {
		start(ctx, 3)
		was := claim(ctx, "ssd-1")
		p.NoSets = true
		Expect(api.Delete(ctx, p.pod(ctx, "ssd-0"))).To(Succeed())
		Expect(p.etcd.Leave(ctx, p.Namespace, "quotes", "ssd-0")).To(Succeed())
		p.changePool(ctx, func(s *v1alpha1.ShardPoolSpec) { s.Replace = []int32{1} })
		p.settle(ctx)
		Expect(claim(ctx, "ssd-1")).To(Equal(was))
		Expect(p.getPool(ctx).Annotations).NotTo(HaveKey(v1alpha1.AnnotationForgetVolumes))
		p.NoSets = false
		fresh()
		p.uuidOf = p.etcd.Volume
		p.settle(ctx)
		Expect(claim(ctx, "ssd-1")).NotTo(Equal(was))
	})

	It("is replaced all the same by operators that end after each write", func(ctx context.Context) {
		start(ctx, 3)
		was := claim(ctx, "ssd-1")
		fresh()
		p.changePool(ctx, func(s *v1alpha1.ShardPoolSpec) { s.Replace = []int32{1} })
		for range 40 {
			p.operator((&killer{at: 1}).client())
			_ = p.round(ctx) // the operator is killed during the round
		}
		p.operator(acting)
		p.settle(ctx)
		p.ready(ctx)
		Expect(claim(ctx, "ssd-1")).NotTo(Equal(was))
		Expect(p.started["ssd-1"]).To(Equal(2))
		Expect(p.started["ssd-0"]).To(Equal(1))
	})
})
