package diskset

import (
	"context"
	"fmt"
	"slices"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"sheaf.dev/sheaf/api/v1alpha1"
	"sheaf.dev/sheaf/controllers/step"
	"sheaf.dev/sheaf/internal/kube/workload"
)

// A Released disk is wiped only after an administrator has acted twice (docs/adr/0029-wiping.md). The operator
// answers the first act with a question that names the data to be lost, and the second act has to repeat that name.
// Then the operator creates a PersistentVolume of a raw block device for the wiping Job. It deletes the disk's own
// PersistentVolume before the Job starts, and only if that volume has not changed since it was read. Therefore no
// claim can get the disk while the Job wipes it.

// Permissions in the operator's own namespace, where the Jobs run and have their claims.
//
// +kubebuilder:rbac:groups=batch,resources=jobs,namespace=sheaf-system,verbs=get;create;delete
// +kubebuilder:rbac:groups="",resources=persistentvolumeclaims,namespace=sheaf-system,verbs=get;create;delete

// Reasons of events about wiping a disk.
const (
	wipeAsked   = "WipeAsked"
	wipeRefused = "WipeRefused"
	wipeBegun   = "WipeBegun"
	wipeDone    = "WipeDone"
)

// annotationWiped, with the value true, marks the replacement volume of a disk that has been wiped. All that is left to
// do is to delete that volume.
const annotationWiped = "sheaf.dev/wiped"

// wipeEvery is how often a wiping Job is checked.
const wipeEvery = 5 * time.Second

// observedJob holds the observed objects of a Job that inspects or wipes a disk.
type observedJob struct {
	job   *batchv1.Job                  // nil if the Job does not exist
	claim *corev1.PersistentVolumeClaim // nil if the claim does not exist
}

// standsInFor returns the name of the volume that pv replaces while its disk is wiped, or "" if pv is an ordinary
// volume.
func standsInFor(pv *corev1.PersistentVolume) string { return pv.Annotations[workload.AnnotationWipes] }

// gatherJobs reads the Jobs of the disks that are being inspected or wiped. The cache does not hold these Jobs, because
// they are rare.
func (r *Reconciler) gatherJobs(ctx context.Context, o *observedDisks) error {
	o.namespace, o.image, o.pullSecrets, o.jobs = r.Namespace, r.Image, r.PullSecrets, map[string]observedJob{}
	for n := range o.volumes {
		pv := &o.volumes[n]
		name := ""
		if volume := standsInFor(pv); volume != "" {
			name = workload.WipeName(volume)
		} else if volume := inspectedVolume(pv); volume != "" {
			name = workload.LookName(volume)
		}
		if pv.Labels[v1alpha1.LabelDiskSet] != o.set.Name || name == "" {
			continue
		}
		key := types.NamespacedName{Namespace: r.Namespace, Name: name}
		job, claim := &batchv1.Job{}, &corev1.PersistentVolumeClaim{}
		var seen observedJob
		if there, err := step.Read(ctx, r.Live, "Job", key, job); err != nil {
			return err
		} else if there {
			seen.job = job
		}
		if there, err := step.Read(ctx, r.Live, "claim", key, claim); err != nil {
			return err
		} else if there {
			seen.claim = claim
		}
		o.jobs[pv.Name] = seen
	}
	return nil
}

// wipe handles an administrator's annotations on a disk whose own volume exists.
func (d *diskDecision) wipe(live, after *corev1.PersistentVolume, status *v1alpha1.DiskStatus) {
	wants := after.Annotations[workload.AnnotationWipe] == "true"
	asked, answer := after.Annotations[workload.AnnotationWipeAsked], after.Annotations[workload.AnnotationWipeConfirm]
	standIn := d.live[workload.WipeVolumeName(live.Name)]
	confirmed := false
	switch {
	case after.Annotations[workload.AnnotationWipe] == "" && asked == "" && answer == "":
	case status.State != v1alpha1.DiskReleased && status.State != v1alpha1.DiskNotBlank:
		d.refuse(after, fmt.Sprintf(
			"the disk is %s, and neither Released nor NotBlank: delete its claim first, where its data is no longer needed",
			status.State), true)
	case !wants:
		d.refuse(after, "nobody was asked, or it was taken back: begin with "+wipeCommand(live.Name), true)
	case d.namespace == "" || d.image == "":
		d.refuse(after,
			"the operator does not know its own namespace or the image of Sheaf: start it by its chart, or wipe the disk on "+
				"its node", true)
	case standIn != nil && (standsInFor(standIn) != live.Name || standIn.Labels[v1alpha1.LabelDiskSet] != d.set.Name):
		d.refuse(after, fmt.Sprintf("a PersistentVolume %s is there that this DiskSet did not make: delete it", standIn.Name),
			true)
	default:
		confirmed = d.ask(live, after, status)
	}
	switch {
	case confirmed:
		status.State = v1alpha1.DiskWiping
		status.Message = fmt.Sprintf("it was confirmed that %s may be lost", contentWords(status.Claim))
		if standIn == nil {
			d.out.actions = append(d.out.actions, diskAction{create: workload.WipeVolume(live, d.set.Name, d.namespace)})
		}
		d.out.actions = append(d.out.actions, diskAction{remove: live})
		d.after[live.Name] = nil // the volume is deleted only if it has not changed since it was read
		d.say(false, wipeBegun, live, fmt.Sprintf("wipes %s on %s: %s", status.Device, status.Node, status.Message))
		status.Claim = ""
	case standIn != nil && standsInFor(standIn) == live.Name && standIn.DeletionTimestamp == nil:
		// The original volume changed after the replacement volume had been created, so it was not deleted. The disk has
		// not been touched.
		d.out.actions = append(d.out.actions, diskAction{remove: standIn})
	}
}

// ask asks the administrator to confirm the wipe, and reports whether the administrator has confirmed it.
func (d *diskDecision) ask(live, after *corev1.PersistentVolume, status *v1alpha1.DiskStatus) (confirmed bool) {
	token := workload.WipeToken(live)
	answer := after.Annotations[workload.AnnotationWipeConfirm]
	lost := "all " + contentWords(status.Claim)
	if status.Claim != "" {
		lost += fmt.Sprintf(" (store %s)", live.Annotations[workload.AnnotationStoreUID])
	}
	status.Message = fmt.Sprintf(
		"to wipe it was asked for: %s on this disk is lost by that. To do it: kubectl annotate pv %s %s=%s; "+
			"to leave it as it is: kubectl annotate pv %s %s-", lost, live.Name, workload.AnnotationWipeConfirm, token,
		live.Name, workload.AnnotationWipe)
	switch {
	case after.Annotations[workload.AnnotationWipeAsked] != token:
		step.Annotate(&after.Annotations, workload.AnnotationWipeAsked, token)
		if answer != "" {
			d.refuse(after, "the answer came before the question, or the volume has changed since: answer what is asked now",
				false)
		}
		d.say(true, wipeAsked, live, status.Message)
	case answer == "":
	case answer != token:
		d.refuse(after, fmt.Sprintf("%s=%s is not what was asked for: repeat %s", workload.AnnotationWipeConfirm, answer,
			token), false)
	default:
		return true
	}
	return false
}

// contentWords describes the data on a disk by naming the claim that held the disk. If claim is empty, no claim of a
// store ever held the disk.
func contentWords(claim string) string {
	if claim == "" {
		return "data that was there before the DiskSet"
	}
	return "data of claim " + claim
}

// refuse removes the administrator's answer, and reports the reason. If question is true, it also removes the question,
// which is no longer valid.
func (d *diskDecision) refuse(after *corev1.PersistentVolume, why string, question bool) {
	delete(after.Annotations, workload.AnnotationWipeConfirm)
	if question {
		delete(after.Annotations, workload.AnnotationWipe)
		delete(after.Annotations, workload.AnnotationWipeAsked)
	}
	d.say(true, wipeRefused, after, fmt.Sprintf("PersistentVolume %s is not wiped: %s", after.Name, why))
}

func (d *diskDecision) say(warning bool, reason string, pv *corev1.PersistentVolume, message string) {
	d.out.said = append(d.out.said, step.News{Warning: warning, Reason: reason, Action: "Wipe", Object: pv,
		Message: message})
}

// wipeCommand returns the command with which an administrator asks for a wipe, which is the first of two acts.
func wipeCommand(volume string) string {
	return fmt.Sprintf("kubectl annotate pv %s %s=true", volume, workload.AnnotationWipe)
}

// standIn reports the progress of wiping a disk whose own volume is gone, and decides the next step. status is nil
// for a disk that was removed from the spec.
func (d *diskDecision) standIn(pv *corev1.PersistentVolume, status *v1alpha1.DiskStatus) {
	if status == nil {
		status = &v1alpha1.DiskStatus{}
	}
	seen := d.jobs[pv.Name]
	held := contentWords(pv.Annotations[workload.AnnotationWipeHeld])
	status.State, status.PersistentVolume = v1alpha1.DiskWiping, pv.Name
	if pv.Annotations[annotationWiped] == "true" || pv.DeletionTimestamp != nil {
		status.Message = "it is blank, and what wiped it is taken away"
		d.tidy(pv, seen)
		return
	}
	if why := d.misdirected(pv, workload.WipeName(standsInFor(pv))); why != "" {
		status.State, status.Message = v1alpha1.DiskWipeFailed, why
		return
	}
	job := workload.WipeJob(pv, d.set.Name, d.image, d.pullSecrets)
	switch {
	case seen.claim == nil:
		status.Message = "a Job begins to wipe it: it held the " + held
		d.out.actions = append(d.out.actions, diskAction{make: workload.RawClaim(pv, d.set.Name)})
		if seen.job == nil {
			d.out.actions = append(d.out.actions, diskAction{make: job})
		}
	case seen.job == nil:
		status.Message = "a Job begins to wipe it: it held the " + held
		d.out.actions = append(d.out.actions, diskAction{make: job})
	case jobIs(seen.job, batchv1.JobComplete) != nil:
		status.Message = "it is blank, and what wiped it is taken away"
		after := pv.DeepCopy()
		step.Annotate(&after.Annotations, annotationWiped, "true")
		d.out.actions = append(d.out.actions, diskAction{change: pv, after: after})
		d.say(false, wipeDone, pv, fmt.Sprintf("%s on %s is blank: it held the %s",
			pv.Annotations[workload.AnnotationDevice],
			workload.DiskNode(pv), held))
	case jobIs(seen.job, batchv1.JobFailed) != nil:
		status.State = v1alpha1.DiskWipeFailed
		status.Message = fmt.Sprintf(
			"it could not be wiped, and held the %s: kubectl -n %s logs job/%s says why; to try again: kubectl "+
				"-n %s delete job %s",
			held, job.Namespace, job.Name, job.Namespace, job.Name)
	default:
		status.Message = fmt.Sprintf("Job %s/%s wipes it: it held the %s", job.Namespace, job.Name, held)
	}
}

// misdirected says why a raw volume is not the volume that the operator created for a Job. The result is empty if it is
// that volume.
func (d *diskDecision) misdirected(raw *corev1.PersistentVolume, claim string) string {
	if ref := raw.Spec.ClaimRef; ref != nil && ref.Namespace == d.namespace && ref.Name == claim {
		return ""
	}
	return fmt.Sprintf("PersistentVolume %s was changed by hand to be for another claim, so nothing is done with the "+
		"disk: delete that volume to have the disk as it is", raw.Name)
}

// tidy cleans up the objects that were created to inspect or wipe a disk. It deletes the volume last.
func (d *diskDecision) tidy(pv *corev1.PersistentVolume, seen observedJob) {
	if seen.job != nil && seen.job.DeletionTimestamp == nil {
		d.out.actions = append(d.out.actions, diskAction{unmake: seen.job})
	}
	if seen.claim != nil && seen.claim.DeletionTimestamp == nil {
		d.out.actions = append(d.out.actions, diskAction{unmake: seen.claim})
	}
	if pv.DeletionTimestamp == nil {
		d.out.actions = append(d.out.actions, diskAction{remove: pv})
	}
}

// jobIs returns the Job's condition of the given type if that condition is True, and nil otherwise.
func jobIs(job *batchv1.Job, kind batchv1.JobConditionType) *batchv1.JobCondition {
	n := slices.IndexFunc(job.Status.Conditions, func(c batchv1.JobCondition) bool {
		return c.Type == kind && c.Status == corev1.ConditionTrue
	})
	if n < 0 {
		return nil
	}
	return &job.Status.Conditions[n]
}

// makeOrUnmake creates and deletes the Jobs and claims that an action names.
func (r *Reconciler) makeOrUnmake(ctx context.Context, a diskAction) error {
	if a.make != nil {
		if err := r.Client.Create(ctx, a.make, client.FieldOwner(v1alpha1.FieldManager)); err != nil {
			return fmt.Errorf("create %s: %w", step.ObjectWords(a.make), err)
		}
		step.LogNews(ctx, step.News{Reason: "JobBegun", Action: "Create", Object: a.make,
			Message: "made " + step.ObjectWords(a.make)})
		return nil
	}
	here := client.Preconditions{UID: new(a.unmake.GetUID())}
	if err := r.Client.Delete(ctx, a.unmake, here, client.PropagationPolicy("Background")); client.IgnoreNotFound(
		err) != nil {
		return fmt.Errorf("delete %s: %w", step.ObjectWords(a.unmake), err)
	}
	step.LogNews(ctx, step.News{Reason: "JobDone", Action: "Delete", Object: a.unmake,
		Message: "deleted " + step.ObjectWords(a.unmake)})
	return nil
}

// stopJob deletes the objects that were created to inspect or wipe a disk, when the DiskSet is deleted.
func (r *Reconciler) stopJob(ctx context.Context, o *observedDisks, pv *corev1.PersistentVolume) error {
	d := &diskDecision{observedDisks: o}
	d.tidy(pv, o.jobs[pv.Name])
	for _, a := range d.out.actions {
		if err := r.do(ctx, a); client.IgnoreNotFound(err) != nil {
			return err
		}
	}
	return nil
}
