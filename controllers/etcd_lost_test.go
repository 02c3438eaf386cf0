package controllers

import (
	"path/filepath"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"sheaf.dev/sheaf/internal/kube/workload"
	"sheaf.dev/sheaf/internal/test/clitest"
	"sheaf.dev/sheaf/internal/test/must"
)

// A member of etcd that has lost its data tells the operator so by its exit code. A member of an earlier version says
// so only in the last message of its process. The operator must understand that message as long as such members may
// exist.
func TestOperatorDetectsEtcdMemberWithoutData(t *testing.T) {
	programs, err := clitest.Programs(t.Context(), t.TempDir(), "sheaf.dev/sheaf/cmd/sheaf")
	must.OK(t, err)
	ended := clitest.Run(t, nil, nil, filepath.Join(programs, "sheaf"), "etcd", "--name", "a", "--dir",
		filepath.Join(t.TempDir(), "etcd"), "--listen-client", "127.0.0.1:1", "--listen-peer", "127.0.0.1:2", "--http", "",
		"--initial-cluster-state", "existing").Want(t, workload.EtcdLostData)
	for name, c := range map[string]struct {
		code    int32
		message string
		want    bool
	}{
		"this version":               {int32(ended.Code), ended.Stderr, true},
		"this version, without text": {int32(ended.Code), "", true},
		"a version before":           {1, ended.Stderr, true},
		"another failure":            {1, "sheaf: the disk is full", false},
		"a clean end":                {0, ended.Stderr, false},
	} {
		for _, restarts := range []bool{false, true} {
			end := corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: c.code, Message: c.message}}
			status := corev1.ContainerStatus{State: end}
			if restarts {
				status = corev1.ContainerStatus{LastTerminationState: end}
			}
			pod := &corev1.Pod{Status: corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{status}}}
			if got := workload.LostEtcdData(pod); got != c.want {
				t.Errorf("%s, restarts: %t: %t", name, restarts, got)
			}
		}
	}
}
