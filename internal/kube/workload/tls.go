package workload

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sheaf.dev/sheaf/api/v1alpha1"
)

// TLSDir is where a pod finds its certificates, and what it was told of the transport.
const TLSDir = "/etc/sheaf/tls"

// tlsVolume is the volume of a pod with its certificates.
const tlsVolume = "tls"

// annotationTransport is on pod templates, and so on pods, of a managed etcd: the transport and the authorities with
// which its members are to start, as they learn of neither while they run.
const annotationTransport = "sheaf.dev/transport"

// Keys of what a pod's folder of certificates is made from.
const (
	KeyBundle       = "ca.crt"        // authorities of the store's processes; in Secrets of callers too
	KeyClientBundle = "client-ca.crt" // authorities of callers
	KeyMode         = "mode"          // what the processes were told, as v1alpha1.TLSTransport
	// The certificate shown to servers, where it is another one than the one shown to callers.
	KeyClientCert = "client.crt"
	KeyClientKey  = "client.key"
	keyGrants     = "grants" // that nobody is let in without a table of grants; see certs.GrantsFile
)

// grantsRequired: the operator writes a table of grants for each store, so that a process that finds none has to wait.
const grantsRequired = "required"

// Transport is the name of the ConfigMap with what all processes of a store trust, and how they are to speak.
func Transport(store string) string { return store + "-tls" }

// Authority is the name of the Secret with the store's authorities and their keys. No pod mounts it.
func Authority(store string) string { return store + "-authority" }

// GatewayTLS is the name of the Secret with the certificate of a store's gateways.
func GatewayTLS(store string) string { return Gateway(store) + "-tls" }

// EtcdTLS is the name of the Secret with the certificate of the members of a store's managed etcd.
func EtcdTLS(store string) string { return Etcd(store) + "-tls" }

// ShardTLS is the name of the Secret with the certificate of a shard.
func ShardTLS(shard string) string { return shard + "-tls" }

// AdminTLS is the name of the Secret with the certificate of one who may administer a store.
func AdminTLS(store string) string { return store + "-admin-tls" }

// ClientTLS is the name of the Secret with the certificate of a caller of a store.
func ClientTLS(store, client string) string { return store + "-client-" + client + "-tls" }

// OperatorTLS is the name of the Secret with the certificate by which the operator speaks to the processes of a store,
// where the operator does not issue it itself. No pod mounts it.
func OperatorTLS(store string) string { return store + "-operator-tls" }

// HasTLS tells whether the pods of a store are given certificates: always, whatever the transport, but for stores that
// served before there was TLS.
func HasTLS(store *v1alpha1.RecordStore) bool {
	return store.Status.TLS != nil && store.Status.TLS.WithoutImage == ""
}

// TLSArgs are the flags of a process with certificates.
func TLSArgs(store *v1alpha1.RecordStore) []string {
	if !HasTLS(store) {
		return nil
	}
	return []string{"--tls-dir=" + TLSDir}
}

// mountTLS gives a pod its certificates: one volume, so that the kubelet exchanges all files at once.
func mountTLS(store *v1alpha1.RecordStore, secret string, pod *corev1.PodSpec, container *corev1.Container) {
	if !HasTLS(store) {
		return
	}
	item := func(key string) corev1.KeyToPath { return corev1.KeyToPath{Key: key, Path: key} }
	from := corev1.LocalObjectReference{Name: secret}
	sources := []corev1.VolumeProjection{
		{Secret: &corev1.SecretProjection{LocalObjectReference: from,
			Items: []corev1.KeyToPath{item(corev1.TLSCertKey), item(corev1.TLSPrivateKeyKey)}}},
		// Where servers and callers are shown different certificates; keys that are missing are left out.
		{Secret: &corev1.SecretProjection{LocalObjectReference: from,
			Items: []corev1.KeyToPath{item(KeyClientCert), item(KeyClientKey)}, Optional: new(true)}},
		{ConfigMap: &corev1.ConfigMapProjection{LocalObjectReference: corev1.LocalObjectReference{Name: Transport(
			store.Name)}}},
	}
	pod.Volumes = append(pod.Volumes, corev1.Volume{
		Name: tlsVolume, VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{Sources: sources,
			DefaultMode: new(int32(0o440))}},
	})
	container.VolumeMounts = append(container.VolumeMounts, corev1.VolumeMount{Name: tlsVolume, MountPath: TLSDir,
		ReadOnly: true})
}

// MountsTLS tells whether pods of a template are given certificates.
func MountsTLS(pod *corev1.PodSpec) bool {
	for _, volume := range pod.Volumes {
		if volume.Name == tlsVolume {
			return true
		}
	}
	return false
}

// transportWord names a transport and authorities, for the annotation of etcd's pods.
func transportWord(transport v1alpha1.TLSTransport, bundle string) string {
	return fmt.Sprintf("%s %.12s", transport, bundle)
}

// TransportMap is the ConfigMap that all processes of a store mount. bundle and clientBundle are PEM.
func TransportMap(store *v1alpha1.RecordStore, transport v1alpha1.TLSTransport, bundle,
	clientBundle []byte) *corev1.ConfigMap {
	return &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: store.Namespace, Name: Transport(store.Name), Labels: TLSLabels(store.Name)},
		Data: map[string]string{KeyBundle: string(bundle), KeyClientBundle: string(clientBundle),
			KeyMode: string(transport), keyGrants: grantsRequired},
	}
}

// AuthoritySecret is the Secret with authorities and their keys.
func AuthoritySecret(store *v1alpha1.RecordStore, data map[string][]byte) *corev1.Secret {
	return &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: store.Namespace, Name: Authority(store.Name), Labels: TLSLabels(store.Name)},
		Type:       corev1.SecretTypeOpaque, Data: data,
	}
}

// LeafSecret is a Secret with the certificate of one process or caller and its key (and those that are shown to
// servers, where these are others), and the authorities by which its owner checks processes of the store and callers.
// Pods of the store take those from TransportMap.
func LeafSecret(store *v1alpha1.RecordStore, name string, pairs map[string][]byte, bundle,
	clientBundle []byte) *corev1.Secret {
	data := map[string][]byte{KeyBundle: bundle, KeyClientBundle: clientBundle}
	for _, key := range []string{corev1.TLSCertKey, corev1.TLSPrivateKeyKey, KeyClientCert, KeyClientKey} {
		if content, there := pairs[key]; there {
			data[key] = content
		}
	}
	return &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: store.Namespace, Name: name, Labels: TLSLabels(store.Name)},
		Type:       corev1.SecretTypeTLS, Data: data,
	}
}

// TLSLabels of objects that hold certificates.
func TLSLabels(store string) map[string]string {
	return map[string]string{
		v1alpha1.LabelStore: store, v1alpha1.LabelName: v1alpha1.NameSheaf,
		"app.kubernetes.io/instance": store, "app.kubernetes.io/managed-by": "sheaf-operator",
	}
}

// GatewayNames are the DNS names by which callers reach the gateways. localhost is for kubectl port-forward.
func GatewayNames(store *v1alpha1.RecordStore) []string {
	names := append(serviceNames(Gateway(store.Name), store.Namespace), "localhost")
	if store.Spec.TLS != nil {
		names = append(names, store.Spec.TLS.GatewayNames...)
	}
	return names
}

// ShardNames are the DNS names by which direct clients reach a shard.
func ShardNames(namespace, pool, shard string) []string {
	return serviceNames(ShardPod(shard)+"."+ShardService(pool), namespace)[1:]
}

// EtcdNames are the DNS names by which members and clients reach the members of a managed etcd.
func EtcdNames(store *v1alpha1.RecordStore) []string {
	var names []string
	for n := range EtcdMembers(store) {
		names = append(names, serviceNames(EtcdMember(store.Name, n)+"."+Etcd(store.Name), store.Namespace)[1:]...)
	}
	return append(names, "localhost")
}

// serviceNames are those of a Service, or of a pod of a headless one, from the shortest on.
func serviceNames(name, namespace string) []string {
	in := name + "." + namespace
	return []string{name, in, in + ".svc", in + ".svc.cluster.local"}
}
