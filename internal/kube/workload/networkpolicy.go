package workload

import (
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"sheaf.dev/sheaf/api/v1alpha1"
)

// NetworkPolicy holds a NetworkPolicy, and says whether the store should have it.
type NetworkPolicy struct {
	Policy *networkingv1.NetworkPolicy
	Wanted bool
}

// NetworkPolicies returns a store's NetworkPolicies, including those that are not wanted. NetworkPolicies are additive,
// so an administrator can allow more traffic with a further policy. They cover only ingress. Probes and port-forwards
// come from the node, and network plugins allow traffic from the node.
//
// Gateways have no NetworkPolicy, because clients call them. HTTP ports (health, metrics, status) remain open, because
// scrapers may be anywhere. The archive's pod has no NetworkPolicy, because its only port is HTTP.
func NetworkPolicies(store *v1alpha1.RecordStore, operatorNamespace string) []NetworkPolicy {
	managed := store.Spec.NetworkPolicy.Mode != v1alpha1.NetworkPolicyNone
	labelled := store.Spec.NetworkPolicy.DirectClients == v1alpha1.DirectClientsLabelled
	return []NetworkPolicy{
		{etcdPolicy(store, operatorNamespace), managed && store.Spec.Etcd.Managed != nil},
		{shardPolicy(store, operatorNamespace), managed && labelled},
		{restorePolicy(store), managed && store.Spec.Restore != nil},
	}
}

// etcdPolicy allows the store and the operator to reach etcd, and its members to reach each other.
func etcdPolicy(store *v1alpha1.RecordStore, operatorNamespace string) *networkingv1.NetworkPolicy {
	return networkPolicy(store, Etcd(store.Name), ContainerEtcd,
		networkingv1.NetworkPolicyIngressRule{Ports: ports(PortEtcdClient),
			From: []networkingv1.NetworkPolicyPeer{askingEtcd(store), ofOperator(operatorNamespace)}},
		networkingv1.NetworkPolicyIngressRule{
			Ports: ports(PortEtcdPeer, PortEtcdPeerTLS),
			From: []networkingv1.NetworkPolicyPeer{{PodSelector: &metav1.LabelSelector{MatchLabels: Selector(store.Name,
				ContainerEtcd)}}},
		},
		networkingv1.NetworkPolicyIngressRule{Ports: ports(PortEtcdHTTP)},
	)
}

// shardPolicy allows the store, the operator, and clients with a certain label to reach shards. Shards use the same
// port as clients to reach each other, so one rule covers both.
func shardPolicy(store *v1alpha1.RecordStore, operatorNamespace string) *networkingv1.NetworkPolicy {
	client := networkingv1.NetworkPolicyPeer{
		NamespaceSelector: &metav1.LabelSelector{}, // selects pods in any namespace
		PodSelector:       &metav1.LabelSelector{MatchLabels: map[string]string{v1alpha1.LabelClient: store.Name}},
	}
	return networkPolicy(store, allShards(store.Name), ContainerShard,
		networkingv1.NetworkPolicyIngressRule{
			Ports: ports(PortShard), From: []networkingv1.NetworkPolicyPeer{ofStore(store), ofOperator(operatorNamespace),
				client},
		},
		networkingv1.NetworkPolicyIngressRule{Ports: ports(PortShardHTTP)},
	)
}

func networkPolicy(store *v1alpha1.RecordStore, name, component string,
	rules ...networkingv1.NetworkPolicyIngressRule) *networkingv1.NetworkPolicy {
	return &networkingv1.NetworkPolicy{
		ObjectMeta: metav1.ObjectMeta{Namespace: store.Namespace, Name: name, Labels: Labels(store.Name, component)},
		Spec: networkingv1.NetworkPolicySpec{
			PodSelector: metav1.LabelSelector{MatchLabels: Selector(store.Name, component)},
			PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeIngress},
			Ingress:     rules,
		},
	}
}

// ofStore selects the pods of the store in its namespace.
func ofStore(store *v1alpha1.RecordStore) networkingv1.NetworkPolicyPeer {
	return networkingv1.NetworkPolicyPeer{PodSelector: &metav1.LabelSelector{MatchLabels: map[string]string{
		v1alpha1.LabelStore: store.Name}}}
}

// restorePolicy allows the store to reach the source from which it is restored. The policy stays after the restore,
// because it does no harm, and because the source may have to run again after etcd was set back.
func restorePolicy(store *v1alpha1.RecordStore) *networkingv1.NetworkPolicy {
	return networkPolicy(store, Restore(store.Name), ContainerRestore,
		networkingv1.NetworkPolicyIngressRule{Ports: ports(PortRestore),
			From: []networkingv1.NetworkPolicyPeer{ofStore(store)}},
		networkingv1.NetworkPolicyIngressRule{Ports: ports(PortRestoreHTTP)},
	)
}

// askingEtcd selects the pods of the store that connect to its etcd. These are all pods except those of the archive, of
// its drills and of a restore, which connect to a bucket outside the cluster.
func askingEtcd(store *v1alpha1.RecordStore) networkingv1.NetworkPolicyPeer {
	peer := ofStore(store)
	peer.PodSelector.MatchExpressions = []metav1.LabelSelectorRequirement{{
		Key: v1alpha1.LabelComponent, Operator: metav1.LabelSelectorOpNotIn, Values: []string{ContainerArchive,
			ContainerDrill, ContainerRestore}}}
	return peer
}

// ofOperator selects the pods of the operator by the labels of its chart.
func ofOperator(namespace string) networkingv1.NetworkPolicyPeer {
	return networkingv1.NetworkPolicyPeer{
		NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: namespace}},
		PodSelector: &metav1.LabelSelector{MatchLabels: map[string]string{
			v1alpha1.LabelComponent: ComponentOperator, "app.kubernetes.io/part-of": v1alpha1.NameSheaf,
		}},
	}
}

func ports(numbers ...int32) []networkingv1.NetworkPolicyPort {
	list := make([]networkingv1.NetworkPolicyPort, len(numbers))
	for i, n := range numbers {
		list[i] = networkingv1.NetworkPolicyPort{Protocol: new(corev1.ProtocolTCP), Port: new(intstr.FromInt32(n))}
	}
	return list
}
