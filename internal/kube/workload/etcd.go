package workload

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"sheaf.dev/sheaf/api/v1alpha1"
)

// AnnotationEtcdState is set on etcd pods. Its value is "new" if an empty member may form a new cluster, and
// "existing" otherwise. It is not part of the template's hash, because members must not restart when the cluster
// forms.
const AnnotationEtcdState = "sheaf.dev/etcd-state"

// These are the states of a managed etcd, as in `sheaf etcd --initial-cluster-state`.
const (
	EtcdNew      = "new"
	EtcdExisting = "existing"
)

// EtcdLostData is the exit code of `sheaf etcd` for a member whose folder is empty even though the cluster was formed
// before. A member exits with this code if no quorum of the existing cluster responds.
const EtcdLostData = 5

// etcdLostData is the last message of a member that has lost its data, in versions that exit with code 1 instead of
// EtcdLostData. Such members run until an operator upgrade has replaced their image.
const etcdLostData = "the folder is empty, and the cluster was formed before"

// LostEtcdData reports whether a container of an etcd member has ended because the member has lost its data.
func LostEtcdData(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Status.ContainerStatuses, func(c corev1.ContainerStatus) bool {
		for _, end := range []*corev1.ContainerStateTerminated{c.LastTerminationState.Terminated, c.State.Terminated} {
			if end != nil && end.ExitCode != 0 {
				return end.ExitCode == EtcdLostData || strings.Contains(end.Message, etcdLostData)
			}
		}
		return false
	})
}

// EtcdMembersMax is the largest number of members that a managed etcd can have.
const EtcdMembersMax int32 = 3

// ValidEtcdMembers reports whether a managed etcd may have n members. 0 stands for the default. The CRD refuses all
// other numbers, but a store may have been created under a later CRD that allows other numbers.
func ValidEtcdMembers(n int32) bool { return n == 0 || n == 1 || n == EtcdMembersMax }

// EtcdMembers returns the number of members of a managed etcd. It is 0 if there is no managed etcd, or if the spec has
// an invalid number of members.
func EtcdMembers(store *v1alpha1.RecordStore) int32 {
	if m := store.Spec.Etcd.Managed; m != nil && ValidEtcdMembers(m.Members) {
		return cmp.Or(m.Members, EtcdMembersMax)
	}
	return 0
}

// EtcdService returns the headless Service of a managed etcd. Members find each other through it before they are
// ready.
func EtcdService(store *v1alpha1.RecordStore) *corev1.Service {
	tls := servicePort("peer-tls", PortEtcdPeerTLS)
	tls.TargetPort = intstr.FromInt32(PortEtcdPeerTLS)
	return headless(store.Namespace, Etcd(store.Name), Labels(store.Name, ContainerEtcd),
		Selector(store.Name, ContainerEtcd), servicePort("client", PortEtcdClient), servicePort("peer", PortEtcdPeer), tls)
}

// EtcdStatefulSet returns the StatefulSet of a managed etcd. The argument state is EtcdNew until the cluster has
// formed, and EtcdExisting from then on, so that an empty member never forms its own cluster. The update strategy is
// OnDelete, so only the operator replaces pods.
func EtcdStatefulSet(store *v1alpha1.RecordStore, image, state string) (*appsv1.StatefulSet, error) {
	managed := store.Spec.Etcd.Managed
	if managed == nil {
		return nil, fmt.Errorf("store %s/%s has no managed etcd", store.Namespace, store.Name)
	}
	hash, err := templateHash(etcdPod(store, managed, image, EtcdNew))
	if err != nil {
		return nil, err
	}
	template := etcdPod(store, managed, image, state)
	template.Annotations[AnnotationTemplate], template.Annotations[AnnotationEtcdState] = hash, state
	labels := Labels(store.Name, ContainerEtcd)
	set := statefulSet(store.Namespace, Etcd(store.Name), Etcd(store.Name), EtcdMembers(store), template,
		managed.Storage.StorageClassName, managed.Storage.Size)
	set.Labels, set.Spec.VolumeClaimTemplates[0].Labels = labels, labels
	set.Spec.Selector = &metav1.LabelSelector{MatchLabels: Selector(store.Name, ContainerEtcd)}
	return set, nil
}

// etcdPod returns the pod template of the members. The argument state is the initial cluster state for members with
// an empty folder.
func etcdPod(store *v1alpha1.RecordStore, managed *v1alpha1.ManagedEtcd, image, state string) corev1.PodTemplateSpec {
	cluster := make([]string, EtcdMembers(store))
	for n := range cluster {
		member := int32(n) //nolint:gosec // at most 3
		cluster[n] = EtcdMember(store.Name, member) + "=" + EtcdAddress(store.Namespace, store.Name, member, PortEtcdPeer)
	}
	host := fmt.Sprintf("$(POD_NAME).%s.%s.svc", Etcd(store.Name), store.Namespace)
	args := []string{
		"etcd", "--name=$(POD_NAME)", "--mount=" + DataDir, "--dir=" + DataDir + "/etcd",
		fmt.Sprintf("--listen-client=:%d", PortEtcdClient), fmt.Sprintf("--listen-peer=:%d", PortEtcdPeer),
		fmt.Sprintf("--advertise-client=%s:%d", host, PortEtcdClient),
		fmt.Sprintf("--advertise-peer=%s:%d", host, PortEtcdPeer),
		"--initial-cluster=" + strings.Join(cluster, ","), "--initial-cluster-state=" + state,
		"--initial-cluster-token=" + store.Status.StoreUID,
		"--snapshot-dir=" + DataDir + "/snapshots", "--snapshot-keep=3",
		fmt.Sprintf("--http=:%d", PortEtcdHTTP), "--log-format=json",
	}
	if HasTLS(store) {
		args = append(args, TLSArgs(store)...)
		args = append(args, fmt.Sprintf("--listen-peer-tls=:%d", PortEtcdPeerTLS),
			fmt.Sprintf("--advertise-peer-tls=%s:%d", host, PortEtcdPeerTLS))
	}
	if managed.SnapshotEvery != nil {
		args = append(args, "--snapshot-every="+managed.SnapshotEvery.Duration.String())
	}
	pod := podOf(store, ContainerEtcd, image, args)
	pod.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{
		PreferredDuringSchedulingIgnoredDuringExecution: []corev1.WeightedPodAffinityTerm{{
			Weight: 100,
			PodAffinityTerm: corev1.PodAffinityTerm{
				TopologyKey:   corev1.LabelHostname,
				LabelSelector: &metav1.LabelSelector{MatchLabels: Selector(store.Name, ContainerEtcd)},
			},
		}},
	}}
	pod.TerminationGracePeriodSeconds = new(int64(30))
	container := &pod.Containers[0]
	container.Env = []corev1.EnvVar{fieldEnv("POD_NAME", "metadata.name")}
	container.Ports = []corev1.ContainerPort{containerPort("client", PortEtcdClient),
		containerPort("peer", PortEtcdPeer), containerPort("http", PortEtcdHTTP)}
	container.Resources = resources(managed.Resources, "50m", "128Mi")
	container.VolumeMounts = []corev1.VolumeMount{{Name: ClaimTemplate, MountPath: DataDir}}
	// A member is ready only once a majority of the members runs. Therefore its start may take as long as that of the
	// slowest other member.
	container.ReadinessProbe = httpProbe("/readyz", 5, 2)
	if HasTLS(store) {
		// SHEAF_TLS_DIR is for commands such as `sheaf etcd members` that are typed in the pod.
		container.Env = append(container.Env, corev1.EnvVar{Name: "SHEAF_TLS_DIR", Value: TLSDir})
		container.Ports = append(container.Ports, containerPort("peer-tls", PortEtcdPeerTLS))
	}
	mountTLS(store, EtcdTLS(store.Name), &pod, container)
	template := corev1.PodTemplateSpec{Spec: pod, ObjectMeta: metav1.ObjectMeta{
		Labels: Labels(store.Name, ContainerEtcd), Annotations: map[string]string{}}}
	if tls := store.Status.TLS; HasTLS(store) {
		template.Annotations[annotationTransport] = fmt.Sprintf("%s %.12s", tls.Transport, tls.Bundle)
	}
	customize(&template, &managed.PodOptions, Selector(store.Name, ContainerEtcd))
	return template
}
