package controllers

import (
	"context"
	"errors"
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"sheaf.dev/sheaf/api/v1alpha1"
	"sheaf.dev/sheaf/internal/workload"
)

// AnnotationAllowNewEtcd on a RecordStore, with the store's UID as value, lets a managed etcd whose volume was lost form a
// new cluster. The placement is then rebuilt by sheaf recover placement; the operator takes the annotation away.
const AnnotationAllowNewEtcd = "sheaf.dev/allow-new-etcd"

// etcdState says whether an empty member may form a new cluster.
func etcdState(store *v1alpha1.RecordStore) string {
	if !store.Status.PlacementInitialized || store.Annotations[AnnotationAllowNewEtcd] == store.Status.StoreUID {
		return workload.EtcdNew
	}
	return workload.EtcdExisting
}

// applyEtcd applies the objects of a managed etcd.
func (r *RecordStoreReconciler) applyEtcd(ctx context.Context, run *storeRun) Outcome {
	store := run.store
	if store.Spec.Etcd.Managed == nil {
		return Complete()
	}
	set, err := workload.EtcdStatefulSet(store, workload.ImageOf(store, r.Image), etcdState(store))
	if err != nil {
		return Retry(err)
	}
	if err := r.keepClaimSize(ctx, set); err != nil {
		return Retry(err)
	}
	return r.apply(ctx, store, workload.EtcdService(store), workload.EtcdMembersBudget(store), set)
}

// keepClaimSize keeps the claim template of a StatefulSet that exists: Kubernetes refuses to change it.
func (r *RecordStoreReconciler) keepClaimSize(ctx context.Context, set *appsv1.StatefulSet) error {
	var live appsv1.StatefulSet
	err := r.Client.Get(ctx, client.ObjectKeyFromObject(set), &live)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read StatefulSet %s: %w", client.ObjectKeyFromObject(set), err)
	}
	for n := range set.Spec.VolumeClaimTemplates {
		if n < len(live.Spec.VolumeClaimTemplates) {
			set.Spec.VolumeClaimTemplates[n].Spec.Resources = live.Spec.VolumeClaimTemplates[n].Spec.Resources
		}
	}
	return nil
}

// applyGateway applies the gateway's objects.
func (r *RecordStoreReconciler) applyGateway(ctx context.Context, run *storeRun) Outcome {
	store := run.store
	run.gateway = workload.GatewayDeployment(store, workload.ImageOf(store, r.Image), run.access)
	out := r.apply(ctx, store, workload.GatewayService(store), workload.GatewaysBudget(store), run.gateway)
	if !out.IsComplete() {
		return out
	}
	var live appsv1.Deployment
	if err := r.Client.Get(ctx, client.ObjectKeyFromObject(run.gateway), &live); err == nil {
		run.gateway = &live
	} else if !apierrors.IsNotFound(err) { // the cache may lag behind
		return Retry(fmt.Errorf("read Deployment %s: %w", client.ObjectKeyFromObject(run.gateway), err))
	}
	return Complete()
}

// applyBudgets applies the budget of the store's shards.
func (r *RecordStoreReconciler) applyBudgets(ctx context.Context, run *storeRun) Outcome {
	return r.apply(ctx, run.store, workload.ShardsBudget(run.store, shardsWanted(run.pools)))
}

// apply applies objects that the store owns.
func (r *RecordStoreReconciler) apply(ctx context.Context, store *v1alpha1.RecordStore, objects ...client.Object) Outcome {
	for _, o := range objects {
		if _, err := Apply(ctx, r.Client, store, o); err != nil {
			return Retry(err)
		}
	}
	return Complete()
}

// replaceEtcdPods deletes at most one pod of a managed etcd whose template is outdated: one that does not run well
// first, a ready one only while all members are ready.
func (r *RecordStoreReconciler) replaceEtcdPods(ctx context.Context, run *storeRun) Outcome {
	store := run.store
	if store.Spec.Etcd.Managed == nil {
		return Complete()
	}
	var pods corev1.PodList
	err := r.Client.List(ctx, &pods, client.InNamespace(store.Namespace), client.MatchingLabels(workload.Selector(store.Name, workload.ContainerEtcd)))
	if err != nil {
		return Retry(fmt.Errorf("list the pods of etcd of store %s: %w", client.ObjectKeyFromObject(store), err))
	}
	run.etcdPods = pods.Items
	set, err := workload.EtcdStatefulSet(store, workload.ImageOf(store, r.Image), etcdState(store))
	if err != nil {
		return Retry(err)
	}
	victim := etcdPodToReplace(pods.Items, set)
	if victim == nil {
		return Complete()
	}
	options := client.Preconditions{UID: &victim.UID}
	if err := r.Client.Delete(ctx, victim, options); err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		return Retry(fmt.Errorf("delete pod %s: %w", client.ObjectKeyFromObject(victim), err))
	}
	return Wait("EtcdUpdating", fmt.Sprintf("etcd member %s is restarted with its new template", victim.Name), PauseShort)
}

// etcdPodToReplace is the pod to delete next; nil: none. A member that is ready need not know that the cluster has formed.
func etcdPodToReplace(pods []corev1.Pod, set *appsv1.StatefulSet) *corev1.Pod {
	want := set.Spec.Template.Annotations
	ready := int32(0)
	var outdated *corev1.Pod
	for n := range pods {
		pod := &pods[n]
		if !pod.DeletionTimestamp.IsZero() {
			return nil
		}
		isReady := podReady(pod)
		if isReady {
			ready++
		}
		old := pod.Annotations[workload.AnnotationTemplate] != want[workload.AnnotationTemplate]
		other := pod.Annotations[workload.AnnotationEtcdState] != want[workload.AnnotationEtcdState]
		switch {
		case !isReady && (old || other):
			return pod
		case old && (outdated == nil || pod.Name < outdated.Name):
			outdated = pod
		}
	}
	if ready == *set.Spec.Replicas {
		return outdated
	}
	return nil
}

// podReady says whether a pod's Ready condition is True.
func podReady(pod *corev1.Pod) bool {
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}

// shardsWanted of all pools.
func shardsWanted(pools []v1alpha1.ShardPool) int32 {
	n := int32(0)
	for _, pool := range pools {
		n += poolShards(&pool)
	}
	return n
}

// poolShards wanted of a pool.
func poolShards(pool *v1alpha1.ShardPool) int32 {
	if pool.Spec.Shards == nil {
		return 1
	}
	return *pool.Spec.Shards
}

// is says whether err is one of several.
func is(err error, targets ...error) bool {
	for _, t := range targets {
		if errors.Is(err, t) {
			return true
		}
	}
	return false
}
