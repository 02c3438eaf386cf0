package controllers

import (
	"context"

	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"sheaf.dev/sheaf/api/v1alpha1"
	"sheaf.dev/sheaf/controllers/recordgrant"
	"sheaf.dev/sheaf/internal/security/access"
)

var _ = Describe("The controller of tenants", func() {
	It("compiles them into the table of their store, the older one where two overlap", needs("it issues tokens"),
		func(ctx context.Context) {
			p := newStorePlay(ctx)
			keys, err := KeysOf()
			Expect(err).NotTo(HaveOccurred())
			manage(p.Namespace, false, func(mgr ctrl.Manager) {
				r := &recordgrant.Reconciler{Client: mgr.GetClient(), Tables: p.etcd.Tables(), Keys: keys}
				Expect(r.SetupWithManager(mgr)).To(Succeed())
			})
			tenant := func(name string, prefix v1alpha1.GrantGroupText, quotas v1alpha1.TenantQuotas) *v1alpha1.RecordTenant {
				t := &v1alpha1.RecordTenant{ObjectMeta: metav1.ObjectMeta{Namespace: p.Namespace, Name: name}}
				t.Spec = v1alpha1.RecordTenantSpec{StoreRef: v1alpha1.StoreReference{Name: "quotes"}, Prefix: prefix,
					Quotas: quotas}
				Expect(api.Create(ctx, t)).To(Succeed())
				return t
			}
			// expect waits until a tenant has a condition for its current generation, and returns the condition's
			// message.
			expect := func(t *v1alpha1.RecordTenant, kind string, status metav1.ConditionStatus,
				reason string) (message string) {
				GinkgoHelper()
				Eventually(func(o Gomega) {
					o.Expect(api.Get(ctx, client.ObjectKeyFromObject(t), t)).To(Succeed())
					c := meta.FindStatusCondition(t.Status.Conditions, kind)
					o.Expect(c).NotTo(BeNil())
					o.Expect(c.ObservedGeneration).To(Equal(t.Generation))
					o.Expect([]string{string(c.Status), c.Reason}).To(Equal([]string{string(status), reason}), c.Message)
					message = c.Message
				}).Should(Succeed())
				return message
			}
			first := tenant("all-teams", "team-", v1alpha1.TenantQuotas{StoredBytes: new(resource.MustParse("1Gi")),
				CallsAtOnce: new(int64(5))})
			By("a store that is not there")
			expect(first, v1alpha1.ConditionCompiled, metav1.ConditionFalse, "StoreUnknown")

			store := p.create(ctx, func(s *v1alpha1.RecordStore) {
				s.Spec.Groups = v1alpha1.Groups{Routing: v1alpha1.RoutingNamed}
			})
			p.pool(ctx, 2)
			p.settle(ctx)
			By("the store is there")
			expect(first, v1alpha1.ConditionReady, metav1.ConditionTrue, "Ready")
			expect(first, v1alpha1.ConditionCompiled, metav1.ConditionTrue, "Compiled")
			tenants := func() []access.Tenant {
				GinkgoHelper()
				Expect(api.Get(ctx, client.ObjectKeyFromObject(store), store)).To(Succeed())
				text, _, err := p.etcd.Tables().Table(ctx, store)
				Expect(err).NotTo(HaveOccurred())
				parsed, err := access.ParseTable(text)
				Expect(err).NotTo(HaveOccurred())
				return parsed.Tenants
			}
			all := access.Tenant{Name: "all-teams", Prefix: "team-", Quotas: access.Quotas{StoredBytes: 1 << 30, CallsAtOnce: 5}}
			Expect(tenants()).To(Equal([]access.Tenant{all}))

			By("a younger one whose groups are the older one's, too")
			second := tenant("team-a", "team-a-", v1alpha1.TenantQuotas{Records: new(int64(7)), Groups: new(int64(3))})
			Expect(expect(second, v1alpha1.ConditionCompiled, metav1.ConditionFalse, "PrefixOverlaps")).
				To(ContainSubstring("all-teams"))
			expect(second, v1alpha1.ConditionStalled, metav1.ConditionTrue, "PrefixOverlaps")
			third := tenant("team-other", "other-", v1alpha1.TenantQuotas{BytesPerSecond: new(resource.MustParse("10Mi"))})
			expect(third, v1alpha1.ConditionReady, metav1.ConditionTrue, "Ready")
			other := access.Tenant{Name: "team-other", Prefix: "other-", Quotas: access.Quotas{BytesPerSecond: 10 << 20}}
			Expect(tenants()).To(Equal([]access.Tenant{all, other}))

			By("the older one goes, another one changes")
			Expect(api.Delete(ctx, first)).To(Succeed())
			expect(second, v1alpha1.ConditionReady, metav1.ConditionTrue, "Ready")
			before := third.DeepCopy()
			third.Spec.Quotas.CallsPerSecond = new(int64(100))
			// Update would fail, because the status may have changed.
			Expect(api.Patch(ctx, third, client.MergeFrom(before))).To(Succeed())
			expect(third, v1alpha1.ConditionReady, metav1.ConditionTrue, "Ready")
			other.Quotas.CallsPerSecond = 100
			Expect(tenants()).To(Equal([]access.Tenant{
				{Name: "team-a", Prefix: "team-a-", Quotas: access.Quotas{Records: 7, Groups: 3}},
				other}))
			Expect(api.Delete(ctx, second)).To(Succeed())
			Expect(api.Delete(ctx, third)).To(Succeed())
			Eventually(tenants).Should(BeEmpty())
		})
})
