package trust

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"sheaf.dev/sheaf/api/v1alpha1"
	"sheaf.dev/sheaf/controllers/step"
	"sheaf.dev/sheaf/internal/kube/workload"
)

// certificateKind is cert-manager's kind Certificate, which the operator creates. The operator does not use
// cert-manager's Go module, because it needs only six fields of the kind.
var certificateKind = schema.GroupVersionKind{Group: "cert-manager.io", Version: "v1", Kind: "Certificate"}

// These are the lifetimes of certificates from cert-manager. They are the same as those of the operator's own
// certificates.
const (
	certificateDuration    = leafLifetime
	certificateRenewBefore = leafLifetime / 3 * (3 - renewThirds)
)

// A process may need several certificates. The operator creates one Certificate for each of them, and these constants
// distinguish them. A process that serves has a server certificate and a client certificate, because public
// authorities no longer issue one certificate for both purposes. Other processes and callers only connect to servers,
// so they have only a client certificate.
const (
	serverPart = "server"
	clientPart = "client"
)

func partsOf(want Leaf) []string {
	if want.serves() {
		return []string{serverPart, clientPart}
	}
	return []string{clientPart}
}

// certificateName returns the name of a Certificate and of the Secret that cert-manager writes for it.
func certificateName(want Leaf, part string) string { return want.Secret + "-" + part }

// askCertManager requests Certificates for a process or caller, and reads the certificates that their issuer has
// signed.
func (k *Keeper) askCertManager(ctx context.Context, store *v1alpha1.RecordStore, want Leaf) (*given, error) {
	out := &given{pairs: map[string][]byte{}}
	var trouble *SourceError
	for _, part := range partsOf(want) { // request both before waiting, so that both are signed at the same time
		data, err := k.askForPart(ctx, store, want, part)
		var one *SourceError
		switch {
		case errors.As(err, &one):
			if trouble == nil {
				trouble = one
			}
			continue
		case err != nil:
			return nil, err
		}
		cert, key := corev1.TLSCertKey, corev1.TLSPrivateKeyKey
		if want.serves() && part == clientPart {
			cert, key = workload.KeyClientCert, workload.KeyClientKey
		}
		out.pairs[cert], out.pairs[key] = data[corev1.TLSCertKey], data[corev1.TLSPrivateKeyKey]
		out.bundle = append(append(out.bundle, data[workload.KeyBundle]...), '\n')
	}
	if trouble != nil {
		return nil, trouble
	}
	return out, nil
}

// askForPart requests one Certificate, and returns the checked contents of its Secret.
func (k *Keeper) askForPart(ctx context.Context, store *v1alpha1.RecordStore, want Leaf,
	part string) (map[string][]byte, error) {
	name := certificateName(want, part)
	live, err := k.ensureCertificate(ctx, store, want, part)
	if err != nil {
		return nil, certManagerError(err)
	}
	if words := notReady(live); words != "" {
		return nil, &SourceError{ReasonNotIssued, fmt.Sprintf(
			"Certificate %s is not ready: %s. `kubectl -n %s describe certificate %s` says more; "+
				"what was used before stays in use", name, words, store.Namespace, name)}
	}
	var secret corev1.Secret
	key := types.NamespacedName{Namespace: store.Namespace, Name: name}
	if there, err := step.Read(ctx, k.Live, "Secret", key, &secret); err != nil {
		return nil, err
	} else if !there {
		return nil, &SourceError{ReasonSecretMissing, fmt.Sprintf(
			"Secret %s does not exist, although Certificate %s says that it is ready: see whether cert-manager runs", name,
			name)}
	}
	if len(secret.Data[workload.KeyBundle]) == 0 {
		ref := store.Spec.TLS.CertManager.IssuerRef
		return nil, &SourceError{ReasonNoAuthority, fmt.Sprintf(
			"Secret %s has no ca.crt: %s %s does not tell its authority, as public ones (ACME) do not. Name an "+
				"issuer in spec.tls.certManager.issuerRef that does, such as one of kind CA or Vault", name, ref.Kind, ref.Name)}
	}
	usage := x509.ExtKeyUsageClientAuth
	if part == serverPart {
		usage = x509.ExtKeyUsageServerAuth
	}
	if err := checkPair(secret.Data, corev1.TLSCertKey, corev1.TLSPrivateKeyKey, workload.KeyBundle, want, k.Now(),
		usage); err != nil {
		return nil, &SourceError{ReasonSecretRefused, fmt.Sprintf(
			"Secret %s, as the issuer of Certificate %s has made it, cannot be used, and what was used before "+
				"stays: %v", name, name, err)}
	}
	return secret.Data, k.adoptSecret(ctx, live, &secret)
}

// adoptSecret makes sure that a Secret is deleted with its Certificate. By default, cert-manager keeps the Secret.
func (k *Keeper) adoptSecret(ctx context.Context, certificate *unstructured.Unstructured, secret *corev1.Secret) error {
	owned := slices.ContainsFunc(secret.OwnerReferences, func(o metav1.OwnerReference) bool {
		return o.UID == certificate.GetUID()
	})
	if owned {
		return nil
	}
	before := secret.DeepCopy()
	secret.OwnerReferences = append(secret.OwnerReferences, metav1.OwnerReference{
		APIVersion: certificateKind.GroupVersion().String(), Kind: certificateKind.Kind, Name: certificate.GetName(),
		UID: certificate.GetUID(),
	})
	if err := k.Client.Patch(ctx, secret, step.IfUnchanged(before), client.FieldOwner(v1alpha1.FieldManager)); err != nil {
		return fmt.Errorf("have Secret %s go with its Certificate: %w", client.ObjectKeyFromObject(secret), err)
	}
	return nil
}

// ensureCertificate creates a Certificate, or updates it if it differs from the wanted one.
func (k *Keeper) ensureCertificate(ctx context.Context, store *v1alpha1.RecordStore, want Leaf,
	part string) (*unstructured.Unstructured, error) {
	wanted, err := certificateOf(store, want, part)
	if err != nil {
		return nil, err
	}
	if err := controllerutil.SetControllerReference(want.Owner, wanted, k.Client.Scheme()); err != nil {
		return nil, err
	}
	key := client.ObjectKeyFromObject(wanted)
	live := &unstructured.Unstructured{}
	live.SetGroupVersionKind(certificateKind)
	err = k.Live.Get(ctx, key, live)
	switch {
	case apierrors.IsNotFound(err):
		var secret corev1.Secret
		if there, err := step.Read(ctx, k.Live, "Secret", key, &secret); err != nil {
			return nil, err
		} else if there && secret.Labels[v1alpha1.LabelStore] != store.Name { // cert-manager would overwrite this Secret
			return nil, fmt.Errorf("secret %s: %w: delete it, or give the store another name", key.Name, ErrNotOurs)
		}
	case err != nil:
		return nil, err
	case live.GetLabels()[v1alpha1.LabelStore] != store.Name:
		return nil, fmt.Errorf("certificate %s: %w: delete it, or give the store another name", key.Name, ErrNotOurs)
	case equality.Semantic.DeepDerivative(wanted.Object["spec"], live.Object["spec"]) &&
		metav1.IsControlledBy(live, want.Owner):
		return live, nil
	}
	err = k.Client.Apply(ctx, client.ApplyConfigurationFromUnstructured(wanted), client.FieldOwner(v1alpha1.FieldManager),
		client.ForceOwnership)
	if err != nil {
		return nil, err
	}
	return wanted, nil // the issuer of a new Certificate cannot have answered yet
}

// certificateOf returns the wanted Certificate.
func certificateOf(store *v1alpha1.RecordStore, want Leaf, part string) (*unstructured.Unstructured, error) {
	id, err := want.Identity.ID()
	if err != nil {
		return nil, err
	}
	name, ref := certificateName(want, part), store.Spec.TLS.CertManager.IssuerRef
	labels, usages := map[string]any{}, []any{"digital signature", part + " auth"}
	for key, value := range workload.TLSLabels(store.Name) {
		labels[key] = value
	}
	spec := map[string]any{
		"secretName": name, "secretTemplate": map[string]any{"labels": labels},
		"uris": []any{id.String()}, "usages": usages,
		"duration": certificateDuration.String(), "renewBefore": certificateRenewBefore.String(),
		"privateKey": map[string]any{"algorithm": "ECDSA", "size": int64(256), "rotationPolicy": "Always"},
		"issuerRef":  map[string]any{"name": ref.Name, "kind": ref.Kind, "group": ref.Group},
	}
	if part == serverPart {
		var names []any
		for _, name := range want.DNSNames {
			names = append(names, name)
		}
		spec["dnsNames"] = names
	}
	out := &unstructured.Unstructured{Object: map[string]any{"spec": spec}}
	out.SetGroupVersionKind(certificateKind)
	out.SetNamespace(store.Namespace)
	out.SetName(name)
	out.SetLabels(workload.TLSLabels(store.Name))
	return out, nil
}

// notReady says why a Certificate is not ready, or returns "" if it is ready.
func notReady(live *unstructured.Unstructured) string {
	silent := "its issuer has not answered"
	if made := live.GetCreationTimestamp(); !made.IsZero() {
		silent += " since " + made.UTC().Format(time.RFC3339)
	}
	// Conditions of an unexpected form count as absent.
	conditions, _, _ := unstructured.NestedSlice(live.Object, "status", "conditions")
	for _, c := range conditions {
		condition, ok := c.(map[string]any)
		if !ok || condition["type"] != "Ready" {
			continue
		}
		if seen, ok := condition["observedGeneration"].(int64); ok && seen < live.GetGeneration() {
			return "cert-manager has not looked at its newest form yet"
		}
		if condition["status"] == "True" {
			return ""
		}
		if message, ok := condition["message"].(string); ok && message != "" {
			return strings.TrimSuffix(message, ".")
		}
	}
	return silent
}

// certManagerError returns an error that says what to do if the API server does not know the kind Certificate, or
// denies the operator access to it. It returns other errors unchanged.
func certManagerError(err error) error {
	var unknown *apiutil.ErrResourceDiscoveryFailed
	switch {
	case meta.IsNoMatchError(err), errors.As(err, &unknown), apierrors.IsNotFound(err):
		return &SourceError{ReasonCertManagerMissing,
			"the cluster has no kind Certificate of cert-manager.io/v1, which spec.tls.source CertManager needs: install " +
				"cert-manager with its CustomResourceDefinitions (https://cert-manager.io/docs/installation), or set another " +
				"source"}
	case apierrors.IsForbidden(err):
		return &SourceError{ReasonCertManagerForbidden, fmt.Sprintf(
			"the operator may not read and write Certificates of cert-manager.io, which spec.tls.source CertManager "+
				"needs: set certManager.enabled of the chart sheaf-operator, or grant it (%v)", err)}
	}
	return err
}

// RemoveCertificates deletes the Certificates of a process or caller and their Secrets.
func (k *Keeper) RemoveCertificates(ctx context.Context, store *v1alpha1.RecordStore, gone Leaf) error {
	for _, part := range partsOf(gone) {
		live := &unstructured.Unstructured{}
		live.SetGroupVersionKind(certificateKind)
		key := types.NamespacedName{Namespace: store.Namespace, Name: certificateName(gone, part)}
		err := k.Live.Get(ctx, key, live)
		if _, ok := errors.AsType[*SourceError](certManagerError(err)); ok {
			// If the cluster does not have the kind Certificate, there is nothing to delete. If the operator lacks the
			// permission, it cannot delete anything.
			continue
		}
		if err != nil {
			return err
		}
		if live.GetLabels()[v1alpha1.LabelStore] != store.Name {
			continue
		}
		uid := live.GetUID()
		if err := k.Client.Delete(ctx, live, client.Preconditions{UID: &uid}); client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("delete Certificate %s: %w", key, err)
		}
		if err := k.RemoveSecret(ctx, store, key.Name); err != nil {
			return err
		}
	}
	return nil
}
