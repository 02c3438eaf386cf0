package workload

import (
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sheaf.dev/sheaf/api/v1alpha1"
	"sheaf.dev/sheaf/internal/test/must"
)

func gatewayTemplate(store *v1alpha1.RecordStore) corev1.PodTemplateSpec {
	return GatewayDeployment(store, "sheaf:1", EtcdAccessOf(store, nil)).Spec.Template
}

// TestGatewaysSurviveTheirNode checks that gateways are on different nodes if there are several, and that they leave a
// node that has not responded for 10 s.
func TestGatewaysSurviveTheirNode(t *testing.T) {
	pod := gatewayTemplate(managedStore()).Spec
	if len(pod.TopologySpreadConstraints) != 1 {
		t.Fatalf("spread %+v", pod.TopologySpreadConstraints)
	}
	c := pod.TopologySpreadConstraints[0]
	if c.MaxSkew != 1 || c.TopologyKey != corev1.LabelHostname || c.WhenUnsatisfiable != corev1.DoNotSchedule ||
		*c.NodeTaintsPolicy != corev1.NodeInclusionPolicyHonor ||
		!slices.Equal(c.MatchLabelKeys, []string{"pod-template-hash"}) ||
		!reflect.DeepEqual(c.LabelSelector.MatchLabels, Selector("quotes", ContainerGateway)) {
		t.Errorf("spread %+v", c)
	}
	for _, test := range []struct {
		name  string
		asked []corev1.Toleration
		want  map[string]int64 // -1 means indefinitely
	}{
		{"by default", nil, map[string]int64{corev1.TaintNodeNotReady: 10, corev1.TaintNodeUnreachable: 10}},
		{"beside another taint", []corev1.Toleration{{Key: "a", Operator: corev1.TolerationOpExists}},
			map[string]int64{"a": -1, corev1.TaintNodeNotReady: 10, corev1.TaintNodeUnreachable: 10}},
		{"as asked", []corev1.Toleration{{Key: corev1.TaintNodeUnreachable, Operator: corev1.TolerationOpExists,
			Effect: corev1.TaintEffectNoExecute, TolerationSeconds: new(int64(60))}},
			map[string]int64{corev1.TaintNodeNotReady: 10, corev1.TaintNodeUnreachable: 60}},
		{"everything", []corev1.Toleration{{Operator: corev1.TolerationOpExists}}, map[string]int64{"": -1}},
	} {
		t.Run(test.name, func(t *testing.T) {
			store := managedStore()
			store.Spec.Gateway.Scheduling = &v1alpha1.Scheduling{Tolerations: test.asked}
			got := map[string]int64{}
			for _, toleration := range gatewayTemplate(store).Spec.Tolerations {
				got[toleration.Key] = -1
				if s := toleration.TolerationSeconds; s != nil {
					got[toleration.Key] = *s
				}
			}
			if !reflect.DeepEqual(got, test.want) {
				t.Errorf("tolerates %v, want %v", got, test.want)
			}
		})
	}
}

// TestPodsAreScheduledAsAsked checks that the spec's affinity and spread constraints replace the operator's, and that
// the spec's labels and annotations are added to the operator's.
func TestPodsAreScheduledAsAsked(t *testing.T) {
	s := &v1alpha1.Scheduling{
		NodeSelector: map[string]string{"disk": "fast"}, PriorityClassName: "high",
		Affinity: &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{}},
		TopologySpreadConstraints: []corev1.TopologySpreadConstraint{
			{MaxSkew: 2, TopologyKey: "zone", WhenUnsatisfiable: corev1.ScheduleAnyway},
			{MaxSkew: 1, TopologyKey: "rack", WhenUnsatisfiable: corev1.DoNotSchedule,
				LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"a": "b"}}},
		},
	}
	labels, annotations := map[string]v1alpha1.LabelValue{"team": "storage"}, map[string]string{"note": "x"}
	in := shardInput()
	store := managedStore()
	in.Pool.Spec.Scheduling, in.Pool.Spec.PodLabels, in.Pool.Spec.PodAnnotations = s, labels, annotations
	store.Spec.Gateway.Scheduling, store.Spec.Gateway.PodLabels, store.Spec.Gateway.PodAnnotations = s, labels, annotations
	store.Spec.Etcd.Managed.PodLabels, store.Spec.Etcd.Managed.PodAnnotations = labels, annotations
	templates := map[string]corev1.PodTemplateSpec{
		ContainerShard: shardSet(t, in).Spec.Template, ContainerGateway: gatewayTemplate(store),
		ContainerEtcd: etcdTemplate(t, store, EtcdNew),
	}
	for component, template := range templates {
		if template.Labels["team"] != "storage" || template.Annotations["note"] != "x" ||
			template.Labels[v1alpha1.LabelStore] != "quotes" ||
			component != ContainerGateway && template.Annotations[AnnotationTemplate] == "" {
			t.Errorf("%s: labels %v, annotations %v", component, template.Labels, template.Annotations)
		}
		if component == ContainerEtcd {
			continue
		}
		pod := template.Spec
		if pod.NodeSelector["disk"] != "fast" || pod.PriorityClassName != "high" || pod.Affinity.NodeAffinity == nil ||
			len(pod.TopologySpreadConstraints) != 2 {
			t.Fatalf("%s: %+v", component, pod)
		}
		if got := pod.TopologySpreadConstraints[0].LabelSelector; got == nil ||
			!reflect.DeepEqual(got.MatchLabels, Selector("quotes", component)) {
			t.Errorf("%s: spreads %v", component, got)
		}
		if got := pod.TopologySpreadConstraints[1].LabelSelector.MatchLabels["a"]; got != "b" {
			t.Errorf("%s: spreads %v", component, got)
		}
	}
	// The object's own labels identify it for the operator, so the user's labels are not added to it.
	if set := shardSet(t, in); set.Labels["team"] != "" || set.Spec.Selector.MatchLabels["team"] != "" {
		t.Errorf("labels of the set %v", set.Labels)
	}
	if got := templates[ContainerEtcd].Annotations[AnnotationTemplate]; got == etcdTemplate(t, managedStore(), EtcdNew).
		Annotations[AnnotationTemplate] {
		t.Error("labels do not restart a member")
	}
}

// TestExtraEnv checks that the spec's variables are added after the operator's, in the spec's order, and that the CRDs
// refuse every name that the operator sets.
func TestExtraEnv(t *testing.T) {
	in, store := shardInput(), managedStore()
	store.Spec.Tracing = &v1alpha1.Tracing{Endpoint: "http://collector:4317", SampleRatio: "0.01"}
	store.Status.TLS = &v1alpha1.TLSStatus{Transport: v1alpha1.TransportRequired}
	in.Store.Spec.Tracing, in.Store.Status.TLS = store.Spec.Tracing, store.Status.TLS
	templates := func() map[string]corev1.PodTemplateSpec {
		return map[string]corev1.PodTemplateSpec{
			ContainerShard: shardSet(t, in).Spec.Template, ContainerGateway: gatewayTemplate(store),
			ContainerEtcd: etcdTemplate(t, store, EtcdNew),
		}
	}
	before := templates()
	asked := []v1alpha1.EnvVar{{Name: "GOMEMLIMIT", Value: "1GiB"}, {Name: "A", Value: ""}}
	in.Pool.Spec.ExtraEnv, store.Spec.Gateway.ExtraEnv, store.Spec.Etcd.Managed.ExtraEnv = asked, asked, asked
	for component, template := range templates() {
		own := before[component].Spec.Containers[0].Env
		want := append(slices.Clone(own), corev1.EnvVar{Name: "GOMEMLIMIT", Value: "1GiB"}, corev1.EnvVar{Name: "A"})
		if got := template.Spec.Containers[0].Env; !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %v, want %v", component, got, want)
		}
		hash := template.Annotations[AnnotationTemplate]
		if component != ContainerGateway && hash == before[component].Annotations[AnnotationTemplate] {
			t.Errorf("%s: a variable does not restart its pods", component)
		}
		for _, kind := range []string{"recordstores", "shardpools"} {
			text, err := os.ReadFile("../../../config/crd/bases/sheaf.dev_" + kind + ".yaml")
			must.OK(t, err)
			plain := strings.ReplaceAll(strings.Join(strings.Fields(string(text)), " "), "''", "'")
			_, rule, _ := strings.Cut(plain, "!self.startsWith('SHEAF_')")
			rule, _, _ = strings.Cut(rule, "]")
			for _, v := range own {
				if !strings.HasPrefix(v.Name, "SHEAF_") && !strings.Contains(rule, "'"+v.Name+"'") {
					t.Errorf("%s: extraEnv of %s may replace %s of the operator: %s", component, kind, v.Name, rule)
				}
			}
		}
	}
}

func TestTracing(t *testing.T) {
	in := shardInput()
	names := func(env []corev1.EnvVar) map[string]string {
		out := map[string]string{}
		for _, e := range env {
			out[e.Name] = e.Value
		}
		return out
	}
	env := func() [2]map[string]string {
		return [2]map[string]string{names(shardSet(t, in).Spec.Template.Spec.Containers[0].Env),
			names(gatewayTemplate(in.Store).Spec.Containers[0].Env)}
	}
	for _, e := range env() {
		if _, there := e["OTEL_EXPORTER_OTLP_ENDPOINT"]; there {
			t.Errorf("sends traces unasked: %v", e)
		}
	}
	in.Store.Spec.Tracing = &v1alpha1.Tracing{Endpoint: "http://collector:4317", SampleRatio: "0.5"}
	for _, e := range env() {
		if e["OTEL_EXPORTER_OTLP_ENDPOINT"] != "http://collector:4317" ||
			e["OTEL_TRACES_SAMPLER"] != "parentbased_traceidratio" || e["OTEL_TRACES_SAMPLER_ARG"] != "0.5" {
			t.Errorf("environment %v", e)
		}
	}
}

func TestClassFileSystem(t *testing.T) {
	set := &v1alpha1.DiskSet{ObjectMeta: metav1.ObjectMeta{Name: "local"},
		Spec: v1alpha1.DiskSetSpec{FileSystem: v1alpha1.FileSystem{Type: v1alpha1.XFS}}}
	csi := &storagev1.StorageClass{Parameters: map[string]string{"csi.storage.k8s.io/fstype": "ext4"}}
	for want, class := range map[string]*storagev1.StorageClass{"xfs": DiskClass(set), "ext4": csi,
		"": {Parameters: map[string]string{"type": "gp3"}}} {
		if got := ClassFileSystem(class); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
