// Package fleet describes the shards of a store: their reports, their entries in etcd, the totals of their Shard
// objects, and which shards a store should have. It asks shards and etcd only through interfaces. Apart from reading
// Shards, its decisions involve no I/O.
package fleet

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"sheaf.dev/sheaf/api/v1alpha1"
	"sheaf.dev/sheaf/controllers/step"
)

// ImageOf returns the image of the only container in a pod that Sheaf created.
func ImageOf(pod *corev1.PodSpec) string {
	if len(pod.Containers) == 0 {
		return ""
	}
	return pod.Containers[0].Image
}

// Steady smooths a number that changes all the time. If the previous value, before, is positive and differs from the
// new value, now, by less than one step, Steady returns before. Otherwise it returns now. A step is stepPercent of
// whole.
func Steady(before, now, whole int64) int64 {
	step := whole / 100 * stepPercent
	if before > 0 && now > before-step && now < before+step {
		return before
	}
	return now
}

// Observed maps pools to the statuses of all their shards, as last observed.
type Observed map[types.NamespacedName][]v1alpha1.ShardStatus

// ObservedOf returns the observed shards of these pools. shards may include those of other pools.
func ObservedOf(pools []v1alpha1.ShardPool, shards []v1alpha1.Shard) Observed {
	byPool := map[types.NamespacedName][]v1alpha1.Shard{}
	for _, s := range shards {
		at := types.NamespacedName{Namespace: s.Namespace, Name: s.Spec.Pool}
		byPool[at] = append(byPool[at], s)
	}
	seen := Observed{}
	for i := range pools {
		at := client.ObjectKeyFromObject(&pools[i])
		seen[at] = v1alpha1.ShardsOf(&pools[i], byPool[at])
	}
	return seen
}

// ReadPools returns the pools of a store, in the order of their names, and the observed shards of these pools.
func ReadPools(ctx context.Context, reader client.Reader, store types.NamespacedName) ([]v1alpha1.ShardPool, Observed,
	error) {
	var all v1alpha1.ShardPoolList
	if err := reader.List(ctx, &all, client.InNamespace(store.Namespace)); err != nil {
		return nil, nil, fmt.Errorf("list the pools of store %s: %w", store, err)
	}
	pools := slices.DeleteFunc(all.Items, func(pool v1alpha1.ShardPool) bool {
		return pool.Spec.StoreRef.Name != store.Name
	})
	slices.SortFunc(pools, func(a, b v1alpha1.ShardPool) int { return cmp.Compare(a.Name, b.Name) })
	var shards v1alpha1.ShardList
	if err := reader.List(ctx, &shards, client.InNamespace(store.Namespace)); err != nil {
		return nil, nil, fmt.Errorf("list Shards: %w", err)
	}
	return pools, ObservedOf(pools, shards.Items), nil
}

// Of returns the shards of one pool.
func (s Observed) Of(pool *v1alpha1.ShardPool) []v1alpha1.ShardStatus {
	return s[client.ObjectKeyFromObject(pool)]
}

// ByName returns the shards of all these pools by name. The pools must be in one namespace.
func (s Observed) ByName() map[string]v1alpha1.ShardStatus {
	all := map[string]v1alpha1.ShardStatus{}
	for _, shards := range s {
		for _, shard := range shards {
			all[shard.Name] = shard
		}
	}
	return all
}

// Silent returns the shards whose disk did not answer.
func (s Observed) Silent() map[string]bool {
	silent := map[string]bool{}
	for _, shards := range s {
		for i := range shards {
			if IsSilent(&shards[i]) {
				silent[shards[i].Name] = true
			}
		}
	}
	return silent
}

// ClassOf returns the StorageClass of a claim that belongs to a store, or to a Job that measures the class. For any
// other claim it returns "".
func ClassOf(claim *corev1.PersistentVolumeClaim) string {
	if claim.Spec.StorageClassName == nil || claim.Labels[v1alpha1.LabelStore] == "" && !IsBench(claim) {
		return ""
	}
	return *claim.Spec.StorageClassName
}

// IsBench reports whether a claim belongs to a Job that measures a StorageClass.
func IsBench(claim *corev1.PersistentVolumeClaim) bool {
	return claim.Labels[v1alpha1.LabelComponent] == v1alpha1.ComponentBench
}

// stepPercent is the granularity, in percent, of numbers in the status that change all the time. It keeps small
// changes from causing a write.
const stepPercent = 5

// ReasonNoShards is the reason of condition Ready for a pool whose spec asks for no shards.
const ReasonNoShards = "NoShards"

// ReasonAllParked is the reason of condition Ready for a pool whose spec parks all shards.
const ReasonAllParked = "AllParked"

// PauseOf returns the time until the next reconcile for a state that may end without an action of the operator. The
// time is longer for states in which the kubelet or the scheduler retries, because each of their attempts causes a
// reconcile anyway. It is also longer for states that last until an administrator acts.
func PauseOf(state v1alpha1.ShardState) time.Duration {
	switch state {
	case v1alpha1.ShardNoStorageClass, v1alpha1.ShardNoVolume, v1alpha1.ShardUnschedulable, v1alpha1.ShardImagePull,
		v1alpha1.ShardCrashLooping:
		return 3 * step.PauseShort
	}
	if NeedsPerson(state) {
		return 3 * step.PauseShort
	}
	return step.PauseShort
}

// NeedsPerson reports whether a state lasts until an administrator acts.
func NeedsPerson(state v1alpha1.ShardState) bool {
	switch state {
	case v1alpha1.ShardNodeLost, v1alpha1.ShardDiskLost, v1alpha1.ShardDiskMissing, v1alpha1.ShardForeign,
		v1alpha1.ShardFormatBlocked,
		v1alpha1.ShardFileSystemMismatch, v1alpha1.ShardMemoryTooSmall:
		return true
	}
	return false
}

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
