package poolstatus

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sheaf.dev/sheaf/api/v1alpha1"
	"sheaf.dev/sheaf/client/recordv1"
)

// If no source has responded, the conditions that depend on it must not be True. The test checks each condition of a
// pool with each reason for a missing response.
func TestUnobservedConditionIsNotTrue(t *testing.T) {
	pod := func(f *Found) {
		for _, o := range f.Seen.Shards {
			o.Pod = &corev1.Pod{}
			o.Claim = &corev1.PersistentVolumeClaim{Status: corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimBound}}
		}
	}
	report := func(f *Found) {
		pod(f)
		for _, o := range f.Seen.Shards {
			o.Report = &recordv1.ShardStatus{Shard: &recordv1.Shard{}}
		}
	}
	// These conditions depend only on Kubernetes objects, so they are known even if no shard responds.
	kubernetes := []string{v1alpha1.ConditionUpdated, v1alpha1.ConditionVolumesGrown}
	for name, c := range map[string]struct {
		states  []v1alpha1.ShardState
		facts   func(*Found)
		isTrue  []string // the conditions that are True nevertheless
		isFalse []string
	}{
		"no shard":     {isTrue: []string{v1alpha1.ConditionDrained}},
		"all parked":   {states: []v1alpha1.ShardState{v1alpha1.ShardParked, v1alpha1.ShardParked}},
		"just created": {states: []v1alpha1.ShardState{v1alpha1.ShardPending}, isFalse: []string{v1alpha1.ConditionLoaded}},
		"no node takes them": {states: []v1alpha1.ShardState{v1alpha1.ShardUnschedulable}, facts: pod, isTrue: kubernetes,
			isFalse: []string{v1alpha1.ConditionLoaded}},
		"none answers": {states: []v1alpha1.ShardState{v1alpha1.ShardUnreachable}, facts: pod, isTrue: kubernetes},
		"foreign volumes": {states: []v1alpha1.ShardState{v1alpha1.ShardForeign}, facts: report,
			isTrue: append(slices.Clone(kubernetes), v1alpha1.ConditionFileSystemMatches, v1alpha1.ConditionMemoryFits,
				v1alpha1.ConditionDrained), // the shards answer, and say that they hold no groups
			isFalse: []string{v1alpha1.ConditionLoaded, v1alpha1.ConditionVolumesReady}},
	} {
		f := shardsIn(c.states...)
		f.Seen.Pool.Spec.State = v1alpha1.PoolDrained
		if c.facts != nil {
			c.facts(f)
		}
		conditions := conditions(f, "")
		if len(conditions) != 9 {
			t.Fatalf("%d conditions: this table is of all of them", len(conditions))
		}
		for _, got := range conditions {
			want := metav1.ConditionUnknown
			switch {
			case got.Type == v1alpha1.ConditionEtcdReady: // copied from the store, which does not have this condition yet
				want = ""
			case slices.Contains(c.isTrue, got.Type):
				want = metav1.ConditionTrue
			case slices.Contains(c.isFalse, got.Type):
				want = metav1.ConditionFalse
			}
			if got.Status != want {
				t.Errorf("%s: %s is %s (%s: %s), want %s", name, got.Type, got.Status, got.Reason, got.Message, want)
			}
		}
	}
}

// A full volume is reported even while another shard is silent.
func TestAFullVolumeIsReportedBesideASilentShard(t *testing.T) {
	f := shardsIn(v1alpha1.ShardServing, v1alpha1.ShardUnreachable)
	f.Statuses[0].Volume = &v1alpha1.VolumeStatus{CapacityBytes: 1 << 30}
	if got := space(f); got.Status != metav1.ConditionFalse || got.Reason != "VolumeNearlyFull" {
		t.Errorf("%+v", got)
	}
}
