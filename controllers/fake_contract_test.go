package controllers

import (
	"context"
	"errors"
	"fmt"

	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"sheaf.dev/sheaf/api/v1alpha1"
)

// These specs check the properties of an API server on which the other specs rely. Each entry runs on the fake server
// of `make test` and on the real server of `make test-api`. If a new spec needs a property in which the two differ,
// first add an entry for that property.
var _ = Describe("What an API server answers", both("the fake is held to it"), func() {
	var ns string
	BeforeEach(func(ctx context.Context) {
		namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "answers-"}}
		Expect(api.Create(ctx, namespace)).To(Succeed())
		Expect(namespace.Name).NotTo(Equal("answers-"))
		ns = namespace.Name
	})
	config := func(name string, data ...string) *corev1.ConfigMap {
		o := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name}, Data: map[string]string{}}
		for n := 0; n+1 < len(data); n += 2 {
			o.Data[data[n]] = data[n+1]
		}
		return o
	}
	again := func(ctx context.Context, o client.Object) {
		Expect(api.Get(ctx, client.ObjectKeyFromObject(o), o)).To(Succeed())
	}
	// apply sets the data that owner wants. Without force, a field of another owner is a conflict.
	apply := func(ctx context.Context, owner string, force bool, data map[string]any) error {
		u := &unstructured.Unstructured{Object: map[string]any{"data": data}}
		u.SetAPIVersion("v1")
		u.SetKind("ConfigMap")
		u.SetNamespace(ns)
		u.SetName("applied")
		opts := []client.ApplyOption{client.FieldOwner(owner)}
		if force {
			opts = append(opts, client.ForceOwnership)
		}
		return api.Apply(ctx, client.ApplyConfigurationFromUnstructured(u), opts...)
	}
	pool := func() *v1alpha1.ShardPool {
		o := &v1alpha1.ShardPool{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "ssd"}}
		o.Spec.StoreRef.Name, o.Spec.Shards = "quotes", new(int32(2))
		o.Spec.Storage = v1alpha1.Storage{StorageClassName: classGrows, Size: resource.MustParse("1Gi")}
		return o
	}
	pod := func(node string) *corev1.Pod {
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "pod"},
			Spec: corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{Name: "a", Image: "a"}}}}
	}

	It("to a create: a UID, a time, generation 1, and no second object of the name", func(ctx context.Context) {
		o := config("a", "k", "v")
		Expect(api.Create(ctx, o)).To(Succeed())
		Expect(o.UID).NotTo(BeEmpty())
		Expect(o.ResourceVersion).NotTo(BeEmpty())
		Expect(o.CreationTimestamp.IsZero()).To(BeFalse())
		Expect(apierrors.IsAlreadyExists(api.Create(ctx, config("a")))).To(BeTrue())
		Expect(apierrors.IsNotFound(api.Get(ctx, client.ObjectKey{Namespace: ns, Name: "b"}, config("b")))).To(BeTrue())
		p := pool()
		Expect(api.Create(ctx, p)).To(Succeed())
		Expect(p.Generation).To(Equal(int64(1)))
		uid := o.UID
		Expect(api.Delete(ctx, o)).To(Succeed())
		o = config("a")
		Expect(api.Create(ctx, o)).To(Succeed())
		Expect(o.UID).NotTo(Equal(uid))
	})

	It("to kinds of ours: defaults of the CRD, also of the status, and none of the status that a create has",
		func(ctx context.Context) {
			p := pool()
			p.Status.Shards = 7
			Expect(api.Create(ctx, p)).To(Succeed())
			again(ctx, p)
			Expect(p.Spec.State).To(Equal(v1alpha1.PoolActive))
			Expect(p.Spec.Update.Mode).To(Equal(v1alpha1.UpdateOneByOne))
			Expect(p.Status.Shards).To(BeZero())
			Expect(conditionStatus(p.Status.Conditions, v1alpha1.ConditionReady)).To(Equal(metav1.ConditionUnknown))
		})

	It("to an old version: a conflict, for updates, patches that name it, and preconditions", func(ctx context.Context) {
		o := config("a", "k", "1")
		Expect(api.Create(ctx, o)).To(Succeed())
		old := o.DeepCopy()
		o.Data["k"] = "2"
		Expect(api.Update(ctx, o)).To(Succeed())
		Expect(o.ResourceVersion).NotTo(Equal(old.ResourceVersion))
		Expect(o.UID).To(Equal(old.UID))
		stale := old.DeepCopy()
		stale.Data["k"] = "3"
		Expect(apierrors.IsConflict(api.Update(ctx, stale))).To(BeTrue())
		patch := fmt.Appendf(nil, `{"metadata":{"resourceVersion":%q},"data":{"k":"4"}}`, old.ResourceVersion)
		Expect(apierrors.IsConflict(api.Patch(ctx, old.DeepCopy(), client.RawPatch(types.MergePatchType, patch)))).
			To(BeTrue())
		Expect(apierrors.IsConflict(api.Delete(ctx, o, client.Preconditions{ResourceVersion: &old.ResourceVersion}))).
			To(BeTrue())
		Expect(apierrors.IsConflict(api.Delete(ctx, o, client.Preconditions{UID: new(types.UID("another"))}))).To(BeTrue())
		again(ctx, o)
		Expect(o.Data).To(HaveKeyWithValue("k", "2"))
		Expect(api.Delete(ctx, o, client.Preconditions{UID: &o.UID, ResourceVersion: &o.ResourceVersion})).To(Succeed())
		Expect(apierrors.IsNotFound(api.Update(ctx, o))).To(BeTrue())
		Expect(apierrors.IsNotFound(api.Patch(ctx, o, client.RawPatch(types.MergePatchType, []byte(`{"data":{"k":"5"}}`))))).
			To(BeTrue())
	})

	It("to a write that changes nothing: the version as before", func(ctx context.Context) {
		o := config("a", "k", "1")
		Expect(api.Create(ctx, o, client.FieldOwner("me"))).To(Succeed())
		version := o.ResourceVersion
		Expect(api.Update(ctx, o, client.FieldOwner("me"))).To(Succeed())
		Expect(o.ResourceVersion).To(Equal(version))
		Expect(api.Patch(ctx, o, client.RawPatch(types.MergePatchType, []byte(`{"data":{"k":"1"}}`)),
			client.FieldOwner("me"))).To(Succeed())
		Expect(o.ResourceVersion).To(Equal(version))
		Expect(apply(ctx, "one", false, map[string]any{"k": "1"})).To(Succeed())
		applied := config("applied")
		again(ctx, applied)
		Expect(apply(ctx, "one", false, map[string]any{"k": "1"})).To(Succeed())
		version = applied.ResourceVersion
		again(ctx, applied)
		Expect(applied.ResourceVersion).To(Equal(version))
	})

	It("to an apply: fields that nobody wants any more go, those of others stay or are a conflict",
		func(ctx context.Context) {
			Expect(apply(ctx, "one", false, map[string]any{"a": "1", "b": "1"})).To(Succeed())
			Expect(apply(ctx, "two", false, map[string]any{"c": "2"})).To(Succeed())
			Expect(apply(ctx, "one", false, map[string]any{"a": "1"})).To(Succeed())
			o := config("applied")
			again(ctx, o)
			Expect(o.Data).To(Equal(map[string]string{"a": "1", "c": "2"}))
			Expect(apierrors.IsConflict(apply(ctx, "two", false, map[string]any{"a": "2"}))).To(BeTrue())
			Expect(apply(ctx, "two", true, map[string]any{"a": "2"})).To(Succeed())
			again(ctx, o)
			Expect(o.Data).To(Equal(map[string]string{"a": "2"}))
			o.Data["hand"] = "3"
			Expect(api.Update(ctx, o, person)).To(Succeed())
			Expect(apply(ctx, "two", true, map[string]any{"a": "4"})).To(Succeed())
			again(ctx, o)
			Expect(o.Data).To(Equal(map[string]string{"a": "4", "hand": "3"}))
			writers := map[string]metav1.ManagedFieldsOperationType{}
			for _, entry := range o.ManagedFields {
				writers[entry.Manager] = entry.Operation
			}
			Expect(writers).To(HaveKeyWithValue("two", metav1.ManagedFieldsOperationApply))
			Expect(writers).To(HaveKeyWithValue(string(person), metav1.ManagedFieldsOperationUpdate))
		})

	It("to a status: it alone is written by its subresource, and never without; a spec alone raises the generation",
		func(ctx context.Context) {
			p := pool()
			Expect(api.Create(ctx, p)).To(Succeed())
			p.Status.Shards, p.Spec.Shards = 3, new(int32(5))
			Expect(api.Status().Update(ctx, p)).To(Succeed())
			again(ctx, p)
			Expect(p.Status.Shards).To(Equal(int32(3)))
			Expect(*p.Spec.Shards).To(Equal(int32(2)))
			Expect(p.Generation).To(Equal(int64(1)))
			p.Status.Shards, p.Spec.Shards = 4, new(int32(5))
			Expect(api.Update(ctx, p)).To(Succeed())
			again(ctx, p)
			Expect(p.Status.Shards).To(Equal(int32(3)))
			Expect(*p.Spec.Shards).To(Equal(int32(5)))
			Expect(p.Generation).To(Equal(int64(2)))
			base := p.DeepCopy()
			p.Labels, p.Annotations = map[string]string{"a": "b"}, map[string]string{"a": "b"}
			Expect(api.Patch(ctx, p, client.MergeFrom(base))).To(Succeed())
			Expect(p.Generation).To(Equal(int64(2)))
			base = p.DeepCopy()
			p.Status.Shards = 6
			Expect(api.Status().Patch(ctx, p, client.MergeFromWithOptions(base, client.MergeFromWithOptimisticLock{}))).
				To(Succeed())
			p.Status.Shards = 7
			err := api.Status().Patch(ctx, p, client.MergeFromWithOptions(base, client.MergeFromWithOptimisticLock{}))
			Expect(apierrors.IsConflict(err)).To(BeTrue())
			again(ctx, p)
			Expect(p.Status.Shards).To(Equal(int32(6)))
		})

	It("to a deletion: it is kept by finalizers, by a kubelet for a pod that has a node, by who protects claims",
		func(ctx context.Context) {
			o := config("a")
			o.Finalizers = []string{"sheaf.dev/test"}
			Expect(api.Create(ctx, o)).To(Succeed())
			Expect(api.Delete(ctx, o)).To(Succeed())
			again(ctx, o)
			Expect(o.DeletionTimestamp).NotTo(BeNil())
			Expect(api.Delete(ctx, o)).To(Succeed())
			o.Finalizers = nil
			again(ctx, o)
			o.Finalizers = nil
			Expect(api.Update(ctx, o)).To(Succeed())
			Expect(apierrors.IsNotFound(api.Get(ctx, client.ObjectKeyFromObject(o), o))).To(BeTrue())
			Expect(apierrors.IsNotFound(api.Delete(ctx, o))).To(BeTrue())

			running := pod("node")
			Expect(api.Create(ctx, running)).To(Succeed())
			Expect(running.Status.Phase).To(Equal(corev1.PodPending))
			Expect(api.Delete(ctx, running)).To(Succeed())
			again(ctx, running)
			Expect(running.DeletionTimestamp).NotTo(BeNil())
			Expect(api.Delete(ctx, running, client.GracePeriodSeconds(0))).To(Succeed())
			Expect(apierrors.IsNotFound(api.Get(ctx, client.ObjectKeyFromObject(running), running))).To(BeTrue())
			waiting := pod("")
			Expect(api.Create(ctx, waiting)).To(Succeed())
			Expect(api.Delete(ctx, waiting)).To(Succeed())
			Expect(apierrors.IsNotFound(api.Get(ctx, client.ObjectKeyFromObject(waiting), waiting))).To(BeTrue())

			claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "claim"},
				Spec: corev1.PersistentVolumeClaimSpec{
					AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}, StorageClassName: new("none"),
					Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{
						corev1.ResourceStorage: resource.MustParse("1Gi")}},
				}}
			Expect(api.Create(ctx, claim)).To(Succeed())
			Expect(claim.Status.Phase).To(Equal(corev1.ClaimPending))
			Expect(api.Delete(ctx, claim)).To(Succeed())
			again(ctx, claim)
			Expect(claim.DeletionTimestamp).NotTo(BeNil())
			claim.Finalizers = nil
			Expect(api.Update(ctx, claim)).To(Succeed())
			Expect(apierrors.IsNotFound(api.Get(ctx, client.ObjectKeyFromObject(claim), claim))).To(BeTrue())
		})

	It("to a deletion that orphans: the owner stays until somebody has seen to what it owns", func(ctx context.Context) {
		set := &appsv1.StatefulSet{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "set"}}
		set.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"a": "b"}}
		set.Spec.Template = corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"a": "b"}},
			Spec: pod("").Spec}
		Expect(api.Create(ctx, set)).To(Succeed())
		owned := config("owned")
		owned.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(set,
			appsv1.SchemeGroupVersion.WithKind("StatefulSet"))}
		Expect(api.Create(ctx, owned)).To(Succeed())
		Expect(api.Delete(ctx, set, client.PropagationPolicy(metav1.DeletePropagationOrphan))).To(Succeed())
		again(ctx, set)
		Expect(set.DeletionTimestamp).NotTo(BeNil())
		Expect(set.Finalizers).To(Equal([]string{metav1.FinalizerOrphanDependents}))
		again(ctx, owned)
		Expect(metav1.IsControlledBy(owned, set)).To(BeTrue())
		set.Finalizers = nil
		Expect(api.Update(ctx, set)).To(Succeed())
		Expect(apierrors.IsNotFound(api.Get(ctx, client.ObjectKeyFromObject(set), set))).To(BeTrue())
	})

	It("to a list: what is of the namespace, the labels and the fields", func(ctx context.Context) {
		other := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "answers-"}}
		Expect(api.Create(ctx, other)).To(Succeed())
		for name, label := range map[string]string{"a": "x", "b": "x", "c": "y"} {
			o := config(name)
			o.Labels = map[string]string{"is": label}
			Expect(api.Create(ctx, o)).To(Succeed())
		}
		elsewhere := config("a")
		elsewhere.Namespace, elsewhere.Labels = other.Name, map[string]string{"is": "x"}
		Expect(api.Create(ctx, elsewhere)).To(Succeed())
		names := func(opts ...client.ListOption) (names []string) {
			var all corev1.ConfigMapList
			Expect(api.List(ctx, &all, append(opts, client.InNamespace(ns))...)).To(Succeed())
			for _, o := range all.Items {
				names = append(names, o.Name)
			}
			return names
		}
		Expect(names()).To(Equal([]string{"a", "b", "c"}))
		Expect(names(client.MatchingLabels{"is": "x"})).To(Equal([]string{"a", "b"}))
		Expect(names(client.HasLabels{"absent"})).To(BeEmpty())
		Expect(names(client.MatchingFields{"metadata.name": "c"})).To(Equal([]string{"c"}))
		var everywhere corev1.ConfigMapList
		Expect(api.List(ctx, &everywhere, client.MatchingLabels{"is": "x"})).To(Succeed())
		Expect(len(everywhere.Items)).To(BeNumerically(">=", 3))
	})

	It("to who watches: what was written, in order", func(ctx context.Context) {
		watched, err := api.Watch(ctx, &corev1.ConfigMapList{}, client.InNamespace(ns), client.MatchingLabels{"is": "x"})
		Expect(err).NotTo(HaveOccurred())
		defer watched.Stop()
		o := config("a", "k", "1")
		o.Labels = map[string]string{"is": "x"}
		Expect(api.Create(ctx, o)).To(Succeed())
		o.Data["k"] = "2"
		Expect(api.Update(ctx, o)).To(Succeed())
		Expect(api.Delete(ctx, o)).To(Succeed())
		var seen []string
		for len(seen) < 3 {
			select {
			case event := <-watched.ResultChan():
				seen = append(seen, string(event.Type)+" "+event.Object.(*corev1.ConfigMap).Data["k"])
			case <-ctx.Done():
				Expect(errors.Join(ctx.Err(), fmt.Errorf("seen: %v", seen))).To(Succeed())
			}
		}
		Expect(seen).To(Equal([]string{"ADDED 1", "MODIFIED 2", "DELETED 2"}))
	})
})
