package controllers

import (
	"context"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"sheaf.dev/sheaf/api/v1alpha1"
	"sheaf.dev/sheaf/client/recordv1"
	"sheaf.dev/sheaf/internal/test/fleettest"
)

var _ = Describe("A ShardPool and a Job that measures its class", func() {
	var p *poolPlay
	BeforeEach(func(ctx context.Context) { p = newPoolPlay(ctx) })

	// run creates what a finished measuring Job leaves behind: a claim, and a pod with a termination message.
	run := func(ctx context.Context, name, class, message string, ended time.Time) {
		claim := fleettest.BenchClaim(name, class)
		claim.Namespace, claim.Spec.VolumeName = p.Namespace, ""
		Expect(api.Create(ctx, &claim)).To(Succeed())
		pod := fleettest.BenchPod(name, name, message, ended)
		status := pod.Status
		pod.Namespace, pod.Spec.RestartPolicy = p.Namespace, corev1.RestartPolicyNever
		Expect(api.Create(ctx, &pod)).To(Succeed())
		pod.Status = status
		Expect(api.Status().Update(ctx, &pod)).To(Succeed())
	}

	It("shows the rate and what loads reach of it, and keeps it when the Job is gone", func(ctx context.Context) {
		ended := time.Now().Truncate(time.Second)
		p.setReport("ssd-0", func(r *recordv1.ShardStatus) {
			r.Shard.State, r.Shard.Load = recordv1.ShardState_SHARD_STATE_LOADING, &recordv1.Load{BytesTotal: 4 << 30,
				BytesDone:      1 << 30,
				BytesPerSecond: 1 << 30, EtaSeconds: 3}
		})
		p.settledPool(ctx, "ssd", 2)
		Expect(p.get(ctx, "ssd").Status.Device).To(BeNil())
		Expect(p.get(ctx, "ssd").Status.Load).To(Equal("25% 1.0GiB/s ETA 3s"))

		run(ctx, "bench-of-another", classFixed, fleettest.RateMessage(1<<30), ended)
		run(ctx, "bench-broken", classGrows, "Killed", ended)
		p.settle(ctx, 0)
		Expect(p.get(ctx, "ssd").Status.Device).To(BeNil())

		run(ctx, "bench", classGrows, fleettest.RateMessage(2<<30), ended)
		// A new operator writes the progress immediately, because it does not know of the last write.
		p.r = p.reconciler(acting)
		p.settle(ctx, 0)
		pool := p.get(ctx, "ssd")
		Expect(pool.Status.Device).NotTo(BeNil())
		Expect(pool.Status.Device.ReadBytesPerSecond).To(Equal(int64(2 << 30)))
		Expect(pool.Status.Device).To(And(HaveField("FileSystem", "xfs"), HaveField("Pod", "bench"),
			HaveField("PersistentVolume", p.Namespace+"-bench")))
		Expect(pool.Status.Device.MeasuredAt.Time).To(BeTemporally("==", ended))
		Expect(p.state(ctx, "ssd", 0)).To(And(HaveField("LoadDevicePercent", int32(50)),
			HaveField("LoadBytesPerSecond", int64(1<<30)),
			HaveField("Load", "25% 1.0GiB/s (50% of the device) ETA 3s")))
		Expect(pool.Status.Load).To(Equal("25% 1.0GiB/s (50% of the device) ETA 3s"))

		labels := client.MatchingLabels{v1alpha1.LabelComponent: v1alpha1.ComponentBench}
		By("the Job and its claim being deleted, and another operator")
		Expect(api.DeleteAllOf(ctx, &corev1.Pod{}, client.InNamespace(p.Namespace), labels)).To(Succeed())
		Expect(api.DeleteAllOf(ctx, &corev1.PersistentVolumeClaim{}, client.InNamespace(p.Namespace), labels)).To(Succeed())
		p.r = p.reconciler(acting)
		p.settle(ctx, 0)
		Expect(p.get(ctx, "ssd").Status.Device).To(Equal(pool.Status.Device))
		before := p.versions(ctx)
		_, err := p.reconcile(ctx, "ssd")
		Expect(err).NotTo(HaveOccurred())
		Expect(p.versions(ctx)).To(Equal(before))
	})
})
