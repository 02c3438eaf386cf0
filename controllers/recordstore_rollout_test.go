package controllers

import (
	"context"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"sheaf.dev/sheaf/api/v1alpha1"
	"sheaf.dev/sheaf/controllers/fleet"
)

var _ = Describe("A new image", func() {
	var p *storePlay
	BeforeEach(func(ctx context.Context) { p = newStorePlay(ctx) })

	image := func(ctx context.Context, pod string) string {
		GinkgoHelper()
		var got corev1.Pod
		err := api.Get(ctx, types.NamespacedName{Namespace: p.Namespace, Name: pod}, &got)
		if err != nil {
			return ""
		}
		return fleet.ImageOf(&got.Spec)
	}
	use := func(ctx context.Context, image string) {
		GinkgoHelper()
		p.change(ctx, func(s *v1alpha1.RecordStore) { s.Spec.Image = image })
	}

	It("that is bad stops at the gateway, and a good one reaches etcd and then the shards", func(ctx context.Context) {
		p.running(ctx, 2)
		Expect(p.get(ctx).Status.Image).To(Equal("sheaf:1"))

		p.bad = "sheaf:bad"
		use(ctx, p.bad)
		p.settle(ctx)
		p.expect(ctx, v1alpha1.ConditionUpdated, metav1.ConditionFalse, "Updating", "sheaf:bad",
			"etcd and shards keep theirs", "spec.image")
		p.expect(ctx, v1alpha1.ConditionGatewayReady, metav1.ConditionTrue, "Ready",
			"0 of 2 gateways are ready, and 2 older ones serve")
		p.expect(ctx, v1alpha1.ConditionEtcdReady, metav1.ConditionTrue, "Ready")
		updated := meta.FindStatusCondition(p.getPool(ctx).Status.Conditions, v1alpha1.ConditionUpdated)
		Expect(updated.Reason).To(Equal("UpdateHeldUp"))
		Expect(updated.Message).To(ContainSubstring("do not run image sheaf:bad"))
		for _, shard := range []string{"quotes-etcd", "ssd-0", "ssd-1"} {
			Expect(p.started[shard]).To(Equal(1), shard)
		}

		By("a pod that is lost meanwhile coming back with its image")
		for _, pod := range []string{"quotes-etcd-0", "ssd-0-0"} {
			Expect(api.Delete(ctx, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: p.Namespace, Name: pod}})).To(Succeed())
		}
		p.settle(ctx)
		Expect(image(ctx, "quotes-etcd-0")).To(Equal("sheaf:1"))
		Expect(image(ctx, "ssd-0-0")).To(Equal("sheaf:1"))

		By("a good one")
		use(ctx, "sheaf:2")
		for range 60 {
			Expect(p.round(ctx)).To(Succeed())
			etcd := image(ctx, "quotes-etcd-0")
			for _, shard := range []string{"ssd-0-0", "ssd-1-0"} {
				if image(ctx, shard) == "sheaf:2" {
					Expect(etcd).To(Equal("sheaf:2"), "a shard before etcd")
				}
			}
		}
		p.settle(ctx)
		p.ready(ctx)
		p.expect(ctx, v1alpha1.ConditionUpdated, metav1.ConditionTrue, "Pools")
		Expect(p.get(ctx).Status.Image).To(Equal("sheaf:2"))
		Expect(image(ctx, "ssd-1-0")).To(Equal("sheaf:2"))

		By("a bad one taken back, which restarts nothing")
		started := map[string]int{"quotes-etcd": p.started["quotes-etcd"], "ssd-0": p.started["ssd-0"],
			"ssd-1": p.started["ssd-1"]}
		use(ctx, p.bad)
		p.settle(ctx)
		use(ctx, "sheaf:2")
		p.settle(ctx)
		p.ready(ctx)
		for shard, n := range started {
			Expect(p.started[shard]).To(Equal(n), shard)
		}
	})

	It("heals what a bad one has broken, without waiting for a gateway", func(ctx context.Context) {
		p.create(ctx, func(s *v1alpha1.RecordStore) { s.Spec.Gateway.Replicas = new(int32(0)) })
		p.pool(ctx, 1)
		p.settle(ctx)
		p.ready(ctx)
		use(ctx, "sheaf:2")
		p.settle(ctx)
		p.ready(ctx)
		Expect(image(ctx, "ssd-0-0")).To(Equal("sheaf:2"))
		Expect(p.get(ctx).Status.Image).To(Equal("sheaf:2"))
	})
})
