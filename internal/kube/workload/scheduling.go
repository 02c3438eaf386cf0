package workload

import (
	"cmp"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sheaf.dev/sheaf/api/v1alpha1"
)

// gatewayAwaySeconds is how long a gateway remains on a node that does not respond. A gateway has no state to lose.
// With the Kubernetes default of 300 s, a store whose gateways were all on that node would have no gateway for five
// minutes.
const gatewayAwaySeconds = 10

// schedule applies a component's scheduling spec to a pod. Tolerations in the spec are added to those of the operator.
// Affinity and spread constraints in the spec replace those of the operator.
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

// customize applies the spec's options for a component's pods to their template. If a label or annotation is set both
// by the spec and by the operator, the operator's value is used. None of the added environment variables has a name
// that the operator sets, because the API server refuses such names.
func customize(template *corev1.PodTemplateSpec, o *v1alpha1.PodOptions, selector map[string]string) {
	schedule(&template.Spec, o.Scheduling, selector)
	own := template.Labels
	template.Labels = make(map[string]string, len(o.PodLabels)+len(own))
	for key, value := range o.PodLabels {
		template.Labels[key] = string(value)
	}
	maps.Copy(template.Labels, own)
	if len(o.PodAnnotations) > 0 {
		own = template.Annotations
		template.Annotations = maps.Clone(o.PodAnnotations)
		maps.Copy(template.Annotations, own)
	}
	container := &template.Spec.Containers[0]
	for _, v := range o.ExtraEnv {
		container.Env = append(container.Env, corev1.EnvVar{Name: v.Name, Value: v.Value})
	}
}

// leavesSoon returns tolerations that keep a pod for gatewayAwaySeconds on a node that does not respond, unless the
// spec specifies a duration.
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

// tolerates reports whether a spec sets how long pods remain on a node with a taint of the given key.
func tolerates(s *v1alpha1.Scheduling, key string) bool {
	return s != nil && slices.ContainsFunc(s.Tolerations, func(t corev1.Toleration) bool {
		return (t.Key == key || t.Key == "") && (t.Effect == corev1.TaintEffectNoExecute || t.Effect == "")
	})
}

// spread returns constraints that place a component's pods in different failure domains if possible. A failure domain
// is a value of the spec's topology key, which is the node by default.
func spread(store *v1alpha1.RecordStore, component string) []corev1.TopologySpreadConstraint {
	key := cmp.Or(store.Spec.Replication.TopologyKey, corev1.LabelHostname)
	return []corev1.TopologySpreadConstraint{{
		MaxSkew: 1, TopologyKey: key, WhenUnsatisfiable: corev1.ScheduleAnyway,
		LabelSelector: &metav1.LabelSelector{MatchLabels: Selector(store.Name, component)},
	}}
}

// apart returns a constraint that places the pods of one Deployment on different nodes. No usable node may have two
// more of these pods than another usable node. If there are more pods than nodes, pods share nodes. The constraint
// ignores nodes that are cordoned, down or tainted. It also ignores pods from an older template, because they are being
// replaced.
func apart(selector map[string]string) corev1.TopologySpreadConstraint {
	return corev1.TopologySpreadConstraint{
		MaxSkew: 1, TopologyKey: corev1.LabelHostname, WhenUnsatisfiable: corev1.DoNotSchedule,
		LabelSelector: &metav1.LabelSelector{MatchLabels: selector}, MatchLabelKeys: []string{"pod-template-hash"},
		NodeTaintsPolicy: new(corev1.NodeInclusionPolicyHonor),
	}
}

// tracingEnv returns the environment variables with the address to which processes send traces.
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

// auditArgs returns the flags for the audit log of a gateway or shard. The log goes to standard output, because the
// kubelet rotates standard output, while a file on a volume would grow until the volume is full. Without certificates,
// callers have no known identity, and the processes refuse these flags.
func auditArgs(store *v1alpha1.RecordStore) []string {
	audit := store.Spec.Audit
	switch {
	case audit == nil || audit.Mode == v1alpha1.AuditNone || !HasTLS(store):
		return nil
	case audit.Mode == v1alpha1.AuditWrites:
		return []string{"--audit-log=-", "--audit-writes"}
	}
	return []string{"--audit-log=-"}
}

// PodReady reports whether the kubelet finds a pod ready.
func PodReady(pod *corev1.Pod) bool {
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}

// Unscheduled returns the scheduler's condition on a pod that it has not assigned to a node. The result is zero if
// there is no such condition.
func Unscheduled(pod *corev1.Pod) corev1.PodCondition {
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse {
			return c
		}
	}
	return corev1.PodCondition{}
}
