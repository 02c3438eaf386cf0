package workload

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sheaf.dev/sheaf/api/v1alpha1"
)

// TLSDir is the folder in a pod that contains the pod's certificates and the name of the transport to use.
const TLSDir = "/etc/sheaf/tls"

// tlsVolume is the name of the pod's volume that contains its certificates.
const tlsVolume = "tls"

// annotationTransport is set on a managed etcd's pod templates, and therefore on its pods. It identifies the transport
// and the authorities with which the members start. Running members do not notice a change of either, so a change
// restarts them.
const annotationTransport = "sheaf.dev/transport"

// These are the names of the files in a pod's certificate folder.
const (
	KeyBundle       = "ca.crt"        // authorities of the store's processes; also in the Secrets of callers
	KeyClientBundle = "client-ca.crt" // authorities of callers
	KeyMode         = "mode"          // the transport that the processes have to use, as v1alpha1.TLSTransport
	// KeyClientCert is the certificate that the process presents to servers, if it differs from the certificate that
	// the process presents to callers.
	KeyClientCert = "client.crt"
	KeyClientKey  = "client.key"
	keyGrants     = "grants" // if it contains grantsRequired, callers wait for a grant table; see certs.GrantsFile
)

// grantsRequired means that the operator writes a grant table for each store. A process that finds no table must
// therefore wait for one.
const grantsRequired = "required"

// Transport returns the name of the ConfigMap with the authorities that all processes of a store trust, and with the
// transport that they use.
func Transport(store string) string { return store + "-tls" }

// Authority returns the name of the Secret with the store's authorities and their keys. No pod mounts it.
func Authority(store string) string { return store + "-authority" }

// GatewayTLS returns the name of the Secret with the gateways' certificate.
func GatewayTLS(store string) string { return Gateway(store) + "-tls" }

// EtcdTLS returns the name of the Secret with the certificate for the members of a store's managed etcd.
func EtcdTLS(store string) string { return Etcd(store) + "-tls" }

// ArchiveTLS returns the name of the Secret with the certificate of a store's archiver.
func ArchiveTLS(store string) string { return Archive(store) + "-tls" }

// RestoreTLS returns the name of the Secret with the certificate of the source from which a store is restored. It is
// not ArchiveTLS, because a store may be archived as well while it is restored.
func RestoreTLS(store string) string { return Restore(store) + "-tls" }

// ShardTLS returns the name of the Secret with the certificate of a shard.
func ShardTLS(shard string) string { return shard + "-tls" }

// AdminTLS returns the name of the Secret with the certificate for a store's administrator.
func AdminTLS(store string) string { return store + "-admin-tls" }

// ClientTLS returns the name of the Secret with the certificate for one of a store's callers.
func ClientTLS(store, client string) string { return store + "-client-" + client + "-tls" }

// OperatorTLS returns the name of the Secret with the operator's certificate for connections to a store's processes, if
// the operator does not issue that certificate itself. No pod mounts this Secret.
func OperatorTLS(store string) string { return store + "-operator-tls" }

// HasTLS reports whether the pods of a store get certificates. They get certificates with any transport, unless the
// store already served before TLS was introduced.
func HasTLS(store *v1alpha1.RecordStore) bool {
	return store.Status.TLS != nil && store.Status.TLS.WithoutImage == ""
}

// TLSArgs returns the flags of a process with certificates.
func TLSArgs(store *v1alpha1.RecordStore) []string {
	if !HasTLS(store) {
		return nil
	}
	return []string{"--tls-dir=" + TLSDir}
}

// mountTLS mounts a pod's certificates as one volume, so that the kubelet replaces all files together.
func mountTLS(store *v1alpha1.RecordStore, secret string, pod *corev1.PodSpec, container *corev1.Container) {
	if !HasTLS(store) {
		return
	}
	item := func(key string) corev1.KeyToPath { return corev1.KeyToPath{Key: key, Path: key} }
	from := corev1.LocalObjectReference{Name: secret}
	sources := []corev1.VolumeProjection{
		{Secret: &corev1.SecretProjection{LocalObjectReference: from,
			Items: []corev1.KeyToPath{item(corev1.TLSCertKey), item(corev1.TLSPrivateKeyKey)}}},
		// KeyClientCert and KeyClientKey hold the certificate that the process presents to servers, if it differs
		// from the certificate that the process presents to callers. Missing keys are omitted.
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

// MountsTLS reports whether a pod mounts certificates.
func MountsTLS(pod *corev1.PodSpec) bool {
	return slices.ContainsFunc(pod.Volumes, func(v corev1.Volume) bool { return v.Name == tlsVolume })
}

// TransportMap returns the ConfigMap that all processes of a store mount. The arguments bundle and clientBundle are
// PEM-encoded.
func TransportMap(store *v1alpha1.RecordStore, transport v1alpha1.TLSTransport, bundle,
	clientBundle []byte) *corev1.ConfigMap {
	return &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: store.Namespace, Name: Transport(store.Name), Labels: TLSLabels(store.Name)},
		Data: map[string]string{KeyBundle: string(bundle), KeyClientBundle: string(clientBundle),
			KeyMode: string(transport), keyGrants: grantsRequired},
	}
}

// annotationAuthorityOf is set on ConfigMaps in other namespaces. It names the store whose authorities such a ConfigMap
// holds, as NAMESPACE/NAME.
const annotationAuthorityOf = "sheaf.dev/authority-of"

// Published returns the name of the ConfigMaps that hold the authorities of a store in other namespaces. The name
// contains the store's namespace. Otherwise a store in another namespace could take the name, and callers would trust
// that store.
func Published(store *v1alpha1.RecordStore) string { return store.Namespace + "." + store.Name + "-ca" }

// PublishedMap returns the ConfigMap with which callers in another namespace verify a store's servers. The argument
// bundle is PEM-encoded.
func PublishedMap(store *v1alpha1.RecordStore, namespace string, bundle []byte) *corev1.ConfigMap {
	return &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: Published(store), Labels: TLSLabels(store.Name),
			Annotations: map[string]string{annotationAuthorityOf: store.Namespace + "/" + store.Name}},
		Data: map[string]string{KeyBundle: string(bundle)},
	}
}

// IsPublished reports whether the operator has created a ConfigMap for the store's callers.
func IsPublished(live *corev1.ConfigMap, store *v1alpha1.RecordStore) bool {
	return live.Annotations[annotationAuthorityOf] == store.Namespace+"/"+store.Name &&
		live.Labels["app.kubernetes.io/managed-by"] == TLSLabels(store.Name)["app.kubernetes.io/managed-by"]
}

// AuthoritySecret returns the Secret with authorities and their keys.
func AuthoritySecret(store *v1alpha1.RecordStore, data map[string][]byte) *corev1.Secret {
	return &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: store.Namespace, Name: Authority(store.Name), Labels: TLSLabels(store.Name)},
		Type:       corev1.SecretTypeOpaque, Data: data,
	}
}

// LeafSecret returns a Secret for one process or caller. It holds the certificate and key, a separate pair for servers
// if there is one, and the authorities with which its owner verifies the store's processes and callers. Pods of the
// store take those authorities from TransportMap.
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

// TLSLabels returns the labels of objects that hold certificates.
func TLSLabels(store string) map[string]string {
	return map[string]string{
		v1alpha1.LabelStore: store, v1alpha1.LabelName: v1alpha1.NameSheaf,
		"app.kubernetes.io/instance": store, "app.kubernetes.io/managed-by": "sheaf-operator",
	}
}

// GatewayNames returns the DNS names under which callers reach the gateways. The name localhost is for kubectl
// port-forward.
func GatewayNames(store *v1alpha1.RecordStore) []string {
	names := append(serviceNames(Gateway(store.Name), store.Namespace), "localhost")
	if store.Spec.TLS != nil {
		names = append(names, store.Spec.TLS.GatewayNames...)
	}
	return names
}

// ShardNames returns the DNS names under which direct clients reach a shard.
func ShardNames(namespace, pool, shard string) []string {
	return serviceNames(ShardPod(shard)+"."+ShardService(pool), namespace)[1:]
}

// RestoreNames returns the DNS names under which gateways and shards reach the source of a restore.
func RestoreNames(store *v1alpha1.RecordStore) []string {
	return serviceNames(Restore(store.Name), store.Namespace)[1:]
}

// EtcdNames returns the DNS names under which members and clients reach the members of a managed etcd.
func EtcdNames(store *v1alpha1.RecordStore) []string {
	var names []string
	for n := range EtcdMembers(store) {
		names = append(names, serviceNames(EtcdMember(store.Name, n)+"."+Etcd(store.Name), store.Namespace)[1:]...)
	}
	return append(names, "localhost")
}

// serviceNames returns the DNS names of a Service, or of one pod behind a headless Service, the shortest first.
func serviceNames(name, namespace string) []string {
	in := name + "." + namespace
	return []string{name, in, in + ".svc", in + ".svc.cluster.local"}
}
