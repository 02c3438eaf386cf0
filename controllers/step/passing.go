package step

import (
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// Stale tells whether a write failed only because what it was made from was read too early, or because the namespace is
// being deleted.
func Stale(err error) bool {
	return err != nil && (apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) || apierrors.IsConflict(err))
}

// Passing tells whether an error is over at the next look: Stale, or the object has just been deleted.
func Passing(err error) bool { return Stale(err) || apierrors.IsNotFound(err) }
