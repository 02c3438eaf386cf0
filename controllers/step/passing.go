package step

import (
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// Stale reports whether a write failed only because its input was read too early, or because the namespace is being
// deleted.
func Stale(err error) bool {
	return err != nil && (apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) || apierrors.IsConflict(err))
}

// Passing reports whether an error will be gone at the next reconcile: it is Stale, or the object has just been
// deleted.
func Passing(err error) bool { return Stale(err) || apierrors.IsNotFound(err) }
