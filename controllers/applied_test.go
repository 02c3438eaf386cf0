package controllers

import (
	"context"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"sheaf.dev/sheaf/controllers/step"
)

var _ = Describe("What was found to be as wanted", func() {
	It("is not compared again, until it or what is wanted changes", func(ctx context.Context) {
		service := func(port int32) *corev1.Service {
			return &corev1.Service{
				ObjectMeta: metav1.ObjectMeta{Name: "settled", Namespace: "default"},
				Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Name: "grpc", Port: port,
					TargetPort: intstr.FromInt32(port), Protocol: corev1.ProtocolTCP}}},
			}
		}
		DeferCleanup(func(ctx context.Context) { _ = api.Delete(ctx, service(7600)) })
		apply := func(port int32) bool {
			changed, err := step.Apply(ctx, acting, nil, service(port))
			Expect(err).NotTo(HaveOccurred())
			return changed
		}
		live := func() *corev1.Service {
			s := &corev1.Service{}
			Expect(api.Get(ctx, client.ObjectKeyFromObject(service(0)), s)).To(Succeed())
			return s
		}
		Expect(apply(7600)).To(BeTrue())
		Expect(apply(7600)).To(BeFalse())

		edited := live()
		edited.Spec.Ports[0].Port = 9999
		Expect(api.Update(ctx, edited, person)).To(Succeed())
		Expect(apply(7600)).To(BeTrue())
		Expect(live().Spec.Ports[0].Port).To(BeEquivalentTo(7600))

		Expect(apply(7600)).To(BeFalse())
		Expect(apply(7601)).To(BeTrue(), "another is wanted, of an object that was as wanted")
		Expect(live().Spec.Ports[0].Port).To(BeEquivalentTo(7601))
	})
})
