package recordstore

import (
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sheaf.dev/sheaf/api/v1alpha1"
)

// member returns a pod of etcd that runs the given image, and has the condition Ready if ready is true.
func member(name, image string, ready bool) corev1.Pod {
	pod := corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}}
	pod.Spec.Containers = []corev1.Container{{Image: image}}
	if ready {
		pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
	}
	return pod
}

func TestEtcdImage(t *testing.T) {
	well := []corev1.Pod{member("e-1", "old", true), member("e-0", "old", true)}
	waits := func(age time.Duration, reason string) []corev1.Pod {
		pod := member("e-0", "mid", false)
		pod.CreationTimestamp = metav1.NewTime(time.Now().Add(-age))
		if reason != "" {
			pod.Status.ContainerStatuses = []corev1.ContainerStatus{{State: corev1.ContainerState{
				Waiting: &corev1.ContainerStateWaiting{Reason: reason}}}}
		}
		return []corev1.Pod{pod, member("e-1", "old", true)}
	}
	leaves := member("e-0", "mid", false)
	leaves.DeletionTimestamp = new(metav1.Now())
	leaves.Status.ContainerStatuses = []corev1.ContainerStatus{{State: corev1.ContainerState{
		Terminated: &corev1.ContainerStateTerminated{}}}}
	for name, c := range map[string]struct {
		ofSet   string
		pods    []corev1.Pod
		gateway bool
		want    string
	}{
		"a member is recreated for the image before": {"mid", waits(time.Second, ""), false, "mid"},
		"and its container is":                       {"mid", waits(time.Second, "ContainerCreating"), false, "mid"},
		"and was stopped for it":                     {"mid", []corev1.Pod{leaves, member("e-1", "old", true)}, false, "mid"},
		"its image cannot be had":                    {"mid", waits(time.Second, "ErrImagePull"), false, "new"},
		"nothing happens for long":                   {"mid", waits(time.Hour, ""), false, "new"},
		"the first time":                             {"", nil, false, "new"},
		"the gateway runs it":                        {"old", well, true, "new"},
		"the gateway does not":                       {"old", well, false, "old"},
		"nor where the set had it once":              {"new", well, false, "old"},
		"a pod is being made":                        {"old", nil, false, "old"},
		"a member that does not run": {"old", []corev1.Pod{member("e-0", "old", true),
			member("e-1", "old", false)}, false, "new"},
		"half-way, and the gateway lost a pod": {"new", []corev1.Pod{member("e-1", "old", true),
			member("e-0", "new", true)}, false, "new"},
		"half-way of the one before the new one": {"mid", []corev1.Pod{member("e-1", "old", true),
			member("e-0", "mid", true)}, false, "mid"},
	} {
		if got := etcdImage("new", c.ofSet, c.pods, c.gateway, time.Now()); got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
}

func TestGatewaysOfTheWantedTemplateAreCounted(t *testing.T) {
	run := &observed{store: &v1alpha1.RecordStore{}, gateway: &appsv1.Deployment{}}
	run.store.Spec.Gateway.Replicas = new(int32(1))
	run.gateway.Spec.Template.Spec.Containers = []corev1.Container{{Image: "new"}}
	for name, c := range map[string]struct {
		status appsv1.DeploymentStatus
		ready  int32
		runs   bool
	}{
		"none yet": {appsv1.DeploymentStatus{}, 0, false},
		"the old one serves": {appsv1.DeploymentStatus{Replicas: 2, UpdatedReplicas: 1, AvailableReplicas: 1},
			0, false},
		"both serve": {appsv1.DeploymentStatus{Replicas: 2, UpdatedReplicas: 1, AvailableReplicas: 2},
			1, false},
		"the new one alone": {appsv1.DeploymentStatus{Replicas: 1, UpdatedReplicas: 1, AvailableReplicas: 1},
			1, true},
		"the new one alone, and not ready": {appsv1.DeploymentStatus{Replicas: 1, UpdatedReplicas: 1}, 0, false},
	} {
		run.gateway.Status = c.status
		if ready, _ := run.gatewaysReady(); ready != c.ready || run.gatewayRuns("new") != c.runs || run.gatewayRuns("other") {
			t.Errorf("%s: %d ready, want %d; runs the image: %t, want %t", name, ready, c.ready, run.gatewayRuns("new"), c.runs)
		}
	}
}
