package trust

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"sheaf.dev/sheaf/api/v1alpha1"
	"sheaf.dev/sheaf/internal/kube/workload"
	"sheaf.dev/sheaf/internal/security/identity"
)

// Shards connect to the source of a restore, so it needs a certificate for a server. Nobody connects to an archiver,
// which has the same role.
func TestTheSourceOfARestoreHasACertificateForAServer(t *testing.T) {
	store := &v1alpha1.RecordStore{}
	store.Namespace, store.Name = "prod", "quotes"
	of := identity.Store{Namespace: "prod"}
	if got := partsOf(RestoreLeaf(of, store)); !slices.Equal(got, []string{serverPart, clientPart}) {
		t.Errorf("a source has %q", got)
	}
	if got := partsOf(ArchiveLeaf(of, store, &v1alpha1.RecordArchive{})); !slices.Equal(got, []string{clientPart}) {
		t.Errorf("an archiver has %q", got)
	}
	if a, b := RestoreLeaf(of, store).Secret, ArchiveLeaf(of, store, &v1alpha1.RecordArchive{}).Secret; a == b {
		t.Errorf("a restored store that is archived has one Secret %s for both", a)
	}
	pod := &corev1.Pod{}
	pod.Labels = workload.Labels("quotes", workload.ContainerRestore)
	if secret, port := processOf(pod); secret != "quotes-restore-tls" || port != workload.PortRestoreHTTP {
		t.Errorf("the source is asked for %s at %d", secret, port)
	}
}
