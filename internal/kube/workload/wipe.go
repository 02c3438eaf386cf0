package workload

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// These are the annotations for wiping a Released disk. An administrator sets the first one, the operator responds with
// a question, and the administrator repeats the question's token.
const (
	// AnnotationWipe with the value true makes the operator ask whether to wipe a Released disk. An administrator sets it.
	AnnotationWipe = "sheaf.dev/wipe"
	// AnnotationWipeAsked holds the operator's question, which is a WipeToken.
	AnnotationWipeAsked = "sheaf.dev/wipe-asked"
	// AnnotationWipeConfirm is the administrator's answer to the question. Its value is the question's WipeToken.
	AnnotationWipeConfirm = "sheaf.dev/wipe-confirm"
	// AnnotationWipes is set on the volume through which a disk is wiped. It names the PersistentVolume that this volume
	// replaces.
	AnnotationWipes = "sheaf.dev/wipes"
	// AnnotationWipeHeld is set on the same volume as AnnotationWipes. It names the claim whose data was on the disk, as
	// namespace/name. It is empty if no store's claim was ever bound to the disk.
	AnnotationWipeHeld = "sheaf.dev/wipe-held"
)

// WipeDevice is the path of the disk in the wiping container.
const WipeDevice = "/dev/wipe"

// wipeRetries is how often a Job that wipes a disk replaces a failed pod.
const wipeRetries = 3

// WipeToken identifies the data that is lost when a disk is wiped. It consists of the claim and a hash of the volume,
// the claim's UID, the node and the device. If any of these changes, the token changes, too.
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

// WipeVolumeName returns the name of the volume through which a PersistentVolume's disk is wiped.
func WipeVolumeName(volume string) string { return volume + "-wipe" }

// WipeName returns the name of the Job that wipes a PersistentVolume's disk, and of the Job's claim.
func WipeName(volume string) string {
	sum := sha256.Sum256([]byte(volume))
	return "sheaf-wipe-" + hex.EncodeToString(sum[:6])
}

// WipeVolume returns the volume that replaces the PersistentVolume of a disk while the disk is wiped. It exposes the
// same device as a raw block device, for one claim in the operator's namespace. The wiping pod therefore has access to
// this device only, and needs no privileges for it.
func WipeVolume(pv *corev1.PersistentVolume, set, namespace string) *corev1.PersistentVolume {
	held := "" // empty if no store's claim was ever bound to the disk
	if ref := pv.Spec.ClaimRef; ref.UID != "" {
		held = ref.Namespace + "/" + ref.Name
	}
	return rawVolume(pv, set, WipeVolumeName(pv.Name), namespace, WipeName(pv.Name),
		map[string]string{AnnotationWipes: pv.Name, AnnotationWipeHeld: held})
}

// rawVolume returns a volume with the device of pv as a raw block device, reserved for one claim.
func rawVolume(pv *corev1.PersistentVolume, set, name, namespace, claim string,
	annotations map[string]string) *corev1.PersistentVolume {
	spec := pv.Spec.DeepCopy()
	spec.VolumeMode = new(corev1.PersistentVolumeBlock)
	spec.MountOptions = nil
	spec.Local.FSType = nil
	spec.PersistentVolumeReclaimPolicy = corev1.PersistentVolumeReclaimRetain
	spec.ClaimRef = &corev1.ObjectReference{APIVersion: "v1", Kind: "PersistentVolumeClaim", Namespace: namespace,
		Name: claim}
	annotations[AnnotationDevice] = pv.Spec.Local.Path
	return &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: diskLabels(set), Annotations: annotations}, Spec: *spec,
	}
}

// RawClaim returns the claim for which a volume from WipeVolume or LookVolume is reserved.
func RawClaim(wiping *corev1.PersistentVolume, set string) *corev1.PersistentVolumeClaim {
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

// WipeJob returns the Job that wipes a disk through the volume that WipeVolume has returned. The argument pullSecrets
// holds the names of Secrets in the operator's namespace with which the image is pulled.
func WipeJob(wiping *corev1.PersistentVolume, set, image string, pullSecrets []string) *batchv1.Job {
	return diskJob(wiping, set, image, pullSecrets, "wipe", []string{"wipe", WipeDevice, "--confirm", WipeDevice},
		WipeDevice)
}

// diskJob returns a Job that runs sheaf with the given arguments. In its pod, the raw disk of the given volume is at
// the path in the argument device. The pod runs as root, because root owns device files, but it has no other
// privileges of root. It has limits, because a ResourceQuota of the operator's namespace may require them.
func diskJob(raw *corev1.PersistentVolume, set, image string, pullSecrets []string, name string, args []string,
	device string) *batchv1.Job {
	ref := raw.Spec.ClaimRef
	container := containerSecurity()
	container.RunAsNonRoot = nil
	secrets := make([]corev1.LocalObjectReference, 0, len(pullSecrets))
	for _, secret := range pullSecrets {
		secrets = append(secrets, corev1.LocalObjectReference{Name: secret})
	}
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
					ImagePullSecrets:             secrets,
					Tolerations:                  []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
					SecurityContext: &corev1.PodSecurityContext{
						RunAsUser: new(int64(0)), RunAsGroup: new(int64(0)), SeccompProfile: &corev1.SeccompProfile{
							Type: corev1.SeccompProfileTypeRuntimeDefault},
					},
					Containers: []corev1.Container{{
						Name: name, Image: image, ImagePullPolicy: corev1.PullIfNotPresent,
						Args:                     args,
						SecurityContext:          container,
						Resources:                diskJobResources(),
						TerminationMessagePolicy: corev1.TerminationMessageFallbackToLogsOnError,
						VolumeDevices:            []corev1.VolumeDevice{{Name: "disk", DevicePath: device}},
					}},
					Volumes: []corev1.Volume{{Name: "disk", VolumeSource: corev1.VolumeSource{
						PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: ref.Name},
					}}},
				},
			},
		},
	}
}

// diskJobResources are the requests and limits of a container that wipes or looks at a disk through small buffers.
func diskJobResources() corev1.ResourceRequirements {
	return corev1.ResourceRequirements{
		Requests: corev1.ResourceList{
			corev1.ResourceCPU: resource.MustParse("10m"), corev1.ResourceMemory: resource.MustParse("32Mi"),
		},
		Limits: corev1.ResourceList{
			corev1.ResourceCPU: resource.MustParse("1"), corev1.ResourceMemory: resource.MustParse("128Mi"),
		},
	}
}
