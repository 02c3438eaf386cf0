package controllers

import (
	"context"
	"encoding/json"
	"math/rand/v2"
	"slices"
	"strings"

	"github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"sheaf.dev/sheaf/api/v1alpha1"
	"sheaf.dev/sheaf/internal/test/soaktest"
)

// person is the field owner of manual edits.
const person = client.FieldOwner("kubectl-edit")

// owned returns the objects that the operator applies.
func (p *storePlay) owned(ctx context.Context) (owned []client.Object) {
	for _, o := range p.objects(ctx) {
		switch o.(type) {
		case *appsv1.StatefulSet, *appsv1.Deployment, *corev1.Service, *policyv1.PodDisruptionBudget,
			*networkingv1.NetworkPolicy:
			owned = append(owned, o)
		}
	}
	return owned
}

// wantedOf returns the part of an object that the operator must restore after an edit. It consists of the metadata
// that the operator set, and of the spec without the fields that others may set.
func wantedOf(o, made client.Object) string {
	fields := fieldsOfObject(o)
	labels, annotations := map[string]string{}, map[string]string{}
	for key := range made.GetLabels() {
		labels[key] = o.GetLabels()[key]
	}
	for key := range made.GetAnnotations() {
		annotations[key] = o.GetAnnotations()[key]
	}
	spec := fields["spec"].(map[string]any)
	if _, ok := o.(*corev1.Service); ok {
		if spec["clusterIP"] != corev1.ClusterIPNone {
			delete(spec, "clusterIP")
			delete(spec, "clusterIPs")
		}
		delete(spec, "ipFamilies")
		delete(spec, "ipFamilyPolicy")
	}
	text, err := json.MarshalIndent(map[string]any{"labels": labels, "annotations": annotations,
		"owners": o.GetOwnerReferences(), "spec": spec}, "", " ")
	Expect(err).NotTo(HaveOccurred())
	return string(text)
}

// do performs the edit. It returns false if the API server refuses all patches of the edit, or if they change nothing.
func (e edit) do(ctx context.Context, o client.Object) bool {
	for _, ops := range e.tries {
		patch, err := json.Marshal(ops)
		Expect(err).NotTo(HaveOccurred())
		edited := o.DeepCopyObject().(client.Object)
		err = api.Patch(ctx, edited, client.RawPatch(types.JSONPatchType, patch), person)
		switch {
		case err == nil && edited.GetResourceVersion() != o.GetResourceVersion():
			return true
		case err != nil && strings.Contains(err.Error(), "Forbidden: updates to statefulset spec"):
			return false // the API server does not allow any change to this field
		}
	}
	return false
}

// heal reconciles the store and its pool until neither reconcile writes.
func (p *storePlay) heal(ctx context.Context) {
	GinkgoHelper()
	for n := 0; ; n++ {
		Expect(n).To(BeNumerically("<", 6), "it does not settle: %v", p.words(ctx))
		before := writeCount.Load()
		result, err := p.reconcile(ctx)
		ginkgo.GinkgoWriter.Printf("reconcile %d: %+v, %v, %d writes\n", n, result, err, writeCount.Load()-before)
		_, err2 := p.pools.Reconcile(ctx, ctrl.Request{NamespacedName: types.NamespacedName{Namespace: p.Namespace,
			Name: "ssd"}})
		if writeCount.Load() == before && err == nil && err2 == nil {
			return
		}
	}
}

// editAndHeal performs the chosen edits of all objects, and then checks that the operator restores all objects.
func (p *storePlay) editAndHeal(ctx context.Context, made []client.Object, choose func(n int) []edit) (done int) {
	GinkgoHelper()
	names := make([][]string, len(made))
	for n, o := range made {
		for _, e := range choose(n) {
			live := o.DeepCopyObject().(client.Object)
			Expect(api.Get(ctx, client.ObjectKeyFromObject(o), live)).To(Succeed())
			if e.do(ctx, live) {
				names[n] = append(names[n], e.name)
				done++
			}
		}
	}
	if done == 0 {
		return 0
	}
	p.heal(ctx)
	for n, o := range made {
		live := o.DeepCopyObject().(client.Object)
		Expect(api.Get(ctx, client.ObjectKeyFromObject(o), live)).To(Succeed())
		Expect(wantedOf(live, o)).To(Equal(wantedOf(o, o)), "%T %s after: %s\n%v\n%v", o, o.GetName(),
			strings.Join(names[n], "; "), p.words(ctx), live.GetManagedFields())
	}
	return done
}

// refusingClient returns a client whose writes to one Service the API server refuses, as an admission webhook may.
func refusingClient(service string) client.Client {
	refuse := func(kind, name string) error {
		if kind != "Service" || name != service {
			return nil
		}
		return apierrors.NewInvalid(corev1.SchemeGroupVersion.WithKind(kind).GroupKind(), name, nil)
	}
	return interceptor.NewClient(acting, interceptor.Funcs{
		Patch: func(ctx context.Context, c client.WithWatch, o client.Object, patch client.Patch,
			opts ...client.PatchOption) error {
			if _, ok := o.(*corev1.Service); ok {
				if err := refuse("Service", o.GetName()); err != nil {
					return err
				}
			}
			return c.Patch(ctx, o, patch, opts...)
		},
		Apply: func(ctx context.Context, c client.WithWatch, o runtime.ApplyConfiguration, opts ...client.ApplyOption) error {
			u, ok := o.(interface {
				GetKind() string
				GetName() string
			})
			Expect(ok).To(BeTrue(), "%T", o)
			if err := refuse(u.GetKind(), u.GetName()); err != nil {
				return err
			}
			return c.Apply(ctx, o, opts...)
		},
	})
}

var _ = Describe("What is edited by hand", func() {
	var p *storePlay
	BeforeEach(func(ctx context.Context) {
		p = newStorePlay(ctx)
		p.running(ctx, 1)
	})

	It("comes back, field by field and in a soak in pairs, in every object that a store owns",
		needs("dry runs and fields that may not change"), func(ctx context.Context) {
			made := p.owned(ctx)
			Expect(made).To(HaveLen(10), "a gateway, an etcd and a pool: Service, workload and budget each; the policy of etcd")
			seed := soaktest.Seed(ginkgo.GinkgoTB(), 1)
			random := rand.New(rand.NewPCG(seed, 0))
			all, most := make([][]edit, len(made)), 0
			for n, o := range made {
				all[n] = editsOf(o)
				random.Shuffle(len(all[n]), func(i, j int) { all[n][i], all[n][j] = all[n][j], all[n][i] })
				most = max(most, len(all[n]))
			}
			// A round costs several hundred calls, so each round makes eight edits to each object at once. In a soak, each round
			// makes only one.
			singles, packed := 0, 8
			if soaktest.Long() {
				packed = 1
			}
			for at := 0; at < most; at += packed {
				singles += p.editAndHeal(ctx, made, func(n int) []edit {
					return all[n][min(at, len(all[n])):min(at+packed, len(all[n]))]
				})
			}
			Expect(singles).To(BeNumerically(">", 300), "edits that the API server takes")
			if !soaktest.Long() {
				return // only a soak also tries pairs of edits
			}
			pairs := 0
			for range 40 {
				pairs += p.editAndHeal(ctx, made, func(n int) []edit {
					return []edit{all[n][random.IntN(len(all[n]))], all[n][random.IntN(len(all[n]))]}
				})
			}
			Expect(pairs).To(BeNumerically(">", 100))
			soaktest.Report(ginkgo.GinkgoTB(), "pairs of edits", pairs)
		})

	It("comes back where who wrote what was taken away, too", needs("dry runs"), func(ctx context.Context) {
		key := types.NamespacedName{Namespace: p.Namespace, Name: "quotes-gateway"}
		forgotten := `[{"op":"replace","path":"/metadata/managedFields","value":[{}]},`
		budget, service, gateway := &policyv1.PodDisruptionBudget{}, &corev1.Service{}, &appsv1.Deployment{}
		for o, patch := range map[client.Object]string{
			budget:  `{"op":"remove","path":"/spec/minAvailable"},{"op":"add","path":"/spec/maxUnavailable","value":3}]`,
			service: `{"op":"replace","path":"/spec/ports/0/port","value":9999}]`,
			gateway: `{"op":"add","path":"/spec/template/spec/containers/0/env","value":[{"name":"FOO","value":"bar"}]}]`,
		} {
			Expect(api.Get(ctx, key, o)).To(Succeed())
			Expect(api.Patch(ctx, o, client.RawPatch(types.JSONPatchType, []byte(forgotten+patch)), person)).To(Succeed())
			Expect(o.GetManagedFields()).To(BeEmpty())
		}
		p.heal(ctx)
		for _, o := range []client.Object{budget, service, gateway} {
			Expect(api.Get(ctx, key, o)).To(Succeed())
		}
		Expect(budget.Spec.MaxUnavailable).To(BeNil())
		Expect(budget.Spec.MinAvailable).NotTo(BeNil())
		Expect(service.Spec.Ports).To(HaveLen(1))
		Expect(service.Spec.Ports[0].Port).NotTo(Equal(int32(9999)))
		Expect(gateway.Spec.Template.Spec.Containers[0].Env).NotTo(ContainElement(HaveField("Name", "FOO")))
	})

	It("is healed everywhere else while one object is refused", func(ctx context.Context) {
		p.operator(refusingClient("quotes-gateway"))
		service, set, budget := &corev1.Service{}, &appsv1.StatefulSet{}, &policyv1.PodDisruptionBudget{}
		get := func(o client.Object, name string) {
			Expect(api.Get(ctx, types.NamespacedName{Namespace: p.Namespace, Name: name}, o)).To(Succeed())
		}
		get(service, "quotes-gateway")
		service.Spec.Ports[0].Port, service.Spec.Ports[0].TargetPort.StrVal = 9999, "elsewhere"
		Expect(api.Update(ctx, service, person)).To(Succeed())
		get(set, "quotes-etcd")
		set.Spec.Replicas = new(int32(0))
		Expect(api.Update(ctx, set, person)).To(Succeed())
		get(budget, "quotes-shards")
		budget.Spec.MinAvailable.IntVal = 7
		Expect(api.Update(ctx, budget, person)).To(Succeed())
		shards := &corev1.Service{}
		get(shards, "ssd")
		shards.Spec.Ports[0].Port = 9999
		Expect(api.Update(ctx, shards, person)).To(Succeed())

		Expect(p.round(ctx)).To(Succeed())
		get(set, "quotes-etcd")
		Expect(*set.Spec.Replicas).To(Equal(int32(1)))
		get(budget, "quotes-shards")
		Expect(budget.Spec.MinAvailable.IntVal).To(Equal(int32(0)))
		get(shards, "ssd")
		Expect(shards.Spec.Ports[0].Port).NotTo(Equal(int32(9999)))
		p.expect(ctx, v1alpha1.ConditionStalled, "True", "ObjectRefused", "quotes-gateway")

		By("the refusal ends")
		p.operator(acting)
		p.settle(ctx)
		p.ready(ctx)
		get(service, "quotes-gateway")
		Expect(service.Spec.Ports).To(HaveLen(1))
		Expect(service.Spec.Ports[0].Port).NotTo(Equal(int32(9999)))
	})

	It("is kept where others may choose it: rollout restart, what a cloud needs, labels of tools",
		both("it gives a Service what a cloud needs"), func(ctx context.Context) {
			p.change(ctx, func(s *v1alpha1.RecordStore) { s.Spec.Gateway.ServiceType = corev1.ServiceTypeLoadBalancer })
			p.settle(ctx)
			key := types.NamespacedName{Namespace: p.Namespace, Name: "quotes-gateway"}
			edits := map[client.Object]string{
				&corev1.Service{}: `{"metadata":{"labels":{"tool":"x"},"annotations":{"tool":"x"}},
				"spec":{"externalTrafficPolicy":"Local","loadBalancerSourceRanges":["192.0.2.0/24"]}}`,
				&appsv1.Deployment{}: `{"metadata":{"labels":{"tool":"x"}},"spec":{"template":{"metadata":{"annotations":{"kubectl.kubernetes.io/restartedAt":"now"}}}}}`,
			}
			for o, patch := range edits {
				Expect(api.Get(ctx, key, o)).To(Succeed())
				Expect(api.Patch(ctx, o, client.RawPatch(types.MergePatchType, []byte(patch)), person)).To(Succeed())
			}
			p.heal(ctx)
			p.settle(ctx)
			service, gateway := &corev1.Service{}, &appsv1.Deployment{}
			Expect(api.Get(ctx, key, service)).To(Succeed())
			Expect(api.Get(ctx, key, gateway)).To(Succeed())
			Expect(service.Labels).To(HaveKeyWithValue("tool", "x"))
			Expect(service.Annotations).To(HaveKeyWithValue("tool", "x"))
			Expect(service.Spec.ExternalTrafficPolicy).To(Equal(corev1.ServiceExternalTrafficPolicyLocal))
			Expect(service.Spec.LoadBalancerSourceRanges).To(Equal([]string{"192.0.2.0/24"}))
			Expect(gateway.Labels).To(HaveKeyWithValue("tool", "x"))
			Expect(gateway.Spec.Template.Annotations).To(HaveKeyWithValue("kubectl.kubernetes.io/restartedAt", "now"))

			By("what a balancer needs goes with the balancer")
			p.change(ctx, func(s *v1alpha1.RecordStore) { s.Spec.Gateway.ServiceType = corev1.ServiceTypeClusterIP })
			p.settle(ctx)
			p.ready(ctx)
			Expect(api.Get(ctx, key, service)).To(Succeed())
			Expect(service.Spec.Type).To(Equal(corev1.ServiceTypeClusterIP))
			Expect(slices.Concat(service.Spec.LoadBalancerSourceRanges, []string{string(service.Spec.ExternalTrafficPolicy)})).
				To(Equal([]string{""}))
		})

	It("costs one patch and one apply, and a crash between the two loses nothing", func(ctx context.Context) {
		key := types.NamespacedName{Namespace: p.Namespace, Name: "quotes-gateway"}
		for at := 1; at <= 2; at++ {
			gateway := &appsv1.Deployment{}
			Expect(api.Get(ctx, key, gateway)).To(Succeed())
			gateway.Spec.Template.Spec.HostNetwork = true
			Expect(api.Update(ctx, gateway, person)).To(Succeed())
			k := &killer{at: at}
			p.operator(k.client())
			_, err := p.reconcile(ctx)
			Expect(err != nil || k.dead()).To(BeTrue())
			p.operator(acting)
			p.heal(ctx)
			Expect(api.Get(ctx, key, gateway)).To(Succeed())
			Expect(gateway.Spec.Template.Spec.HostNetwork).To(BeFalse(), "killed after write %d", at)
		}
	})
})
