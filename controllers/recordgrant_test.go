package controllers

import (
	"context"
	"time"

	. "github.com/onsi/gomega"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"sheaf.dev/sheaf/api/v1alpha1"
	"sheaf.dev/sheaf/controllers/fleet"
	"sheaf.dev/sheaf/controllers/recordgrant"
	"sheaf.dev/sheaf/internal/security/access"
)

// KeysOf returns a function that reads the keys of ServiceAccounts in the same way as the operator. The external test
// package sets it.
var KeysOf func() (func(context.Context) (access.Issuer, error), error)

// silentTables simulates an etcd that does not answer calls for one store. The calls do not even return when their
// context ends.
type silentTables struct {
	recordgrant.Tables
	store string
	asked chan context.Context // receives the context of a call
	over  chan struct{}        // closing this channel makes all calls return
}

func (t *silentTables) Table(ctx context.Context, store *v1alpha1.RecordStore) ([]byte, int64, error) {
	if store.Name != t.store {
		return t.Tables.Table(ctx, store)
	}
	select {
	case t.asked <- ctx:
	default:
	}
	<-t.over
	return nil, 0, context.DeadlineExceeded
}

var _ = Describe("The controller of grants", needs("managers reach it by its address and it has keys of tokens"),
	func() {
		It("compiles them into the table of their store", func(ctx context.Context) {
			p := newStorePlay(ctx)
			keys, err := KeysOf()
			Expect(err).NotTo(HaveOccurred())
			manage(p.Namespace, false, func(mgr ctrl.Manager) {
				r := &recordgrant.Reconciler{Client: mgr.GetClient(), Tables: p.etcd.Tables(), Keys: keys}
				Expect(r.SetupWithManager(mgr)).To(Succeed())
			})
			grant := func(name string, groups v1alpha1.GrantGroups, subjects ...v1alpha1.GrantSubject) *v1alpha1.RecordGrant {
				g := &v1alpha1.RecordGrant{ObjectMeta: metav1.ObjectMeta{Namespace: p.Namespace, Name: name}}
				g.Spec = v1alpha1.RecordGrantSpec{StoreRef: v1alpha1.StoreReference{Name: "quotes"},
					Verbs: []v1alpha1.GrantVerb{"get", "put"}, Groups: groups, Subjects: subjects}
				Expect(api.Create(ctx, g)).To(Succeed())
				return g
			}
			// expect waits until a grant has a condition with these values for its current generation.
			expect := func(g *v1alpha1.RecordGrant, kind string, status metav1.ConditionStatus, reason string) {
				GinkgoHelper()
				Eventually(func(o Gomega) {
					o.Expect(api.Get(ctx, client.ObjectKeyFromObject(g), g)).To(Succeed())
					c := meta.FindStatusCondition(g.Status.Conditions, kind)
					o.Expect(c).NotTo(BeNil())
					o.Expect(c.ObservedGeneration).To(Equal(g.Generation))
					o.Expect([]string{string(c.Status), c.Reason}).To(Equal([]string{string(status), reason}), c.Message)
				}).Should(Succeed())
			}
			first := grant("loaders", v1alpha1.GrantGroups{Prefixes: []v1alpha1.GrantGroupText{"team-a-"}},
				v1alpha1.GrantSubject{Kind: v1alpha1.GrantServiceAccount, Namespace: p.Namespace, Name: "loader"})
			By("a store that is not there")
			expect(first, v1alpha1.ConditionStalled, metav1.ConditionTrue, "StoreUnknown")
			expect(first, v1alpha1.ConditionCompiled, metav1.ConditionFalse, "StoreUnknown")

			store := p.running(ctx, 2)
			By("the store is there")
			expect(first, v1alpha1.ConditionReady, metav1.ConditionTrue, "Ready")
			expect(first, v1alpha1.ConditionCompiled, metav1.ConditionTrue, "Compiled")
			Expect(first.Status.TableVersion).To(Equal(int64(1)))
			Expect(meta.FindStatusCondition(first.Status.Conditions, v1alpha1.ConditionStalled)).To(BeNil())
			table := func() *access.Table {
				GinkgoHelper()
				Expect(api.Get(ctx, client.ObjectKeyFromObject(store), store)).To(Succeed())
				text, _, err := p.etcd.Tables().Table(ctx, store)
				Expect(err).NotTo(HaveOccurred())
				parsed, err := access.ParseTable(text)
				Expect(err).NotTo(HaveOccurred())
				return parsed
			}
			Expect(table().Audience).To(Equal("sheaf/" + p.Namespace + "/quotes"))

			By("a real token is taken, and may what is granted")
			account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: p.Namespace, Name: "loader"}}
			Expect(api.Create(ctx, account)).To(Succeed())
			ask := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{Audiences: []string{table().Audience}}}
			Expect(api.SubResource("token").Create(ctx, account, ask)).To(Succeed())
			compiled, err := access.Compile(table())
			Expect(err).NotTo(HaveOccurred())
			caller, err := compiled.Token(ask.Status.Token, time.Now())
			Expect(err).NotTo(HaveOccurred())
			Expect(caller.String()).To(Equal("serviceaccount/" + p.Namespace + "/loader"))
			Expect(compiled.Decide(&caller, access.Put, "team-a-1")).To(Succeed())
			Expect(compiled.Decide(&caller, access.Put, "team-b-1")).NotTo(Succeed())
			foreign := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{Audiences: []string{"sheaf/" +
				p.Namespace + "/other"}}}
			Expect(api.SubResource("token").Create(ctx, account, foreign)).To(Succeed())
			_, err = compiled.Token(foreign.Status.Token, time.Now())
			Expect(err).To(MatchError(access.ErrToken))

			By("changes, another one, and the end of all")
			first.Spec.Groups = v1alpha1.GrantGroups{All: true}
			Expect(api.Update(ctx, first)).To(Succeed())
			expect(first, v1alpha1.ConditionReady, metav1.ConditionTrue, "Ready")
			Expect(first.Status.TableVersion).To(Equal(int64(2)))
			second := grant("anybody", v1alpha1.GrantGroups{Names: []v1alpha1.GrantGroupText{"public"}},
				v1alpha1.GrantSubject{Kind: v1alpha1.GrantAnybody})
			expect(second, v1alpha1.ConditionReady, metav1.ConditionTrue, "Ready")
			Expect(second.Status.TableVersion).To(Equal(int64(3)))
			Expect(table().Grants).To(HaveLen(2))
			Expect(api.Delete(ctx, first)).To(Succeed())
			finalizers := func(words string) client.Patch { // a merge patch, because the controller may write at the same moment
				return client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":`+words+`}}`))
			}
			Expect(api.Patch(ctx, second, finalizers(`["example.org/holds-it"]`))).To(Succeed())
			Expect(api.Delete(ctx, second)).To(Succeed())
			Eventually(func() int { return len(table().Grants) }).Should(BeZero())
			expect(second, v1alpha1.ConditionReady, metav1.ConditionFalse, "Deleting")
			Expect(api.Patch(ctx, second, finalizers(`null`))).To(Succeed())
		})

		It("is held up by an etcd that does not answer for its own store alone", func(ctx context.Context) {
			p := newStorePlay(ctx)
			keys, err := KeysOf()
			Expect(err).NotTo(HaveOccurred())
			tables := &silentTables{Tables: p.etcd.Tables(), store: "silent", asked: make(chan context.Context, 1),
				over: make(chan struct{})}
			defer close(tables.over)
			manage(p.Namespace, false, func(mgr ctrl.Manager) {
				r := &recordgrant.Reconciler{Client: mgr.GetClient(), Tables: tables, Keys: keys}
				Expect(r.SetupWithManager(mgr)).To(Succeed())
			})
			silent := p.create(ctx)
			p.pool(ctx, 2)
			p.settle(ctx)
			other := silent.DeepCopy()
			other.ObjectMeta = metav1.ObjectMeta{Namespace: p.Namespace, Name: tables.store}
			Expect(api.Create(ctx, other)).To(Succeed())
			other.Status.StoreUID, other.Status.PlacementInitialized = "somewhere", true
			Expect(api.Status().Update(ctx, other)).To(Succeed())
			grant := func(store string) *v1alpha1.RecordGrant {
				g := &v1alpha1.RecordGrant{ObjectMeta: metav1.ObjectMeta{Namespace: p.Namespace, Name: "of-" + store}}
				g.Spec = v1alpha1.RecordGrantSpec{
					StoreRef: v1alpha1.StoreReference{Name: store}, Verbs: []v1alpha1.GrantVerb{"get"},
					Groups:   v1alpha1.GrantGroups{All: true},
					Subjects: []v1alpha1.GrantSubject{{Kind: v1alpha1.GrantAnybody}},
				}
				Expect(api.Create(ctx, g)).To(Succeed())
				return g
			}
			grant(tables.store)
			var call context.Context
			Eventually(tables.asked).Should(Receive(&call))
			answered := grant("quotes")
			Eventually(func(o Gomega) {
				o.Expect(api.Get(ctx, client.ObjectKeyFromObject(answered), answered)).To(Succeed())
				o.Expect(meta.IsStatusConditionTrue(answered.Status.Conditions, v1alpha1.ConditionReady)).
					To(BeTrue(), "%v", answered.Status.Conditions)
			}).Should(Succeed())
			_, bounded := call.Deadline()
			Expect(bounded).To(BeTrue(), "it waits for etcd without end")
		})

		It("says where a table does not count yet, and writes nothing while nothing changes", func(ctx context.Context) {
			p := newStorePlay(ctx)
			keys, err := KeysOf()
			Expect(err).NotTo(HaveOccurred())
			now := time.Now()
			p.clock = func() time.Time { return now }
			book := &fleet.GrantBook{}
			p.r.Grants = book
			r := &recordgrant.Reconciler{Client: acting, Tables: p.etcd.Tables(), Keys: keys, Transports: p.certs, Book: book,
				Now: p.clock}
			g := &v1alpha1.RecordGrant{ObjectMeta: metav1.ObjectMeta{Namespace: p.Namespace, Name: "readers"}}
			g.Spec = v1alpha1.RecordGrantSpec{StoreRef: v1alpha1.StoreReference{Name: "quotes"},
				Verbs: []v1alpha1.GrantVerb{"get"}, Groups: v1alpha1.GrantGroups{All: true},
				Subjects: []v1alpha1.GrantSubject{{Kind: v1alpha1.GrantAnybody}}}
			Expect(api.Create(ctx, g)).To(Succeed())
			store := p.running(ctx, 2)
			reconcile := func() time.Duration {
				GinkgoHelper()
				out, err := r.Reconcile(ctx, ctrl.Request{NamespacedName: client.ObjectKeyFromObject(store)})
				Expect(err).NotTo(HaveOccurred())
				return out.RequeueAfter
			}
			// expect checks a condition of the grant, and the corresponding one of the store.
			expect := func(status metav1.ConditionStatus, reason string, words ...string) {
				GinkgoHelper()
				p.settle(ctx)
				p.expect(ctx, v1alpha1.ConditionGrantsInForce, status, reason, words...)
				Expect(api.Get(ctx, client.ObjectKeyFromObject(g), g)).To(Succeed())
				c := meta.FindStatusCondition(g.Status.Conditions, v1alpha1.ConditionInForce)
				Expect(c).NotTo(BeNil())
				Expect([]string{string(c.Status), c.Reason}).To(Equal([]string{string(status), reason}), c.Message)
				for _, w := range words {
					Expect(c.Message).To(ContainSubstring(w))
				}
			}
			versions := map[string]int64{}
			p.certs.grants = func(pod string) *int64 {
				if v, told := versions[pod]; told {
					return &v
				}
				return new(int64(1))
			}

			By("all have it")
			Expect(reconcile()).To(Equal(2 * time.Minute))
			expect(metav1.ConditionTrue, "InForce")

			By("one is behind: at first that is not told")
			versions["ssd-1-0"] = 7
			since := now
			Expect(reconcile()).To(Equal(2 * time.Second))
			expect(metav1.ConditionTrue, "InForce")
			now = now.Add(6 * time.Second)
			Expect(reconcile()).To(Equal(30 * time.Second))
			expect(metav1.ConditionFalse, "ProcessesBehind", "table 1", "ssd-1-0 uses table 7, since "+since.UTC().
				Format(time.RFC3339))
			before := writeCount.Load()
			for range 3 {
				now = now.Add(30 * time.Second)
				reconcile()
			}
			Expect(writeCount.Load()).To(Equal(before), "nothing has changed, and something was written")

			By("it has none; it does not tell; it has the newest")
			versions["ssd-1-0"] = 0
			reconcile()
			expect(metav1.ConditionFalse, "ProcessesBehind", "ssd-1-0 has no table")
			delete(versions, "ssd-1-0")
			reconcile()
			expect(metav1.ConditionTrue, "InForce")

			By("a store that takes plaintext, and one that speaks it")
			transport := func(to v1alpha1.TLSTransport) {
				GinkgoHelper()
				Expect(api.Get(ctx, client.ObjectKeyFromObject(store), store)).To(Succeed())
				store.Status.TLS.Transport = to
				Expect(api.Status().Update(ctx, store)).To(Succeed())
				reconcile()
				Expect(api.Get(ctx, client.ObjectKeyFromObject(g), g)).To(Succeed())
			}
			transport(v1alpha1.TransportBoth)
			c := meta.FindStatusCondition(g.Status.Conditions, v1alpha1.ConditionInForce)
			Expect([]string{string(c.Status), c.Reason}).To(Equal([]string{"False", "PlaintextAllowed"}))
			transport(v1alpha1.TransportPlaintext)
			c = meta.FindStatusCondition(g.Status.Conditions, v1alpha1.ConditionInForce)
			Expect([]string{string(c.Status), c.Reason}).To(Equal([]string{"False", "StoreSpeaksPlaintext"}))
			Expect(c.Message).To(ContainSubstring("grants count for nothing"))
		})
	})
