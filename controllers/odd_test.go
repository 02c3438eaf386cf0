package controllers

import (
	"context"
	"math"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sheaf.dev/sheaf/api/v1alpha1"
)

// If somebody else creates an object with unusable content in the namespace, no reconcile panics and no store is
// delayed.
var _ = Describe("An odd object", func() {
	DescribeTable("of somebody else leaves the store as it is", func(ctx context.Context, prepare func(*storePlay)) {
		p := newStorePlay(ctx)
		prepare(p)
		p.running(ctx, 2)
		pool := p.getPool(ctx)
		Expect(pool.Status.ShardStatuses).To(HaveLen(2))
	},
		Entry("a Shard of no pool, with figures that cannot be", func(p *storePlay) {
			shard := &v1alpha1.Shard{ObjectMeta: metav1.ObjectMeta{Name: "ssd-100000", Namespace: p.Namespace,
				Labels: map[string]string{v1alpha1.LabelStore: "quotes", v1alpha1.LabelPool: "ssd"}},
				Spec: v1alpha1.ShardSpec{Pool: "ssd", Number: 100000}}
			Expect(api.Create(context.Background(), shard)).To(Succeed())
			shard.Status = v1alpha1.ShardStatus{Name: "?", Number: -1, State: "Odd", Groups: -1, Records: -1,
				Volume: &v1alpha1.VolumeStatus{CapacityBytes: -1, FreeBytes: -1}}
			Expect(api.Status().Update(context.Background(), shard)).To(Succeed())
		}),
		Entry("pods and claims with labels of the store that name no number", func(p *storePlay) {
			labels := map[string]string{v1alpha1.LabelStore: "quotes", v1alpha1.LabelPool: "ssd",
				v1alpha1.LabelShard: "9999999999999999999", v1alpha1.LabelComponent: "shard"}
			pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "stranger", Namespace: p.Namespace, Labels: labels},
				Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "c"}}}}
			claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: "data-ssd-x-0",
				Namespace: p.Namespace, Labels: labels}}
			claim.Spec.StorageClassName = new(classGrows)
			claim.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}
			claim.Spec.Resources.Requests = corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1")}
			Expect(api.Create(context.Background(), pod)).To(Succeed())
			Expect(api.Create(context.Background(), claim)).To(Succeed())
		}),
	)

	DescribeTable("of a pool with a number of shards that no pool may have changes nothing, and says so",
		func(ctx context.Context, shards int32) {
			p := newStorePlay(ctx)
			p.running(ctx, 2)
			pool := p.getPool(ctx)
			pool.Spec.Shards = &shards
			Expect(api.Update(ctx, pool)).To(Succeed())
			p.settle(ctx)
			pool = p.getPool(ctx)
			Expect(pool.Status.ShardStatuses).To(HaveLen(2))
			stalled := meta.FindStatusCondition(pool.Status.Conditions, v1alpha1.ConditionStalled)
			Expect(stalled).NotTo(BeNil())
			Expect(stalled.Reason).To(Equal("ShardsInvalid"))
			Expect(stalled.Message).To(ContainSubstring("spec.shards"))
			Expect(p.get(ctx).Status.Shards.Total).To(BeEquivalentTo(2))
		},
		Entry("a negative one", int32(-5)),
		Entry("one beyond every limit", int32(math.MaxInt32)),
	)

	DescribeTable("of a store with a number of members that no etcd may have makes nothing, and says so",
		func(ctx context.Context, members int32) {
			p := newStorePlay(ctx)
			p.create(ctx, func(s *v1alpha1.RecordStore) { s.Spec.Etcd.Managed.Members = members })
			for range 3 {
				_, err := p.reconcile(ctx)
				Expect(err).NotTo(HaveOccurred())
			}
			stalled := meta.FindStatusCondition(p.get(ctx).Status.Conditions, v1alpha1.ConditionStalled)
			Expect(stalled).NotTo(BeNil())
			Expect(stalled.Reason).To(Equal("EtcdMembersInvalid"))
			Expect(stalled.Message).To(ContainSubstring("spec.etcd.managed.members"))
		},
		Entry("a negative one", int32(-1)),
		Entry("one beyond every limit", int32(math.MaxInt32)),
	)
})
