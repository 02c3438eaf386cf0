package recordstore

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"sheaf.dev/sheaf/api/v1alpha1"
	"sheaf.dev/sheaf/controllers/fleet"
	"sheaf.dev/sheaf/controllers/step"
	"sheaf.dev/sheaf/internal/kube/workload"
)

// The parts of a store take a new image in order of how little a bad image would cost. First come the gateways, whose
// old pods serve until the new ones are ready. Then comes etcd: groups that are placed serve without it. Last come
// the shards, one at a time. A part that does not run anyway does not wait for the others.

// gatewayRuns reports whether all gateways run an image and are ready, and no other gateway is left.
func (run *storeRun) gatewayRuns(image string) bool {
	wanted := workload.GatewayReplicas(run.store)
	d := run.gateway
	if wanted == 0 {
		return true
	}
	if d == nil || fleet.ImageOf(&d.Spec.Template.Spec) != image || d.Status.ObservedGeneration < d.Generation {
		return false
	}
	return d.Status.Replicas == wanted && d.Status.UpdatedReplicas == wanted && d.Status.AvailableReplicas >= wanted
}

// etcdRuns reports whether all members run an image and are ready.
func (run *storeRun) etcdRuns(image string) bool {
	if run.store.Spec.Etcd.Managed == nil {
		return true
	}
	return len(run.etcdPods) == int(workload.EtcdMembers(run.store)) &&
		!slices.ContainsFunc(run.etcdPods, func(pod corev1.Pod) bool {
			return fleet.ImageOf(&pod.Spec) != image || !fleet.PodReady(&pod)
		})
}

// chooseEtcdImage reads the members and decides which image they are to run.
func (r *Reconciler) chooseEtcdImage(ctx context.Context, run *storeRun) step.Outcome {
	store := run.store
	var pods corev1.PodList
	err := r.Client.List(ctx, &pods, client.InNamespace(store.Namespace),
		client.MatchingLabels(workload.Selector(store.Name, workload.ContainerEtcd)))
	if err != nil {
		return step.Retry(fmt.Errorf("list the pods of etcd of store %s: %w", client.ObjectKeyFromObject(store), err))
	}
	run.etcdPods = pods.Items
	var set appsv1.StatefulSet
	key := client.ObjectKey{Namespace: store.Namespace, Name: workload.Etcd(store.Name)}
	if err := r.Client.Get(ctx, key, &set); err != nil && !apierrors.IsNotFound(err) {
		return step.Retry(fmt.Errorf("read StatefulSet %s: %w", key, err))
	}
	run.etcdHasTLS = workload.MountsTLS(&set.Spec.Template.Spec)
	wanted := workload.ImageOf(store, r.Image)
	run.etcdImage = etcdImage(wanted, fleet.ImageOf(&set.Spec.Template.Spec), run.etcdPods, run.gatewayRuns(wanted),
		r.now())
	return step.Complete()
}

// etcdImage returns the wanted image once the gateways run it. Until then, running members keep their image. ofSet is
// the image of the StatefulSet, and is empty if there is no StatefulSet yet.
func etcdImage(wanted, ofSet string, pods []corev1.Pod, gatewayRuns bool, now time.Time) string {
	if gatewayRuns || ofSet == "" {
		return wanted
	}
	kept, name := ofSet, ""
	for n := range pods {
		if podStuck(&pods[n], now) && !podBegins(&pods[n], now) {
			return wanted
		}
		if name == "" || pods[n].Name < name { // the first member is updated first
			kept, name = fleet.ImageOf(&pods[n].Spec), pods[n].Name
		}
	}
	return kept
}

// podBegins reports whether a pod is being replaced, or was created just now and has no known problem. That such a pod
// does not run yet does not show that its image is bad. Its image may still be the previous one.
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

// gatewayTrouble finds the reason why a gateway does not run as wanted.
func (r *Reconciler) gatewayTrouble(ctx context.Context, run *storeRun) step.Outcome {
	store := run.store
	if run.gatewayRuns(workload.ImageOf(store, r.Image)) {
		return step.Complete()
	}
	var pods corev1.PodList
	err := r.Client.List(ctx, &pods, client.InNamespace(store.Namespace),
		client.MatchingLabels(workload.Selector(store.Name, workload.ContainerGateway)))
	if err != nil {
		return step.Retry(fmt.Errorf("list the pods of the gateway of store %s: %w", client.ObjectKeyFromObject(store), err))
	}
	slices.SortFunc(pods.Items, func(a, b corev1.Pod) int { return cmp.Compare(a.Name, b.Name) })
	for n := range pods.Items {
		if why := podTrouble(&pods.Items[n]); why != "" && !fleet.PodReady(&pods.Items[n]) {
			run.trouble = ": " + why
			return step.Complete()
		}
	}
	for _, c := range run.gateway.Status.Conditions {
		if c.Type == appsv1.DeploymentReplicaFailure && c.Status == corev1.ConditionTrue {
			run.trouble = ": " + c.Message
		}
	}
	return step.Complete()
}

// summarizeImage records the images that the gateways and etcd run, and what the shards wait for.
func (run *storeRun) summarizeImage(wanted string) {
	status := &run.store.Status
	if run.gatewayRuns(wanted) && run.etcdRuns(wanted) {
		status.Image = wanted
	}
	if status.Image == "" || status.Image == wanted || run.gateway == nil {
		return
	}
	message := fmt.Sprintf("not all members of etcd run image %s yet, and shards take it after them", wanted)
	if !run.gatewayRuns(wanted) {
		message = fmt.Sprintf(
			"not all gateways run image %s yet, and etcd and shards keep theirs until they do%s. Where the image is the "+
				"reason, correct it (spec.image, or the operator's default)", wanted, run.trouble)
	}
	step.SetFalse(&status.Conditions, run.store.Generation, v1alpha1.ConditionUpdated, "Updating", message)
}
