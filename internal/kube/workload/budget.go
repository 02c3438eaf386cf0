package workload

import (
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"sheaf.dev/sheaf/api/v1alpha1"
)

// budget lets at most all but minAvailable pods of a component be evicted.
func budget(store *v1alpha1.RecordStore, name, component string, minAvailable int32) *policyv1.PodDisruptionBudget {
	return &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Namespace: store.Namespace, Name: name, Labels: Labels(store.Name, component)},
		Spec: policyv1.PodDisruptionBudgetSpec{
			MinAvailable: new(intstr.FromInt32(max(minAvailable, 0))),
			Selector:     &metav1.LabelSelector{MatchLabels: Selector(store.Name, component)},
			// A pod that does not serve anyway must not hold up a drain.
			UnhealthyPodEvictionPolicy: new(policyv1.AlwaysAllow),
		},
	}
}

// ShardsBudget lets all but minAvailable shards of the store be evicted: with a single copy one at a time, which is
// away for as long as its shard is (that it comes back is sure, as a local volume stays); with several copies none
// while a group lacks one.
func ShardsBudget(store *v1alpha1.RecordStore, minAvailable int32) *policyv1.PodDisruptionBudget {
	return budget(store, shardBudget(store.Name), ContainerShard, minAvailable)
}

// GatewaysBudget keeps all gateways but one.
func GatewaysBudget(store *v1alpha1.RecordStore) *policyv1.PodDisruptionBudget {
	return budget(store, gatewayBudget(store.Name), ContainerGateway, GatewayReplicas(store)-1)
}

// EtcdMembersBudget keeps a majority.
func EtcdMembersBudget(store *v1alpha1.RecordStore) *policyv1.PodDisruptionBudget {
	members := EtcdMembers(store)
	if members == 1 {
		return budget(store, etcdBudget(store.Name), ContainerEtcd, 0)
	}
	return budget(store, etcdBudget(store.Name), ContainerEtcd, members/2+1)
}
