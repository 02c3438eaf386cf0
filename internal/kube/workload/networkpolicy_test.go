package workload

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"sheaf.dev/sheaf/api/v1alpha1"
	"sheaf.dev/sheaf/internal/test/must"
)

// endpoint is a pod with the properties that a network plugin uses.
type endpoint struct {
	namespace string
	labels    map[string]string
}

// admits reports whether policies allow a pod to reach another pod's port, according to the API's rules. A pod that no
// policy selects accepts everything. Any other pod accepts a connection only if at least one of the policies that
// select the pod allows the connection.
func admits(t *testing.T, policies []*networkingv1.NetworkPolicy, from, to endpoint, port int32) bool {
	t.Helper()
	selected := false
	for _, p := range policies {
		if p.Namespace != to.namespace || !matches(t, &p.Spec.PodSelector, to.labels) {
			continue
		}
		if len(p.Spec.PolicyTypes) != 1 || p.Spec.PolicyTypes[0] != networkingv1.PolicyTypeIngress {
			t.Fatalf("policy %s is about %v: egress is not ours to limit", p.Name, p.Spec.PolicyTypes)
		}
		selected = true
		for _, rule := range p.Spec.Ingress {
			if allowsPort(rule, port) && allowsPeer(t, rule, p.Namespace, from) {
				return true
			}
		}
	}
	return !selected
}

func allowsPort(rule networkingv1.NetworkPolicyIngressRule, port int32) bool {
	for _, p := range rule.Ports {
		if *p.Protocol == corev1.ProtocolTCP && p.Port.IntVal == port {
			return true
		}
	}
	return len(rule.Ports) == 0
}

func allowsPeer(t *testing.T, rule networkingv1.NetworkPolicyIngressRule, namespace string, from endpoint) bool {
	for _, peer := range rule.From {
		inside := from.namespace == namespace
		if peer.NamespaceSelector != nil {
			inside = matches(t, peer.NamespaceSelector, map[string]string{corev1.LabelMetadataName: from.namespace})
		}
		if inside && (peer.PodSelector == nil || matches(t, peer.PodSelector, from.labels)) {
			return true
		}
	}
	return len(rule.From) == 0
}

func matches(t *testing.T, selector *metav1.LabelSelector, set map[string]string) bool {
	t.Helper()
	s, err := metav1.LabelSelectorAsSelector(selector)
	must.OK(t, err)
	return s.Matches(labels.Set(set))
}

// podLabels returns the labels of the pod templates that the operator creates.
func podLabels(t *testing.T, store *v1alpha1.RecordStore) map[string]map[string]string {
	t.Helper()
	pool := &v1alpha1.ShardPool{ObjectMeta: metav1.ObjectMeta{Namespace: store.Namespace, Name: store.Name + "-ssd"}}
	shard, err := ShardSet(ShardInput{Store: store, Pool: pool, Image: "i", Number: 0})
	must.OK(t, err)
	etcd, err := EtcdStatefulSet(store, "i", EtcdNew)
	must.OK(t, err)
	return map[string]map[string]string{
		"shard": shard.Spec.Template.Labels, "etcd": etcd.Spec.Template.Labels,
		"gateway": GatewayDeployment(store, "i", EtcdAccess{}).Spec.Template.Labels,
	}
}

func fencedStore(name string, policy v1alpha1.NetworkPolicy) *v1alpha1.RecordStore {
	return &v1alpha1.RecordStore{
		ObjectMeta: metav1.ObjectMeta{Namespace: "prod", Name: name},
		Spec: v1alpha1.RecordStoreSpec{Etcd: v1alpha1.Etcd{Managed: &v1alpha1.ManagedEtcd{Members: 3}},
			NetworkPolicy: policy},
		Status: v1alpha1.RecordStoreStatus{StoreUID: "6a204bd8-9a53-4a6e-8a38-6a4c1e6f0d5b"},
	}
}

// TestFences checks which pods may connect to which ports. It tries each port of a store's pods from each kind of pod.
func TestFences(t *testing.T) {
	for mode, policy := range map[string]v1alpha1.NetworkPolicy{
		"by default": {}, "managed": {Mode: v1alpha1.NetworkPolicyManaged, DirectClients: v1alpha1.DirectClientsAny},
		"labelled clients": {DirectClients: v1alpha1.DirectClientsLabelled},
		"off":              {Mode: v1alpha1.NetworkPolicyNone, DirectClients: v1alpha1.DirectClientsLabelled},
	} {
		store := fencedStore("quotes", policy)
		var policies []*networkingv1.NetworkPolicy
		for _, f := range NetworkPolicies(store, "sheaf-system") {
			if f.Wanted {
				policies = append(policies, f.Policy)
			}
		}
		operator := map[string]string{v1alpha1.LabelComponent: "operator", "app.kubernetes.io/part-of": "sheaf",
			v1alpha1.LabelName: "sheaf-operator"}
		own := podLabels(t, store)
		from := map[string]endpoint{
			"operator": {"sheaf-system", operator}, "another operator": {"evil", operator},
			"a pod beside the operator": {"sheaf-system", nil},
			"a stranger":                {"prod", map[string]string{"app": "web"}}, "a stranger elsewhere": {"dev",
				map[string]string{"app": "web"}},
			"a client":                  {"dev", map[string]string{v1alpha1.LabelClient: "quotes"}},
			"a client of another store": {"prod", map[string]string{v1alpha1.LabelClient: "trades"}},
			"one who says that he is of the store, elsewhere": {"dev", own["shard"]},
		}
		for component, l := range own {
			from["own "+component] = endpoint{"prod", l}
		}
		for component, l := range podLabels(t, fencedStore("trades", policy)) {
			from["other "+component] = endpoint{"prod", l}
		}
		store7610 := map[string]bool{"own shard": true, "own gateway": true, "own etcd": true, "operator": true,
			"a client": true}
		etcd2379 := map[string]bool{"own shard": true, "own gateway": true, "own etcd": true, "operator": true}
		for who, source := range from {
			for _, target := range []struct {
				component string
				port      int32
				want      bool
			}{
				{"gateway", PortGateway, true}, {"gateway", PortGatewayHTTP, true},
				{"shard", PortShardHTTP, true}, {"shard", PortShard, mode != "labelled clients" || store7610[who]},
				{"etcd", PortEtcdHTTP, true}, {"etcd", PortEtcdClient, mode == "off" || etcd2379[who]},
				{"etcd", PortEtcdPeer, mode == "off" || who == "own etcd"},
				{"etcd", 6060, mode == "off"}, {"shard", 6060, mode != "labelled clients"},
			} {
				if got := admits(t, policies, source, endpoint{"prod", own[target.component]}, target.port); got != target.want {
					t.Errorf("%s: from %s to %s:%d is %v", mode, who, target.component, target.port, got)
				}
			}
		}
	}
}

// The operator does not create a NetworkPolicy for an external etcd.
func TestExternalEtcdHasNoNetworkPolicy(t *testing.T) {
	store := fencedStore("quotes", v1alpha1.NetworkPolicy{})
	store.Spec.Etcd = v1alpha1.Etcd{External: &v1alpha1.ExternalEtcd{Endpoints: []string{"http://etcd:2379"}}}
	for _, f := range NetworkPolicies(store, "sheaf-system") {
		if f.Wanted {
			t.Errorf("policy %s is made", f.Policy.Name)
		}
	}
}
