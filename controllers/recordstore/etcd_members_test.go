package recordstore

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sheaf.dev/sheaf/controllers/fleet"
)

func TestWhyAMemberOfEtcdIsNotWell(t *testing.T) {
	pod := func(changes ...func(*corev1.Pod)) *corev1.Pod {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "q-etcd-1"}, Spec: corev1.PodSpec{NodeName: "n1"}}
		p.Status.Phase = corev1.PodRunning
		for _, change := range changes {
			change(p)
		}
		return p
	}
	unscheduled := func(words string) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			p.Spec.NodeName, p.Status.Phase = "", corev1.PodPending
			p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse,
				Message: words}}
		}
	}
	container := func(state, last corev1.ContainerState) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			p.Status.ContainerStatuses = []corev1.ContainerStatus{{State: state, LastTerminationState: last}}
		}
	}
	running := corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}
	waiting := func(reason, message string) corev1.ContainerState {
		return corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason, Message: message}}
	}
	claim := func(phase corev1.PersistentVolumeClaimPhase) *corev1.PersistentVolumeClaim {
		return &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: "data-q-etcd-1"},
			Status: corev1.PersistentVolumeClaimStatus{Phase: phase}}
	}
	const unbound = "0/3 nodes are available: pod has unbound immediate PersistentVolumeClaims. not found"
	for name, c := range map[string]struct {
		seen observedMember
		want string
	}{
		"no pod": {observedMember{}, "q-etcd-1: it has no pod"},
		"a quota": {observedMember{Events: []string{"FailedCreate: exceeded quota"}},
			"it has no pod: FailedCreate: exceeded quota"},
		"is replaced": {observedMember{Pod: pod(func(p *corev1.Pod) {
			p.DeletionTimestamp = &metav1.Time{}
		})}, "is being replaced"},
		"no default": {observedMember{Pod: pod(unscheduled(unbound)), Claim: claim(corev1.ClaimPending)},
			"no default one, and spec.etcd.managed.storage.storageClassName"},
		"no class": {observedMember{Pod: pod(unscheduled(unbound)), Claim: claim(corev1.ClaimPending), ClassName: "fast",
			ClassMissing: true}, `StorageClass "fast" of spec`},
		"no volume yet": {observedMember{Pod: pod(unscheduled(unbound)), Claim: claim(corev1.ClaimPending),
			ClassName: "fast"}, `waits for a PersistentVolume of StorageClass "fast"`},
		"no volume": {observedMember{Pod: pod(unscheduled(unbound)), Claim: claim(corev1.ClaimPending), ClassName: "fast",
			Now: time.Unix(1_800_000_000, 0)},
			`no free PersistentVolume of StorageClass "fast" fits claim data-q-etcd-1`},
		"no node": {observedMember{Pod: pod(unscheduled("untolerated taint")), Claim: claim(corev1.ClaimBound)},
			"spec.etcd.managed.scheduling; the scheduler says: untolerated taint"},
		"a cordoned node": {observedMember{Pod: pod(unscheduled("1 node(s) were unschedulable")),
			Claim: claim(corev1.ClaimBound), Cordoned: "n1"}, "node n1 is cordoned, and its disk is there: kubectl uncordon n1"},
		"no device": {observedMember{Pod: pod(func(p *corev1.Pod) {
			p.Status.Phase = corev1.PodPending
		}), Events: []string{"FailedMount: /dev/x: Can't open blockdev"}},
			"node n1 does not have its disk: bring it back"},
		"no scheduler": {observedMember{Pod: pod(unscheduled(""))}, "waits for the scheduler"},
		"mount": {observedMember{Pod: pod(func(p *corev1.Pod) {
			p.Status.Phase = corev1.PodPending
		}), Events: []string{"FailedMount: wrong fs type"}},
			"its volume is being mounted and its container started: FailedMount: wrong fs type"},
		"image": {observedMember{Pod: pod(container(waiting("ImagePullBackOff", "not found"), corev1.ContainerState{}))},
			"q-etcd-1: ImagePullBackOff: not found"},
		"ended": {observedMember{Pod: pod(container(waiting("CrashLoopBackOff", "back-off"),
			corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{
				ExitCode: 1, Message: "{\"level\":\"WARN\"}\nsheaf: the folder is empty\n"}}))},
			"q-etcd-1: sheaf: the folder is empty"},
		"learns": {observedMember{Pod: pod(container(running, corev1.ContainerState{})), Asked: true,
			Known: &fleet.EtcdMember{Trouble: "is a learner"}}, "q-etcd-1: it is a learner"},
		"joins": {observedMember{Pod: pod(container(running, corev1.ContainerState{})), Asked: true},
			"joins them as a new member"},
		"starts": {observedMember{Pod: pod(container(running, corev1.ContainerState{})), Asked: true,
			Known: &fleet.EtcdMember{}}, "see kubectl logs q-etcd-1"},
		"not asked": {observedMember{Pod: pod(container(running, corev1.ContainerState{}))}, "see kubectl logs q-etcd-1"},
	} {
		c.seen.Name = "q-etcd-1"
		if got := c.seen.why(); !strings.Contains(got, c.want) || !strings.HasPrefix(got, "q-etcd-1: ") {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
	long := observedMember{Name: "q-etcd-1", Events: []string{strings.Repeat("a ", 1000) + "the end"}}
	if got := long.why(); len(got) > memberWordsMax+40 || !strings.HasSuffix(got, "the end") {
		t.Errorf("%d bytes: %s", len(got), got)
	}
}
