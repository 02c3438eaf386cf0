package controllers

import (
	"context"
	"errors"
	"strings"
	"time"

	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"sheaf.dev/sheaf/api/v1alpha1"
	"sheaf.dev/sheaf/client/recordv1"
	"sheaf.dev/sheaf/controllers/step"
	"sheaf.dev/sheaf/internal/kube/workload"
)

var _ = Describe("Shards", func() {
	var p *poolPlay
	BeforeEach(func(ctx context.Context) { p = newPoolPlay(ctx) })

	// shards returns the Shards that the API server has, by name.
	shards := func(ctx context.Context) map[string]v1alpha1.Shard {
		var list v1alpha1.ShardList
		Expect(api.List(ctx, &list, client.InNamespace(p.Namespace))).To(Succeed())
		byName := map[string]v1alpha1.Shard{}
		for _, s := range list.Items {
			byName[s.Name] = s
		}
		return byName
	}
	shard := func(ctx context.Context, name string) *v1alpha1.Shard {
		GinkgoHelper()
		s, ok := shards(ctx)[name]
		Expect(ok).To(BeTrue(), "there is no Shard %s", name)
		return &s
	}

	It("come and go with the shards of their pool", both("a life of Shards"), func(ctx context.Context) {
		pool := p.pool(ctx, "ssd", 3)
		p.settledPool(ctx, "hdd", 1)
		Expect(shards(ctx)).To(And(HaveLen(4), HaveKey("ssd-0"), HaveKey("ssd-1"), HaveKey("ssd-2"), HaveKey("hdd-0")))
		one := shard(ctx, "ssd-1")
		Expect(one.Spec).To(Equal(v1alpha1.ShardSpec{Pool: "ssd", Number: 1}))
		Expect(metav1.IsControlledBy(one, pool)).To(BeTrue(), "so that the garbage collector takes it with the pool")
		Expect(one.Labels).To(Equal(workload.ShardLabels("quotes", "ssd", 1)))
		Expect(one.Status).To(Equal(p.get(ctx, "ssd").Status.ShardStatuses[1]))
		Expect(one.Status).To(And(HaveField("State", v1alpha1.ShardServing), HaveField("Volume.UUID", "uuid-of-ssd-1"),
			HaveField("Node", p.Node)))

		By("a shard that was given away")
		p.change(ctx, "ssd", func(pool *v1alpha1.ShardPool) {
			pool.Spec.Shards, pool.Spec.Remove = new(int32(2)), []int32{1}
		})
		p.settle(ctx, 0)
		Expect(shards(ctx)).To(And(HaveLen(3), HaveKey("ssd-0"), HaveKey("ssd-2"), HaveKey("hdd-0")))

		By("one that is to go and still holds groups")
		p.setReport("ssd-2", func(r *recordv1.ShardStatus) {
			r.Groups = []*recordv1.Group{{Group: "1", State: recordv1.GroupState_GROUP_STATE_SERVING, Leader: true}}
		})
		p.settle(ctx, 0)
		p.change(ctx, "ssd", func(pool *v1alpha1.ShardPool) {
			pool.Spec.Shards, pool.Spec.Remove = new(int32(1)), []int32{2}
		})
		p.settle(ctx, 0)
		Expect(shard(ctx, "ssd-2").Status.State).To(Equal(v1alpha1.ShardDraining))

		By("a state")
		p.setReport("ssd-0", func(r *recordv1.ShardStatus) {
			r.Shard.State, r.Shard.Message = recordv1.ShardState_SHARD_STATE_MEMORY_TOO_SMALL, "it needs more"
		})
		p.settle(ctx, 0)
		Expect(shard(ctx, "ssd-0").Status).To(And(HaveField("State", v1alpha1.ShardMemoryTooSmall),
			HaveField("Message", "it needs more")))
		Expect(p.get(ctx, "ssd").Status.States).To(Equal([]v1alpha1.ShardStateCount{
			{State: v1alpha1.ShardMemoryTooSmall, Shards: 1}, {State: v1alpha1.ShardDraining, Shards: 1}}))
	})

	It("that are deleted come back, and nothing happens to what they tell of", func(ctx context.Context) {
		p.settledPool(ctx, "ssd", 2)
		before, versions := shards(ctx), p.versions(ctx)
		// If the UUID of a shard's volume were forgotten, the shard would accept this volume.
		p.uuidOf = func(name string) string { return "another-of-" + name }
		Expect(api.DeleteAllOf(ctx, &v1alpha1.Shard{}, client.InNamespace(p.Namespace))).To(Succeed())
		_, err := p.reconcile(ctx, "ssd")
		Expect(err).NotTo(HaveOccurred())
		after := shards(ctx)
		Expect(after).To(HaveLen(2))
		for name, s := range after {
			Expect(s.UID).NotTo(Equal(before[name].UID))
			Expect(s.Status.Volume.UUID).To(Equal(before[name].Status.Volume.UUID))
			Expect(s.Status.State).To(Equal(v1alpha1.ShardForeign), "it is on another volume than its own")
		}
		p.uuidOf = func(name string) string { return "uuid-of-" + name }
		p.settle(ctx, 0)
		for name, s := range shards(ctx) {
			Expect(s.Status).To(Equal(before[name].Status))
		}
		now := p.versions(ctx)
		for name, version := range versions {
			if !strings.Contains(name, "v1alpha1") {
				Expect(now).To(HaveKeyWithValue(name, version), "it was written")
			}
		}
		Expect(p.started).To(And(HaveKeyWithValue("ssd-0", 1), HaveKeyWithValue("ssd-1", 1)))
	})

	It("that somebody edits are put right, or the edit is refused", needs("CEL"), func(ctx context.Context) {
		pool := p.settledPool(ctx, "ssd", 2)
		was := shard(ctx, "ssd-1")

		By("spec")
		for _, change := range []func(*v1alpha1.Shard){
			func(s *v1alpha1.Shard) { s.Spec.Number = 7 }, func(s *v1alpha1.Shard) { s.Spec.Pool = "hdd" },
		} {
			edited := was.DeepCopy()
			change(edited)
			err := api.Update(ctx, edited)
			Expect(apierrors.IsInvalid(err)).To(BeTrue(), "%v", err)
			Expect(err.Error()).To(ContainSubstring("change the spec of its ShardPool instead"))
		}

		By("status")
		for name, change := range map[string]func(*v1alpha1.ShardStatus){
			"state":     func(s *v1alpha1.ShardStatus) { s.State = v1alpha1.ShardDiskLost },
			"message":   func(s *v1alpha1.ShardStatus) { s.Message = "all is lost" },
			"records":   func(s *v1alpha1.ShardStatus) { s.Records = 1 << 40 },
			"name":      func(s *v1alpha1.ShardStatus) { s.Name, s.Number = "ssd-0", 0 },
			"groups":    func(s *v1alpha1.ShardStatus) { s.Groups, s.ServingGroups = 7, 7 },
			"volume":    func(s *v1alpha1.ShardStatus) { s.Volume.UUID = "of-somebody-else" },
			"no volume": func(s *v1alpha1.ShardStatus) { s.Volume = nil },
			"version":   func(s *v1alpha1.ShardStatus) { s.Version, s.Node = "v0", "elsewhere" },
		} {
			edited := shard(ctx, "ssd-1")
			change(&edited.Status)
			Expect(api.Status().Update(ctx, edited)).To(Succeed())
			p.settle(ctx, 0)
			Expect(shard(ctx, "ssd-1").Status).To(Equal(was.Status), name)
		}

		By("labels and owner")
		edited := shard(ctx, "ssd-1")
		edited.Labels, edited.OwnerReferences = map[string]string{"mine": "stays"}, nil
		Expect(api.Update(ctx, edited)).To(Succeed())
		p.settle(ctx, 0)
		mended := shard(ctx, "ssd-1")
		Expect(mended.Labels).To(And(HaveKeyWithValue(v1alpha1.LabelPool, "ssd"), HaveKeyWithValue("mine", "stays")))
		Expect(metav1.IsControlledBy(mended, pool)).To(BeTrue())

		By("Shards that the pool does not have")
		for name, number := range map[string]int32{"ssd-77": 77, "mine": 1} {
			mine := &v1alpha1.Shard{Spec: v1alpha1.ShardSpec{Pool: "ssd", Number: number}}
			mine.Namespace, mine.Name = p.Namespace, name
			Expect(api.Create(ctx, mine)).To(Succeed())
		}
		p.settle(ctx, 0)
		Expect(shards(ctx)).To(And(HaveLen(2), HaveKey("ssd-0"), HaveKey("ssd-1")))
		Expect(p.started).To(And(HaveLen(2), HaveKeyWithValue("ssd-0", 1), HaveKeyWithValue("ssd-1", 1)))
	})

	It("of an earlier pool of the name tell nothing of this one", func(ctx context.Context) {
		earlier := &v1alpha1.Shard{Spec: v1alpha1.ShardSpec{Pool: "ssd"}}
		earlier.Namespace, earlier.Name = p.Namespace, "ssd-0"
		earlier.OwnerReferences = []metav1.OwnerReference{{
			APIVersion: v1alpha1.GroupVersion.String(), Kind: "ShardPool", Name: "ssd", UID: "earlier", Controller: new(true),
		}}
		Expect(api.Create(ctx, earlier)).To(Succeed())
		earlier.Status = v1alpha1.ShardStatus{
			Name: "ssd-0", State: v1alpha1.ShardServing, Groups: 7, Volume: &v1alpha1.VolumeStatus{UUID: "of-the-earlier"},
		}
		Expect(api.Status().Update(ctx, earlier)).To(Succeed())
		pool := p.settledPool(ctx, "ssd", 1)
		Expect(metav1.IsControlledBy(shard(ctx, "ssd-0"), pool)).To(BeTrue())
		Expect(shard(ctx, "ssd-0").Status).To(And(HaveField("State", v1alpha1.ShardServing), HaveField("Groups", int32(0)),
			HaveField("Volume.UUID", "uuid-of-ssd-0")))
	})

	It("are filled from what an operator from before their kind wrote, and nothing of that is lost",
		func(ctx context.Context) {
			p.settledPool(ctx, "ssd", 25)
			// Before the kind Shard existed, operators listed all shards in the status of the pool. This is what such an
			// operator leaves behind.
			pool, listed := p.get(ctx, "ssd"), []v1alpha1.ShardStatus{}
			for n := range int32(25) {
				s := shard(ctx, workload.Shard("ssd", n)).Status
				s.Records, s.Volume.UUID = 7, "recorded-of-"+s.Name
				listed = append(listed, s)
			}
			pool.Status.ShardStatuses, pool.Status.States = listed, nil
			Expect(api.Status().Update(ctx, pool)).To(Succeed())
			Expect(api.DeleteAllOf(ctx, &v1alpha1.Shard{}, client.InNamespace(p.Namespace))).To(Succeed())
			for n := range int32(25) { // the UUIDs are not in the StatefulSets and pods either
				p.silent[workload.Shard("ssd", n)] = true
				Expect(p.forgetVolume(ctx, workload.Shard("ssd", n))).To(Succeed())
			}
			p.r = p.reconciler(interceptor.NewClient(acting, interceptor.Funcs{
				Create: func(ctx context.Context, k client.WithWatch, o client.Object, opts ...client.CreateOption) error {
					if o.GetName() == "ssd-13" {
						return errors.New("a quota refuses it")
					}
					return k.Create(ctx, o, opts...)
				},
			}))
			_, err := p.reconcile(ctx, "ssd")
			Expect(err).To(MatchError(ContainSubstring("a quota refuses it")))
			Expect(shards(ctx)).To(HaveLen(24), "what is refused of one does not stop the others")
			Expect(p.get(ctx, "ssd").Status.ShardStatuses).To(HaveLen(25), "the list is not cut yet")

			p.r = p.reconciler(acting)
			_, err = p.reconcile(ctx, "ssd")
			Expect(err).NotTo(HaveOccurred())
			all := shards(ctx)
			Expect(all).To(HaveLen(25))
			for name, s := range all {
				Expect(s.Status).To(And(HaveField("State", v1alpha1.ShardUnreachable), HaveField("Records", int64(7)),
					HaveField("Volume.UUID", "recorded-of-"+name)))
			}
			Expect(p.get(ctx, "ssd").Status.ShardStatuses).To(HaveLen(20))

			By("deleted, while their pool lists 20 of them: the sets have the UUIDs of their volumes by now")
			_, err = p.reconcile(ctx, "ssd")
			Expect(err).NotTo(HaveOccurred())
			Expect(api.DeleteAllOf(ctx, &v1alpha1.Shard{}, client.InNamespace(p.Namespace))).To(Succeed())
			_, err = p.reconcile(ctx, "ssd")
			Expect(err).NotTo(HaveOccurred())
			all = shards(ctx)
			Expect(all).To(HaveLen(25))
			for name, s := range all {
				Expect(s.Status.Volume.UUID).To(Equal("recorded-of-" + name))
			}
		})

	It("are written on a transition at once, and for numbers at most each 30 s", func(ctx context.Context) {
		now := time.Now()
		var count calls
		p.r = p.reconciler(count.client())
		p.r.Now = func() time.Time { return now }
		records := int64(10)
		for _, name := range []string{"ssd-0", "ssd-1"} {
			p.setReport(name, func(r *recordv1.ShardStatus) {
				r.Groups = []*recordv1.Group{{Group: name, State: recordv1.GroupState_GROUP_STATE_SERVING, Leader: true,
					Records:     records,
					StoredBytes: 100 * records}}
			})
		}
		p.settledPool(ctx, "ssd", 2)
		look := func(after time.Duration) (writes int, seen int64) {
			GinkgoHelper()
			now, count = now.Add(after), calls{}
			_, err := p.reconcile(ctx, "ssd")
			Expect(err).NotTo(HaveOccurred())
			return count.writes, shard(ctx, "ssd-0").Status.Records
		}
		_, _ = look(step.PauseNumbers)
		writes, _ := look(time.Hour)
		Expect(writes).To(BeZero(), "in peace nothing is written")

		records = 20
		writes, seen := look(0)
		Expect([]int64{int64(writes), seen}).To(Equal([]int64{3, 20}),
			"both Shards and the pool, as the last writes are long ago")
		for n := range int64(5) {
			records = 30 + n
			writes, seen = look(5 * time.Second)
			Expect([]int64{int64(writes), seen}).To(Equal([]int64{0, 20}), "%d s after a write", 5*(n+1))
		}
		writes, seen = look(5 * time.Second)
		Expect([]int64{int64(writes), seen}).To(Equal([]int64{3, 34}), "30 s after a write")

		p.setReport("ssd-1", func(r *recordv1.ShardStatus) {
			r.Shard.State, r.Shard.Message = recordv1.ShardState_SHARD_STATE_MEMORY_TOO_SMALL, "it needs more"
		})
		writes, _ = look(time.Second)
		Expect(writes).To(Equal(2), "the Shard that came into another state, and the pool")
		Expect(shard(ctx, "ssd-1").Status.State).To(Equal(v1alpha1.ShardMemoryTooSmall))
	})
})

// forgetVolume removes the UUID of a shard's volume from its StatefulSet and its pod.
func (p *poolPlay) forgetVolume(ctx context.Context, shard string) error {
	set := &appsv1.StatefulSet{}
	if err := api.Get(ctx, types.NamespacedName{Namespace: p.Namespace, Name: shard}, set); err != nil {
		return err
	}
	delete(set.Spec.Template.Annotations, workload.AnnotationVolume)
	if err := api.Update(ctx, set); err != nil {
		return err
	}
	pod := p.pod(ctx, shard)
	delete(pod.Annotations, workload.AnnotationVolume)
	return api.Update(ctx, pod)
}
