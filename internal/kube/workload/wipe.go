package workload

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Annotations by which a released disk is wiped. A person sets the first; the operator answers with the question; a
// person repeats what the question names.
const (
	// AnnotationWipe with value true, set by a person: ask me whether this Released disk shall be wiped.
	AnnotationWipe = "sheaf.dev/wipe"
	// AnnotationWipeAsked is the question that the operator asked: a WipeToken.
	AnnotationWipeAsked = "sheaf.dev/wipe-asked"
	// AnnotationWipeConfirm is a person's answer: the WipeToken of the question.
	AnnotationWipeConfirm = "sheaf.dev/wipe-confirm"
	// AnnotationWipes is on the volume by which a disk is wiped: the name of the PersistentVolume that it stands in
	// for.
	AnnotationWipes = "sheaf.dev/wipes"
	// AnnotationWipeHeld is on the same: the claim whose data was on the disk, as namespace/name.
	AnnotationWipeHeld = "sheaf.dev/wipe-held"
)

// WipeDevice is where the container that wipes finds the disk.
const WipeDevice = "/dev/wipe"

// wipeRetries is how often a pod is made anew that could not wipe.
const wipeRetries = 3

// WipeToken names what is lost when a disk is wiped: the claim, and a hash of the volume, the claim's UID, node and
// device. It is another one as soon as any of them is.
func WipeToken(pv *corev1.PersistentVolume) string {
	ref, device := pv.Spec.ClaimRef, ""
	if ref == nil {
		return ""
	}
	if pv.Spec.Local != nil {
		device = pv.Spec.Local.Path
	}
	sum := sha256.Sum256([]byte(strings.Join([]string{string(pv.UID), pv.Name, string(ref.UID), ref.Namespace, ref.Name,
		DiskNode(pv), device}, "\x00")))
	return ref.Namespace + "/" + ref.Name + "-" + hex.EncodeToString(sum[:6])
}

// WipeVolumeName is the name of the volume by which the disk of a PersistentVolume is wiped.
func WipeVolumeName(volume string) string { return volume + "-wipe" }

// WipeName is the name of the Job that wipes the disk of a PersistentVolume, and of its claim.
func WipeName(volume string) string {
	sum := sha256.Sum256([]byte(volume))
	return "sheaf-wipe-" + hex.EncodeToString(sum[:6])
}

// WipeVolume stands in for the PersistentVolume of a disk while that is wiped: the same device as a raw block device,
// for one claim in the operator's namespace. So the pod that wipes sees this device and no other, and needs no
// privilege for it.
func WipeVolume(pv *corev1.PersistentVolume, set, namespace string) *corev1.PersistentVolume {
	spec := pv.Spec.DeepCopy()
	spec.VolumeMode = new(corev1.PersistentVolumeBlock)
	spec.MountOptions = nil
	spec.Local.FSType = nil
	spec.PersistentVolumeReclaimPolicy = corev1.PersistentVolumeReclaimRetain
	spec.ClaimRef = &corev1.ObjectReference{APIVersion: "v1", Kind: "PersistentVolumeClaim", Namespace: namespace,
		Name: WipeName(pv.Name)}
	held := pv.Spec.ClaimRef.Namespace + "/" + pv.Spec.ClaimRef.Name
	return &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{
			Name: WipeVolumeName(pv.Name), Labels: diskLabels(set),
			Annotations: map[string]string{AnnotationWipes: pv.Name, AnnotationWipeHeld: held,
				AnnotationDevice: pv.Spec.Local.Path},
		},
		Spec: *spec,
	}
}

// WipeClaim is the claim of that volume.
func WipeClaim(wiping *corev1.PersistentVolume, set string) *corev1.PersistentVolumeClaim {
	ref := wiping.Spec.ClaimRef
	return &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: ref.Name, Namespace: ref.Namespace, Labels: diskLabels(set)},
		Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes: wiping.Spec.AccessModes, VolumeMode: new(corev1.PersistentVolumeBlock), VolumeName: wiping.Name,
			StorageClassName: new(wiping.Spec.StorageClassName),
			Resources:        corev1.VolumeResourceRequirements{Requests: wiping.Spec.Capacity},
		},
	}
}

// WipeJob wipes the disk of that volume. Root, as device files belong to it, and nothing else that root can do.
func WipeJob(wiping *corev1.PersistentVolume, set, image string) *batchv1.Job {
	ref := wiping.Spec.ClaimRef
	container := containerSecurity()
	container.RunAsNonRoot = nil
	return &batchv1.Job{
		ObjectMeta: metav1.ObjectMeta{Name: ref.Name, Namespace: ref.Namespace, Labels: diskLabels(set)},
		Spec: batchv1.JobSpec{
			BackoffLimit: new(int32(wipeRetries)),
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: diskLabels(set)},
				Spec: corev1.PodSpec{
					RestartPolicy:                corev1.RestartPolicyNever,
					AutomountServiceAccountToken: new(false),
					EnableServiceLinks:           new(false),
					Tolerations:                  []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
					SecurityContext: &corev1.PodSecurityContext{
						RunAsUser: new(int64(0)), RunAsGroup: new(int64(0)), SeccompProfile: &corev1.SeccompProfile{
							Type: corev1.SeccompProfileTypeRuntimeDefault},
					},
					Containers: []corev1.Container{{
						Name: "wipe", Image: image, ImagePullPolicy: corev1.PullIfNotPresent,
						Args:                     []string{"wipe", WipeDevice, "--confirm", WipeDevice},
						SecurityContext:          container,
						TerminationMessagePolicy: corev1.TerminationMessageFallbackToLogsOnError,
						VolumeDevices:            []corev1.VolumeDevice{{Name: "disk", DevicePath: WipeDevice}},
					}},
					Volumes: []corev1.Volume{{Name: "disk", VolumeSource: corev1.VolumeSource{
						PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: ref.Name},
					}}},
				},
			},
		},
	}
}
