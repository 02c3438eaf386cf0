package workload

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sheaf.dev/sheaf/api/v1alpha1"
)

// The archiver's pod mounts the ConfigMap of ArchivePointsMap at pointsDir. The key keyPoints is the file that
// sheaf-archive run --points-file reads. A change of the ConfigMap does not replace the pod.
const (
	pointsVolume = "points"
	pointsDir    = "/etc/sheaf/points"
	keyPoints    = "wanted.json"
)

// ArchivePoints returns the name of the ConfigMap that says what the points of a store's archive hold.
func ArchivePoints(store string) string { return Archive(store) + "-points" }

// ArchivePointsMap returns that ConfigMap. The argument wanted is the JSON of an archiving.Wanted.
func ArchivePointsMap(store *v1alpha1.RecordStore, wanted []byte) *corev1.ConfigMap {
	return &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: store.Namespace, Name: ArchivePoints(store.Name),
			Labels: Labels(store.Name, ContainerArchive)},
		Data: map[string]string{keyPoints: string(wanted)},
	}
}

// mountPoints mounts the ConfigMap with what is wanted. The pod starts without it, too.
func mountPoints(store *v1alpha1.RecordStore, pod *corev1.PodSpec, container *corev1.Container) {
	pod.Volumes = append(pod.Volumes, corev1.Volume{Name: pointsVolume, VolumeSource: corev1.VolumeSource{
		ConfigMap: &corev1.ConfigMapVolumeSource{Optional: new(true), DefaultMode: new(int32(0o444)),
			LocalObjectReference: corev1.LocalObjectReference{Name: ArchivePoints(store.Name)}}}})
	container.VolumeMounts = append(container.VolumeMounts, corev1.VolumeMount{Name: pointsVolume, MountPath: pointsDir,
		ReadOnly: true})
	container.Args = append(container.Args, "--points-file="+pointsDir+"/"+keyPoints)
}
