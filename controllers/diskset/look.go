package diskset

import (
	"fmt"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"

	"sheaf.dev/sheaf/api/v1alpha1"
	"sheaf.dev/sheaf/controllers/step"
	"sheaf.dev/sheaf/internal/kube/workload"
)

// A claim gets a disk that no claim has had before only after a Job has found the disk blank, or after an
// administrator has released the disk together with its contents. Without this rule, the kubelet would mount a disk
// that already has a file system of the requested type, and give all files on it to the group of the pod (fsGroup)
// before any program of Sheaf runs. fsGroupChangePolicy OnRootMismatch does not prevent this, because the root folder
// of a foreign file system does not match.

// inspectionsMax is the maximum number of disks that are inspected at the same time for one DiskSet.
const inspectionsMax = 16

// lookBegins is the message for a disk whose inspecting Job does not exist yet.
const lookBegins = "a Job begins to look whether it is blank"

// inspectedVolume returns the name of the PersistentVolume whose disk a Job inspects through pv, or "" for other
// volumes.
func inspectedVolume(pv *corev1.PersistentVolume) string {
	return pv.Annotations[workload.AnnotationLooks]
}

// look decides whether a claim may get a free disk. If not, it changes the disk's state, and sets a message that says
// what has to happen first.
func (d *diskDecision) look(live, after *corev1.PersistentVolume, status *v1alpha1.DiskStatus) {
	if after.Annotations[workload.AnnotationRelease] == "true" {
		delete(after.Annotations, workload.AnnotationRelease)
		step.Annotate(&after.Annotations, workload.AnnotationLooked, workload.LookedReleased)
	}
	if after.Annotations[workload.AnnotationLooked] != "" {
		return
	}
	looking := d.live[workload.LookVolumeName(live.Name)]
	status.State = v1alpha1.DiskLooking
	switch {
	case d.namespace == "" || d.image == "":
		status.State = v1alpha1.DiskLookFailed
		status.Message = "the operator does not know its own namespace or the image of Sheaf, so it cannot look whether " +
			"the disk is blank: start it by its chart; or, if you know that nobody needs what is on the disk: " +
			releaseCommand(live.Name)
	case looking == nil && d.inspections >= inspectionsMax:
		status.Message = fmt.Sprintf("it waits until %s looked at",
			step.Count(inspectionsMax, "other disk was", "other disks were"))
	case looking == nil:
		status.Message = lookBegins
		d.out.actions = append(d.out.actions, diskAction{create: workload.LookVolume(live, d.set.Name, d.namespace)})
	case inspectedVolume(looking) != live.Name || looking.Labels[v1alpha1.LabelDiskSet] != d.set.Name:
		status.State = v1alpha1.DiskLookFailed
		status.Message = fmt.Sprintf("a PersistentVolume %s is there that this DiskSet did not make: delete it", looking.Name)
	default:
		d.lookOn(live, after, looking, status)
	}
	if status.State == v1alpha1.DiskLooking {
		d.inspections++
	}
}

// lookOn sets a disk's status to the progress of the Job that inspects it.
func (d *diskDecision) lookOn(live, after, looking *corev1.PersistentVolume, status *v1alpha1.DiskStatus) {
	d.lookedAt[looking.Name] = true
	if why := d.misdirected(looking, workload.LookName(live.Name)); why != "" {
		status.State, status.Message = v1alpha1.DiskLookFailed, why
		return
	}
	seen := d.jobs[looking.Name]
	job := workload.LookJob(looking, d.set.Name, d.image, d.pullSecrets)
	where := fmt.Sprintf("-n %s %%s job/%s", job.Namespace, job.Name)
	again := fmt.Sprintf("to look again: kubectl "+where, "delete")
	switch {
	case seen.job == nil:
		status.Message = lookBegins
		if seen.claim == nil {
			d.out.actions = append(d.out.actions, diskAction{make: workload.RawClaim(looking, d.set.Name)})
		}
		d.out.actions = append(d.out.actions, diskAction{make: job})
	case jobIs(seen.job, batchv1.JobComplete) != nil:
		status.Message = "it is blank"
		step.Annotate(&after.Annotations, workload.AnnotationLooked, workload.LookedBlank)
	case jobIs(seen.job, batchv1.JobFailed) == nil:
		status.Message = fmt.Sprintf("a Job looks whether it is blank; if the pod of the Job does not start, this says why: "+
			"kubectl "+where, "describe")
	case jobIs(seen.job, batchv1.JobFailed).Reason == batchv1.JobReasonPodFailurePolicy:
		status.State = v1alpha1.DiskNotBlank
		status.Message = fmt.Sprintf("it is not blank and was never a disk of this DiskSet, so no claim gets it; what is on "+
			"it: kubectl "+where+". If these are files that somebody needs, take the disk out of spec.disks. If not, have the "+
			"disk wiped: %s; or let a store have it as it is, with its files given to group 65532: %s; %s",
			"logs", wipeCommand(live.Name), releaseCommand(live.Name), again)
		if was := d.carriedFrom(live); was != nil {
			status.Message = fmt.Sprintf("it may be the disk of claim %s/%s, carried here from node %s: then do not wipe it, "+
				"but move the claim to it (%s). Otherwise: %s", was.Spec.ClaimRef.Namespace, was.Spec.ClaimRef.Name,
				workload.DiskNode(was), moveWords, status.Message)
		}
	default:
		status.State = v1alpha1.DiskLookFailed
		status.Message = fmt.Sprintf("it could not be checked whether it is blank: kubectl "+where+" says why; %s; or, if "+
			"you know that nobody needs what is on it: %s", "logs", again, releaseCommand(live.Name))
	}
}

// releaseCommand returns the command with which an administrator releases a disk, with its contents, for any claim.
func releaseCommand(volume string) string {
	return fmt.Sprintf("kubectl annotate pv %s %s=true", volume, workload.AnnotationRelease)
}
