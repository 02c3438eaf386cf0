package workload

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"sheaf.dev/sheaf/api/v1alpha1"
)

// The pod of a drill has the rights of the archiver, a volume of its own, and no more than the archiver's pod besides.
func TestDrillPod(t *testing.T) {
	store := &v1alpha1.RecordStore{}
	store.Namespace, store.Name = "prod", "quotes"
	store.Status.StoreUID = "6a204bd8-9a53-4a6e-8a38-6a4c1e6f0d5b"
	store.Status.TLS = &v1alpha1.TLSStatus{Transport: v1alpha1.TransportRequired}
	archive := &v1alpha1.RecordArchive{}
	archive.Spec.URL = "s3://backups/quotes"
	archive.Spec.CredentialsSecretRef = &v1alpha1.ArchiveSecretReference{Name: "bucket"}
	archive.Spec.Drill = &v1alpha1.ArchiveDrill{Schedule: "0 4 * * *",
		Storage: v1alpha1.ArchiveDrillStorage{Size: resource.MustParse("50Gi"), ClassName: new("fast")}}
	in := ArchiveInput{Store: store, Archive: archive, Image: "sheaf-archive:1",
		Credentials: []string{"AWS_ACCESS_KEY_ID", "ca.crt"}, CredentialsHash: "abc"}
	job := DrillJob(in)
	if job.Name != "quotes-drill" || *job.Spec.BackoffLimit != 0 || *job.Spec.TTLSecondsAfterFinished == 0 ||
		*job.Spec.ActiveDeadlineSeconds == 0 {
		t.Errorf("%s, %+v", job.Name, job.Spec)
	}
	pod := job.Spec.Template.Spec
	c := pod.Containers[0]
	for _, arg := range []string{"drill", "s3://backups/quotes", "--server=quotes-gateway.prod.svc:7600",
		"--store=" + store.Status.StoreUID, "--scratch=/scratch", "--groups=8", "--tls-dir=" + TLSDir} {
		if !slices.Contains(c.Args, arg) {
			t.Errorf("no %s in %v", arg, c.Args)
		}
	}
	mounts, volumes := map[string]string{}, map[string]corev1.Volume{}
	for _, m := range c.VolumeMounts {
		mounts[m.Name] = m.MountPath
	}
	for _, v := range pod.Volumes {
		volumes[v.Name] = v
	}
	if mounts[scratchVolume] != scratchDir || mounts[tlsVolume] != TLSDir || mounts[credentialsVolume] != credentialsDir {
		t.Errorf("mounts %v", mounts)
	}
	claim := volumes[scratchVolume].Ephemeral.VolumeClaimTemplate.Spec
	if size := claim.Resources.Requests[corev1.ResourceStorage]; size.String() != "50Gi" ||
		*claim.StorageClassName != "fast" {
		t.Errorf("claim %+v", claim)
	}
	archiver := ArchiveDeployment(in).Spec.Template.Spec
	if pod.RestartPolicy != corev1.RestartPolicyNever || *pod.AutomountServiceAccountToken ||
		pod.ServiceAccountName != archiver.ServiceAccountName || len(c.Env) != len(archiver.Containers[0].Env) ||
		!*c.SecurityContext.ReadOnlyRootFilesystem || pod.SecurityContext.FSGroup == nil || c.LivenessProbe != nil {
		t.Errorf("pod %+v", pod)
	}
	// The selector of the archiver's pods, and the policy of etcd, must not match the pod of a drill.
	if labels := job.Spec.Template.Labels; labels[v1alpha1.LabelComponent] != ContainerDrill ||
		labels[v1alpha1.LabelStore] != "quotes" {
		t.Errorf("labels %v", labels)
	}
	if values := askingEtcd(store).PodSelector.MatchExpressions[0].Values; !slices.Contains(values, ContainerDrill) {
		t.Errorf("pods of drills may reach etcd: %v", values)
	}
}
