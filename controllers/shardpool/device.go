package shardpool

import (
	"context"
	"encoding/json"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"sheaf.dev/sheaf/api/v1alpha1"
	"sheaf.dev/sheaf/controllers/fleet"
)

// deviceRateKind marks the termination message that `sheaf-bench layouts --device-rate` writes, and distinguishes it
// from other texts.
const deviceRateKind = "sheaf.dev/device-rate"

// deviceRateMax is an upper limit in bytes per second. No disk is that fast, so a higher value is an error.
const deviceRateMax = 1 << 43

// fileSystemNameMax is the maximum length in bytes of a file system's name. A longer text is not a name.
const fileSystemNameMax = 32

// deviceRate checks whether a Job has measured a disk of the pool's class. The result is kept after the Job is deleted.
func deviceRate(ctx context.Context, cached client.Reader, pool *v1alpha1.ShardPool) (*v1alpha1.DeviceRate, error) {
	in := []client.ListOption{client.InNamespace(pool.Namespace),
		client.MatchingLabels{v1alpha1.LabelComponent: v1alpha1.ComponentBench}}
	var pods corev1.PodList
	if err := cached.List(ctx, &pods, in...); err != nil {
		return nil, fmt.Errorf("list the pods of bench Jobs: %w", err)
	}
	if len(pods.Items) == 0 {
		return pool.Status.Device, nil
	}
	var claims corev1.PersistentVolumeClaimList
	if err := cached.List(ctx, &claims, in...); err != nil {
		return nil, fmt.Errorf("list the claims of bench Jobs: %w", err)
	}
	return newestRate(pool.Spec.Storage.StorageClassName, pool.Status.Device, pods.Items, claims.Items), nil
}

// newestRate returns the most recent measurement for the class, which is the result of the pod that ended last. It
// returns the known rate if no result is newer.
func newestRate(class string, known *v1alpha1.DeviceRate, pods []corev1.Pod,
	claims []corev1.PersistentVolumeClaim) *v1alpha1.DeviceRate {
	ofClass := map[string]*corev1.PersistentVolumeClaim{}
	for i := range claims {
		if fleet.ClassOf(&claims[i]) == class && claims[i].Spec.VolumeName != "" {
			ofClass[claims[i].Name] = &claims[i]
		}
	}
	for i := range pods {
		claim := measuredClaim(&pods[i], ofClass)
		if claim == nil {
			continue
		}
		found := rateOf(&pods[i])
		if found == nil || known != nil && !known.MeasuredAt.Before(&found.MeasuredAt) {
			continue
		}
		found.PersistentVolume = claim.Spec.VolumeName
		known = found
	}
	return known
}

// measuredClaim returns the only claim that a pod mounts, if that claim is of the class. It returns nil if the pod
// mounts several claims, because any of them may have been the measured one.
func measuredClaim(pod *corev1.Pod, ofClass map[string]*corev1.PersistentVolumeClaim) *corev1.PersistentVolumeClaim {
	var found *corev1.PersistentVolumeClaim
	mounted := 0
	for _, volume := range pod.Spec.Volumes {
		if volume.PersistentVolumeClaim != nil {
			mounted++
			found = ofClass[volume.PersistentVolumeClaim.ClaimName]
		}
	}
	if mounted != 1 {
		return nil
	}
	return found
}

// rateOf reads the rate from a pod's termination message. It returns nil if the pod failed, still runs, or left a
// message of a different kind.
func rateOf(pod *corev1.Pod) *v1alpha1.DeviceRate {
	if pod.Status.Phase != corev1.PodSucceeded {
		return nil
	}
	for _, container := range pod.Status.ContainerStatuses {
		end := container.State.Terminated
		if end == nil {
			continue
		}
		var message struct {
			Kind               string `json:"kind"`
			ReadBytesPerSecond int64  `json:"readBytesPerSecond"`
			FileSystem         string `json:"fileSystem"`
		}
		if err := json.Unmarshal([]byte(end.Message), &message); err != nil || message.Kind != deviceRateKind ||
			message.ReadBytesPerSecond <= 0 || message.ReadBytesPerSecond > deviceRateMax {
			continue
		}
		if len(message.FileSystem) > fileSystemNameMax {
			message.FileSystem = ""
		}
		return &v1alpha1.DeviceRate{
			ReadBytesPerSecond: message.ReadBytesPerSecond, FileSystem: message.FileSystem, Pod: pod.Name,
			MeasuredAt: end.FinishedAt,
		}
	}
	return nil
}
