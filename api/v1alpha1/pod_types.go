package v1alpha1

import (
	corev1 "k8s.io/api/core/v1"
)

// PodOptions are the fields of a spec about the pods of one component: members of etcd, gateways or shards.
type PodOptions struct {
	// Resources of the container of each pod.
	// +optional
	// +kubebuilder:validation:XValidation:rule="!has(self.claims)",fieldPath=".claims",message="resources.claims is not supported: remove it"
	// +kubebuilder:validation:XValidation:rule="!has(self.limits) || self.limits.size() == ['cpu', 'memory', 'ephemeral-storage'].filter(k, k in self.limits).size()",fieldPath=".limits",message="limits may have cpu, memory and ephemeral-storage only: remove the others"
	// +kubebuilder:validation:XValidation:rule="!has(self.limits) || !('cpu' in self.limits) || (isQuantity(string(self.limits['cpu'])) && quantity(string(self.limits['cpu'])).compareTo(quantity('0')) > 0)",fieldPath=".limits",message="cpu of limits must be a quantity above 0, such as 500m or 2"
	// +kubebuilder:validation:XValidation:rule="!has(self.limits) || !('memory' in self.limits) || (isQuantity(string(self.limits['memory'])) && quantity(string(self.limits['memory'])).compareTo(quantity('32Mi')) >= 0)",fieldPath=".limits",message="memory of limits must be a quantity of at least 32Mi, below which no process of Sheaf starts, such as 512Mi or 8Gi"
	// +kubebuilder:validation:XValidation:rule="!has(self.limits) || !('ephemeral-storage' in self.limits) || (isQuantity(string(self.limits['ephemeral-storage'])) && quantity(string(self.limits['ephemeral-storage'])).compareTo(quantity('0')) > 0)",fieldPath=".limits",message="ephemeral-storage of limits must be a quantity above 0, such as 512Mi or 8Gi"
	// +kubebuilder:validation:XValidation:rule="!has(self.requests) || self.requests.size() == ['cpu', 'memory', 'ephemeral-storage'].filter(k, k in self.requests).size()",fieldPath=".requests",message="requests may have cpu, memory and ephemeral-storage only: remove the others"
	// +kubebuilder:validation:XValidation:rule="!has(self.requests) || !('cpu' in self.requests) || (isQuantity(string(self.requests['cpu'])) && quantity(string(self.requests['cpu'])).compareTo(quantity('0')) >= 0)",fieldPath=".requests",message="cpu of requests must be a quantity not below 0, such as 500m or 2"
	// +kubebuilder:validation:XValidation:rule="!has(self.requests) || !('memory' in self.requests) || (isQuantity(string(self.requests['memory'])) && quantity(string(self.requests['memory'])).compareTo(quantity('0')) >= 0)",fieldPath=".requests",message="memory of requests must be a quantity not below 0, such as 512Mi or 8Gi"
	// +kubebuilder:validation:XValidation:rule="!has(self.requests) || !('ephemeral-storage' in self.requests) || (isQuantity(string(self.requests['ephemeral-storage'])) && quantity(string(self.requests['ephemeral-storage'])).compareTo(quantity('0')) >= 0)",fieldPath=".requests",message="ephemeral-storage of requests must be a quantity not below 0, such as 512Mi or 8Gi"
	// +kubebuilder:validation:XValidation:rule="!has(self.limits) || !has(self.requests) || !('cpu' in self.limits) || !('cpu' in self.requests) || !isQuantity(string(self.requests['cpu'])) || !isQuantity(string(self.limits['cpu'])) || quantity(string(self.requests['cpu'])).compareTo(quantity(string(self.limits['cpu']))) <= 0",fieldPath=".requests",message="cpu of requests is above that of limits: lower the request or raise the limit"
	// +kubebuilder:validation:XValidation:rule="!has(self.limits) || !has(self.requests) || !('memory' in self.limits) || !('memory' in self.requests) || !isQuantity(string(self.requests['memory'])) || !isQuantity(string(self.limits['memory'])) || quantity(string(self.requests['memory'])).compareTo(quantity(string(self.limits['memory']))) <= 0",fieldPath=".requests",message="memory of requests is above that of limits: lower the request or raise the limit"
	// +kubebuilder:validation:XValidation:rule="!has(self.limits) || !has(self.requests) || !('ephemeral-storage' in self.limits) || !('ephemeral-storage' in self.requests) || !isQuantity(string(self.requests['ephemeral-storage'])) || !isQuantity(string(self.limits['ephemeral-storage'])) || quantity(string(self.requests['ephemeral-storage'])).compareTo(quantity(string(self.limits['ephemeral-storage']))) <= 0",fieldPath=".requests",message="ephemeral-storage of requests is above that of limits: lower the request or raise the limit"
	Resources *corev1.ResourceRequirements `json:"resources,omitempty"`
	// Scheduling of the pods.
	// +optional
	Scheduling *Scheduling `json:"scheduling,omitempty"`
	// PodLabels of the pods, in addition to the operator's. A change restarts the pods.
	// +optional
	// +kubebuilder:validation:MaxProperties=16
	// +kubebuilder:validation:XValidation:rule="self.all(k, !format.qualifiedName().validate(k).hasValue())",message="a name of podLabels is letters, digits and - _ ., at most 63, with a domain and / before it where wanted"
	// +kubebuilder:validation:XValidation:rule="self.all(k, !k.contains('sheaf.dev/') && (!k.contains('kubernetes.io/') || k in ['app.kubernetes.io/part-of', 'app.kubernetes.io/version']))",message="podLabels must not hold names of sheaf.dev or kubernetes.io, which the operator and Kubernetes set, but for app.kubernetes.io/part-of and /version"
	PodLabels map[string]LabelValue `json:"podLabels,omitempty"`
	// PodAnnotations of the pods, in addition to the operator's. A change restarts the pods.
	// +optional
	// +kubebuilder:validation:MaxProperties=16
	// +kubebuilder:validation:XValidation:rule="self.all(k, !format.qualifiedName().validate(k.lowerAscii()).hasValue())",message="a name of podAnnotations is letters, digits and - _ ., at most 63, with a domain and / before it where wanted"
	// +kubebuilder:validation:XValidation:rule="self.all(k, !k.contains('sheaf.dev/'))",message="podAnnotations must not hold names of sheaf.dev, which the operator sets"
	PodAnnotations map[string]string `json:"podAnnotations,omitempty"`
	// ExtraEnv are further environment variables of the containers, such as GOMEMLIMIT. A variable that replaces the
	// process's own memory limit may cause the kernel to kill the process. A change restarts the pods.
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=32
	ExtraEnv []EnvVar `json:"extraEnv,omitempty"`
}

// Tracing says where traces of calls are sent, and how many calls are traced.
type Tracing struct {
	// Endpoint of the collector, which receives OTLP over gRPC without TLS, such as
	// http://otel-collector.observability:4317.
	// +required
	// +kubebuilder:validation:MaxLength=512
	// +kubebuilder:validation:XValidation:rule="self.matches('^http://([A-Za-z0-9.-]+|[[][0-9A-Fa-f:.]+[]]):[0-9]{1,5}$')",message="endpoint must be http, a host and a port, such as http://otel-collector.observability:4317"
	Endpoint string `json:"endpoint"`
	// SampleRatio is the fraction of calls that are traced, from 0 to 1, such as 0.01. A caller that makes its own
	// decision about tracing overrides it.
	// +optional
	// +kubebuilder:default="0.01"
	// +kubebuilder:validation:MaxLength=16
	// +kubebuilder:validation:XValidation:rule="self.matches('^(0([.][0-9]{1,6})?|1([.]0{1,6})?)$')",message="sampleRatio must be a number from 0 to 1 with at most six digits behind the point, such as 0.01"
	SampleRatio string `json:"sampleRatio,omitempty"`
}

// EnvVar is an environment variable of a container, in addition to those that the operator sets.
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
	// NodeSelector has the labels that a node must have.
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
	// TopologySpreadConstraints of the pods, in place of what the operator sets. A constraint without a labelSelector
	// counts the pods to which this Scheduling applies.
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

// Values of NetworkPolicyMode.
const (
	// NetworkPolicyManaged lets the operator create them.
	NetworkPolicyManaged NetworkPolicyMode = "Managed"
	// NetworkPolicyNone creates none, and deletes those that the operator created.
	NetworkPolicyNone NetworkPolicyMode = "None"
)

// DirectClients says which clients may call shards directly, without the gateway.
// +kubebuilder:validation:Enum=Any;Labelled
type DirectClients string

// Values of DirectClients.
const (
	// DirectClientsAny allows any pod.
	DirectClientsAny DirectClients = "Any"
	// DirectClientsLabelled allows pods whose label sheaf.dev/client has the store's name as its value.
	DirectClientsLabelled DirectClients = "Labelled"
)

// NetworkPolicy says who may reach the store's pods.
type NetworkPolicy struct {
	// Mode: Managed creates NetworkPolicies that let only the store's pods and the operator reach a managed etcd; None
	// creates none. NetworkPolicies are additive: to admit other pods, add your own policy.
	// +optional
	// +kubebuilder:default=Managed
	Mode NetworkPolicyMode `json:"mode,omitempty"`
	// DirectClients that may call shards without the gateway: Any, or Labelled (pods of any namespace with the label
	// sheaf.dev/client: NAME, where NAME is the store's name). With Labelled, no other pods can reach the port on which
	// shards communicate with each other.
	// +optional
	// +kubebuilder:default=Any
	DirectClients DirectClients `json:"directClients,omitempty"`
}
