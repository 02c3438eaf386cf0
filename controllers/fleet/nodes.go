package fleet

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// NodeReady returns the Ready status that the kubelet reports for a node, or Unknown if there is none.
func NodeReady(node *corev1.Node) corev1.ConditionStatus {
	i := slices.IndexFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool { return c.Type == corev1.NodeReady })
	if i < 0 {
		return corev1.ConditionUnknown
	}
	return node.Status.Conditions[i].Status
}

// TakesPods reports whether pods can start on a node.
func TakesPods(node *corev1.Node) bool {
	return !node.Spec.Unschedulable && NodeReady(node) == corev1.ConditionTrue
}

// Unscheduled returns the scheduler's condition for a pod that it has not assigned to a node. It is zero if the
// scheduler reports none.
func Unscheduled(pod *corev1.Pod) corev1.PodCondition {
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse {
			return c
		}
	}
	return corev1.PodCondition{}
}
