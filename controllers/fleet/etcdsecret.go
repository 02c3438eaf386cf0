package fleet

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"sheaf.dev/sheaf/api/v1alpha1"
	"sheaf.dev/sheaf/controllers/step"
)

// ReadEtcdSecret reads the Secret with the credentials for a store's external etcd. It returns nil if the spec names no
// Secret, or if the Secret does not exist. The outcome says what is missing in the Secret, and what to do.
func ReadEtcdSecret(ctx context.Context, live client.Reader, store *v1alpha1.RecordStore) (*corev1.Secret,
	step.Outcome) {
	external := store.Spec.Etcd.External
	if external == nil || external.TLSSecretRef == nil {
		return nil, step.Complete()
	}
	secret := &corev1.Secret{}
	key := client.ObjectKey{Namespace: store.Namespace, Name: external.TLSSecretRef.Name}
	there, err := step.Read(ctx, live, "Secret", key, secret)
	switch {
	case err != nil:
		return nil, step.Retry(err)
	case !there:
		return nil, step.Wait("EtcdSecretMissing", fmt.Sprintf(
			"spec.etcd.external.tlsSecretRef: Secret %s does not exist: create it with ca.crt, "+
				"and tls.crt and tls.key where etcd asks for a client's certificate", key), step.PauseShort)
	case len(secret.Data["ca.crt"]) == 0:
		return secret, step.Wait("EtcdSecretIncomplete", fmt.Sprintf(
			"spec.etcd.external.tlsSecretRef: Secret %s has no ca.crt: add the "+
				"certificates of the authority that signed etcd's", key), step.PauseShort)
	}
	return secret, step.Complete()
}

// CredentialsOf returns the contents of the Secret for an external etcd. They are empty if secret is nil.
func CredentialsOf(secret *corev1.Secret) (c EtcdCredentials) {
	if secret != nil {
		c.CA, c.Cert, c.Key = secret.Data["ca.crt"], secret.Data[corev1.TLSCertKey], secret.Data[corev1.TLSPrivateKeyKey]
	}
	return c
}
