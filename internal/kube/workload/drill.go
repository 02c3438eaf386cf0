package workload

import (
	"cmp"
	"fmt"
	"slices"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	// scratchDir is the folder into which a drill restores.
	scratchDir    = "/scratch"
	scratchVolume = "scratch"
	// drillSecondsMax ends a drill that does not come to its end.
	drillSecondsMax = 24 * 3600
	// drillKeptSeconds is how long the pod of a drill that has ended is kept, with its log and its volume.
	drillKeptSeconds = 3600
)

// DrillJob returns the Job that runs one drill of an archive. Its spec.drill must be set. A drill that ends with an
// error is not repeated: the next one comes by the schedule. The volume is made for the pod, and is deleted with it.
func DrillJob(in ArchiveInput) *batchv1.Job {
	store, spec := in.Store, &in.Archive.Spec
	labels := Labels(store.Name, ContainerDrill)
	args := []string{"drill", spec.URL, "--server=" + GatewayHost(store), "--store=" + store.Status.StoreUID,
		"--scratch=" + scratchDir, fmt.Sprintf("--groups=%d", cmp.Or(spec.Drill.Groups, 8)), "--output=json"}
	pod := podOf(store, ContainerDrill, ArchiveImage(in.Archive, in.Image), slices.Concat(args, TLSArgs(store)))
	pod.RestartPolicy = corev1.RestartPolicyNever
	pod.ServiceAccountName = cmp.Or(spec.ServiceAccountName, "default")
	container := &pod.Containers[0]
	container.LivenessProbe = nil // a drill serves no page
	container.Resources = resources(spec.Resources, "50m", "256Mi")
	mountTLS(store, ArchiveTLS(store.Name), &pod, container)
	pod.Volumes = append(pod.Volumes, corev1.Volume{Name: scratchVolume, VolumeSource: corev1.VolumeSource{
		Ephemeral: &corev1.EphemeralVolumeSource{VolumeClaimTemplate: &corev1.PersistentVolumeClaimTemplate{
			ObjectMeta: metav1.ObjectMeta{Labels: labels},
			Spec: corev1.PersistentVolumeClaimSpec{
				AccessModes:      []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
				StorageClassName: spec.Drill.Storage.ClassName,
				Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{
					corev1.ResourceStorage: spec.Drill.Storage.Size}},
			},
		}}}})
	container.VolumeMounts = append(container.VolumeMounts, corev1.VolumeMount{Name: scratchVolume, MountPath: scratchDir})
	template := corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: pod}
	if spec.CredentialsSecretRef != nil {
		giveCredentials(&template, spec.CredentialsSecretRef.Name, in.Credentials, in.CredentialsHash)
	}
	giveKeys(&template, spec.Encryption, in.KeysHash)
	customize(&template, &spec.PodOptions, Selector(store.Name, ContainerDrill))
	return &batchv1.Job{
		ObjectMeta: metav1.ObjectMeta{Namespace: store.Namespace, Name: Drill(store.Name), Labels: labels},
		Spec: batchv1.JobSpec{
			BackoffLimit:            new(int32(0)),
			ActiveDeadlineSeconds:   new(int64(drillSecondsMax)),
			TTLSecondsAfterFinished: new(int32(drillKeptSeconds)),
			Template:                template,
		},
	}
}
