package recordstore

import (
	"fmt"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"

	"sheaf.dev/sheaf/api/v1alpha1"
	"sheaf.dev/sheaf/controllers/fleet"
	"sheaf.dev/sheaf/internal/kube/workload"
)

// The parts of a store get a new image in an order in which a bad image does as little damage as possible. The gateways
// are first: their old pods serve until the new ones are ready. Etcd is second: groups that are placed serve without
// it. The shards are last, one at a time. A part that is down does not wait for the others.

// gatewayRuns reports whether all gateways run an image and are ready, and no gateway with another image exists.
func (seen *observed) gatewayRuns(image string) bool {
	wanted := workload.GatewayReplicas(seen.store)
	d := seen.gateway
	if wanted == 0 {
		return true
	}
	if d == nil || fleet.ImageOf(&d.Spec.Template.Spec) != image || d.Status.ObservedGeneration < d.Generation {
		return false
	}
	return d.Status.Replicas == wanted && d.Status.UpdatedReplicas == wanted && d.Status.AvailableReplicas >= wanted
}

// etcdRuns reports whether all members run an image and are ready.
func (seen *observed) etcdRuns(image string) bool {
	if seen.store.Spec.Etcd.Managed == nil {
		return true
	}
	return len(seen.etcdPods) == int(workload.EtcdMembers(seen.store)) &&
		!slices.ContainsFunc(seen.etcdPods, func(pod corev1.Pod) bool {
			return fleet.ImageOf(&pod.Spec) != image || !workload.PodReady(&pod)
		})
}

// etcdImage returns the image for the members of etcd. This is the wanted image once the gateways run it. Until then,
// running members keep their image. ofSet is the image in the StatefulSet, or empty if the StatefulSet does not exist
// yet.
func etcdImage(wanted, ofSet string, pods []corev1.Pod, gatewayRuns bool, now time.Time) string {
	if gatewayRuns || ofSet == "" {
		return wanted
	}
	kept, name := ofSet, ""
	for n := range pods {
		if podStuck(&pods[n], now) && !podBegins(&pods[n], now) {
			return wanted
		}
		// Pods are updated in the order of their names, so the first one shows the image in use.
		if name == "" || pods[n].Name < name {
			kept, name = fleet.ImageOf(&pods[n].Spec), pods[n].Name
		}
	}
	return kept
}

// podBegins reports whether a pod is being replaced, or was created just now and has no known problem. Such a pod does
// not show that the image is bad, because it may run soon, and its image may still be the previous one.
func podBegins(pod *corev1.Pod, now time.Time) bool {
	if pod.DeletionTimestamp != nil {
		return true
	}
	for _, c := range pod.Status.ContainerStatuses {
		if c.State.Waiting == nil || c.State.Waiting.Reason != "ContainerCreating" {
			return false
		}
	}
	return now.Sub(pod.CreationTimestamp.Time) < blipMax
}

// summarizeImage records the image that the gateways and etcd run, and the reason why the shards do not get the wanted
// image yet.
func (seen *observed) summarizeImage() {
	status, wanted := &seen.store.Status, seen.image
	if seen.gatewayRuns(wanted) && seen.etcdRuns(wanted) {
		status.Image = wanted
	}
	if status.Image == "" || status.Image == wanted || seen.gateway == nil {
		return
	}
	message := fmt.Sprintf("not all members of etcd run image %s yet, and shards take it after them", wanted)
	if !seen.gatewayRuns(wanted) {
		message = fmt.Sprintf(
			"not all gateways run image %s yet, and etcd and shards keep theirs until they do%s. Where the image is the "+
				"reason, correct it (spec.image, or the operator's default)", wanted, seen.trouble)
	}
	sayFalse(seen.store, v1alpha1.ConditionUpdated, "Updating", message)
}

// etcdState returns EtcdNew if an empty member may form a new cluster, and EtcdExisting otherwise.
func etcdState(store *v1alpha1.RecordStore) string {
	allowed := store.Annotations[v1alpha1.AnnotationAllowNewEtcd]
	if !store.Status.PlacementInitialized || allowed != "" && allowed == store.Status.StoreUID {
		return workload.EtcdNew
	}
	return workload.EtcdExisting
}

// staleMember returns a member that started with files older than the ones in its template, because the kubelet had not
// updated them yet. It returns nil if there is no such member or if another member is not ready.
func (seen *observed) staleMember(members int32, now time.Time) *corev1.Pod {
	var stale *corev1.Pod
	ready := int32(0)
	for n := range seen.etcdPods {
		pod := &seen.etcdPods[n]
		if pod.DeletionTimestamp != nil || !workload.PodReady(pod) {
			return nil
		}
		ready++
		if seen.transport != nil && seen.transport.stale[pod.Name] && now.Sub(pod.CreationTimestamp.Time) > blipMax {
			stale = pod
		}
	}
	if ready != members {
		return nil
	}
	return stale
}

// blipMax is how long a running etcd member may be unready before the operator treats it as a member that never
// becomes ready. A short disturbance that makes members unready must not restart them.
const blipMax = 2 * time.Minute

// etcdPodToReplace returns the pod to delete next, or nil if there is none. A pod with an outdated template is deleted
// if it does not run, or if all members are ready. The template also says whether the cluster has formed, which matters
// only to a member that is starting. If this is the only change, a pod that runs or is about to run is kept, and a pod
// whose process has ended is replaced.
func etcdPodToReplace(pods []corev1.Pod, set *appsv1.StatefulSet, now time.Time) *corev1.Pod {
	want := set.Spec.Template.Annotations
	pods = slices.Clone(pods)
	slices.SortFunc(pods, func(a, b corev1.Pod) int { return strings.Compare(a.Name, b.Name) })
	ready := int32(0)
	var outdated *corev1.Pod
	for n := range pods {
		pod := &pods[n]
		if !pod.DeletionTimestamp.IsZero() {
			return nil
		}
		if workload.PodReady(pod) {
			ready++
		}
		old := pod.Annotations[workload.AnnotationTemplate] != want[workload.AnnotationTemplate]
		other := pod.Annotations[workload.AnnotationEtcdState] != want[workload.AnnotationEtcdState]
		if old && podStuck(pod, now) || other && podEnded(pod) {
			return pod
		}
		if old && outdated == nil {
			outdated = pod
		}
	}
	if ready == *set.Spec.Replicas {
		return outdated
	}
	return nil
}

// podStuck reports whether a pod does not run, or has run for a long time without becoming ready.
func podStuck(pod *corev1.Pod, now time.Time) bool {
	if workload.PodReady(pod) {
		return false
	}
	if !slices.ContainsFunc(pod.Status.ContainerStatuses, func(c corev1.ContainerStatus) bool {
		return c.State.Running != nil
	}) {
		return true
	}
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodReady {
			return now.Sub(c.LastTransitionTime.Time) > blipMax
		}
	}
	return false
}

// podEnded reports whether a pod's process has ended by itself and is not running now.
func podEnded(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Status.ContainerStatuses, func(c corev1.ContainerStatus) bool {
		return c.State.Running == nil && (c.State.Terminated != nil || c.LastTerminationState.Terminated != nil)
	})
}
