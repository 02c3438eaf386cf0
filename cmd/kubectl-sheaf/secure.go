package main

import (
	"context"
	"fmt"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"sheaf.dev/sheaf/api/v1alpha1"
	"sheaf.dev/sheaf/internal/kube/workload"
	"sheaf.dev/sheaf/internal/security/certs"
	"sheaf.dev/sheaf/internal/security/identity"
)

// credentials returns an administrator's credentials for the store. They accept only gateways of that store, because
// a forwarded port has no host name to verify. Call done after the connection is closed.
func (a *app) credentials(ctx context.Context, store *v1alpha1.RecordStore) (speaks credentials.TransportCredentials,
	done func(), err error) {
	if !workload.HasTLS(store) || store.Status.TLS.Transport == v1alpha1.TransportPlaintext {
		return insecure.NewCredentials(), func() {}, nil
	}
	name := workload.AdminTLS(store.Name)
	var secret corev1.Secret
	err = a.objects.Get(ctx, client.ObjectKey{Namespace: store.Namespace, Name: name}, &secret)
	switch {
	case apierrors.IsForbidden(err):
		return nil, nil, fmt.Errorf(
			"store %s speaks TLS, and asks administrators for the certificate in Secret %s, which you may not read: have a "+
				"Role give you "+
				"get on that Secret: %w", store.Name, name, err)
	case err != nil:
		return nil, nil, fmt.Errorf("read Secret %s, with the certificate of administrators of store %s: %w", name,
			store.Name, err)
	}
	files := map[string][]byte{certs.ModeFile: []byte(store.Status.TLS.Transport)}
	for _, key := range []string{certs.CertificateFile, certs.KeyFile, certs.BundleFile, certs.ClientBundleFile} {
		if content, there := secret.Data[key]; there {
			files[key] = content
		}
	}
	source, err := certs.InMemory(certs.Config{}, files)
	if err != nil {
		return nil, nil, fmt.Errorf("secret %s: %w", name, err)
	}
	return source.Client(source.Own(identity.Gateway, "")), source.Close, nil
}
