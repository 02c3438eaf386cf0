package controllers

import (
	"context"
	"slices"

	. "github.com/onsi/gomega"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"sheaf.dev/sheaf/api/v1alpha1"
)

// The tests of internal/kube/workload check what the policies allow. These specs check that the policies are created,
// restored and deleted.
var _ = Describe("NetworkPolicies of a store", func() {
	var p *storePlay
	names := func(ctx context.Context) (names []string) {
		var list networkingv1.NetworkPolicyList
		Expect(api.List(ctx, &list, client.InNamespace(p.Namespace))).To(Succeed())
		for _, policy := range list.Items {
			names = append(names, policy.Name)
		}
		slices.Sort(names)
		return names
	}
	BeforeEach(func(ctx context.Context) {
		p = newStorePlay(ctx)
		p.running(ctx, 1)
	})

	It("are made, healed, and taken away when the spec says so", both("rights on policies"), func(ctx context.Context) {
		Expect(p.get(ctx).Spec.NetworkPolicy).To(Equal(v1alpha1.NetworkPolicy{Mode: v1alpha1.NetworkPolicyManaged,
			DirectClients: v1alpha1.DirectClientsAny}))
		Expect(names(ctx)).To(Equal([]string{"quotes-etcd"}))
		p.change(ctx, func(s *v1alpha1.RecordStore) { s.Spec.NetworkPolicy.DirectClients = v1alpha1.DirectClientsLabelled })
		p.settle(ctx)
		Expect(names(ctx)).To(Equal([]string{"quotes-etcd", "quotes-shards"}))

		By("one that somebody has opened")
		policy := &networkingv1.NetworkPolicy{}
		Expect(api.Get(ctx, client.ObjectKey{Namespace: p.Namespace, Name: "quotes-etcd"}, policy)).To(Succeed())
		want := policy.Spec.DeepCopy()
		policy.Spec.Ingress = []networkingv1.NetworkPolicyIngressRule{{}}
		Expect(api.Update(ctx, policy)).To(Succeed())
		p.settle(ctx)
		Expect(api.Get(ctx, client.ObjectKeyFromObject(policy), policy)).To(Succeed())
		Expect(policy.Spec).To(Equal(*want))

		By("any client again")
		p.change(ctx, func(s *v1alpha1.RecordStore) { s.Spec.NetworkPolicy.DirectClients = v1alpha1.DirectClientsAny })
		p.settle(ctx)
		Expect(names(ctx)).To(Equal([]string{"quotes-etcd"}))

		By("off: but not what somebody else has made under that name")
		p.change(ctx, func(s *v1alpha1.RecordStore) { s.Spec.NetworkPolicy.Mode = v1alpha1.NetworkPolicyNone })
		Expect(api.Create(ctx, &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: p.Namespace,
			Name: "quotes-shards"}})).To(Succeed())
		p.settle(ctx)
		Expect(names(ctx)).To(Equal([]string{"quotes-shards"}))
		p.ready(ctx)
	})

	It("are not made by an operator that does not know where it runs, nor taken away", func(ctx context.Context) {
		p.r.Namespace = ""
		p.change(ctx, func(s *v1alpha1.RecordStore) { s.Spec.NetworkPolicy.DirectClients = v1alpha1.DirectClientsLabelled })
		p.settle(ctx)
		Expect(names(ctx)).To(Equal([]string{"quotes-etcd"}))
	})
})
