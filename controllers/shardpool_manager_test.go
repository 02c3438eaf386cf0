package controllers

import (
	"context"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"

	"sheaf.dev/sheaf/api/v1alpha1"
)

// In these specs, the controller runs as it does in the operator: it reads from a cache, and watched objects trigger
// its reconciles.
var _ = Describe("ShardPools under a manager", needs("managers reach it by its address"), func() {
	var p *poolPlay
	BeforeEach(func(ctx context.Context) {
		p = newPoolPlay(ctx)
		manage(p.Namespace, false, func(mgr ctrl.Manager) {
			r := p.reconciler(mgr.GetClient())
			r.Live, r.Recorder = mgr.GetAPIReader(), mgr.GetEventRecorder("sheaf-operator")
			Expect(r.SetupWithManager(mgr)).To(Succeed())
		})
	})
	// until advances the simulated cluster step by step, and stops once a condition is met.
	until := func(ctx context.Context, holds func() bool) {
		GinkgoHelper()
		Eventually(func() bool {
			p.step(ctx)
			return holds()
		}).WithTimeout(3*time.Minute).Should(BeTrue(), "%v", p.words(ctx))
	}
	state := func(ctx context.Context, want v1alpha1.ShardState) func() bool {
		return func() bool {
			for _, s := range p.get(ctx, "ssd").Status.ShardStatuses {
				return s.State == want
			}
			return false
		}
	}

	It("come up, and follow nodes, events and images", func(ctx context.Context) {
		p.NoKubelet = true
		p.pool(ctx, "ssd", 1)
		until(ctx, state(ctx, v1alpha1.ShardPending))
		By("a pod that the scheduler cannot place")
		until(ctx, func() bool { return p.pod(ctx, "ssd-0") != nil })
		pod := p.pod(ctx, "ssd-0")
		pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse,
			Reason: "Unschedulable", Message: "0/1 nodes are available: 1 Insufficient memory."}}
		Expect(api.Status().Update(ctx, pod)).To(Succeed())
		until(ctx, state(ctx, v1alpha1.ShardUnschedulable))

		By("a disk with something on it")
		binding := &corev1.Binding{ObjectMeta: pod.ObjectMeta, Target: corev1.ObjectReference{Kind: "Node", Name: p.Node}}
		Expect(api.SubResource("binding").Create(ctx, pod, binding)).To(Succeed())
		event := &corev1.Event{
			ObjectMeta:     metav1.ObjectMeta{Namespace: p.Namespace, Name: "mount"},
			InvolvedObject: corev1.ObjectReference{Kind: "Pod", Namespace: p.Namespace, Name: pod.Name, UID: pod.UID},
			Type:           corev1.EventTypeWarning, Reason: "FailedMount", LastTimestamp: metav1.Now(),
			Message: `failed to mount the volume as "xfs", it already contains unknown data, probably partitions`,
		}
		Expect(api.Create(ctx, event)).To(Succeed())
		until(ctx, state(ctx, v1alpha1.ShardFormatBlocked))
		p.expect(ctx, "ssd", v1alpha1.ConditionVolumesReady, metav1.ConditionFalse, "FormatBlocked", "ssd-0", "xfs", "wipefs")

		By("which is wiped")
		p.NoKubelet = false
		until(ctx, state(ctx, v1alpha1.ShardServing))

		By("a node that goes, and comes back")
		p.nodeReady(ctx, p.Node, corev1.ConditionUnknown)
		until(ctx, state(ctx, v1alpha1.ShardNodeDown))
		p.nodeReady(ctx, p.Node, corev1.ConditionTrue)
		until(ctx, state(ctx, v1alpha1.ShardServing))

		By("another image")
		p.changeStore(ctx, func(store *v1alpha1.RecordStore) { store.Spec.Image = "sheaf:2" })
		until(ctx, func() bool {
			pod := p.pod(ctx, "ssd-0")
			return pod != nil && pod.Spec.Containers[0].Image == "sheaf:2" &&
				findCondition(p.get(ctx, "ssd"), v1alpha1.ConditionReady).Status == metav1.ConditionTrue
		})
		Expect(p.started["ssd-0"]).To(Equal(2))

		By("a node that is deleted")
		Expect(api.Delete(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: p.Node}})).To(Succeed())
		until(ctx, state(ctx, v1alpha1.ShardNodeLost))

		By("deleting the pool")
		Expect(api.Delete(ctx, p.get(ctx, "ssd"))).To(Succeed())
		Eventually(func() bool {
			return apierrors.IsNotFound(api.Get(ctx, types.NamespacedName{Namespace: p.Namespace, Name: "ssd"},
				&v1alpha1.ShardPool{}))
		}).Should(BeTrue())
	})
})
