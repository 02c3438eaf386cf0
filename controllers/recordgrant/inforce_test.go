package recordgrant

import (
	"testing"

	corev1 "k8s.io/api/core/v1"

	"sheaf.dev/sheaf/internal/kube/workload"
)

// A grant is in force when every process that decides about calls uses it. A process that decides about none, and
// therefore uses no table, must not keep a grant out of force.
func TestWhoDecidesAboutCalls(t *testing.T) {
	for component, want := range map[string]bool{workload.ContainerGateway: true, workload.ContainerShard: true,
		workload.ContainerEtcd: false, workload.ContainerArchive: false} {
		pod := &corev1.Pod{}
		pod.Labels = workload.Labels("quotes", component)
		if got := decides(pod); got != want {
			t.Errorf("%s: %t, want %t", component, got, want)
		}
	}
}
