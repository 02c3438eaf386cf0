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
	"sheaf.dev/sheaf/internal/test/kubetest"
	"sheaf.dev/sheaf/internal/test/soaktest"
)

// specs returns all StatefulSets, Services and claims that the operator created, as YAML, without the fields that the
// API server changes at each write.
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
			pool.Spec.Resources = &corev1.ResourceRequirements{Limits: corev1.ResourceList{
				corev1.ResourceMemory: resource.MustParse("1Gi")}}
		})
		p.settle(ctx, 0)
	})

	type poolChange func(*v1alpha1.ShardPool)
	type poolField struct {
		name    string
		changes bool // whether the change should also appear in the objects
		change  poolChange
	}
	fieldsOfPool := []poolField{
		{"all parked", true, func(pool *v1alpha1.ShardPool) { pool.Spec.Parked = []int32{0, 1} }},
		{"remove", false, func(pool *v1alpha1.ShardPool) { pool.Spec.Remove = []int32{0} }},
		{"parked", true, func(pool *v1alpha1.ShardPool) { pool.Spec.Parked = []int32{1} }},
		{"state cordoned", false, func(pool *v1alpha1.ShardPool) { pool.Spec.State = v1alpha1.PoolCordoned }},
		{"state drained", false, func(pool *v1alpha1.ShardPool) { pool.Spec.State = v1alpha1.PoolDrained }},
		{"medium", true, func(pool *v1alpha1.ShardPool) { pool.Spec.Medium = v1alpha1.HDD }},
		{"residency", true, func(pool *v1alpha1.ShardPool) { pool.Spec.Residency = v1alpha1.ResidencyResident }},
		{"mount options", true, func(pool *v1alpha1.ShardPool) {
			pool.Spec.FileSystem.MountOptions = []string{"noatime", "nodiratime"}
		}},
		{"no mount options", true, func(pool *v1alpha1.ShardPool) { pool.Spec.FileSystem.MountOptions = nil }},
		{"memory", true, func(pool *v1alpha1.ShardPool) {
			pool.Spec.Resources.Limits[corev1.ResourceMemory] = resource.MustParse("2Gi")
		}},
		{"no resources", true, func(pool *v1alpha1.ShardPool) { pool.Spec.Resources = nil }},
		{"a request", true, func(pool *v1alpha1.ShardPool) {
			pool.Spec.Resources.Requests = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("10m")}
		}},
		{"node selector", true, func(pool *v1alpha1.ShardPool) {
			pool.Spec.Scheduling = &v1alpha1.Scheduling{NodeSelector: map[string]string{"disk": "fast"}}
		}},
		{"tolerations", true, func(pool *v1alpha1.ShardPool) {
			pool.Spec.Scheduling = &v1alpha1.Scheduling{Tolerations: []corev1.Toleration{{Key: "disk",
				Operator: corev1.TolerationOpExists}}}
		}},
		{"priority class", true, func(pool *v1alpha1.ShardPool) {
			pool.Spec.Scheduling = &v1alpha1.Scheduling{PriorityClassName: "system-node-critical"}
		}},
		{"affinity", true, func(pool *v1alpha1.ShardPool) {
			pool.Spec.Scheduling = &v1alpha1.Scheduling{Affinity: &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{
				RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{{
					TopologyKey: corev1.LabelHostname, LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"a": "b"}},
				}},
			}}}
		}},
		{"spread", true, func(pool *v1alpha1.ShardPool) {
			pool.Spec.Scheduling = &v1alpha1.Scheduling{TopologySpreadConstraints: []corev1.TopologySpreadConstraint{
				{MaxSkew: 1, TopologyKey: "rack", WhenUnsatisfiable: corev1.DoNotSchedule},
			}}
		}},
		{"labels of pods", true, func(pool *v1alpha1.ShardPool) {
			pool.Spec.PodLabels = map[string]v1alpha1.LabelValue{"team": "storage"}
		}},
		{"annotations of pods", true, func(pool *v1alpha1.ShardPool) {
			pool.Spec.PodAnnotations = map[string]string{"note": "x"}
		}},
		{"environment", true, func(pool *v1alpha1.ShardPool) {
			pool.Spec.ExtraEnv = []v1alpha1.EnvVar{{Name: "GOGC", Value: "50"}, {Name: "EMPTY"}}
		}},
		{"update mode", false, func(pool *v1alpha1.ShardPool) { pool.Spec.Update.Mode = v1alpha1.UpdatePaused }},
	}

	type storeChange func(*v1alpha1.RecordStore)
	type storeField struct {
		name    string
		changes bool // whether the change affects objects
		change  storeChange
	}
	fieldsOfStore := []storeField{
		{"image", true, func(store *v1alpha1.RecordStore) { store.Spec.Image = "sheaf:other" }},
		{"image pull policy", true, func(store *v1alpha1.RecordStore) { store.Spec.ImagePullPolicy = corev1.PullAlways }},
		{"image pull secrets", true, func(store *v1alpha1.RecordStore) {
			store.Spec.ImagePullSecrets = []corev1.LocalObjectReference{{Name: "registry"}}
		}},
		{"retention", true, func(store *v1alpha1.RecordStore) { store.Spec.Retention.Versions = 7 }},
		{"minimum age", true, func(store *v1alpha1.RecordStore) {
			store.Spec.Retention.MinAge = &metav1.Duration{Duration: time.Hour}
		}},
		{"compaction", true, func(store *v1alpha1.RecordStore) { store.Spec.Compaction.SupersededPercent = new(int32(30)) }},
		{"topology key", true, func(store *v1alpha1.RecordStore) {
			store.Spec.Replication.TopologyKey = corev1.LabelTopologyZone
		}},
		{"deletion policy", true, func(store *v1alpha1.RecordStore) { store.Spec.DeletionPolicy = v1alpha1.DeletionDelete }},
		{"audit of a store without TLS", false, func(store *v1alpha1.RecordStore) {
			store.Spec.Audit = &v1alpha1.Audit{Mode: v1alpha1.AuditRefusals}
		}},
		{"tracing", true, func(store *v1alpha1.RecordStore) {
			store.Spec.Tracing = &v1alpha1.Tracing{Endpoint: "http://collector:4317"}
		}},
		{"gateway", false, func(store *v1alpha1.RecordStore) { three := int32(3); store.Spec.Gateway.Replicas = &three }},
	}
	// All fields share one pool, because each change restores the objects. On a real API server, where a change costs
	// ten times as much, only every third field is tested. A soak tests all of them there as well.
	every := 1
	if kubetest.Wanted() && !soaktest.Long() {
		every = 3
	}
	It("changed and changed back, leaves the same objects, and so does what it takes from the store",
		both("what each field makes is accepted"), func(ctx context.Context) {
			for n, field := range fieldsOfPool {
				if n%every != 0 {
					continue
				}
				By(field.name)
				p.changeAndRevert(ctx, field.name, field.changes, func() {
					pool := p.get(ctx, "ssd")
					before := pool.Spec.DeepCopy()
					field.change(pool)
					Expect(api.Update(ctx, pool)).To(Succeed())
					p.undo = func() { p.change(ctx, "ssd", func(pool *v1alpha1.ShardPool) { pool.Spec = *before }) }
				})
			}
			for n, field := range fieldsOfStore {
				if n%every != 0 {
					continue
				}
				By("store: " + field.name)
				p.changeAndRevert(ctx, field.name, field.changes, func() {
					p.changeStore(ctx, func(*v1alpha1.RecordStore) {})
					before := p.store.Spec.DeepCopy()
					p.changeStore(ctx, field.change)
					p.undo = func() { p.changeStore(ctx, func(store *v1alpha1.RecordStore) { store.Spec = *before }) }
				})
			}
		})
})

// changeAndRevert makes a change, checks whether the objects change accordingly, reverts the change, and checks that
// the objects are restored.
func (p *poolPlay) changeAndRevert(ctx context.Context, name string, changes bool, change func()) {
	GinkgoHelper()
	before := p.specs(ctx)
	change()
	p.settle(ctx, 0)
	if changes {
		Expect(p.specs(ctx)).NotTo(Equal(before), "%s: the change does nothing", name)
	} else {
		Expect(p.specs(ctx)).To(Equal(before), name)
	}
	p.undo()
	p.settle(ctx, 0)
	Expect(p.specs(ctx)).To(Equal(before), name)
	p.ready(ctx, "ssd")
	p.expect(ctx, "ssd", v1alpha1.ConditionUpdated, metav1.ConditionTrue, "Updated")
}
