package controllers

import (
	"context"

	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"sheaf.dev/sheaf/api/v1alpha1"
	"sheaf.dev/sheaf/client/recordv1"
)

var _ = Describe("An update", func() {
	var p *poolPlay
	images := func(ctx context.Context) map[string]string {
		images := map[string]string{}
		for _, shard := range []string{"a-0", "a-1", "b-0"} {
			if pod := p.pod(ctx, shard); pod != nil {
				images[shard] = pod.Spec.Containers[0].Image
			}
		}
		return images
	}
	image := func(ctx context.Context, name string) {
		p.changeStore(ctx, func(store *v1alpha1.RecordStore) { store.Spec.Image = name })
	}
	BeforeEach(func(ctx context.Context) {
		p = newPoolPlay(ctx)
		p.pool(ctx, "a", 2)
		p.settledPool(ctx, "b", 1)
		p.ready(ctx, "a")
		// At most one shard of the store is down at any time, even if the other shards are in another pool.
		p.after = func(ctx context.Context) {
			down := 3
			for _, shard := range []string{"a-0", "a-1", "b-0"} {
				if pod := p.pod(ctx, shard); pod != nil && pod.DeletionTimestamp == nil {
					down--
				}
			}
			Expect(down).To(BeNumerically("<=", 1), "shards of one store that are down at once")
		}
	})

	It("restarts one shard of the store at a time, and waits until it has loaded", both("a life of an update"),
		func(ctx context.Context) {
			for _, shard := range []string{"a-0", "a-1", "b-0"} {
				p.setReport(shard, func(r *recordv1.ShardStatus) {
					if p.started[shard] > 1 {
						loading(50)(r)
					}
				})
			}
			image(ctx, "sheaf:2")
			p.settle(ctx, 0)
			Expect(updated(images(ctx), "sheaf:2")).To(Equal(1), "%v", images(ctx))
			p.expect(ctx, "a", v1alpha1.ConditionUpdated, metav1.ConditionFalse, "Updating", "Loading")
			for n := range 2 {
				By("the next one, when that has loaded")
				for shard, name := range images(ctx) {
					if name == "sheaf:2" {
						p.setReport(shard, nil)
					}
				}
				p.settle(ctx, 0)
				Expect(updated(images(ctx), "sheaf:2")).To(Equal(2+n), "%v", images(ctx))
			}
			for _, shard := range []string{"a-0", "a-1", "b-0"} {
				p.setReport(shard, nil)
			}
			p.settle(ctx, 0)
			p.ready(ctx, "a")
			p.ready(ctx, "b")
			p.expect(ctx, "a", v1alpha1.ConditionUpdated, metav1.ConditionTrue, "Updated")
			Expect(p.started).To(Equal(map[string]int{"a-0": 2, "a-1": 2, "b-0": 2}))
		})

	It("stops at a shard that does not come up, keeps the template from the others, and rolls back",
		func(ctx context.Context) {
			for _, shard := range []string{"a-0", "a-1", "b-0"} {
				p.setReport(shard, func(r *recordv1.ShardStatus) {
					if images(ctx)[shard] == "sheaf:bad" {
						r.Shard.State, r.Shard.Message = recordv1.ShardState_SHARD_STATE_PENDING, "never comes up"
					}
				})
			}
			image(ctx, "sheaf:bad")
			p.settle(ctx, 0)
			Expect(updated(images(ctx), "sheaf:bad")).To(Equal(1))
			By("a pod that goes for another reason comes back as it was")
			for shard, name := range images(ctx) {
				if name == "sheaf:1" {
					set := &appsv1.StatefulSet{}
					Expect(api.Get(ctx, types.NamespacedName{Namespace: p.Namespace, Name: shard}, set)).To(Succeed())
					Expect(set.Spec.Template.Spec.Containers[0].Image).To(Equal("sheaf:1"))
				}
			}
			image(ctx, "sheaf:1")
			p.settle(ctx, 0)
			p.ready(ctx, "a")
			p.ready(ctx, "b")
			Expect(updated(images(ctx), "sheaf:1")).To(Equal(3))
			total := 0
			for _, n := range p.started {
				total += n
			}
			Expect(total).To(Equal(3+2), "only the bad one was restarted, twice")
		})

	It("holds while it is paused", func(ctx context.Context) {
		before := p.uids(ctx)
		for _, pool := range []string{"a", "b"} {
			p.change(ctx, pool, func(pool *v1alpha1.ShardPool) { pool.Spec.Update.Mode = v1alpha1.UpdatePaused })
		}
		image(ctx, "sheaf:2")
		p.settle(ctx, 0)
		Expect(p.uids(ctx)).To(Equal(before))
		p.expect(ctx, "a", v1alpha1.ConditionUpdated, metav1.ConditionFalse, "Paused", "2 of 2")
		p.ready(ctx, "a")
		p.change(ctx, "b", func(pool *v1alpha1.ShardPool) { pool.Spec.Update.Mode = v1alpha1.UpdateOneByOne })
		p.settle(ctx, 0)
		Expect(images(ctx)).To(Equal(map[string]string{"a-0": "sheaf:1", "a-1": "sheaf:1", "b-0": "sheaf:2"}))
	})

	It("waits for a StatefulSet controller that is away, as no pod would come back", func(ctx context.Context) {
		before := p.uids(ctx)
		p.NoSets = true
		image(ctx, "sheaf:2")
		p.settle(ctx, 0)
		Expect(p.uids(ctx)).To(Equal(before))
	})

	It("does not follow an operator that behaves the same", func(ctx context.Context) {
		before := p.versions(ctx)
		p.r = p.reconciler(acting)
		p.settle(ctx, 1)
		Expect(p.versions(ctx)).To(Equal(before))
	})

	It("looks past the cache before it stops a shard", func(ctx context.Context) {
		image(ctx, "sheaf:2")
		// The cache is frozen. After a shard has been restarted, the cache still shows it as it was before.
		p.r = p.reconciler(p.frozenClient(ctx))
		for range 3 {
			_, _ = p.reconcile(ctx, "a")
			_, _ = p.reconcile(ctx, "b")
		}
		p.r = p.reconciler(acting)
		p.settle(ctx, 0)
		Expect(updated(images(ctx), "sheaf:2")).To(Equal(3))
		Expect(p.started).To(Equal(map[string]int{"a-0": 2, "a-1": 2, "b-0": 2}))
	})
})

func updated(images map[string]string, image string) (n int) {
	for _, name := range images {
		if name == image {
			n++
		}
	}
	return n
}
