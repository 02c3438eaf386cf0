package controllers

import (
	"context"
	"strings"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"sheaf.dev/sheaf/api/v1alpha1"
)

// storeStory creates a store, and then changes the store, its gateway and its etcd.
func storeStory(ctx context.Context, p *storePlay, wait func()) {
	p.create(ctx)
	p.pool(ctx, 1)
	wait()
	p.change(ctx, func(s *v1alpha1.RecordStore) {
		s.Spec.Image, s.Spec.Gateway.Replicas = "sheaf:2", new(int32(3))
		s.Annotations = map[string]string{v1alpha1.AnnotationAllowNewEtcd: "not needed"}
	})
	wait()
}

// finalState returns the state at the end of a story, without the parts that differ between namespaces.
func (p *storePlay) finalState(ctx context.Context) map[string]string {
	GinkgoHelper()
	store := p.get(ctx)
	uid, groups := p.holds(ctx)
	Expect(uid).To(Equal(string(store.UID)))
	Expect(groups).To(Equal(8))
	Expect(store.Status.StoreUID).To(Equal(uid))
	Expect(store.Status.PlacementInitialized).To(BeTrue())
	Expect(store.Annotations).NotTo(HaveKey(v1alpha1.AnnotationAllowNewEtcd))
	p.ready(ctx)
	names := map[string]string{}
	for name, picture := range p.picture(ctx) {
		if !strings.Contains(picture, "sheaf.dev/") {
			continue
		}
		names[name] = "there"
	}
	var pods corev1.PodList
	Expect(api.List(ctx, &pods, client.InNamespace(p.Namespace))).To(Succeed())
	for _, pod := range pods.Items {
		names[pod.Name] = pod.Spec.Containers[0].Image
	}
	return names
}

var _ = Describe("The store's controller", func() {
	// live starts an operator that k can kill. Only the controller of stores writes through k, because the controller of
	// pools has a test of its own.
	live := func(p *storePlay, k *killer) {
		p.operator(k.client())
		p.pools.Client = acting
	}
	run := func(ctx context.Context, die killPlan) (end map[string]string, writes int, started map[string]int) {
		p := newStorePlay(ctx)
		k := &killer{at: die()}
		live(p, k)
		storeStory(ctx, p, func() {
			for n := 0; ; n++ {
				Expect(n).To(BeNumerically("<", roundsMax), "it does not settle: %v", p.words(ctx))
				before := writeCount.Load()
				err := p.round(ctx)
				if k.dead() {
					writes, k = writes+k.writes, &killer{at: die()}
					live(p, k)
					continue
				}
				if err == nil && writeCount.Load() == before {
					return
				}
			}
		})
		return p.finalState(ctx), writes + k.writes, p.started
	}

	It("comes to the same end when it is killed after any of its writes", func(ctx context.Context) {
		want, writes, started := run(ctx, killOnce(0))
		Expect(writes).To(BeNumerically(">", 15))
		Expect(started).To(Equal(map[string]int{"quotes-etcd": 2, "ssd-0": 2}))
		for how, die := range aliveUntil(writes) {
			got, _, restarts := run(ctx, die)
			Expect(got).To(Equal(want), how)
			Expect(restarts).To(Equal(started), "%s: pods made", how)
		}
	})

	It("comes to the same end with a cache that is behind", func(ctx context.Context) {
		want, _, started := run(ctx, killOnce(0))
		const behind = 3
		p := newStorePlay(ctx)
		history := []client.Client{p.snapshot(ctx)}
		p.operator(cachedReader(func() client.Client { return history[0] }))
		storeStory(ctx, p, func() {
			for n, quiet := 0, 0; quiet <= 2*behind; n++ {
				Expect(n).To(BeNumerically("<", 150), "it does not settle: %v", p.words(ctx))
				before := writeCount.Load()
				if quiet++; p.round(ctx) != nil || writeCount.Load() != before {
					quiet = 0
				}
				history = append(history, p.snapshot(ctx))
				history = history[max(0, len(history)-behind-1):]
			}
		})
		Expect(p.finalState(ctx)).To(Equal(want))
		Expect(p.started).To(Equal(started))
	})
})
