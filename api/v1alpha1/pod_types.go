package v1alpha1

import (
	corev1 "k8s.io/api/core/v1"
)

// Tracing says where traces of calls are sent, and how many calls are traced.
type Tracing struct {
	// Endpoint of the collector, by OTLP over gRPC and without TLS, such as http://otel-collector.observability:4317.
	// +required
	// +kubebuilder:validation:MaxLength=512
	// +kubebuilder:validation:XValidation:rule="self.matches('^http://([A-Za-z0-9.-]+|[[][0-9A-Fa-f:.]+[]]):[0-9]{1,5}$')",message="endpoint must be http, a host and a port, such as http://otel-collector.observability:4317"
	Endpoint string `json:"endpoint"`
	// SampleRatio is the part of calls that are traced, from 0 to 1, such as 0.01. A caller that decides about tracing
	// itself overrides it.
	// +optional
	// +kubebuilder:default="0.01"
	// +kubebuilder:validation:MaxLength=16
	// +kubebuilder:validation:XValidation:rule="self.matches('^(0([.][0-9]{1,6})?|1([.]0{1,6})?)$')",message="sampleRatio must be a number from 0 to 1 with at most six digits behind the point, such as 0.01"
	SampleRatio string `json:"sampleRatio,omitempty"`
}

// EnvVar is an environment variable of a container, beside those that the operator sets.
type EnvVar struct {
	// Name of the variable.
	// +required
	// +kubebuilder:validation:MaxLength=128
	// +kubebuilder:validation:XValidation:rule="self.matches('^[A-Za-z_][A-Za-z0-9_]*$')",message="a name of extraEnv is letters, digits and _, and begins with no digit"
	// +kubebuilder:validation:XValidation:rule="!self.startsWith('SHEAF_') && !(self in ['NODE_NAME', 'POD_NAME', 'DOMAIN', 'EXPECT_VOLUME', 'OTEL_EXPORTER_OTLP_ENDPOINT', 'OTEL_TRACES_SAMPLER', 'OTEL_TRACES_SAMPLER_ARG'])",message="extraEnv must not hold names that the operator sets: SHEAF_..., NODE_NAME, POD_NAME, DOMAIN, EXPECT_VOLUME, and those of spec.tracing of the RecordStore"
	Name string `json:"name"`
	// Value of the variable. $(NAME) stands for the value of a variable that comes before it.
	// +optional
	// +kubebuilder:validation:MaxLength=4096
	// +kubebuilder:validation:XValidation:rule="self.matches(r'^[^\\x00]*$')",message="a value of extraEnv must not hold the byte 0, which no environment can hold: remove it"
	Value string `json:"value,omitempty"`
}

// Scheduling says where pods may run.
type Scheduling struct {
	// NodeSelector that nodes must match.
	// +optional
	// +kubebuilder:validation:MaxProperties=8
	// +kubebuilder:validation:XValidation:rule="self.all(k, !format.qualifiedName().validate(k).hasValue())",message="nodeSelector must hold labels of nodes: kubectl get nodes --show-labels shows them"
	// +kubebuilder:validation:XValidation:rule="self.all(k, self[k].size() <= 63 && self[k].matches(r'^[\\w.-]*$'))",message="nodeSelector must hold values of labels of nodes, at most 63 letters, digits and - _ .: kubectl get nodes --show-labels shows them"
	NodeSelector map[string]string `json:"nodeSelector,omitempty"`
	// Tolerations in addition to those that the operator sets.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=8
	// +kubebuilder:validation:XValidation:rule="self.all(t, !has(t.key) || (t.key.size() <= 317 && t.key.matches(r'^[\\w./-]*$')))",message="tolerations[].key must be the key of a taint: kubectl describe nodes shows taints"
	// +kubebuilder:validation:XValidation:rule="self.all(t, !has(t.operator) || t.operator in ['Exists', 'Equal'])",message="tolerations[].operator must be Exists or Equal"
	// +kubebuilder:validation:XValidation:rule="self.all(t, (has(t.key) && t.key != '') || (has(t.operator) && t.operator == 'Exists'))",message="tolerations[] without a key needs operator: Exists, and then tolerates every taint"
	// +kubebuilder:validation:XValidation:rule="self.all(t, !has(t.value) || t.value == '' || ((!has(t.operator) || t.operator != 'Exists') && t.value.size() <= 63 && t.value.matches(r'^[\\w.-]*$')))",message="tolerations[].value must be the value of a taint, and is not allowed beside operator: Exists"
	// +kubebuilder:validation:XValidation:rule="self.all(t, !has(t.effect) || t.effect in ['NoSchedule', 'PreferNoSchedule', 'NoExecute'])",message="tolerations[].effect must be NoSchedule, PreferNoSchedule or NoExecute, or absent for all"
	// +kubebuilder:validation:XValidation:rule="self.all(t, !has(t.tolerationSeconds) || (has(t.effect) && t.effect == 'NoExecute'))",message="tolerations[].tolerationSeconds needs effect: NoExecute"
	Tolerations []corev1.Toleration `json:"tolerations,omitempty"`
	// PriorityClassName of the pods.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="self == '' || !format.dns1123Subdomain().validate(self).hasValue()",message="priorityClassName must be the name of a PriorityClass: kubectl get priorityclasses shows them"
	PriorityClassName string `json:"priorityClassName,omitempty"`
	// Affinity of the pods, in place of what the operator sets.
	// +optional
	Affinity *corev1.Affinity `json:"affinity,omitempty"`
	// TopologySpreadConstraints of the pods, in place of what the operator sets. One without a labelSelector counts the
	// pods that this Scheduling is for.
	// +optional
	// +listType=map
	// +listMapKey=topologyKey
	// +listMapKey=whenUnsatisfiable
	// +kubebuilder:validation:MaxItems=8
	// +kubebuilder:validation:XValidation:rule="self.all(c, c.maxSkew >= 1)",message="topologySpreadConstraints[].maxSkew must be at least 1"
	// +kubebuilder:validation:XValidation:rule="self.all(c, c.whenUnsatisfiable in ['DoNotSchedule', 'ScheduleAnyway'])",message="topologySpreadConstraints[].whenUnsatisfiable must be DoNotSchedule or ScheduleAnyway"
	TopologySpreadConstraints []corev1.TopologySpreadConstraint `json:"topologySpreadConstraints,omitempty"`
}

// NetworkPolicyMode says who creates a store's NetworkPolicies.
// +kubebuilder:validation:Enum=Managed;None
type NetworkPolicyMode string

// Modes of NetworkPolicies.
const (
	// NetworkPolicyManaged lets the operator create them.
	NetworkPolicyManaged NetworkPolicyMode = "Managed"
	// NetworkPolicyNone creates none, and deletes those that the operator created.
	NetworkPolicyNone NetworkPolicyMode = "None"
)

// DirectClients says which clients may call shards directly, without the gateway.
// +kubebuilder:validation:Enum=Any;Labelled
type DirectClients string

// Direct clients.
const (
	// DirectClientsAny allows any pod.
	DirectClientsAny DirectClients = "Any"
	// DirectClientsLabelled allows pods that have the label sheaf.dev/client with the store's name.
	DirectClientsLabelled DirectClients = "Labelled"
)

// NetworkPolicy says who may reach the store's pods.
type NetworkPolicy struct {
	// Mode: Managed creates NetworkPolicies with which only the store's pods and the operator reach a managed etcd;
	// None creates none. Policies add up: to let others in as well, add a policy of your own.
	// +optional
	// +kubebuilder:default=Managed
	Mode NetworkPolicyMode `json:"mode,omitempty"`
	// DirectClients that may call shards without the gateway: Any, or Labelled (pods of any namespace with the label
	// sheaf.dev/client: NAME, where NAME is that of the store). With Labelled, no other pods reach the port on which
	// shards talk to each other.
	// +optional
	// +kubebuilder:default=Any
	DirectClients DirectClients `json:"directClients,omitempty"`
}
