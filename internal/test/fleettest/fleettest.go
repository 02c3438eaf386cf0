// Package fleettest creates placements and pools from short strings, and absurd values of any type. It is for tests.
package fleettest

import (
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sheaf.dev/sheaf/api/v1alpha1"
	"sheaf.dev/sheaf/controllers/fleet"
	"sheaf.dev/sheaf/internal/placement"
)

// View creates a view of a store from strings. The string for a group lists its members, and then its target. For
// example, in "a -b +c > d e", b is a voter that is not running, c is a learner, and the target consists of d and e.
func View(copies int, shards string, groups map[string]string) *fleet.Places {
	v := &fleet.Places{Planned: placement.Planned{Unplaced: map[string]string{}, View: placement.View{
		Meta: placement.Meta{Copies: copies}, Shards: map[string]placement.Shard{}, Groups: map[string]placement.Group{},
		Targets: map[string]placement.Target{}}}}
	for s := range strings.FieldsSeq(shards) { // each word is name or name@domain
		name, domain, found := strings.Cut(s, "@")
		if !found {
			domain = name
		}
		v.Shards[name] = placement.Shard{Name: name, Domain: domain, Node: "node-" + name, VolumeUUID: volumeOf(name)}
	}
	for name, words := range groups {
		g, target := placement.Group{Name: name}, placement.Target{Group: name}
		is, wanted, _ := strings.Cut(words, ">")
		for w := range strings.FieldsSeq(is) {
			m := placement.Member{Shard: strings.TrimLeft(w, "+-"), VolumeUUID: volumeOf(strings.TrimLeft(w, "+"))}
			if w[0] == '+' {
				m.Role = placement.Learner
			} else {
				target.Shards = append(target.Shards, m.Shard)
			}
			g.Members = append(g.Members, m)
		}
		if wanted := strings.Fields(wanted); len(wanted) > 0 {
			target.Shards = wanted
		}
		v.Groups[name], v.Targets[name] = g, target
	}
	return v
}

func volumeOf(shard string) uuid.UUID { return uuid.NewSHA1(uuid.Nil, []byte(shard)) }

// PoolOf returns a pool whose shards have the given states. Each shard has 4 groups.
func PoolOf(name string, wanted int32, states ...v1alpha1.ShardState) v1alpha1.ShardPool {
	pool := v1alpha1.ShardPool{ObjectMeta: metav1.ObjectMeta{Namespace: "prod", Name: name}}
	pool.Spec.Shards = &wanted
	for n, state := range states {
		s := v1alpha1.ShardStatus{Name: fmt.Sprintf("%s-%d", name, n), Number: int32(n), State: state, Groups: 4,
			Message: "words of " + string(state)}
		switch state {
		case v1alpha1.ShardServing:
			s.ServingGroups = 4
		case v1alpha1.ShardLoading:
			s.ServingGroups = 1
		case v1alpha1.ShardDiskLost:
			s.LostGroups = 4
		}
		pool.Status.ShardStatuses = append(pool.Status.ShardStatuses, s)
	}
	return pool
}

// RateMessage returns the message that `sheaf-bench layouts --device-rate` writes. A test of that command uses it too.
func RateMessage(bytesPerSecond int64) string {
	return fmt.Sprintf(
		"{\"kind\":\"sheaf.dev/device-rate\",\"readBytesPerSecond\":%d,\"sampleBytes\":1073741824,\"fileSystem\":\"xfs\"}\n",
		bytesPerSecond)
}

// BenchPod returns the pod of a Job that has succeeded. The pod has one claim.
func BenchPod(name, claim, message string, ended time.Time) corev1.Pod {
	pod := corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name,
		Labels: map[string]string{v1alpha1.LabelComponent: v1alpha1.ComponentBench}}}
	pod.Spec.Containers = []corev1.Container{{Name: "bench", Image: "sheaf:1"}}
	pod.Spec.Volumes = []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{
		PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim},
	}}}
	pod.Status.Phase = corev1.PodSucceeded
	pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "bench", Image: "sheaf:1", State: corev1.ContainerState{
		Terminated: &corev1.ContainerStateTerminated{Message: message, FinishedAt: metav1.NewTime(ended)},
	}}}
	return pod
}

// BenchClaim returns a bound claim of the Job that measures a storage class.
func BenchClaim(name, class string) corev1.PersistentVolumeClaim {
	claim := corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: name,
		Labels: map[string]string{v1alpha1.LabelComponent: v1alpha1.ComponentBench}}}
	claim.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}
	claim.Spec.Resources.Requests = corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}
	claim.Spec.StorageClassName, claim.Spec.VolumeName = &class, "pv-of-"+name
	return claim
}
