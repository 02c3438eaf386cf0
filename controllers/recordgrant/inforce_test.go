package recordgrant

import (
	"testing"

	corev1 "k8s.io/api/core/v1"

	"sheaf.dev/sheaf/internal/kube/workload"
)

// A grant is in force once every process that decides about calls uses it. Other processes use no grant table, so
// they must not delay this.
func TestGrantsAwaitEveryDecidingProcess(t *testing.T) {
	for component, want := range map[string]bool{workload.ContainerGateway: true, workload.ContainerShard: true,
		workload.ContainerEtcd: false, workload.ContainerArchive: false} {
		pod := &corev1.Pod{}
		pod.Labels = workload.Labels("quotes", component)
		if got := decides(pod); got != want {
			t.Errorf("%s: %t, want %t", component, got, want)
		}
	}
}
