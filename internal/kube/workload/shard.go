package workload

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"sheaf.dev/sheaf/api/v1alpha1"
)

// ShardInput holds the input of ShardSet for one shard.
type ShardInput struct {
	Store *v1alpha1.RecordStore // its status.storeUID must be set
	Pool  *v1alpha1.ShardPool
	Etcd  EtcdAccess
	// Image is the shard's image, unless the store names a different image.
	Image  string
	Number int32
	// Parked means that the shard has no pod.
	Parked bool
	// ClaimSize is the size in the claim template, which cannot be changed in an existing StatefulSet.
	ClaimSize resource.Quantity
	// HoldBytes limits how much history the shard keeps for an archive that is behind. If it is 0, the shard chooses the
	// limit.
	HoldBytes int64
	// Volume is the UUID of the only volume that the shard may serve. It is empty if the shard has no volume yet.
	Volume string
}

// ShardSet returns one shard's StatefulSet. The update strategy is OnDelete: only the operator replaces pods, one at a
// time.
func ShardSet(in ShardInput) (*appsv1.StatefulSet, error) {
	name := Shard(in.Pool.Name, in.Number)
	template := shardTemplate(in, name)
	hash, err := templateHash(template)
	if err != nil {
		return nil, fmt.Errorf("hash the pod template of shard %s: %w", name, err)
	}
	template.Annotations[AnnotationTemplate] = hash
	if in.Volume != "" {
		template.Annotations[AnnotationVolume] = in.Volume
	}
	replicas := int32(1)
	if in.Parked {
		replicas = 0
	}
	labels := ShardLabels(in.Store.Name, in.Pool.Name, in.Number)
	set := statefulSet(in.Pool.Namespace, name, ShardService(in.Pool.Name), replicas, template,
		&in.Pool.Spec.Storage.StorageClassName, in.ClaimSize)
	set.TypeMeta = metav1.TypeMeta{APIVersion: "apps/v1", Kind: "StatefulSet"}
	set.Labels, set.Spec.VolumeClaimTemplates[0].Labels = labels, labels
	set.Annotations = map[string]string{AnnotationDeletionPolicy: string(in.Store.Spec.DeletionPolicy)}
	set.Spec.RevisionHistoryLimit = new(int32(2))
	set.Spec.Selector = &metav1.LabelSelector{MatchLabels: PoolSelector(in.Store.Name, in.Pool.Name)}
	set.Spec.Selector.MatchLabels[v1alpha1.LabelShard] = labels[v1alpha1.LabelShard]
	return set, nil
}

func shardTemplate(in ShardInput, name string) corev1.PodTemplateSpec {
	pod := podOf(in.Store, ContainerShard, ImageOf(in.Store, in.Image), shardArgs(in, name))
	pod.TerminationGracePeriodSeconds = new(int64(60))
	// A shard stays on its node while the node is down, because a local volume cannot move to another node.
	pod.Tolerations = []corev1.Toleration{
		{Key: corev1.TaintNodeNotReady, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute},
		{Key: corev1.TaintNodeUnreachable, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute},
	}
	pod.TopologySpreadConstraints = spread(in.Store, ContainerShard)
	container := &pod.Containers[0]
	container.Env = slices.Concat(shardEnv(in.Store.Spec.Replication.TopologyKey), tracingEnv(in.Store))
	container.Ports = []corev1.ContainerPort{containerPort("grpc", PortShard), containerPort("http", PortShardHTTP)}
	container.VolumeMounts = []corev1.VolumeMount{{Name: ClaimTemplate, MountPath: DataDir}}
	// The startup probe fails only if loading makes no progress. After the start, the kubelet kills a process only if it
	// does not respond.
	container.StartupProbe = httpProbe("/startupz", 5, 60)
	// The readiness probe fails for a shard whose disk hangs. The disruption budget treats the shard's copies as available
	// until the probe has failed.
	container.ReadinessProbe = httpProbe("/readyz", 2, 2)
	if in.Pool.Spec.Resources != nil {
		container.Resources = *in.Pool.Spec.Resources
	}
	in.Etcd.mount(&pod, container)
	mountTLS(in.Store, ShardTLS(name), &pod, container)
	template := corev1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{
			Labels: ShardLabels(in.Store.Name, in.Pool.Name, in.Number), Annotations: map[string]string{},
		},
		Spec: pod,
	}
	customize(&template, &in.Pool.Spec.PodOptions, Selector(in.Store.Name, ContainerShard))
	return template
}

// ImageOf returns the image of a store's pods.
func ImageOf(store *v1alpha1.RecordStore, fallback string) string {
	return cmp.Or(store.Spec.Image, fallback)
}

// podOf returns a pod for a store with one container, which runs sheaf with the given arguments. The pod has the
// parts that all components have in common.
func podOf(store *v1alpha1.RecordStore, component, image string, args []string) corev1.PodSpec {
	return corev1.PodSpec{
		AutomountServiceAccountToken: new(false),
		EnableServiceLinks:           new(false),
		SecurityContext:              podSecurity(),
		ImagePullSecrets:             store.Spec.ImagePullSecrets,
		Containers: []corev1.Container{{
			Name: component, Image: image, ImagePullPolicy: store.Spec.ImagePullPolicy, Args: args,
			SecurityContext:          containerSecurity(),
			TerminationMessagePolicy: corev1.TerminationMessageFallbackToLogsOnError,
			LivenessProbe:            httpProbe("/healthz", 10, 6),
		}},
	}
}

// statefulSet returns a StatefulSet with one claim for each pod. Only the operator replaces its pods, and its claims
// remain when it is deleted. The caller adds the labels and the selector.
func statefulSet(namespace, name, service string, replicas int32, template corev1.PodTemplateSpec, class *string,
	size resource.Quantity) *appsv1.StatefulSet {
	return &appsv1.StatefulSet{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec: appsv1.StatefulSetSpec{
			Replicas:            &replicas,
			ServiceName:         service,
			PodManagementPolicy: appsv1.ParallelPodManagement,
			UpdateStrategy:      appsv1.StatefulSetUpdateStrategy{Type: appsv1.OnDeleteStatefulSetStrategyType},
			PersistentVolumeClaimRetentionPolicy: &appsv1.StatefulSetPersistentVolumeClaimRetentionPolicy{
				WhenDeleted: appsv1.RetainPersistentVolumeClaimRetentionPolicyType,
				WhenScaled:  appsv1.RetainPersistentVolumeClaimRetentionPolicyType,
			},
			Template: template,
			VolumeClaimTemplates: []corev1.PersistentVolumeClaim{{
				ObjectMeta: metav1.ObjectMeta{Name: ClaimTemplate},
				Spec: corev1.PersistentVolumeClaimSpec{
					AccessModes:      []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
					StorageClassName: class,
					Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{
						corev1.ResourceStorage: size}},
				},
			}},
		},
	}
}

// headless returns a Service that gives pods their DNS names. Pods find each other through it before they are ready.
func headless(namespace, name string, labels, selector map[string]string, ports ...corev1.ServicePort) *corev1.Service {
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: labels},
		Spec: corev1.ServiceSpec{ClusterIP: corev1.ClusterIPNone, PublishNotReadyAddresses: true, Selector: selector,
			Ports: ports},
	}
}

func servicePort(name string, number int32) corev1.ServicePort {
	return corev1.ServicePort{Name: name, Port: number, TargetPort: intstr.FromString(name), Protocol: corev1.ProtocolTCP}
}

func containerPort(name string, number int32) corev1.ContainerPort {
	return corev1.ContainerPort{Name: name, ContainerPort: number, Protocol: corev1.ProtocolTCP}
}

// fieldEnv returns an environment variable whose value comes from a field of the pod.
func fieldEnv(name, path string) corev1.EnvVar {
	return corev1.EnvVar{Name: name, ValueFrom: &corev1.EnvVarSource{
		FieldRef: &corev1.ObjectFieldSelector{APIVersion: "v1", FieldPath: path},
	}}
}

// httpProbe returns a probe that requests a path on the process's HTTP port.
func httpProbe(path string, everySeconds, failures int32) *corev1.Probe {
	return &corev1.Probe{
		ProbeHandler: corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: path, Port: intstr.FromString("http"),
			Scheme: corev1.URISchemeHTTP}},
		PeriodSeconds:  everySeconds,
		TimeoutSeconds: 5, FailureThreshold: failures, SuccessThreshold: 1,
	}
}

func shardArgs(in ShardInput, name string) []string {
	pool := in.Pool.Spec
	args := []string{
		"shard", "--name=" + name, "--dir=" + DataDir, "--stay", "--log-format=json",
		fmt.Sprintf("--listen=:%d", PortShard), fmt.Sprintf("--http=:%d", PortShardHTTP),
		"--advertise=" + ShardAddress(in.Pool.Namespace, in.Pool.Name, name),
		"--store-uid=" + in.Store.Status.StoreUID,
		"--expect-volume=$(EXPECT_VOLUME)",
		"--node=$(NODE_NAME)",
		"--domain=$(DOMAIN)",
		"--medium=" + string(pool.Medium), "--residency=" + string(pool.Residency),
	}
	if pool.FileSystem != nil {
		args = append(args, "--file-system="+string(pool.FileSystem.Type))
		for _, option := range pool.FileSystem.MountOptions {
			args = append(args, "--mount-option="+option)
		}
	}
	retention := in.Store.Spec.Retention
	if retention.Versions > 0 {
		args = append(args, fmt.Sprintf("--retention-versions=%d", retention.Versions))
	}
	if retention.MinAge != nil {
		args = append(args, "--retention-min-age="+retention.MinAge.Duration.String())
	}
	args = append(args, compactionArgs(&in.Store.Spec.Compaction)...)
	if bytes := in.Store.Spec.Views.MaxHeld; bytes != nil {
		args = append(args, fmt.Sprintf("--views-held-max=%d", bytes.Value()))
	}
	if in.HoldBytes > 0 {
		args = append(args, fmt.Sprintf("--archive-hold-max=%d", in.HoldBytes))
	}
	return slices.Concat(args, TLSArgs(in.Store), auditArgs(in.Store), in.Etcd.Args())
}

// compactionArgs returns flags for the values that are set in the spec. The shard chooses the other values.
func compactionArgs(compaction *v1alpha1.Compaction) (args []string) {
	if percent := compaction.SupersededPercent; percent != nil {
		args = append(args, fmt.Sprintf("--compaction-share=%.2f", float64(*percent)/100))
	}
	if bytes := compaction.MinSuperseded; bytes != nil {
		args = append(args, fmt.Sprintf("--compaction-min=%d", bytes.Value()))
	}
	if bytes := compaction.BytesPerSecond; bytes != nil {
		args = append(args, fmt.Sprintf("--compaction-rate=%d", bytes.Value()))
	}
	return args
}

// shardEnv returns environment variables whose values differ from pod to pod. The failure domain is the node by
// default. If the spec asks for the node's zone or region, the failure domain is the value of the label that
// Kubernetes copies from the node to its pods.
func shardEnv(topologyKey string) []corev1.EnvVar {
	domain := "spec.nodeName"
	if topologyKey == corev1.LabelTopologyZone || topologyKey == corev1.LabelTopologyRegion {
		domain = fmt.Sprintf("metadata.labels['%s']", topologyKey)
	}
	return []corev1.EnvVar{
		fieldEnv("NODE_NAME", "spec.nodeName"),
		fieldEnv("DOMAIN", domain),
		fieldEnv("EXPECT_VOLUME", fmt.Sprintf("metadata.annotations['%s']", AnnotationVolume)),
	}
}

// podSecurity returns a security context that satisfies Pod Security "restricted" and lets the user write to volumes.
func podSecurity() *corev1.PodSecurityContext {
	user := int64(User)
	return &corev1.PodSecurityContext{
		RunAsNonRoot: new(true), RunAsUser: &user, RunAsGroup: &user, FSGroup: &user,
		FSGroupChangePolicy: new(corev1.FSGroupChangeOnRootMismatch),
		SeccompProfile:      &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
	}
}

// containerSecurity returns a security context that satisfies Pod Security "restricted".
func containerSecurity() *corev1.SecurityContext {
	return &corev1.SecurityContext{
		AllowPrivilegeEscalation: new(false), ReadOnlyRootFilesystem: new(true), RunAsNonRoot: new(true),
		Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
	}
}

// PoolService returns the headless Service that gives the pods of a pool their DNS names. Shards find each other
// through it before they are ready.
func PoolService(store *v1alpha1.RecordStore, pool *v1alpha1.ShardPool) *corev1.Service {
	service := headless(pool.Namespace, ShardService(pool.Name), poolLabels(store.Name, pool.Name),
		PoolSelector(store.Name, pool.Name), servicePort("grpc", PortShard), servicePort("http", PortShardHTTP))
	service.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Service"}
	return service
}

// SelectorText returns a selector in the syntax of kubectl and the scale subresource.
func SelectorText(labels map[string]string) string {
	parts := make([]string, 0, len(labels))
	for key, value := range labels {
		parts = append(parts, key+"="+value)
	}
	slices.Sort(parts)
	return strings.Join(parts, ",")
}
