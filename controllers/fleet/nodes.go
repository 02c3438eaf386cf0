package fleet

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// NodeReady is what the kubelet of a node says of it; Unknown where it says nothing.
func NodeReady(node *corev1.Node) corev1.ConditionStatus {
	i := slices.IndexFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool { return c.Type == corev1.NodeReady })
	if i < 0 {
		return corev1.ConditionUnknown
	}
	return node.Status.Conditions[i].Status
}

// TakesPods says whether pods can start on a node.
func TakesPods(node *corev1.Node) bool {
	return !node.Spec.Unschedulable && NodeReady(node) == corev1.ConditionTrue
}

// Unscheduled is what the scheduler says of a pod that no node has taken; zero where it says nothing.
func Unscheduled(pod *corev1.Pod) corev1.PodCondition {
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse {
			return c
		}
	}
	return corev1.PodCondition{}
}
