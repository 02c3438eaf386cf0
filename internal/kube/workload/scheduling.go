package workload

import (
	"maps"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sheaf.dev/sheaf/api/v1alpha1"
)

// gatewayAwaySeconds is how long a gateway is left on a node that does not answer. It has nothing that it could lose;
// Kubernetes' own 300 s would leave a store whose gateways were on that node without any.
const gatewayAwaySeconds = 10

// schedule puts what a spec says of a component's pods into a pod: tolerations beside the operator's, affinity and
// spread in place of them.
func schedule(pod *corev1.PodSpec, s *v1alpha1.Scheduling, selector map[string]string) {
	if s == nil {
		return
	}
	pod.NodeSelector, pod.PriorityClassName = s.NodeSelector, s.PriorityClassName
	pod.Tolerations = append(pod.Tolerations, s.Tolerations...)
	if s.Affinity != nil {
		pod.Affinity = s.Affinity.DeepCopy()
	}
	if len(s.TopologySpreadConstraints) == 0 {
		return
	}
	pod.TopologySpreadConstraints = nil
	for n := range s.TopologySpreadConstraints {
		c := s.TopologySpreadConstraints[n].DeepCopy()
		if c.LabelSelector == nil {
			c.LabelSelector = &metav1.LabelSelector{MatchLabels: selector}
		}
		pod.TopologySpreadConstraints = append(pod.TopologySpreadConstraints, *c)
	}
}

// decorate puts labels and annotations of a spec on a pod template, where the operator has none of that name.
func decorate(template *corev1.PodTemplateSpec, labels map[string]v1alpha1.LabelValue, annotations map[string]string) {
	all := make(map[string]string, len(labels)+len(template.Labels))
	for key, value := range labels {
		all[key] = string(value)
	}
	maps.Copy(all, template.Labels)
	template.Labels = all
	if len(annotations) > 0 {
		all = maps.Clone(annotations)
		maps.Copy(all, template.Annotations)
		template.Annotations = all
	}
}

// leavesSoon tolerates a node that does not answer for gatewayAwaySeconds, where the spec does not say for how long.
func leavesSoon(s *v1alpha1.Scheduling) []corev1.Toleration {
	var out []corev1.Toleration
	for _, key := range []string{corev1.TaintNodeNotReady, corev1.TaintNodeUnreachable} {
		if !tolerates(s, key) {
			out = append(out, corev1.Toleration{
				Key: key, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute,
				TolerationSeconds: new(int64(gatewayAwaySeconds)),
			})
		}
	}
	return out
}

// tolerates says whether a spec says itself how long pods stay on a node with a taint of that key.
func tolerates(s *v1alpha1.Scheduling, key string) bool {
	if s == nil {
		return false
	}
	for _, t := range s.Tolerations {
		if (t.Key == key || t.Key == "") && (t.Effect == corev1.TaintEffectNoExecute || t.Effect == "") {
			return true
		}
	}
	return false
}

// spread keeps pods of one component of a store apart where that is possible.
func spread(store *v1alpha1.RecordStore, component string) []corev1.TopologySpreadConstraint {
	key := store.Spec.Replication.TopologyKey
	if key == "" {
		key = corev1.LabelHostname
	}
	return []corev1.TopologySpreadConstraint{{
		MaxSkew: 1, TopologyKey: key, WhenUnsatisfiable: corev1.ScheduleAnyway,
		LabelSelector: &metav1.LabelSelector{MatchLabels: Selector(store.Name, component)},
	}}
}

// apart keeps pods of one Deployment on different nodes: none gets two more than another one that could take them. With
// more pods than nodes they share; a node that is cordoned, down, or tainted does not count. Pods of an older template
// are not counted: they go.
func apart(selector map[string]string) corev1.TopologySpreadConstraint {
	return corev1.TopologySpreadConstraint{
		MaxSkew: 1, TopologyKey: corev1.LabelHostname, WhenUnsatisfiable: corev1.DoNotSchedule,
		LabelSelector: &metav1.LabelSelector{MatchLabels: selector}, MatchLabelKeys: []string{"pod-template-hash"},
		NodeTaintsPolicy: new(corev1.NodeInclusionPolicyHonor),
	}
}

// tracingEnv tells a process where its traces go.
func tracingEnv(store *v1alpha1.RecordStore) []corev1.EnvVar {
	t := store.Spec.Tracing
	if t == nil {
		return nil
	}
	return []corev1.EnvVar{
		{Name: "OTEL_EXPORTER_OTLP_ENDPOINT", Value: t.Endpoint},
		{Name: "OTEL_TRACES_SAMPLER", Value: "parentbased_traceidratio"},
		{Name: "OTEL_TRACES_SAMPLER_ARG", Value: t.SampleRatio},
	}
}
