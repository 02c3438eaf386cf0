package controllers

import (
	"context"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sheaf.dev/sheaf/api/v1alpha1"
)

var _ = Describe("The store's controller, where etcd was set back", func() {
	It("says so, and decides nothing before it is reconciled", func(ctx context.Context) {
		p := newStorePlay(ctx)
		p.running(ctx, 2)
		etcd, ok := p.etcd.(interface {
			Freeze(ctx context.Context, namespace, store, reason string) error
			Thaw(ctx context.Context, namespace, store string) error
		})
		Expect(ok).To(BeTrue())
		p.away = true // the shards are not simulated, so nothing writes to etcd for them
		Expect(etcd.Freeze(ctx, p.Namespace, "quotes", "its revision is 7, seen was 9")).To(Succeed())
		p.changePool(ctx, func(s *v1alpha1.ShardPoolSpec) { *s.Shards = 1 })
		p.settle(ctx)
		p.expect(ctx, v1alpha1.ConditionEtcdReady, metav1.ConditionFalse, "EtcdRolledBack", "its revision is 7, seen was 9",
			"settled groups are read and written", "docs/operations/etcd.md")
		p.expect(ctx, v1alpha1.ConditionReady, metav1.ConditionFalse, "EtcdRolledBack")
		Expect(p.takeEvents()).To(ContainElement(ContainSubstring("EtcdRolledBack")))
		Expect(p.runningShards(ctx)).To(HaveLen(2), "no shard is removed on the word of an older etcd")

		Expect(etcd.Thaw(ctx, p.Namespace, "quotes")).To(Succeed())
		p.away = false
		p.settle(ctx)
		p.ready(ctx)
		Expect(p.runningShards(ctx)).To(HaveLen(1))
	})
})
