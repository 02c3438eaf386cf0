package workload

import (
	appsv1 "k8s.io/api/apps/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"sheaf.dev/sheaf/api/v1alpha1"
)

// budget allows evictions of a component's pods as long as at least minAvailable of them remain.
func budget(store *v1alpha1.RecordStore, name, component string, minAvailable int32) *policyv1.PodDisruptionBudget {
	return &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Namespace: store.Namespace, Name: name, Labels: Labels(store.Name, component)},
		Spec: policyv1.PodDisruptionBudgetSpec{
			MinAvailable: new(intstr.FromInt32(max(minAvailable, 0))),
			Selector:     &metav1.LabelSelector{MatchLabels: Selector(store.Name, component)},
			// A pod that serves nothing must not block a drain.
			UnhealthyPodEvictionPolicy: new(policyv1.AlwaysAllow),
		},
	}
}

// ShardsBudget allows the eviction of shards while at least minAvailable of the store's shards remain. With a single
// copy of each group, one shard at a time may be evicted. Its groups are unavailable until the shard returns, which
// is certain because a local volume stays on its node. With several copies, no shard may be evicted while a group
// lacks a copy, with one exception. The argument except names the remaining shards of a failure domain that is being
// emptied. With a single copy, it names the shards of a cordoned node. The budget does not count the shards in
// except, and does not prevent their eviction.
func ShardsBudget(store *v1alpha1.RecordStore, minAvailable int32, except ...string) *policyv1.PodDisruptionBudget {
	b := budget(store, allShards(store.Name), ContainerShard, minAvailable)
	if len(except) > 0 {
		pods := make([]string, len(except))
		for n, shard := range except {
			pods[n] = ShardPod(shard)
		}
		b.Spec.Selector.MatchExpressions = []metav1.LabelSelectorRequirement{{
			Key: appsv1.StatefulSetPodNameLabel, Operator: metav1.LabelSelectorOpNotIn, Values: pods}}
	}
	return b
}

// GatewaysBudget allows the eviction of one gateway at a time.
func GatewaysBudget(store *v1alpha1.RecordStore) *policyv1.PodDisruptionBudget {
	return budget(store, Gateway(store.Name), ContainerGateway, GatewayReplicas(store)-1)
}

// EtcdMembersBudget allows evictions while a majority of the members remains.
func EtcdMembersBudget(store *v1alpha1.RecordStore) *policyv1.PodDisruptionBudget {
	members := EtcdMembers(store)
	if members == 1 {
		return budget(store, Etcd(store.Name), ContainerEtcd, 0)
	}
	return budget(store, Etcd(store.Name), ContainerEtcd, members/2+1)
}
