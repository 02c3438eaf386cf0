// Package fleet knows the shards of a store: what they say, what etcd holds of them, how their Shard objects add up,
// which there are to be. It decides without I/O, but for reading Shards, and asks shards and etcd through interfaces.
package fleet

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"sheaf.dev/sheaf/api/v1alpha1"
	"sheaf.dev/sheaf/controllers/step"
)

// ImageOf the only container of ours.
func ImageOf(pod *corev1.PodSpec) string {
	if len(pod.Containers) == 0 {
		return ""
	}
	return pod.Containers[0].Image
}

// Steady is before, unless now is a step away from it.
func Steady(before, now, whole int64) int64 {
	step := whole / 100 * stepPercent
	if before > 0 && now > before-step && now < before+step {
		return before
	}
	return now
}

// Seen are all shards of some pools, as they were seen last, by their pool.
type Seen map[types.NamespacedName][]v1alpha1.ShardStatus

// SeenOf these pools. shards may be of other pools too.
func SeenOf(pools []v1alpha1.ShardPool, shards []v1alpha1.Shard) Seen {
	byPool := map[types.NamespacedName][]v1alpha1.Shard{}
	for _, s := range shards {
		at := types.NamespacedName{Namespace: s.Namespace, Name: s.Spec.Pool}
		byPool[at] = append(byPool[at], s)
	}
	seen := Seen{}
	for i := range pools {
		at := client.ObjectKeyFromObject(&pools[i])
		seen[at] = v1alpha1.ShardsOf(&pools[i], byPool[at])
	}
	return seen
}

// ReadSeen reads the Shards of some pools.
func ReadSeen(
	ctx context.Context, reader client.Reader, pools []v1alpha1.ShardPool, in ...client.ListOption,
) (Seen, error) {
	var list v1alpha1.ShardList
	if err := reader.List(ctx, &list, in...); err != nil {
		return nil, fmt.Errorf("list Shards: %w", err)
	}
	return SeenOf(pools, list.Items), nil
}

// Of one pool.
func (s Seen) Of(pool *v1alpha1.ShardPool) []v1alpha1.ShardStatus {
	return s[client.ObjectKeyFromObject(pool)]
}

// ByName are the shards of all these pools, which are of one namespace.
func (s Seen) ByName() map[string]v1alpha1.ShardStatus {
	all := map[string]v1alpha1.ShardStatus{}
	for _, shards := range s {
		for _, shard := range shards {
			all[shard.Name] = shard
		}
	}
	return all
}

// Silent are the shards whose disk did not answer.
func (s Seen) Silent() map[string]bool {
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

// ClassOf is the StorageClass of a claim of a store, or of a Job that measures the class; empty: it is neither's.
func ClassOf(claim *corev1.PersistentVolumeClaim) string {
	if claim.Spec.StorageClassName == nil || claim.Labels[v1alpha1.LabelStore] == "" && !IsBench(claim) {
		return ""
	}
	return *claim.Spec.StorageClassName
}

// IsBench says whether a claim is of a Job that measures a StorageClass.
func IsBench(claim *corev1.PersistentVolumeClaim) bool {
	return claim.Labels[v1alpha1.LabelComponent] == v1alpha1.ComponentBench
}

// stepPercent: numbers that move all the time are shown in steps of so much, as each change is a write.
const stepPercent = 5

// ReasonNoShards is of Ready of a pool that is to have no shards.
const ReasonNoShards = "NoShards"

// PauseOf a state that may be left by waiting. Where the kubelet or the scheduler tries again by itself, and tells each
// time, what they tell is enough.
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

// NeedsPerson says that a state is not left by waiting.
func NeedsPerson(state v1alpha1.ShardState) bool {
	switch state {
	case v1alpha1.ShardNodeLost, v1alpha1.ShardDiskLost, v1alpha1.ShardForeign, v1alpha1.ShardFormatBlocked,
		v1alpha1.ShardFileSystemMismatch, v1alpha1.ShardMemoryTooSmall:
		return true
	}
	return false
}
