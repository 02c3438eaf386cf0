package controllers

import (
	"context"
	"maps"

	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"sheaf.dev/sheaf/api/v1alpha1"
	"sheaf.dev/sheaf/client/recordv1"
	"sheaf.dev/sheaf/internal/kube/workload"
)

func loading(done int64) func(*recordv1.ShardStatus) {
	return func(r *recordv1.ShardStatus) {
		r.Shard.State, r.Shard.Load = recordv1.ShardState_SHARD_STATE_LOADING, &recordv1.Load{BytesTotal: 100,
			BytesDone: done, BytesPerSecond: 10}
	}
}

func holding(groups int) func(*recordv1.ShardStatus) {
	return func(r *recordv1.ShardStatus) { r.Groups = make([]*recordv1.Group, groups) }
}

var _ = Describe("ShardPool", func() {
	var p *poolPlay
	BeforeEach(func(ctx context.Context) { p = newPoolPlay(ctx) })

	It("makes one set per shard and a service, and then writes nothing", both("what is made of a pool is accepted"),
		func(ctx context.Context) {
			p.settledPool(ctx, "ssd", 3)
			p.ready(ctx, "ssd")
			pool := p.get(ctx, "ssd")
			Expect(pool.Status.Shards).To(Equal(int32(3)))
			Expect(pool.Status.Serving).To(Equal(int32(3)))
			Expect(pool.Status.Updated).To(Equal(int32(3)))
			for _, kind := range []string{v1alpha1.ConditionLoaded, v1alpha1.ConditionFileSystemMatches,
				v1alpha1.ConditionMemoryFits, v1alpha1.ConditionVolumesReady,
				v1alpha1.ConditionSpaceAvailable, v1alpha1.ConditionUpdated, v1alpha1.ConditionVolumesGrown} {
				Expect(findCondition(pool, kind).Status).To(Equal(metav1.ConditionTrue), kind)
			}
			service := &corev1.Service{}
			Expect(api.Get(ctx, types.NamespacedName{Namespace: p.Namespace, Name: "ssd"}, service)).To(Succeed())
			Expect(service.Spec.PublishNotReadyAddresses).To(BeTrue())

			// The StatefulSet and the pod now contain the UUID of the volume, and no pod was recreated for this purpose.
			set := &appsv1.StatefulSet{}
			Expect(api.Get(ctx, types.NamespacedName{Namespace: p.Namespace, Name: "ssd-1"}, set)).To(Succeed())
			Expect(set.Spec.Template.Annotations).To(HaveKeyWithValue(workload.AnnotationVolume, "uuid-of-ssd-1"))
			Expect(p.pod(ctx, "ssd-1").Annotations).To(HaveKeyWithValue(workload.AnnotationVolume, "uuid-of-ssd-1"))
			Expect(p.started).To(Equal(map[string]int{"ssd-0": 1, "ssd-1": 1, "ssd-2": 1}))

			before := p.versions(ctx)
			p.r = p.reconciler(acting) // a new operator process
			for range 4 {
				_, err := p.reconcile(ctx, "ssd")
				Expect(err).NotTo(HaveOccurred())
			}
			Expect(p.versions(ctx)).To(Equal(before))
		})

	It("waits for its store", func(ctx context.Context) {
		p.settledPool(ctx, "lost", 1, func(pool *v1alpha1.ShardPool) { pool.Spec.StoreRef.Name = "nobody" })
		p.expect(ctx, "lost", v1alpha1.ConditionReady, metav1.ConditionFalse, "StoreNotFound", "nobody")
		Expect(p.uids(ctx)).To(BeEmpty())
	})

	It("shows progress, and is ready when all is loaded", func(ctx context.Context) {
		p.setReport("ssd-0", loading(20))
		p.settledPool(ctx, "ssd", 1)
		p.expect(ctx, "ssd", v1alpha1.ConditionLoaded, metav1.ConditionFalse, "Loading", "20%")
		p.expect(ctx, "ssd", v1alpha1.ConditionReady, metav1.ConditionFalse, "Loading")
		Expect(p.get(ctx, "ssd").Status.Load).To(Equal("20% 10B/s"))
		p.setReport("ssd-0", nil)
		p.settle(ctx, 0)
		p.ready(ctx, "ssd")
		Expect(p.get(ctx, "ssd").Status.Load).To(BeEmpty())
	})

	It("names both sides in conditions", func(ctx context.Context) {
		p.setReport("ssd-0", func(r *recordv1.ShardStatus) {
			r.Shard.State, r.Shard.Message = recordv1.ShardState_SHARD_STATE_FILE_SYSTEM_MISMATCH, "is ext3, asked for is ext4"
		})
		p.setReport("ssd-1", func(r *recordv1.ShardStatus) {
			r.Shard.State, r.Shard.Message = recordv1.ShardState_SHARD_STATE_MEMORY_TOO_SMALL, "needs 3GiB, has 1GiB"
		})
		p.setReport("ssd-2", func(r *recordv1.ShardStatus) { r.Shard.FreeBytes = 40 << 20 })
		p.settledPool(ctx, "ssd", 3)
		p.expect(ctx, "ssd", v1alpha1.ConditionFileSystemMatches, metav1.ConditionFalse, "FileSystemMismatch", "ssd-0",
			"ext3", "ext4")
		p.expect(ctx, "ssd", v1alpha1.ConditionMemoryFits, metav1.ConditionFalse, "MemoryTooSmall", "ssd-1", "3GiB", "1GiB")
		p.expect(ctx, "ssd", v1alpha1.ConditionSpaceAvailable, metav1.ConditionFalse, "VolumeFull", "ssd-2", "40.0MiB")
		p.expect(ctx, "ssd", v1alpha1.ConditionStalled, metav1.ConditionTrue, "FileSystemMismatch")
	})

	It("leaves no claim of a shard that never had a volume", func(ctx context.Context) {
		p.settledPool(ctx, "ssd", 1)
		p.NoBinding = true
		p.change(ctx, "ssd", func(pool *v1alpha1.ShardPool) { pool.Spec.Shards = new(int32(2)) })
		p.settle(ctx, 0)
		claims := func() (names []string) {
			var list corev1.PersistentVolumeClaimList
			Expect(api.List(ctx, &list, client.InNamespace(p.Namespace))).To(Succeed())
			for _, claim := range list.Items {
				names = append(names, claim.Name)
			}
			return names
		}
		Expect(claims()).To(ConsistOf("data-ssd-0-0", "data-ssd-1-0"))
		p.change(ctx, "ssd", func(pool *v1alpha1.ShardPool) { pool.Spec.Shards = new(int32(1)) })
		p.settle(ctx, 0)
		Expect(claims()).To(ConsistOf("data-ssd-0-0"))
		p.ready(ctx, "ssd")
	})

	It("parks a shard and starts it again on its volume", func(ctx context.Context) {
		p.settledPool(ctx, "ssd", 2)
		p.change(ctx, "ssd", func(pool *v1alpha1.ShardPool) { pool.Spec.Parked = []int32{1} })
		p.settle(ctx, 0)
		Expect(p.pod(ctx, "ssd-1")).To(BeNil())
		Expect(p.state(ctx, "ssd", 1).State).To(Equal(v1alpha1.ShardParked))
		p.ready(ctx, "ssd")
		p.change(ctx, "ssd", func(pool *v1alpha1.ShardPool) { pool.Spec.Parked = nil })
		p.settle(ctx, 0)
		p.ready(ctx, "ssd")
		Expect(p.pod(ctx, "ssd-1").Annotations).To(HaveKeyWithValue(workload.AnnotationVolume, "uuid-of-ssd-1"))
	})

	It("lets a shard start on another volume only when a person gives up the old one", func(ctx context.Context) {
		p.settledPool(ctx, "ssd", 1)
		first := p.uids(ctx)
		p.setReport("ssd-0", func(r *recordv1.ShardStatus) {
			r.Shard.State, r.Shard.Message = recordv1.ShardState_SHARD_STATE_DISK_LOST, "the volume is blank"
			r.Shard.VolumeUuid, r.Shard.StoreUuid = "", ""
		})
		p.settle(ctx, 0)
		p.expect(ctx, "ssd", v1alpha1.ConditionVolumesReady, metav1.ConditionFalse, "DiskLost",
			v1alpha1.AnnotationForgetVolumes+"=uuid-of-ssd-0")
		Expect(p.uids(ctx)).To(Equal(first))
		p.change(ctx, "ssd", func(pool *v1alpha1.ShardPool) {
			pool.Annotations = map[string]string{v1alpha1.AnnotationForgetVolumes: "uuid-of-ssd-0"}
		})
		Expect(p.round(ctx)).To(Succeed())
		Expect(p.round(ctx)).To(Succeed())
		p.setReport("ssd-0", func(r *recordv1.ShardStatus) { r.Shard.VolumeUuid = "uuid-new" })
		p.settle(ctx, 0)
		p.ready(ctx, "ssd")
		Expect(p.uids(ctx)).NotTo(Equal(first))
		Expect(p.started["ssd-0"]).To(Equal(2))
		Expect(p.pod(ctx, "ssd-0").Annotations).To(HaveKeyWithValue(workload.AnnotationVolume, "uuid-new"))
	})

	It("scales up with the lowest numbers, and down to those that hold groups", both("a life of a pool"),
		func(ctx context.Context) {
			p.settledPool(ctx, "ssd", 1)
			p.change(ctx, "ssd", func(pool *v1alpha1.ShardPool) { *pool.Spec.Shards = 3 })
			p.settle(ctx, 0)
			p.setReport("ssd-2", holding(5))
			p.settle(ctx, 0)
			p.change(ctx, "ssd", func(pool *v1alpha1.ShardPool) { *pool.Spec.Shards = 1 })
			p.settle(ctx, 0)
			p.expect(ctx, "ssd", v1alpha1.ConditionReady, metav1.ConditionFalse, "ShardHoldsGroups", "ssd-2", "5 groups")
			Expect(p.uids(ctx)).To(And(HaveLen(2), HaveKey("ssd-0-0"), HaveKey("ssd-2-0")))
			p.setReport("ssd-2", nil)
			p.settle(ctx, 0)
			p.ready(ctx, "ssd")
			Expect(p.uids(ctx)).To(And(HaveLen(1), HaveKey("ssd-0-0")))
			Expect(p.get(ctx, "ssd").Status.Shards).To(Equal(int32(1)))
			claim := &corev1.PersistentVolumeClaim{}
			Expect(api.Get(ctx, types.NamespacedName{Namespace: p.Namespace, Name: "data-ssd-2-0"}, claim)).
				To(Succeed(), "claims stay")

			p.change(ctx, "ssd", func(pool *v1alpha1.ShardPool) { *pool.Spec.Shards = 2 })
			p.settle(ctx, 0)
			p.change(ctx, "ssd", func(pool *v1alpha1.ShardPool) { *pool.Spec.Shards, pool.Spec.Remove = 1, []int32{0} })
			p.settle(ctx, 0)
			Expect(p.uids(ctx)).To(And(HaveLen(1), HaveKey("ssd-1-0")))
		})

	It("does not remove a shard that got a group since", func(ctx context.Context) {
		p.settledPool(ctx, "ssd", 2)
		p.setReport("ssd-1", holding(1))
		p.change(ctx, "ssd", func(pool *v1alpha1.ShardPool) { *pool.Spec.Shards = 1 })
		p.settle(ctx, 0)
		Expect(p.uids(ctx)).To(HaveKey("ssd-1-0"))
		p.expect(ctx, "ssd", v1alpha1.ConditionReady, metav1.ConditionFalse, "ShardHoldsGroups", "ssd-1")
	})

	It("does not take over a set of somebody else", func(ctx context.Context) {
		p.settledPool(ctx, "ssd", 1)
		set := &appsv1.StatefulSet{}
		Expect(api.Get(ctx, types.NamespacedName{Namespace: p.Namespace, Name: "ssd-0"}, set)).To(Succeed())
		set.OwnerReferences[0].UID = "somebody"
		Expect(api.Update(ctx, set)).To(Succeed())
		p.settle(ctx, 0)
		p.expect(ctx, "ssd", v1alpha1.ConditionReady, metav1.ConditionFalse, "NameTaken", "ssd-0")
	})

	It("does not take over a service of somebody else", func(ctx context.Context) {
		service := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "ssd", Namespace: p.Namespace}}
		service.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(p.store,
			v1alpha1.GroupVersion.WithKind("RecordStore"))}
		service.Spec.Ports = []corev1.ServicePort{{Port: 1}}
		Expect(api.Create(ctx, service)).To(Succeed())
		p.settledPool(ctx, "ssd", 1)
		p.expect(ctx, "ssd", v1alpha1.ConditionStalled, metav1.ConditionTrue, "NameTaken", "Service ssd")
	})

	It("asks the placement before a shard goes for good", func(ctx context.Context) {
		register := &fakeRegister{needs: map[string]bool{"ssd-1": true}}
		p.r.Register = register
		p.settledPool(ctx, "ssd", 2)
		p.change(ctx, "ssd", func(pool *v1alpha1.ShardPool) { *pool.Spec.Shards = 1 })
		p.settle(ctx, 0)
		p.expect(ctx, "ssd", v1alpha1.ConditionReady, metav1.ConditionFalse, "Draining", "ssd-1", "1 is left")
		p.expect(ctx, "ssd", v1alpha1.ConditionReconciling, metav1.ConditionTrue, "Draining")
		Expect(p.uids(ctx)).To(HaveKey("ssd-1-0"))
		Expect(register.emptied).To(ContainElement("ssd-1"))
		register.needs = nil
		p.settle(ctx, 0)
		p.ready(ctx, "ssd")
		Expect(p.uids(ctx)).NotTo(HaveKey("ssd-1-0"))

		By("and before a pool does")
		register.needs = map[string]bool{"ssd-0": true}
		Expect(api.Delete(ctx, p.get(ctx, "ssd"))).To(Succeed())
		p.settle(ctx, 0)
		p.expect(ctx, "ssd", v1alpha1.ConditionReady, metav1.ConditionFalse, "Draining", "ssd-0", "1 is left",
			v1alpha1.AnnotationDeleteWithGroups)
	})

	Describe("volumes", func() {
		It("grow in a class that allows it, around their pods", both("sets are created again around their pods"),
			func(ctx context.Context) {
				p.settledPool(ctx, "ssd", 2)
				uids := p.uids(ctx)
				p.change(ctx, "ssd", func(pool *v1alpha1.ShardPool) { pool.Spec.Storage.Size = resource.MustParse("2Gi") })
				p.settle(ctx, 0)
				p.ready(ctx, "ssd")
				Expect(p.uids(ctx)).To(Equal(uids))
				for _, shard := range []string{"ssd-0", "ssd-1"} {
					set, claim := &appsv1.StatefulSet{}, &corev1.PersistentVolumeClaim{}
					Expect(api.Get(ctx, types.NamespacedName{Namespace: p.Namespace, Name: shard}, set)).To(Succeed())
					Expect(api.Get(ctx, types.NamespacedName{Namespace: p.Namespace, Name: workload.ShardClaim(shard)}, claim)).
						To(Succeed())
					size, request := claimSize(set), claim.Spec.Resources.Requests[corev1.ResourceStorage]
					Expect(size.String()).To(Equal("2Gi"))
					Expect(request.String()).To(Equal("2Gi"))
					Expect(metav1.IsControlledBy(p.pod(ctx, shard), set)).To(BeTrue(), "the new set has taken the pod")
				}
			})

		// takenBack sets the size in the spec back to the old one, and checks that everything recovers without further
		// action.
		takenBack := func(ctx context.Context) {
			GinkgoHelper()
			p.change(ctx, "ssd", func(pool *v1alpha1.ShardPool) { pool.Spec.Storage.Size = resource.MustParse("1Gi") })
			p.settle(ctx, 0)
			p.expect(ctx, "ssd", v1alpha1.ConditionVolumesGrown, metav1.ConditionTrue, "Grown")
			p.expect(ctx, "ssd", v1alpha1.ConditionReady, metav1.ConditionTrue, "Ready")
			Expect(p.started).To(Equal(map[string]int{"ssd-0": 1}))
			pool := p.get(ctx, "ssd")
			pool.Spec.Storage.Size = resource.MustParse("100Mi")
			Expect(apierrors.IsInvalid(api.Update(ctx, pool))).To(BeTrue(), "what has grown cannot be lowered")
		}

		It("say why they do not grow", needs("CEL"), func(ctx context.Context) {
			p.settledPool(ctx, "ssd", 1, func(pool *v1alpha1.ShardPool) { pool.Spec.Storage.StorageClassName = classFixed })
			p.change(ctx, "ssd", func(pool *v1alpha1.ShardPool) { pool.Spec.Storage.Size = resource.MustParse("2Gi") })
			p.settle(ctx, 0)
			p.expect(ctx, "ssd", v1alpha1.ConditionVolumesGrown, metav1.ConditionFalse, "ResizeInfeasible", "1Gi", "2Gi",
				classFixed, "set spec.storage.size back")
			p.expect(ctx, "ssd", v1alpha1.ConditionStalled, metav1.ConditionTrue, "ResizeInfeasible")
			Expect(p.started).To(Equal(map[string]int{"ssd-0": 1}))
			takenBack(ctx)
		})

		It("say when the storage cannot do it", needs("CEL"), func(ctx context.Context) {
			p.settledPool(ctx, "ssd", 1)
			p.NoResize = true
			p.change(ctx, "ssd", func(pool *v1alpha1.ShardPool) { pool.Spec.Storage.Size = resource.MustParse("2Gi") })
			p.settle(ctx, 0)
			p.expect(ctx, "ssd", v1alpha1.ConditionVolumesGrown, metav1.ConditionFalse, "Resizing", "1Gi", "2Gi")
			claim := &corev1.PersistentVolumeClaim{}
			Expect(api.Get(ctx, types.NamespacedName{Namespace: p.Namespace, Name: "data-ssd-0-0"}, claim)).To(Succeed())
			claim.Status.AllocatedResourceStatuses = map[corev1.ResourceName]corev1.ClaimResourceStatus{
				corev1.ResourceStorage: corev1.PersistentVolumeClaimControllerResizeInfeasible}
			Expect(api.Status().Update(ctx, claim)).To(Succeed())
			p.settle(ctx, 0)
			p.expect(ctx, "ssd", v1alpha1.ConditionVolumesGrown, metav1.ConditionFalse, "ResizeInfeasible", "data-ssd-0-0",
				"set spec.storage.size back")
			takenBack(ctx)
		})

		It("that were never bound are asked for anew", func(ctx context.Context) {
			p.NoBinding, p.NoKubelet = true, true
			p.settledPool(ctx, "ssd", 1)
			p.change(ctx, "ssd", func(pool *v1alpha1.ShardPool) { pool.Spec.Storage.Size = resource.MustParse("2Gi") })
			p.settle(ctx, 0)
			claim := &corev1.PersistentVolumeClaim{}
			err := api.Get(ctx, types.NamespacedName{Namespace: p.Namespace, Name: "data-ssd-0-0"}, claim)
			Expect(apierrors.IsNotFound(err)).To(BeTrue(), "the set makes it again, with the new size")
		})
	})

	It("is refused before anything is formatted where its class makes another file system", func(ctx context.Context) {
		class := &storagev1.StorageClass{
			ObjectMeta: metav1.ObjectMeta{Name: "xfs-" + p.Namespace}, Provisioner: "example.org/csi",
			Parameters: map[string]string{"csi.storage.k8s.io/fstype": "xfs"},
		}
		Expect(api.Create(ctx, class)).To(Succeed())
		DeferCleanup(func(ctx context.Context) { Expect(api.Delete(ctx, class)).To(Succeed()) })
		of := func(kind v1alpha1.FileSystemType) func(*v1alpha1.ShardPool) {
			return func(pool *v1alpha1.ShardPool) {
				pool.Spec.Storage.StorageClassName, pool.Spec.FileSystem = class.Name, &v1alpha1.FileSystem{Type: kind}
			}
		}
		p.pool(ctx, "ext4", 1, of(v1alpha1.Ext4))
		p.settledPool(ctx, "xfs", 1, of(v1alpha1.XFS))
		p.ready(ctx, "xfs")
		p.expect(ctx, "ext4", v1alpha1.ConditionStalled, metav1.ConditionTrue, "FileSystemMismatch", "fileSystem.type: xfs",
			class.Name)
		p.expect(ctx, "ext4", v1alpha1.ConditionFileSystemMatches, metav1.ConditionFalse, "FileSystemMismatch",
			"are made as xfs")
		var claims corev1.PersistentVolumeClaimList
		Expect(api.List(ctx, &claims, client.InNamespace(p.Namespace))).To(Succeed())
		Expect(claims.Items).To(HaveLen(1))
		Expect(p.pod(ctx, "ext4-0")).To(BeNil())
	})

	Describe("deletion", func() {
		finish := func(ctx context.Context) {
			GinkgoHelper()
			for range 4 {
				Expect(p.round(ctx)).To(Succeed())
			}
			err := api.Get(ctx, types.NamespacedName{Namespace: p.Namespace, Name: "ssd"}, &v1alpha1.ShardPool{})
			Expect(apierrors.IsNotFound(err)).To(BeTrue(), "the pool is still there: %v", p.words(ctx))
		}
		claims := func(ctx context.Context) int {
			var list corev1.PersistentVolumeClaimList
			Expect(api.List(ctx, &list, client.InNamespace(p.Namespace))).To(Succeed())
			return len(list.Items)
		}
		remove := func(ctx context.Context, o client.Object) { Expect(api.Delete(ctx, o)).To(Succeed()) }

		It("is refused while the store lives and needs its groups", both("what a finalizer keeps"),
			func(ctx context.Context) {
				p.setReport("ssd-0", holding(3))
				p.settledPool(ctx, "ssd", 1)
				remove(ctx, p.get(ctx, "ssd"))
				p.settle(ctx, 0)
				p.expect(ctx, "ssd", v1alpha1.ConditionStalled, metav1.ConditionTrue, "PoolHoldsGroups", "3 of its groups",
					v1alpha1.AnnotationDeleteWithGroups)
				Expect(p.uids(ctx)).To(HaveKey("ssd-0-0"))
				By("deleting the store too")
				remove(ctx, p.store)
				finish(ctx)
				Expect(claims(ctx)).To(Equal(1), "the claims stay")
			})

		It("is forced by an annotation", func(ctx context.Context) {
			p.setReport("ssd-0", holding(3))
			p.settledPool(ctx, "ssd", 1)
			p.change(ctx, "ssd", func(pool *v1alpha1.ShardPool) {
				pool.Annotations = map[string]string{v1alpha1.AnnotationDeleteWithGroups: "true"}
			})
			remove(ctx, p.get(ctx, "ssd"))
			finish(ctx)
		})

		It("of an empty pool needs nothing", func(ctx context.Context) {
			p.settledPool(ctx, "ssd", 1)
			remove(ctx, p.get(ctx, "ssd"))
			finish(ctx)
			Expect(claims(ctx)).To(Equal(1))
		})

		It("deletes claims without a volume, whatever the store says", func(ctx context.Context) {
			p.settledPool(ctx, "ssd", 1)
			p.NoBinding = true
			p.change(ctx, "ssd", func(pool *v1alpha1.ShardPool) { *pool.Spec.Shards = 3 })
			for range 4 {
				Expect(p.round(ctx)).To(Succeed())
			}
			Expect(claims(ctx)).To(Equal(3))
			remove(ctx, p.get(ctx, "ssd"))
			finish(ctx)
			p.step(ctx)
			var left corev1.PersistentVolumeClaimList
			Expect(api.List(ctx, &left, client.InNamespace(p.Namespace))).To(Succeed())
			Expect(left.Items).To(HaveLen(1), "the one with data stays")
			Expect(left.Items[0].Name).To(Equal("data-ssd-0-0"))
		})

		It("deletes claims where the store says so, even when the store is gone first", both("rights on claims"),
			func(ctx context.Context) {
				p.changeStore(ctx, func(store *v1alpha1.RecordStore) { store.Spec.DeletionPolicy = v1alpha1.DeletionDelete })
				p.setReport("ssd-0", holding(3))
				p.settledPool(ctx, "ssd", 2)
				remove(ctx, p.store)
				remove(ctx, p.get(ctx, "ssd"))
				finish(ctx)
				p.step(ctx)
				Expect(claims(ctx)).To(BeZero())
				Expect(p.uids(ctx)).To(BeEmpty())
			})

		It("of the namespace waits for nothing", needs("namespaces that end"), func(ctx context.Context) {
			p.setReport("ssd-0", holding(3))
			p.settledPool(ctx, "ssd", 1)
			remove(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: p.Namespace}})
			before := maps.Clone(p.uids(ctx))
			_, err := p.reconcile(ctx, "ssd") // the namespace still exists, but no object can be created in it
			Expect(err).NotTo(HaveOccurred())
			Expect(p.uids(ctx)).To(Equal(before))
			remove(ctx, p.get(ctx, "ssd"))
			finish(ctx)
		})
	})
})

func findCondition(pool *v1alpha1.ShardPool, kind string) metav1.Condition {
	for _, c := range pool.Status.Conditions {
		if c.Type == kind {
			return c
		}
	}
	return metav1.Condition{}
}
