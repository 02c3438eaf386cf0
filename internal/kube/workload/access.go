package workload

import (
	"strings"

	corev1 "k8s.io/api/core/v1"

	"sheaf.dev/sheaf/api/v1alpha1"
)

// EtcdAccess describes how processes reach a store's etcd, and the store's place in that etcd.
type EtcdAccess struct {
	Endpoints []string // host:port
	Prefix    string   // empty means the default prefix of sheaf
	Store     string   // name of the store below the prefix
	Secret    string   // name of the Secret with ca.crt; empty means no TLS
	// ClientCert means that the Secret also holds tls.crt and tls.key.
	ClientCert bool
	// Own means that the etcd belongs to the store: its members and the store's processes have certificates of the store.
	// Foreign means that the store's processes have certificates of the store, but the etcd does not.
	Own, Foreign bool
}

// EtcdAccessOf describes how processes reach a store's etcd. The argument secret is the Secret that
// etcd.external.tlsSecretRef names, or nil if it names none.
func EtcdAccessOf(store *v1alpha1.RecordStore, secret *corev1.Secret) EtcdAccess {
	access := EtcdAccess{Store: Placement(store.Namespace, store.Name)}
	access.Own = HasTLS(store) && store.Spec.Etcd.External == nil
	if external := store.Spec.Etcd.External; external != nil {
		access.Prefix = external.Prefix
		access.Foreign = HasTLS(store) && external.TLSSecretRef == nil
		for _, endpoint := range external.Endpoints {
			endpoint = strings.TrimPrefix(strings.TrimPrefix(endpoint, "https://"), "http://")
			access.Endpoints = append(access.Endpoints, endpoint)
		}
		if external.TLSSecretRef != nil {
			access.Secret = external.TLSSecretRef.Name
			access.ClientCert = secret != nil && len(secret.Data[corev1.TLSCertKey]) > 0
		}
		return access
	}
	members := int32(1)
	if store.Spec.Etcd.Managed != nil {
		members = EtcdMembers(store)
	}
	for n := range members {
		access.Endpoints = append(access.Endpoints, EtcdAddress(store.Namespace, store.Name, n, PortEtcdClient))
	}
	return access
}

// Args returns the command-line flags that tell a process how to reach the etcd.
func (a EtcdAccess) Args() []string {
	args := []string{"--etcd=" + strings.Join(a.Endpoints, ","), "--store=" + a.Store}
	if a.Prefix != "" {
		args = append(args, "--etcd-prefix="+a.Prefix)
	}
	if a.Secret != "" {
		args = append(args, "--etcd-ca="+EtcdTLSDir+"/ca.crt")
	}
	if a.Foreign {
		args = append(args, "--etcd-insecure")
	}
	if a.Secret != "" && a.ClientCert {
		args = append(args, "--etcd-cert="+EtcdTLSDir+"/"+corev1.TLSCertKey,
			"--etcd-key="+EtcdTLSDir+"/"+corev1.TLSPrivateKeyKey)
	}
	return args
}

// mount mounts the Secret with the TLS files into a pod. The flags refer to these files.
func (a EtcdAccess) mount(pod *corev1.PodSpec, container *corev1.Container) {
	if a.Secret == "" {
		return
	}
	const name = "etcd-tls"
	pod.Volumes = append(pod.Volumes, corev1.Volume{
		Name: name, VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: a.Secret}},
	})
	container.VolumeMounts = append(container.VolumeMounts, corev1.VolumeMount{Name: name, MountPath: EtcdTLSDir,
		ReadOnly: true})
}
