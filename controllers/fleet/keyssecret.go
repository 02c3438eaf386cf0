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
	"sheaf.dev/sheaf/internal/base/keyfiles"
)

// ReasonKeysInvalid means that a Secret does not have the encryption keys of an archive.
const ReasonKeysInvalid = "EncryptionKeysInvalid"

// ReadKeysSecret checks the Secret with the encryption keys of an archive, and returns a hash of them. The hash is
// empty if encryption is nil. The argument field is the name of the field that contains encryption, for messages. The
// outcome says what is wrong, and what to do, without any part of a key.
func ReadKeysSecret(ctx context.Context, live client.Reader, namespace string, encryption *v1alpha1.ArchiveEncryption,
	field string) (hash string, out step.Outcome) {
	if encryption == nil {
		return "", step.Complete()
	}
	var secret corev1.Secret
	key := types.NamespacedName{Namespace: namespace, Name: encryption.SecretRef.Name}
	there, err := step.Read(ctx, live, "Secret", key, &secret)
	if err != nil {
		return "", step.Retry(err)
	}
	if !there {
		return "", step.Fail(ReasonSecretMissing, fmt.Sprintf("there is no Secret %s in this namespace, which %s.secretRef "+
			"names: make it with the keys of the archive", key.Name, field)).Again(step.PauseShort)
	}
	all, err := keyfiles.Parse(secret.Data)
	if err != nil {
		return "", step.Fail(ReasonKeysInvalid, fmt.Sprintf("Secret %s, which %s.secretRef names: %v", key.Name, field,
			err)).Again(step.PauseShort)
	}
	sum := sha256.New()
	fmt.Fprint(sum, "encryption keys\n")
	for _, f := range all {
		fmt.Fprintf(sum, "%d %s\n", len(f.Name), f.Name)
		sum.Write(f.Secret)
	}
	return hex.EncodeToString(sum.Sum(nil)[:8]), step.Complete()
}
