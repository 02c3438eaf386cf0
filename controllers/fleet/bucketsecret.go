package fleet

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"sheaf.dev/sheaf/api/v1alpha1"
	"sheaf.dev/sheaf/controllers/step"
	"sheaf.dev/sheaf/internal/kube/workload"
)

// Reasons of conditions for the Secret with the credentials of a bucket.
const (
	ReasonSecretMissing      = "SecretMissing"
	ReasonCredentialsUnknown = "CredentialsUnknown" // the Secret has no key that the pod knows
)

// BucketCredentials says which credentials of a bucket a pod uses, without their values.
type BucketCredentials struct {
	Keys []string // keys of the Secret that the pod uses
	Hash string   // identifies the values of these keys
}

// ReadBucketSecret reads the Secret with the credentials of a bucket. The credentials are empty if ref is nil. The
// argument field is the name of the field that contains ref, for messages. The outcome says what is missing, and what
// to do.
func ReadBucketSecret(ctx context.Context, live client.Reader, namespace string, ref *v1alpha1.ArchiveSecretReference,
	field string) (c BucketCredentials, out step.Outcome) {
	if ref == nil {
		return c, step.Complete()
	}
	var secret corev1.Secret
	key := types.NamespacedName{Namespace: namespace, Name: ref.Name}
	there, err := step.Read(ctx, live, "Secret", key, &secret)
	if err != nil {
		return c, step.Retry(err)
	}
	if !there {
		return c, step.Fail(ReasonSecretMissing, fmt.Sprintf("there is no Secret %s in this namespace, which %s names: "+
			"make it", key.Name, field)).Again(step.PauseShort)
	}
	if c.Keys = workload.CredentialKeys(secret.Data); len(c.Keys) == 0 {
		return c, step.Fail(ReasonCredentialsUnknown, fmt.Sprintf("Secret %s has no credentials of a bucket: it needs "+
			"AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or credentials.json, or AZURE_STORAGE_ACCOUNT with a key or token",
			key.Name)).Again(step.PauseShort)
	}
	hash := sha256.New()
	for _, name := range c.Keys {
		fmt.Fprintf(hash, "%s %d\n", name, len(secret.Data[name]))
		hash.Write(secret.Data[name])
	}
	c.Hash = hex.EncodeToString(hash.Sum(nil)[:8])
	return c, step.Complete()
}
