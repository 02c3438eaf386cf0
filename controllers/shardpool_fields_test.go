package controllers

import (
	"context"
	"fmt"
	"slices"
	"time"

	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"sheaf.dev/sheaf/api/v1alpha1"
)

// specs are all that the operator made, as YAML: sets, services and claims, without what the API server adds to each
// write.
func (p *poolPlay) specs(ctx context.Context) (texts []string) {
	for _, o := range p.objects(ctx) {
		switch o := o.(type) {
		case *appsv1.StatefulSet:
			o.Status = appsv1.StatefulSetStatus{}
			texts = append(texts, p.text(o))
		case *corev1.Service, *corev1.PersistentVolumeClaim:
			texts = append(texts, p.text(o))
		}
	}
	slices.Sort(texts)
	return texts
}

func (p *poolPlay) text(o client.Object) string {
	o.SetResourceVersion("")
	o.SetManagedFields(nil)
	o.SetGeneration(0)
	text, err := yaml.Marshal(o)
	Expect(err).NotTo(HaveOccurred())
	return fmt.Sprintf("%T\n%s", o, text)
}

var _ = Describe("Every field of a pool's spec", func() {
	var p *poolPlay
	BeforeEach(func(ctx context.Context) {
		p = newPoolPlay(ctx)
		p.pool(ctx, "ssd", 2, func(pool *v1alpha1.ShardPool) {
			pool.Spec.FileSystem = &v1alpha1.FileSystem{Type: v1alpha1.XFS, MountOptions: []string{"noatime"}}
			pool.Spec.Resources = &corev1.ResourceRequirements{Limits: corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("1Gi")}}
		})
		p.settle(ctx, 0)
	})

	type poolChange func(*v1alpha1.ShardPool)
	DescribeTable("changed and changed back, leaves the same objects", func(ctx context.Context, changes bool, change poolChange) {
		p.back(ctx, changes, func() {
			pool := p.get(ctx, "ssd")
			before := pool.Spec.DeepCopy()
			change(pool)
			Expect(api.Update(ctx, pool)).To(Succeed())
			p.undo = func() { p.change(ctx, "ssd", func(pool *v1alpha1.ShardPool) { pool.Spec = *before }) }
		})
	},
		Entry("all parked", true, poolChange(func(pool *v1alpha1.ShardPool) { pool.Spec.Parked = []int32{0, 1} })),
		Entry("remove", false, poolChange(func(pool *v1alpha1.ShardPool) { pool.Spec.Remove = []int32{0} })),
		Entry("parked", true, poolChange(func(pool *v1alpha1.ShardPool) { pool.Spec.Parked = []int32{1} })),
		Entry("state cordoned", false, poolChange(func(pool *v1alpha1.ShardPool) { pool.Spec.State = v1alpha1.PoolCordoned })),
		Entry("state drained", false, poolChange(func(pool *v1alpha1.ShardPool) { pool.Spec.State = v1alpha1.PoolDrained })),
		Entry("medium", true, poolChange(func(pool *v1alpha1.ShardPool) { pool.Spec.Medium = v1alpha1.HDD })),
		Entry("residency", true, poolChange(func(pool *v1alpha1.ShardPool) { pool.Spec.Residency = v1alpha1.ResidencyResident })),
		Entry("mount options", true, poolChange(func(pool *v1alpha1.ShardPool) { pool.Spec.FileSystem.MountOptions = []string{"noatime", "nodiratime"} })),
		Entry("no mount options", true, poolChange(func(pool *v1alpha1.ShardPool) { pool.Spec.FileSystem.MountOptions = nil })),
		Entry("memory", true, poolChange(func(pool *v1alpha1.ShardPool) {
			pool.Spec.Resources.Limits[corev1.ResourceMemory] = resource.MustParse("2Gi")
		})),
		Entry("no resources", true, poolChange(func(pool *v1alpha1.ShardPool) { pool.Spec.Resources = nil })),
		Entry("a request", true, poolChange(func(pool *v1alpha1.ShardPool) {
			pool.Spec.Resources.Requests = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("10m")}
		})),
		Entry("node selector", true, poolChange(func(pool *v1alpha1.ShardPool) {
			pool.Spec.Scheduling = &v1alpha1.Scheduling{NodeSelector: map[string]string{"disk": "fast"}}
		})),
		Entry("tolerations", true, poolChange(func(pool *v1alpha1.ShardPool) {
			pool.Spec.Scheduling = &v1alpha1.Scheduling{Tolerations: []corev1.Toleration{{Key: "disk", Operator: corev1.TolerationOpExists}}}
		})),
		Entry("priority class", true, poolChange(func(pool *v1alpha1.ShardPool) {
			pool.Spec.Scheduling = &v1alpha1.Scheduling{PriorityClassName: "system-node-critical"}
		})),
		Entry("affinity", true, poolChange(func(pool *v1alpha1.ShardPool) {
			pool.Spec.Scheduling = &v1alpha1.Scheduling{Affinity: &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{
				RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{{
					TopologyKey: corev1.LabelHostname, LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"a": "b"}},
				}},
			}}}
		})),
		Entry("spread", true, poolChange(func(pool *v1alpha1.ShardPool) {
			pool.Spec.Scheduling = &v1alpha1.Scheduling{TopologySpreadConstraints: []corev1.TopologySpreadConstraint{
				{MaxSkew: 1, TopologyKey: "rack", WhenUnsatisfiable: corev1.DoNotSchedule},
			}}
		})),
		Entry("labels of pods", true, poolChange(func(pool *v1alpha1.ShardPool) {
			pool.Spec.PodLabels = map[string]v1alpha1.LabelValue{"team": "storage"}
		})),
		Entry("annotations of pods", true, poolChange(func(pool *v1alpha1.ShardPool) { pool.Spec.PodAnnotations = map[string]string{"note": "x"} })),
		Entry("update mode", false, poolChange(func(pool *v1alpha1.ShardPool) { pool.Spec.Update.Mode = v1alpha1.UpdatePaused })),
	)

	type storeChange func(*v1alpha1.RecordStore)
	DescribeTable("and what it takes from the store too", func(ctx context.Context, changes bool, change storeChange) {
		p.back(ctx, changes, func() {
			p.changeStore(ctx, func(*v1alpha1.RecordStore) {})
			before := p.store.Spec.DeepCopy()
			p.changeStore(ctx, change)
			p.undo = func() { p.changeStore(ctx, func(store *v1alpha1.RecordStore) { store.Spec = *before }) }
		})
	},
		Entry("image", true, storeChange(func(store *v1alpha1.RecordStore) { store.Spec.Image = "sheaf:other" })),
		Entry("image pull policy", true, storeChange(func(store *v1alpha1.RecordStore) { store.Spec.ImagePullPolicy = corev1.PullAlways })),
		Entry("image pull secrets", true, storeChange(func(store *v1alpha1.RecordStore) {
			store.Spec.ImagePullSecrets = []corev1.LocalObjectReference{{Name: "registry"}}
		})),
		Entry("retention", true, storeChange(func(store *v1alpha1.RecordStore) { store.Spec.Retention.Versions = 7 })),
		Entry("minimum age", true, storeChange(func(store *v1alpha1.RecordStore) {
			store.Spec.Retention.MinAge = &metav1.Duration{Duration: time.Hour}
		})),
		Entry("compaction", true, storeChange(func(store *v1alpha1.RecordStore) { store.Spec.Compaction.SupersededPercent = new(int32(30)) })),
		Entry("topology key", true, storeChange(func(store *v1alpha1.RecordStore) { store.Spec.Replication.TopologyKey = corev1.LabelTopologyZone })),
		Entry("deletion policy", true, storeChange(func(store *v1alpha1.RecordStore) { store.Spec.DeletionPolicy = v1alpha1.DeletionDelete })),
		Entry("tracing", true, storeChange(func(store *v1alpha1.RecordStore) {
			store.Spec.Tracing = &v1alpha1.Tracing{Endpoint: "http://collector:4317"}
		})),
		Entry("gateway", false, storeChange(func(store *v1alpha1.RecordStore) { three := int32(3); store.Spec.Gateway.Replicas = &three })),
	)
})

// back makes a change, sees that objects follow (or do not), takes it back, and sees that they are as before.
func (p *poolPlay) back(ctx context.Context, changes bool, change func()) {
	before := p.specs(ctx)
	change()
	p.settle(ctx, 0)
	if changes {
		Expect(p.specs(ctx)).NotTo(Equal(before), "the change does nothing")
	} else {
		Expect(p.specs(ctx)).To(Equal(before))
	}
	p.undo()
	p.settle(ctx, 0)
	Expect(p.specs(ctx)).To(Equal(before))
	p.ready(ctx, "ssd")
	p.expect(ctx, "ssd", v1alpha1.ConditionUpdated, metav1.ConditionTrue, "Updated")
}
