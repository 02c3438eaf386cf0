package fleet

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// NewestPod returns the most recently created pod of several. It returns a pod that is being deleted only if there
// is no other.
func NewestPod(pods []corev1.Pod) (newest *corev1.Pod) {
	for i := range pods {
		p := &pods[i]
		switch {
		case newest == nil, newest.DeletionTimestamp != nil && p.DeletionTimestamp == nil:
			newest = p
		case p.DeletionTimestamp != nil && newest.DeletionTimestamp == nil:
		case p.CreationTimestamp.After(newest.CreationTimestamp.Time):
			newest = p
		}
	}
	return newest
}

// Runs reports whether a pod has a process that can be asked. The pod may be nil.
func Runs(pod *corev1.Pod) bool {
	return pod != nil && pod.Status.PodIP != "" &&
		slices.ContainsFunc(pod.Status.ContainerStatuses, func(c corev1.ContainerStatus) bool {
			return c.State.Running != nil
		})
}
