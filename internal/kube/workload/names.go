// Package workload builds Kubernetes objects from specs, without I/O. The names of all objects are in names.go.
package workload

import (
	"fmt"
	"strconv"
	"strings"

	"sheaf.dev/sheaf/api/v1alpha1"
)

// These are the ports of the processes.
const (
	PortShard       = 7610
	PortShardHTTP   = 7611
	PortGateway     = 7600
	PortGatewayHTTP = 7601
	PortRecordsHTTP = 7602 // of gateways
	PortEtcdClient  = 2379
	PortEtcdPeer    = 2380
	PortEtcdHTTP    = 2381
	PortEtcdPeerTLS = 2382
	PortArchiveHTTP = 7621
	PortRestore     = 7640
	PortRestoreHTTP = 7641
)

// These are the container names, which are also the component names.
const (
	ContainerShard   = "shard"
	ContainerGateway = "gateway"
	ContainerEtcd    = "etcd"
	ContainerArchive = "archive"
	ContainerDrill   = "drill"
	ContainerRestore = "restore"
)

// ComponentOperator is the component of the operator's own pods, which the operator's chart creates.
const ComponentOperator = "operator"

// These names are used inside pods.
const (
	// ClaimTemplate names the claim template and the volume of each shard and etcd member.
	ClaimTemplate = "data"
	// DataDir is the mount path of the volume named ClaimTemplate.
	DataDir = "/data"
	// EtcdTLSDir is the mount path of the Secret for an external etcd.
	EtcdTLSDir = "/etc/sheaf/etcd"
)

// These are the annotations of pods and StatefulSets.
const (
	// AnnotationTemplate is set on pod templates, and therefore on pods. Its value is the template's hash, which shows
	// whether a pod is up to date.
	AnnotationTemplate = "sheaf.dev/template"
	// AnnotationVolume is set on shards' pod templates and pods. Its value is the UUID of the only volume that the shard
	// may serve. It is not part of the hash, because a shard must not restart when the UUID becomes known.
	AnnotationVolume = "sheaf.dev/volume"
	// AnnotationDeletionPolicy is set on shards' StatefulSets. Its value is a copy of the store's deletionPolicy, in case
	// the store is deleted first.
	AnnotationDeletionPolicy = "sheaf.dev/deletion-policy"
)

// User is the user ID and group ID of all pods.
const User = 65532

// Shard returns the name of shard n in a pool, which is also the name of the shard's StatefulSet.
func Shard(pool string, n int32) string { return fmt.Sprintf("%s-%d", pool, n) }

// ShardNumber returns the number n in a shard's name. It returns false if the name does not belong to a shard of the
// pool.
func ShardNumber(pool, shard string) (int32, bool) {
	digits, ok := strings.CutPrefix(shard, pool+"-")
	n, err := strconv.ParseInt(digits, 10, 32)
	if !ok || err != nil || n < 0 || strconv.FormatInt(n, 10) != digits {
		return 0, false
	}
	return int32(n), true
}

// ShardPod returns the name of the shard's pod.
func ShardPod(shard string) string { return shard + "-0" }

// ShardClaim returns the name of the shard's PersistentVolumeClaim.
func ShardClaim(shard string) string { return PodClaim(ShardPod(shard)) }

// PodClaim returns the name of the PersistentVolumeClaim for a shard's or etcd member's pod.
func PodClaim(pod string) string { return ClaimTemplate + "-" + pod }

// ShardService returns the name of the headless Service for a pool's pods.
func ShardService(pool string) string { return pool }

// ShardAddress returns the gRPC address of a shard inside the cluster.
func ShardAddress(namespace, pool, shard string) string {
	return fmt.Sprintf("%s.%s.%s.svc:%d", ShardPod(shard), ShardService(pool), namespace, PortShard)
}

// Etcd returns the name of the StatefulSet, the headless Service, the PodDisruptionBudget and the NetworkPolicy of a
// store's managed etcd.
func Etcd(store string) string { return store + "-etcd" }

// EtcdMember returns the name of member n, which is also the name of the member's pod.
func EtcdMember(store string, n int32) string { return fmt.Sprintf("%s-%d", Etcd(store), n) }

// EtcdAddress returns the address of a port on etcd member n inside the cluster.
func EtcdAddress(namespace, store string, n int32, port int) string {
	return fmt.Sprintf("%s.%s.%s.svc:%d", EtcdMember(store, n), Etcd(store), namespace, port)
}

// Gateway returns the name of the Deployment, the Service and the PodDisruptionBudget of a store's gateway.
func Gateway(store string) string { return store + "-gateway" }

// Archive returns the name of the Deployment of a store's archive.
func Archive(store string) string { return store + "-archive" }

// Drill returns the name of the Job that proves that a store's archive can be restored.
func Drill(store string) string { return store + "-drill" }

// Restore returns the name of the Deployment, the Service and the NetworkPolicy of the source from which a store is
// restored.
func Restore(store string) string { return store + "-restore" }

// RestoreAddress returns host:port at which gateways and shards reach the source from which a store is restored.
func RestoreAddress(namespace, store string) string {
	return fmt.Sprintf("%s.%s.svc:%d", Restore(store), namespace, PortRestore)
}

// allShards returns the name of the PodDisruptionBudget and the NetworkPolicy of the shards of a store.
func allShards(store string) string { return store + "-shards" }

// Placement returns the store's name in etcd, below the prefix.
func Placement(namespace, store string) string { return namespace + "." + store }

// Labels returns the labels for an object that belongs to a store. The component is a container's name.
func Labels(store, component string) map[string]string {
	labels := Selector(store, component)
	labels[v1alpha1.LabelName] = v1alpha1.NameSheaf
	labels["app.kubernetes.io/instance"] = store
	labels["app.kubernetes.io/managed-by"] = "sheaf-operator"
	return labels
}

// Selector returns labels that select the pods of one of a store's components.
func Selector(store, component string) map[string]string {
	return map[string]string{v1alpha1.LabelStore: store, v1alpha1.LabelComponent: component}
}

func poolLabels(store, pool string) map[string]string {
	labels := Labels(store, ContainerShard)
	labels[v1alpha1.LabelPool] = pool
	return labels
}

// PoolSelector returns labels that select a pool's pods.
func PoolSelector(store, pool string) map[string]string {
	selector := Selector(store, ContainerShard)
	selector[v1alpha1.LabelPool] = pool
	return selector
}

// ShardLabels returns the labels for the objects that belong to shard n in a pool.
func ShardLabels(store, pool string, n int32) map[string]string {
	labels := poolLabels(store, pool)
	labels[v1alpha1.LabelShard] = strconv.Itoa(int(n))
	return labels
}
