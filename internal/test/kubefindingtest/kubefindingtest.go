// Package kubefindingtest creates a store's objects as Kubernetes would report them. It is for tests of code that reads
// such objects.
package kubefindingtest

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sheaf.dev/sheaf/api/v1alpha1"
	"sheaf.dev/sheaf/internal/kube/finding"
	"sheaf.dev/sheaf/internal/kube/workload"
)

// These are the names in the store that Well creates.
const (
	Namespace = "prod"
	Store     = "quotes"
	Pool      = "quotes-ssd"
	Class     = "local-xfs"
)

// Now is the current time for all objects, which were created a day before.
var Now = time.Date(2026, 11, 25, 12, 0, 0, 0, time.UTC)

var made = metav1.NewTime(Now.Add(-24 * time.Hour))

// meta returns the metadata for one of the store's objects.
func meta(name string, labels map[string]string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: Namespace, Name: name, Labels: labels, CreationTimestamp: made, Generation: 1}
}

// Condition returns a condition whose last transition happened when the objects were created.
func Condition(kind string, status metav1.ConditionStatus, reason, message string) metav1.Condition {
	return metav1.Condition{Type: kind, Status: status, Reason: reason, Message: message, LastTransitionTime: made,
		ObservedGeneration: 1}
}

// Well returns a healthy store with three copies on three nodes.
func Well() (finding.Objects, map[string]corev1.PersistentVolume) {
	o := finding.Objects{Now: Now, Store: store(), Pools: []v1alpha1.ShardPool{pool()},
		DiskSets: []v1alpha1.DiskSet{diskSet()}}
	volumes := map[string]corev1.PersistentVolume{}
	for n := range int32(3) {
		node := fmt.Sprintf("n%d", n+1)
		o.Nodes = append(o.Nodes, corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: node, CreationTimestamp: made,
				Labels: map[string]string{corev1.LabelHostname: node}},
		})
		shard := workload.Shard(Pool, n)
		o.Pods = append(o.Pods,
			Pod(workload.ShardPod(shard), node, workload.ShardLabels(Store, Pool, n), workload.ContainerShard),
			Pod(workload.EtcdMember(Store, n), node, workload.Labels(Store, workload.ContainerEtcd), workload.ContainerEtcd))
		if n < 2 {
			o.Pods = append(o.Pods, Pod(fmt.Sprintf("%s-6d4c9b-%d", workload.Gateway(Store), n), node,
				workload.Labels(Store, workload.ContainerGateway), workload.ContainerGateway))
		}
		for _, c := range []struct {
			name   string
			labels map[string]string
		}{
			{workload.ShardClaim(shard), workload.ShardLabels(Store, Pool, n)},
			{workload.ClaimTemplate + "-" + workload.EtcdMember(Store, n), workload.Labels(Store, workload.ContainerEtcd)},
		} {
			volume := volumeOf(c.name, node)
			volumes[volume.Name] = volume
			o.Claims = append(o.Claims, claimOf(c.name, volume.Name, c.labels))
		}
	}
	return o, volumes
}

func store() *v1alpha1.RecordStore {
	return &v1alpha1.RecordStore{
		ObjectMeta: meta(Store, nil),
		Spec: v1alpha1.RecordStoreSpec{
			Groups:      v1alpha1.Groups{Routing: v1alpha1.RoutingHash, Count: new(int32(64))},
			Replication: v1alpha1.Replication{Copies: 3, TopologyKey: corev1.LabelHostname},
			Etcd: v1alpha1.Etcd{Managed: &v1alpha1.ManagedEtcd{Members: 3,
				Storage: v1alpha1.EtcdStorage{Size: resource.MustParse("8Gi")}}},
			Gateway: v1alpha1.Gateway{Replicas: new(int32(2))},
		},
		Status: v1alpha1.RecordStoreStatus{
			ObservedGeneration: 1, StoreUID: "6a204bd8-9a53-4a6e-8a38-6a4c1e6f0d5b", PlacementInitialized: true,
			Address: "quotes-gateway.prod.svc:7600", Image: "registry.example/team/sheaf:v1",
			Groups: v1alpha1.GroupCounts{Total: 64, Serving: 64}, Shards: v1alpha1.ShardCounts{Total: 3, Serving: 3, Updated: 3},
			Records: 1204331, StoredBytes: 42 << 30,
			Conditions: []metav1.Condition{
				Condition(v1alpha1.ConditionReady, metav1.ConditionTrue, "Ready", "64 groups on 3 shards serve"),
				Condition(v1alpha1.ConditionEtcdReady, metav1.ConditionTrue, "Ready", "etcd answers"),
				Condition(v1alpha1.ConditionRedundant, metav1.ConditionTrue, "Redundant", "all 64 groups have 3 copies"),
			},
		},
	}
}

func pool() v1alpha1.ShardPool {
	p := v1alpha1.ShardPool{
		ObjectMeta: meta(Pool, nil),
		Spec: v1alpha1.ShardPoolSpec{
			StoreRef: v1alpha1.StoreReference{Name: Store}, Shards: new(int32(3)), State: v1alpha1.PoolActive,
			Storage:    v1alpha1.Storage{StorageClassName: Class, Size: resource.MustParse("500Gi")},
			FileSystem: &v1alpha1.FileSystem{Type: v1alpha1.XFS},
		},
		Status: v1alpha1.ShardPoolStatus{
			ObservedGeneration: 1, Shards: 3, Serving: 3, Updated: 3, Records: 1204331, StoredBytes: 42 << 30,
			Conditions: []metav1.Condition{
				Condition(v1alpha1.ConditionReady, metav1.ConditionTrue, "Ready", "all 3 shards serve"),
				Condition(v1alpha1.ConditionSpaceAvailable, metav1.ConditionTrue, "SpaceAvailable",
					"no volume is full or nearly so"),
			},
		},
	}
	for n := range int32(3) {
		name := workload.Shard(Pool, n)
		p.Status.ShardStatuses = append(p.Status.ShardStatuses, v1alpha1.ShardStatus{
			Name: name, Number: n, State: v1alpha1.ShardServing, Node: fmt.Sprintf("n%d", n+1), Groups: 64, ServingGroups: 64,
			Records: 401443, StoredBytes: 14 << 30, MemoryNeedBytes: 900 << 20, MemoryLimitBytes: 6 << 30, Updated: true,
			Version: "v1",
			Volume: &v1alpha1.VolumeStatus{
				UUID: fmt.Sprintf("0b6f1c1e-0000-4000-8000-00000000000%d", n), Claim: workload.ShardClaim(name), FileSystem: "xfs",
				Source: fmt.Sprintf("/dev/nvme%dn1", n), CapacityBytes: 500 << 30, FreeBytes: 450 << 30,
			},
		})
	}
	return p
}

func diskSet() v1alpha1.DiskSet {
	set := v1alpha1.DiskSet{
		ObjectMeta: metav1.ObjectMeta{Name: Class, CreationTimestamp: made, Generation: 1},
		Spec: v1alpha1.DiskSetSpec{FileSystem: v1alpha1.FileSystem{Type: v1alpha1.XFS},
			Namespaces: []string{Namespace}},
		Status: v1alpha1.DiskSetStatus{ObservedGeneration: 1, Total: 7, Free: 1, Bound: 6},
	}
	for n := range 7 {
		disk := v1alpha1.Disk{Node: fmt.Sprintf("n%d", n%3+1), Device: fmt.Sprintf("/dev/disk/by-id/nvme-%d", n),
			Size: resource.MustParse("500Gi")}
		state := v1alpha1.DiskBound
		if n == 6 {
			state = v1alpha1.DiskFree
		}
		set.Spec.Disks = append(set.Spec.Disks, disk)
		set.Status.Disks = append(set.Status.Disks, v1alpha1.DiskStatus{Node: disk.Node, Device: disk.Device, State: state})
	}
	return set
}

// Pod returns a ready pod.
func Pod(name, node string, labels map[string]string, container string) corev1.Pod {
	return corev1.Pod{
		ObjectMeta: meta(name, labels),
		Spec: corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{Name: container,
			Image: "registry.example/team/sheaf:v1"}}},
		Status: corev1.PodStatus{
			Phase: corev1.PodRunning, PodIP: "10.0.0.1",
			Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue, LastTransitionTime: made}},
			ContainerStatuses: []corev1.ContainerStatus{{
				Name: container, Ready: true, Image: "registry.example/team/sheaf:v1",
				State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: made}},
			}},
		},
	}
}

// Crash changes a pod into one whose container crashes repeatedly.
func Crash(pod *corev1.Pod, message string) {
	pod.Status.Conditions[0].Status = corev1.ConditionFalse
	pod.Status.ContainerStatuses[0] = corev1.ContainerStatus{
		Name: pod.Spec.Containers[0].Name, Image: pod.Spec.Containers[0].Image, RestartCount: 7,
		State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff",
			Message: "back-off 5m0s restarting failed container"}},
		LastTerminationState: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{
			ExitCode: 1, Reason: "Error", Message: message, StartedAt: metav1.NewTime(Now.Add(-time.Minute)),
			FinishedAt: metav1.NewTime(Now.Add(-time.Minute)),
		}},
	}
}

func claimOf(name, volume string, labels map[string]string) corev1.PersistentVolumeClaim {
	size := corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("500Gi")}
	return corev1.PersistentVolumeClaim{
		ObjectMeta: meta(name, labels),
		Spec: corev1.PersistentVolumeClaimSpec{
			StorageClassName: new(Class), VolumeName: volume, AccessModes: []corev1.PersistentVolumeAccessMode{
				corev1.ReadWriteOnce},
			Resources: corev1.VolumeResourceRequirements{Requests: size},
		},
		Status: corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimBound, Capacity: size},
	}
}

func volumeOf(claim, node string) corev1.PersistentVolume {
	return corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: "sheaf-" + claim, CreationTimestamp: made,
			Labels: map[string]string{v1alpha1.LabelDiskSet: Class}},
		Spec: corev1.PersistentVolumeSpec{
			Capacity: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("500Gi")}, StorageClassName: Class,
			AccessModes:                   []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimRetain,
			PersistentVolumeSource: corev1.PersistentVolumeSource{Local: &corev1.LocalVolumeSource{
				Path: "/dev/disk/by-id/nvme-of-" + claim, FSType: new("xfs"),
			}},
			NodeAffinity: &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{
				{
					MatchExpressions: []corev1.NodeSelectorRequirement{{Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpIn,
						Values: []string{node}}},
				}}}},
		},
	}
}
