package workload

import (
	"crypto/sha256"
	"encoding/hex"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
)

const (
	// AnnotationLooked is set on the volume of a disk that a claim may get. Its value is the reason why: LookedBlank or
	// LookedReleased.
	AnnotationLooked = "sheaf.dev/looked"
	// AnnotationLooks is set on the volume through which a Job looks at a disk. It names the disk's PersistentVolume.
	AnnotationLooks = "sheaf.dev/looks"

	// LookedBlank means that a Job found the disk blank.
	LookedBlank = "blank"
	// LookedReleased means that an administrator has released the disk with AnnotationRelease, regardless of its content.
	LookedReleased = "released"
)

const (
	// LookNotBlank is the exit code of `sheaf look` for a disk that is not blank.
	LookNotBlank = 4
	// lookDevice is the path of the disk in the container that looks at it.
	lookDevice = "/dev/look"
	lookName   = "look"
)

// LookVolumeName returns the name of the volume through which a Job inspects a PersistentVolume's disk.
func LookVolumeName(volume string) string { return volume + "-look" }

// LookName returns the name of the Job that inspects a PersistentVolume's disk, and of the Job's claim.
func LookName(volume string) string {
	sum := sha256.Sum256([]byte(volume))
	return "sheaf-look-" + hex.EncodeToString(sum[:6])
}

// LookVolume returns a second volume for the disk of a PersistentVolume. It exposes the disk as a raw block device to
// one claim in the operator's namespace. The volume is raw because mounting it would change the disk: the kubelet would
// format a blank disk, or replay the journal of a file system.
func LookVolume(pv *corev1.PersistentVolume, set, namespace string) *corev1.PersistentVolume {
	return rawVolume(pv, set, LookVolumeName(pv.Name), namespace, LookName(pv.Name),
		map[string]string{AnnotationLooks: pv.Name})
}

// LookJob returns the Job that inspects a disk through the volume that LookVolume has returned. The Job completes if
// the disk is blank. It fails with reason PodFailurePolicy if the disk is not blank, and with another reason if the
// disk could not be read.
func LookJob(looking *corev1.PersistentVolume, set, image string, pullSecrets []string) *batchv1.Job {
	job := diskJob(looking, set, image, pullSecrets, lookName, []string{"look", lookDevice}, lookDevice)
	job.Spec.PodFailurePolicy = &batchv1.PodFailurePolicy{Rules: []batchv1.PodFailurePolicyRule{{
		Action: batchv1.PodFailurePolicyActionFailJob,
		OnExitCodes: &batchv1.PodFailurePolicyOnExitCodesRequirement{ContainerName: new(lookName),
			Operator: batchv1.PodFailurePolicyOnExitCodesOpIn, Values: []int32{LookNotBlank}},
	}}}
	// The container may read the device, but not write to it.
	job.Spec.Template.Spec.Volumes[0].PersistentVolumeClaim.ReadOnly = true
	return job
}
