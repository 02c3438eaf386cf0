package controllers

import (
	"context"

	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"sheaf.dev/sheaf/api/v1alpha1"
	"sheaf.dev/sheaf/client/recordv1"
)

var _ = Describe("A pool whose etcd is away", func() {
	It("says so of a shard that starts, with what to do, and forgets it when etcd is back", func(ctx context.Context) {
		p := newStorePlay(ctx)
		condition := func(kind string) metav1.Condition {
			pool := &v1alpha1.ShardPool{}
			Expect(api.Get(ctx, types.NamespacedName{Namespace: p.Namespace, Name: "ssd"}, pool)).To(Succeed())
			c := meta.FindStatusCondition(pool.Status.Conditions, kind)
			Expect(c).NotTo(BeNil(), "%s: %+v", kind, pool.Status.Conditions)
			return *c
		}
		p.running(ctx, 2)
		Expect(condition(v1alpha1.ConditionEtcdReady).Status).To(Equal(metav1.ConditionTrue))

		By("etcd going away: shards that run serve on")
		p.NoKubelet, p.away = true, true
		Expect(api.Delete(ctx, p.pod(ctx, "quotes-etcd"))).To(Succeed())
		p.settle(ctx)
		Expect(condition(v1alpha1.ConditionEtcdReady)).To(And(HaveField("Status", metav1.ConditionFalse),
			HaveField("Reason", "EtcdNotReady"),
			HaveField("Message", And(ContainSubstring("0 of 1 member of etcd is"),
				ContainSubstring("Settled groups are read and written meanwhile")))))
		Expect(condition(v1alpha1.ConditionReady).Status).To(Equal(metav1.ConditionTrue), "the shards serve")

		By("a shard that starts then")
		p.setReport("ssd-1", func(r *recordv1.ShardStatus) {
			r.Shard.State, r.Shard.Message = recordv1.ShardState_SHARD_STATE_PENDING, "etcd does not answer: deadline exceeded"
		})
		p.settle(ctx)
		Expect(condition(v1alpha1.ConditionReady)).To(And(HaveField("Status", metav1.ConditionFalse),
			HaveField("Reason", "EtcdNotReady"),
			HaveField("Message", And(ContainSubstring("shard ssd-1 is Pending: etcd does not answer"),
				ContainSubstring("0 of 1 member of etcd is"),
				ContainSubstring("shards that start now wait for etcd")))))

		By("etcd coming back")
		p.NoKubelet, p.away = false, false
		p.setReport("ssd-1", nil)
		p.settle(ctx)
		Expect(condition(v1alpha1.ConditionEtcdReady).Status).To(Equal(metav1.ConditionTrue))
		Expect(condition(v1alpha1.ConditionReady).Status).To(Equal(metav1.ConditionTrue))
		p.ready(ctx)
	})
})
