package workload

import (
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

// ShardInput holds what ShardSet needs to know about a shard.
type ShardInput struct {
	Store *v1alpha1.RecordStore // status.storeUID must be set
	Pool  *v1alpha1.ShardPool
	Etcd  EtcdAccess
	// Image is the image of the shard, unless the store names a different image.
	Image  string
	Number int32
	// Parked means that the shard has no pod.
	Parked bool
	// ClaimSize is the size in the claim template, which cannot be changed in an existing StatefulSet.
	ClaimSize resource.Quantity
	// Volume is the UUID of the only volume that the shard may serve. It is empty if the shard has no volume yet.
	Volume string
}

// ShardSet returns the StatefulSet of one shard. The update strategy is OnDelete: only the operator replaces pods, one
// at a time.
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
	revisions := int32(2)
	set := &appsv1.StatefulSet{
		TypeMeta: metav1.TypeMeta{APIVersion: "apps/v1", Kind: "StatefulSet"},
		ObjectMeta: metav1.ObjectMeta{
			Name: name, Namespace: in.Pool.Namespace, Labels: ShardLabels(in.Store.Name, in.Pool.Name, in.Number),
			Annotations: map[string]string{AnnotationDeletionPolicy: string(in.Store.Spec.DeletionPolicy)},
		},
		Spec: appsv1.StatefulSetSpec{
			Replicas:             &replicas,
			RevisionHistoryLimit: &revisions,
			ServiceName:          ShardService(in.Pool.Name),
			PodManagementPolicy:  appsv1.ParallelPodManagement,
			UpdateStrategy:       appsv1.StatefulSetUpdateStrategy{Type: appsv1.OnDeleteStatefulSetStrategyType},
			PersistentVolumeClaimRetentionPolicy: &appsv1.StatefulSetPersistentVolumeClaimRetentionPolicy{
				WhenDeleted: appsv1.RetainPersistentVolumeClaimRetentionPolicyType,
				WhenScaled:  appsv1.RetainPersistentVolumeClaimRetentionPolicyType,
			},
			Selector:             &metav1.LabelSelector{MatchLabels: shardSelector(in.Store.Name, in.Pool.Name, in.Number)},
			Template:             template,
			VolumeClaimTemplates: []corev1.PersistentVolumeClaim{shardClaim(in)},
		},
	}
	return set, nil
}

func shardClaim(in ShardInput) corev1.PersistentVolumeClaim {
	return corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: ClaimTemplate, Labels: ShardLabels(in.Store.Name, in.Pool.Name, in.Number)},
		Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes:      []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			StorageClassName: &in.Pool.Spec.Storage.StorageClassName,
			Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{
				corev1.ResourceStorage: in.ClaimSize}},
		},
	}
}

func shardTemplate(in ShardInput, name string) corev1.PodTemplateSpec {
	grace := int64(60)
	no := false
	pod := corev1.PodSpec{
		AutomountServiceAccountToken:  &no,
		EnableServiceLinks:            &no,
		TerminationGracePeriodSeconds: &grace,
		ImagePullSecrets:              in.Store.Spec.ImagePullSecrets,
		SecurityContext:               podSecurity(),
		Tolerations:                   shardTolerations(),
		TopologySpreadConstraints:     spread(in.Store, ContainerShard),
	}
	schedule(&pod, in.Pool.Spec.Scheduling, Selector(in.Store.Name, ContainerShard))
	container := shardContainer(in, name)
	in.Etcd.mount(&pod, &container)
	mountTLS(in.Store, ShardTLS(name), &pod, &container)
	pod.Containers = []corev1.Container{container}
	template := corev1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{
			Labels: ShardLabels(in.Store.Name, in.Pool.Name, in.Number), Annotations: map[string]string{},
		},
		Spec: pod,
	}
	decorate(&template, in.Pool.Spec.PodLabels, in.Pool.Spec.PodAnnotations)
	return template
}

// ImageOf returns the image of a store's pods.
func ImageOf(store *v1alpha1.RecordStore, fallback string) string {
	if store.Spec.Image != "" {
		return store.Spec.Image
	}
	return fallback
}

func shardContainer(in ShardInput, name string) corev1.Container {
	container := corev1.Container{
		Name:            ContainerShard,
		Image:           ImageOf(in.Store, in.Image),
		ImagePullPolicy: in.Store.Spec.ImagePullPolicy,
		Args:            shardArgs(in, name),
		Env: slices.Concat(shardEnv(in.Store.Spec.Replication.TopologyKey), tracingEnv(in.Store),
			extraEnv(in.Pool.Spec.ExtraEnv)),
		SecurityContext:          containerSecurity(),
		TerminationMessagePolicy: corev1.TerminationMessageFallbackToLogsOnError,
		Ports: []corev1.ContainerPort{
			{Name: "grpc", ContainerPort: PortShard, Protocol: corev1.ProtocolTCP},
			{Name: "http", ContainerPort: PortShardHTTP, Protocol: corev1.ProtocolTCP},
		},
		VolumeMounts: []corev1.VolumeMount{{Name: ClaimTemplate, MountPath: DataDir}},
		// The startup probe fails only if loading makes no progress. After the start, the kubelet kills a process only if it
		// does not respond.
		StartupProbe:  httpProbe("/startupz", 5, 60),
		LivenessProbe: httpProbe("/healthz", 10, 6),
		// A shard whose disk hangs is found by this probe: until then, the disruption budget counts its copies.
		ReadinessProbe: httpProbe("/readyz", 2, 2),
	}
	if in.Pool.Spec.Resources != nil {
		container.Resources = *in.Pool.Spec.Resources
	}
	return container
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

// shardEnv returns environment variables with the values that only the pod knows. The failure domain is the node by
// default. If the spec asks for the node's zone or region, the failure domain is the value of the label that Kubernetes
// copies from the node to its pods.
func shardEnv(topologyKey string) []corev1.EnvVar {
	field := func(name, path string) corev1.EnvVar {
		return corev1.EnvVar{Name: name, ValueFrom: &corev1.EnvVarSource{
			FieldRef: &corev1.ObjectFieldSelector{APIVersion: "v1", FieldPath: path},
		}}
	}
	domain := "spec.nodeName"
	if topologyKey == corev1.LabelTopologyZone || topologyKey == corev1.LabelTopologyRegion {
		domain = fmt.Sprintf("metadata.labels['%s']", topologyKey)
	}
	return []corev1.EnvVar{
		field("NODE_NAME", "spec.nodeName"),
		field("DOMAIN", domain),
		field("EXPECT_VOLUME", fmt.Sprintf("metadata.annotations['%s']", AnnotationVolume)),
	}
}

// shardTolerations returns tolerations that keep a shard on its node while the node is down, because a local volume
// cannot move to another node.
func shardTolerations() []corev1.Toleration {
	return []corev1.Toleration{
		{Key: corev1.TaintNodeNotReady, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute},
		{Key: corev1.TaintNodeUnreachable, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute},
	}
}

// podSecurity returns a security context that satisfies Pod Security "restricted" and lets the user write to volumes.
func podSecurity() *corev1.PodSecurityContext {
	user, yes, policy := int64(User), true, corev1.FSGroupChangeOnRootMismatch
	return &corev1.PodSecurityContext{
		RunAsNonRoot: &yes, RunAsUser: &user, RunAsGroup: &user, FSGroup: &user, FSGroupChangePolicy: &policy,
		SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
	}
}

// containerSecurity returns a security context that satisfies Pod Security "restricted".
func containerSecurity() *corev1.SecurityContext {
	yes, no := true, false
	return &corev1.SecurityContext{
		AllowPrivilegeEscalation: &no, ReadOnlyRootFilesystem: &yes, RunAsNonRoot: &yes,
		Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
	}
}

// PoolService returns the headless Service that gives the pods of a pool their DNS names. Shards find each other
// through it before they are ready.
func PoolService(store *v1alpha1.RecordStore, pool *v1alpha1.ShardPool) *corev1.Service {
	return &corev1.Service{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Service"},
		ObjectMeta: metav1.ObjectMeta{
			Name: ShardService(pool.Name), Namespace: pool.Namespace, Labels: poolLabels(store.Name, pool.Name),
		},
		Spec: corev1.ServiceSpec{
			ClusterIP: corev1.ClusterIPNone, PublishNotReadyAddresses: true,
			Selector: PoolSelector(store.Name, pool.Name),
			Ports: []corev1.ServicePort{
				{Name: "grpc", Port: PortShard, TargetPort: intstr.FromString("grpc"), Protocol: corev1.ProtocolTCP},
				{Name: "http", Port: PortShardHTTP, TargetPort: intstr.FromString("http"), Protocol: corev1.ProtocolTCP},
			},
		},
	}
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
