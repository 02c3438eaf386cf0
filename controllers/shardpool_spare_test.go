package controllers

import (
	"context"
	"slices"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sheaf.dev/sheaf/api/v1alpha1"
	"sheaf.dev/sheaf/client/recordv1"
)

var _ = Describe("Restarts of a store with several copies", func() {
	var p *storePlay
	BeforeEach(func(ctx context.Context) {
		p = newStorePlay(ctx)
		p.running(ctx, 3, threeCopies)
	})
	images := func(ctx context.Context) (images []string) {
		for _, shard := range p.runningShards(ctx) {
			images = append(images, p.pod(ctx, shard).Spec.Containers[0].Image)
		}
		slices.Sort(images)
		return images
	}

	It("wait until each group has a majority that is up to date without the shard", func(ctx context.Context) {
		p.reported = func(shard string, r *recordv1.ShardStatus) {
			for n := range r.Groups {
				r.Groups[n].AppliedIndex = 5000
				if shard == "ssd-2" && p.started[shard] > 0 {
					r.Groups[n].AppliedIndex = 1 // after its restart, the copy still has to catch up
				}
			}
		}
		p.change(ctx, func(s *v1alpha1.RecordStore) { s.Spec.Image = "sheaf:2" })
		p.settle(ctx)
		Expect(images(ctx)).To(Equal([]string{"sheaf:1", "sheaf:1", "sheaf:1"}))
		p.expectPool(ctx, "ssd", v1alpha1.ConditionUpdated, metav1.ConditionFalse, "UpdateHeldUp", "is not restarted",
			"up to date")
		p.reported = nil
		p.settle(ctx)
		p.ready(ctx)
		Expect(images(ctx)).To(Equal([]string{"sheaf:2", "sheaf:2", "sheaf:2"}))
	})

	It("wait while a shard is parked", func(ctx context.Context) {
		p.changePool(ctx, func(s *v1alpha1.ShardPoolSpec) { s.Parked = []int32{1} })
		p.settle(ctx)
		Expect(p.etcd.Leave(ctx, p.Namespace, "quotes", "ssd-1")).To(Succeed())
		p.change(ctx, func(s *v1alpha1.RecordStore) { s.Spec.Image = "sheaf:2" })
		p.settle(ctx)
		Expect(images(ctx)).To(Equal([]string{"sheaf:1", "sheaf:1"}))
		p.expectPool(ctx, "ssd", v1alpha1.ConditionUpdated, metav1.ConditionFalse, "UpdateHeldUp", "no majority")
		p.changePool(ctx, func(s *v1alpha1.ShardPoolSpec) { s.Parked = nil })
		p.settle(ctx)
		p.ready(ctx)
		Expect(images(ctx)).To(Equal([]string{"sheaf:2", "sheaf:2", "sheaf:2"}))
	})
})

var _ = Describe("A disk that is lost", func() {
	var p *storePlay
	// blank makes a shard report that its volume is blank. The operator then restarts the shard and lets it accept any
	// volume. After this restart, the shard reports a new volume.
	blank := func(shard string) {
		p.reported = func(name string, r *recordv1.ShardStatus) {
			if name == shard && p.started[shard] < 2 {
				r.Groups = nil
				r.Shard = &recordv1.Shard{Name: r.Shard.Name, Version: r.Shard.Version,
					State: recordv1.ShardState_SHARD_STATE_DISK_LOST, Message: "the volume is blank"}
			}
			if name == shard && p.started[shard] >= 2 {
				r.Shard.VolumeUuid = "another"
			}
		}
	}
	start := func(ctx context.Context, copies int32) string {
		p = newStorePlay(ctx)
		p.create(ctx, func(s *v1alpha1.RecordStore) { s.Spec.Replication.Copies = copies })
		p.pool(ctx, 3)
		p.settle(ctx)
		p.ready(ctx)
		return p.getPool(ctx).Status.ShardStatuses[1].Volume.UUID
	}

	It("is replaced where every group has a majority elsewhere", func(ctx context.Context) {
		was := start(ctx, 3)
		blank("ssd-1")
		p.settle(ctx)
		Expect(p.getPool(ctx).Annotations[v1alpha1.AnnotationForgetVolumes]).To(Equal(was))
		Expect(p.started["ssd-1"]).To(Equal(2))
		p.ready(ctx)
		Expect(p.getPool(ctx).Status.ShardStatuses[1].Volume.UUID).To(Equal("another"))
	})

	It("is not where it had the only copy, nor where another majority is not there", func(ctx context.Context) {
		start(ctx, 1)
		blank("ssd-1")
		p.settle(ctx)
		Expect(p.getPool(ctx).Annotations).NotTo(HaveKey(v1alpha1.AnnotationForgetVolumes))
		p.expectPool(ctx, "ssd", v1alpha1.ConditionStalled, metav1.ConditionTrue, "DiskLost", "ssd-1")

		start(ctx, 3)
		p.NoSets = true
		Expect(api.Delete(ctx, p.pod(ctx, "ssd-0"))).To(Succeed())
		Expect(p.etcd.Leave(ctx, p.Namespace, "quotes", "ssd-0")).To(Succeed())
		blank("ssd-1")
		p.settle(ctx)
		Expect(p.getPool(ctx).Annotations).NotTo(HaveKey(v1alpha1.AnnotationForgetVolumes))
		p.expectPool(ctx, "ssd", v1alpha1.ConditionStalled, metav1.ConditionTrue, "DiskLost",
			"8 groups have too few other copies", "groups 0, 1", "blank")
	})
})
