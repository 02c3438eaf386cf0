package controllers

import (
	"context"
	"maps"
	"slices"
	"time"

	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"sheaf.dev/sheaf/api/v1alpha1"
	"sheaf.dev/sheaf/controllers/fleet"
	"sheaf.dev/sheaf/controllers/step"
	"sheaf.dev/sheaf/internal/kube/workload"
	"sheaf.dev/sheaf/internal/test/kubetest"
	"sheaf.dev/sheaf/internal/test/soaktest"
)

var _ = Describe("A store", func() {
	var p *storePlay
	BeforeEach(func(ctx context.Context) { p = newStorePlay(ctx) })

	// object reads an object of the namespace.
	object := func(ctx context.Context, name string, into client.Object) {
		GinkgoHelper()
		Expect(api.Get(ctx, types.NamespacedName{Namespace: p.Namespace, Name: name}, into)).To(Succeed())
	}

	It("gets from an empty namespace to serving", both("what is made of a store is accepted"), func(ctx context.Context) {
		store := p.create(ctx)
		p.NoKubelet = true
		_, err := p.reconcile(ctx)
		Expect(err).NotTo(HaveOccurred())
		Expect(p.get(ctx).Status.StoreUID).To(Equal(string(store.UID)))
		p.settle(ctx)
		p.expect(ctx, v1alpha1.ConditionEtcdReady, metav1.ConditionFalse, "EtcdNotReady",
			"0 of 1 member of etcd is", "Settled groups")
		p.expect(ctx, v1alpha1.ConditionReady, metav1.ConditionFalse, "EtcdNotReady")
		p.expect(ctx, v1alpha1.ConditionReconciling, metav1.ConditionTrue, "EtcdNotReady")
		Expect(p.get(ctx).Status.PlacementInitialized).To(BeFalse())

		p.NoKubelet = false
		p.settle(ctx)
		p.expect(ctx, v1alpha1.ConditionEtcdReady, metav1.ConditionTrue, "Ready")
		p.expect(ctx, v1alpha1.ConditionPlacementReady, metav1.ConditionTrue, "Ready", string(store.UID))
		p.expect(ctx, v1alpha1.ConditionReady, metav1.ConditionFalse, "NoShards", "spec.storeRef.name: quotes")
		uid, groups := p.holds(ctx)
		Expect(uid).To(Equal(string(store.UID)))
		Expect(groups).To(Equal(8))

		p.pool(ctx, 2)
		p.settle(ctx)
		p.ready(ctx)
		p.expect(ctx, v1alpha1.ConditionGatewayReady, metav1.ConditionTrue, "Ready", "2 of 2")
		status := p.get(ctx).Status
		Expect(status.PlacementInitialized).To(BeTrue())
		Expect(status.Groups).To(Equal(v1alpha1.GroupCounts{Total: 8, Serving: 8}))
		Expect(status.Shards).To(Equal(v1alpha1.ShardCounts{Total: 2, Serving: 2, Updated: 2}))
		Expect(status.Address).To(Equal("quotes-gateway." + p.Namespace + ".svc:7600"))
		Expect(status.ObservedGeneration).To(Equal(p.get(ctx).Generation))

		By("telling a formed etcd so, without restarting it")
		var set appsv1.StatefulSet
		object(ctx, "quotes-etcd", &set)
		Expect(set.Spec.Template.Annotations["sheaf.dev/etcd-state"]).To(Equal("existing"))
		Expect(p.started["quotes-etcd"]).To(Equal(1))
		Expect(p.takeEvents()).To(ContainElement(ContainSubstring("Normal Ready Ready is True")))
	})

	It("writes nothing while nothing changes, and looks at etcd seldom", func(ctx context.Context) {
		p.running(ctx, 2)
		p.takeEvents()
		before := p.versions(ctx)
		for range 5 {
			result, err := p.reconcile(ctx)
			Expect(err).NotTo(HaveOccurred())
			Expect(result.RequeueAfter).To(BeNumerically(">=", 10*time.Second))
		}
		Expect(p.versions(ctx)).To(Equal(before))
		Expect(p.takeEvents()).To(BeEmpty())
		By("nor after a restart of the operator")
		p.operator(acting)
		Expect(p.round(ctx)).To(Succeed())
		Expect(p.versions(ctx)).To(Equal(before))
	})

	It("never makes the placement afresh", func(ctx context.Context) {
		p.running(ctx, 1)
		p.away = true
		Expect(p.etcd.Wipe(ctx)).To(Succeed())
		p.settle(ctx)
		uid := p.get(ctx).Status.StoreUID
		p.expect(ctx, v1alpha1.ConditionPlacementReady, metav1.ConditionFalse, "PlacementLost", "nothing is made afresh",
			"exec deploy/quotes-gateway -c gateway -- /sheaf recover placement", "--store-uid="+uid,
			"--store="+p.Namespace+".quotes",
			"--shards=ssd-0-0.ssd."+p.Namespace+".svc:7610", "--yes")
		p.expect(ctx, v1alpha1.ConditionStalled, metav1.ConditionTrue, "PlacementLost")
		p.expect(ctx, v1alpha1.ConditionReady, metav1.ConditionFalse, "PlacementLost")
		p.expectAbsent(ctx, v1alpha1.ConditionReconciling)
		Expect(p.takeEvents()).To(ContainElement(HavePrefix("Warning PlacementLost")))
		result, err := p.reconcile(ctx)
		Expect(err).NotTo(HaveOccurred())
		Expect(result.RequeueAfter).To(BeNumerically(">=", 10*time.Second))
		By("nor by an operator that reads what was before it was made")
		p.r.Client = alteringClient(acting, func(o client.Object) {
			if store, ok := o.(*v1alpha1.RecordStore); ok {
				store.Status.PlacementInitialized = false
			}
		})
		_, err = p.reconcile(ctx)
		Expect(err).NotTo(HaveOccurred())
		held, _ := p.holds(ctx)
		Expect(held).To(BeEmpty())
	})

	It("lets an etcd form anew where a person says so, and takes the permission back", func(ctx context.Context) {
		p.create(ctx)
		p.pool(ctx, 1)
		p.settle(ctx)
		uid := p.get(ctx).Status.StoreUID
		template := func() string {
			var set appsv1.StatefulSet
			object(ctx, "quotes-etcd", &set)
			return set.Spec.Template.Annotations["sheaf.dev/etcd-state"]
		}
		Expect(p.etcd.Wipe(ctx)).To(Succeed())
		for value, want := range map[string]string{"another": "existing", uid: "new"} {
			p.change(ctx, func(s *v1alpha1.RecordStore) {
				s.Annotations = map[string]string{v1alpha1.AnnotationAllowNewEtcd: value}
			})
			p.settle(ctx)
			Expect(template()).To(Equal(want), "annotation %s", value)
		}
		By("the placement being rebuilt")
		Expect(p.etcd.Rebuild(ctx, p.Namespace, "quotes", p.get(ctx))).To(Succeed())
		p.settle(ctx)
		p.ready(ctx)
		Expect(p.get(ctx).Annotations).NotTo(HaveKey(v1alpha1.AnnotationAllowNewEtcd))
		Expect(p.get(ctx).Status.StoreUID).To(Equal(uid), "status survives the write of metadata")
		Expect(template()).To(Equal("existing"))
	})

	It("keeps what it has seen when it writes metadata", func(ctx context.Context) {
		p.create(ctx)
		p.settle(ctx)
		store := p.get(ctx)
		for n := range store.Status.Conditions {
			store.Status.Conditions[n].Message = "seen just now"
		}
		seen := store.Status.DeepCopy()
		Expect(step.WriteMetadata(ctx, api, store, func(s *v1alpha1.RecordStore) {
			s.Annotations = map[string]string{"a": "b"}
		})).To(Succeed())
		Expect(store.Status).To(Equal(*seen))
		Expect(store.ResourceVersion).To(Equal(p.get(ctx).ResourceVersion))
	})

	It("does not take another store's placement", func(ctx context.Context) {
		p.create(ctx)
		other := p.get(ctx)
		other.Status.StoreUID = "6a204bd8-9a53-4a6e-8a38-6a4c1e6f0d5b"
		placement, err := p.etcd.Open("other", workload.EtcdAccessOf(other, nil), fleet.EtcdCredentials{})
		Expect(err).NotTo(HaveOccurred())
		Expect(placement.Init(ctx, other, 0)).To(Succeed())
		p.settle(ctx)
		p.expect(ctx, v1alpha1.ConditionPlacementReady, metav1.ConditionFalse, "OtherStore", "6a204bd8", p.get(ctx).
			Status.StoreUID, "adoptStoreUID")
		p.expect(ctx, v1alpha1.ConditionStalled, metav1.ConditionTrue, "OtherStore")
		Expect(p.get(ctx).Status.PlacementInitialized).To(BeFalse())
		held, _ := p.holds(ctx)
		Expect(held).To(HavePrefix("6a204bd8"))
	})

	It("adopts the placement of the store it follows, and waits for volumes where there is none",
		func(ctx context.Context) {
			const old = "6a204bd8-9a53-4a6e-8a38-6a4c1e6f0d5b"
			p.create(ctx, func(s *v1alpha1.RecordStore) { s.Spec.AdoptStoreUID = old })
			p.settle(ctx)
			Expect(p.get(ctx).Status.StoreUID).To(Equal(old))
			p.expect(ctx, v1alpha1.ConditionReady, metav1.ConditionFalse, "Adopting", "there is no ShardPool yet")
			held, _ := p.holds(ctx)
			Expect(held).To(BeEmpty(), "nothing is made for an adopted store")
			placement, err := p.etcd.Open("old", workload.EtcdAccessOf(p.get(ctx), nil), fleet.EtcdCredentials{})
			Expect(err).NotTo(HaveOccurred())
			Expect(placement.Init(ctx, p.get(ctx), 0)).To(Succeed())
			p.pool(ctx, 1)
			p.settle(ctx)
			p.ready(ctx)
		})

	It("waits for the Secret of an external etcd", func(ctx context.Context) {
		p.create(ctx, func(s *v1alpha1.RecordStore) {
			s.Spec.Etcd = v1alpha1.Etcd{External: &v1alpha1.ExternalEtcd{
				Endpoints: []string{"https://etcd.example:2379"}, TLSSecretRef: &corev1.LocalObjectReference{Name: "etcd-tls"},
			}}
		})
		p.settle(ctx)
		p.expect(ctx, v1alpha1.ConditionReady, metav1.ConditionFalse, "EtcdSecretMissing", p.Namespace+"/etcd-tls", "ca.crt")
		p.expect(ctx, v1alpha1.ConditionEtcdReady, metav1.ConditionFalse, "EtcdSecretMissing")
		secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: p.Namespace, Name: "etcd-tls"}}
		Expect(api.Create(ctx, secret)).To(Succeed())
		p.settle(ctx)
		p.expect(ctx, v1alpha1.ConditionReady, metav1.ConditionFalse, "EtcdSecretIncomplete", "no ca.crt")
		secret.Data = map[string][]byte{"ca.crt": []byte("no certificate")}
		Expect(api.Update(ctx, secret)).To(Succeed())
		p.settle(ctx)
		p.expect(ctx, v1alpha1.ConditionReady, metav1.ConditionFalse, "EtcdUnreachable", "secret etcd-tls",
			"ca.crt holds no certificate")
		var sets appsv1.StatefulSetList
		Expect(api.List(ctx, &sets, client.InNamespace(p.Namespace))).To(Succeed())
		Expect(sets.Items).To(BeEmpty(), "no etcd of ours")
	})

	It("stalls where the API server refuses what it makes", needs("what Kubernetes refuses"), func(ctx context.Context) {
		other := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: p.Namespace, Name: "owner"}}
		Expect(api.Create(ctx, other)).To(Succeed())
		service := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: p.Namespace, Name: "quotes-gateway",
			OwnerReferences: []metav1.OwnerReference{
				*metav1.NewControllerRef(other, corev1.SchemeGroupVersion.WithKind("ConfigMap")),
			}}, Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}}}}
		Expect(api.Create(ctx, service)).To(Succeed())
		p.create(ctx)
		p.settle(ctx)
		p.expect(ctx, v1alpha1.ConditionStalled, metav1.ConditionTrue, "ObjectRefused", "quotes-gateway")
		result, err := p.reconcile(ctx)
		Expect(err).NotTo(HaveOccurred())
		Expect(result.RequeueAfter).To(Equal(step.PauseLong))
	})

	DescribeTable("keeps or deletes the claims of etcd when it is deleted",
		func(ctx context.Context, policy v1alpha1.DeletionPolicy, left int) {
			p.create(ctx, func(s *v1alpha1.RecordStore) { s.Spec.DeletionPolicy = policy })
			p.settle(ctx)
			var first corev1.PersistentVolumeClaim
			object(ctx, "data-quotes-etcd-0", &first)
			fifth := &corev1.PersistentVolumeClaim{Spec: first.Spec} // as if a later version had created five members
			fifth.Namespace, fifth.Name, fifth.Labels = first.Namespace, "data-quotes-etcd-4", first.Labels
			fifth.Spec.VolumeName = ""
			Expect(api.Create(ctx, fifth)).To(Succeed())
			p.settle(ctx)
			Expect(api.Delete(ctx, p.get(ctx))).To(Succeed())
			_, err := p.reconcile(ctx)
			Expect(err).NotTo(HaveOccurred())
			err = api.Get(ctx, types.NamespacedName{Namespace: p.Namespace, Name: "quotes"}, &v1alpha1.RecordStore{})
			Expect(client.IgnoreNotFound(err)).To(Succeed())
			Expect(err).To(HaveOccurred(), "the store is gone after one reconcile")
			p.NoSets = true // pretend that the garbage collector has deleted the StatefulSet
			p.step(ctx)
			var claims corev1.PersistentVolumeClaimList
			Expect(api.List(ctx, &claims, client.InNamespace(p.Namespace))).To(Succeed())
			Expect(claims.Items).To(HaveLen(left))
		},
		Entry("Retain", v1alpha1.DeletionRetain, 2),
		Entry("Delete", v1alpha1.DeletionDelete, 0),
	)

	It("deletes claims of etcd that have no volume in any case", both("rights on claims"), func(ctx context.Context) {
		p.NoBinding = true
		p.create(ctx)
		for range 3 {
			Expect(p.round(ctx)).To(Succeed())
		}
		var claims corev1.PersistentVolumeClaimList
		Expect(api.List(ctx, &claims, client.InNamespace(p.Namespace))).To(Succeed())
		Expect(claims.Items).To(HaveLen(1))
		Expect(api.Delete(ctx, p.get(ctx))).To(Succeed())
		_, err := p.reconcile(ctx)
		Expect(err).NotTo(HaveOccurred())
		p.step(ctx)
		Expect(api.List(ctx, &claims, client.InNamespace(p.Namespace))).To(Succeed())
		Expect(claims.Items).To(BeEmpty())
	})

	It("places groups without a shard that does not start, after two minutes", func(ctx context.Context) {
		p.create(ctx)
		p.NoPods = []string{"ssd-2"}
		p.pool(ctx, 3)
		p.settle(ctx)
		p.expect(ctx, v1alpha1.ConditionReady, metav1.ConditionFalse, string(v1alpha1.ShardPending),
			"waits until all 3 shards are registered", "2 are", "2m0s after", "ssd-2")
		Expect(p.get(ctx).Status.Groups.Serving).To(BeZero())
		p.r.Now = func() time.Time { return time.Now().Add(20 * time.Minute) }
		p.settle(ctx)
		Expect(p.get(ctx).Status.Groups.Serving).To(Equal(int32(8)))
		p.expect(ctx, v1alpha1.ConditionReady, metav1.ConditionFalse, string(v1alpha1.ShardPending),
			"8 of 8 groups and 2 of 3 shards serve", "ssd-2")
	})

	It("waits with the first placement while shards keep coming", func(ctx context.Context) {
		p.create(ctx)
		p.NoPods = []string{"ssd-1", "ssd-2", "ssd-3", "ssd-4"}
		p.pool(ctx, 5)
		p.settle(ctx)
		now := time.Now()
		p.r.Now = func() time.Time { return now }
		for len(p.NoPods) > 1 {
			now = now.Add(90 * time.Second)
			p.NoPods = p.NoPods[1:]
			p.settle(ctx)
			Expect(p.get(ctx).Status.Groups.Serving).To(BeZero(), "placed before %q: %v", p.NoPods, p.words(ctx))
		}
		p.expect(ctx, v1alpha1.ConditionReady, metav1.ConditionFalse, string(v1alpha1.ShardPending),
			"waits until all 5 shards are registered", "4 are",
			"2m0s after the last of them came", "at the latest")
		now = now.Add(20 * time.Minute)
		p.settle(ctx)
		Expect(p.get(ctx).Status.Groups.Serving).To(Equal(int32(8)))
	})

	It("makes the same objects when a field is changed and changed back", both("what each field makes is accepted"),
		func(ctx context.Context) {
			p.create(ctx)
			p.pool(ctx, 1)
			p.settle(ctx)
			before := p.picture(ctx)
			spec := p.get(ctx).Spec
			changes := storeChanges()
			// A change costs three times as much on a real API server, so only every third change is tested there. A soak
			// tests all of them.
			every := 1
			if kubetest.Wanted() && !soaktest.Long() {
				every = 3
			}
			for n, name := range slices.Sorted(maps.Keys(changes)) {
				if n%every != 0 {
					continue
				}
				change := changes[name]
				By(name)
				p.change(ctx, func(s *v1alpha1.RecordStore) { change.do(&s.Spec) })
				p.settle(ctx)
				p.ready(ctx)
				if change.objects {
					Expect(p.picture(ctx)).NotTo(Equal(before), name)
				}
				p.change(ctx, func(s *v1alpha1.RecordStore) { s.Spec = *spec.DeepCopy() })
				p.settle(ctx)
				p.ready(ctx)
				Expect(p.picture(ctx)).To(Equal(before), name)
			}
		})

	It("grows the claims of etcd, or says why not", both("rights on claims"), func(ctx context.Context) {
		p.create(ctx)
		p.settle(ctx)
		p.change(ctx, func(s *v1alpha1.RecordStore) { s.Spec.Etcd.Managed.Storage.Size = resource.MustParse("2Gi") })
		p.settle(ctx)
		var claim corev1.PersistentVolumeClaim
		object(ctx, "data-quotes-etcd-0", &claim)
		Expect(claim.Spec.Resources.Requests.Storage().String()).To(Equal("2Gi"))
		p.expectAbsent(ctx, v1alpha1.ConditionVolumesGrown)
		Expect(p.started["quotes-etcd"]).To(Equal(1))
	})
})

// storeChange is a change to a spec. objects is true if the change also affects the objects that the store owns.
type storeChange struct {
	do      func(*v1alpha1.RecordStoreSpec)
	objects bool
}

// storeChanges returns a change for every field that can be changed and changed back.
func storeChanges() map[string]storeChange {
	small := &corev1.ResourceRequirements{Limits: corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("256Mi")}}
	return map[string]storeChange{
		"image":           {func(s *v1alpha1.RecordStoreSpec) { s.Image = "sheaf:2" }, true},
		"imagePullPolicy": {func(s *v1alpha1.RecordStoreSpec) { s.ImagePullPolicy = corev1.PullAlways }, true},
		"imagePullSecrets": {func(s *v1alpha1.RecordStoreSpec) {
			s.ImagePullSecrets = []corev1.LocalObjectReference{{Name: "pull"}}
		}, true},
		"retention": {func(s *v1alpha1.RecordStoreSpec) {
			s.Retention = v1alpha1.Retention{Versions: 3, MinAge: &metav1.Duration{Duration: time.Hour}}
		}, true},
		"compaction": {func(s *v1alpha1.RecordStoreSpec) {
			s.Compaction = v1alpha1.Compaction{SupersededPercent: new(int32(30)), MinSuperseded: new(resource.MustParse("16Mi"))}
		}, true},
		"topologyKey":    {func(s *v1alpha1.RecordStoreSpec) { s.Replication.TopologyKey = corev1.LabelTopologyZone }, true},
		"deletionPolicy": {func(s *v1alpha1.RecordStoreSpec) { s.DeletionPolicy = v1alpha1.DeletionDelete }, true},
		"etcd resources": {func(s *v1alpha1.RecordStoreSpec) { s.Etcd.Managed.Resources = small }, true},
		"etcd snapshotEvery": {func(s *v1alpha1.RecordStoreSpec) {
			s.Etcd.Managed.SnapshotEvery = &metav1.Duration{Duration: time.Minute}
		}, true},
		"etcd scheduling": {func(s *v1alpha1.RecordStoreSpec) {
			s.Etcd.Managed.Scheduling = &v1alpha1.Scheduling{
				NodeSelector: map[string]string{"disk": "ssd"}, PriorityClassName: "system-cluster-critical",
				Tolerations: []corev1.Toleration{{Key: "a", Operator: corev1.TolerationOpExists}},
			}
		}, true},
		"gateway replicas":  {func(s *v1alpha1.RecordStoreSpec) { s.Gateway.Replicas = new(int32(3)) }, true},
		"gateway none":      {func(s *v1alpha1.RecordStoreSpec) { s.Gateway.Replicas = new(int32(0)) }, true},
		"gateway resources": {func(s *v1alpha1.RecordStoreSpec) { s.Gateway.Resources = small }, true},
		"gateway service": {func(s *v1alpha1.RecordStoreSpec) {
			s.Gateway.ServiceType = corev1.ServiceTypeLoadBalancer
			s.Gateway.ServiceAnnotations = map[string]string{"example.org/a": "b"}
		}, true},
		"gateway scheduling": {func(s *v1alpha1.RecordStoreSpec) {
			s.Gateway.Scheduling = &v1alpha1.Scheduling{
				NodeSelector: map[string]string{"disk": "ssd"}, PriorityClassName: "high",
				Tolerations: []corev1.Toleration{{Key: "a", Operator: corev1.TolerationOpExists}},
				TopologySpreadConstraints: []corev1.TopologySpreadConstraint{
					{MaxSkew: 1, TopologyKey: "rack", WhenUnsatisfiable: corev1.DoNotSchedule},
				},
			}
		}, true},
		"pods": {func(s *v1alpha1.RecordStoreSpec) {
			labels, annotations := map[string]v1alpha1.LabelValue{"team": "storage"}, map[string]string{"note": "x"}
			s.Gateway.PodLabels, s.Gateway.PodAnnotations = labels, annotations
			s.Etcd.Managed.PodLabels, s.Etcd.Managed.PodAnnotations = labels, annotations
		}, true},
		"environment": {func(s *v1alpha1.RecordStoreSpec) {
			s.Gateway.ExtraEnv = []v1alpha1.EnvVar{{Name: "GOGC", Value: "50"}, {Name: "EMPTY"}}
			s.Etcd.Managed.ExtraEnv = s.Gateway.ExtraEnv
		}, true},
		"audit": {func(s *v1alpha1.RecordStoreSpec) { s.Audit = &v1alpha1.Audit{Mode: v1alpha1.AuditWrites} }, true},
		"tracing": {func(s *v1alpha1.RecordStoreSpec) {
			s.Tracing = &v1alpha1.Tracing{Endpoint: "http://collector:4317"}
		}, true},
	}
}
