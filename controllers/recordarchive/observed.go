package recordarchive

import (
	"fmt"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sheaf.dev/sheaf/api/v1alpha1"
	"sheaf.dev/sheaf/controllers/fleet"
	"sheaf.dev/sheaf/controllers/step"
	"sheaf.dev/sheaf/internal/kube/workload"
	"sheaf.dev/sheaf/internal/status/archiving"
)

// Reasons of conditions, besides those of package archiving and of buckets.
const (
	reasonStoreUnknown      = "StoreUnknown"
	reasonStoreHasArchive   = "StoreHasArchive" // an older RecordArchive archives the store
	reasonNoImage           = "NoImage"
	reasonPodMissing        = "PodMissing"
	reasonPodStarts         = "PodStarts"
	reasonPodFails          = "PodFails"
	reasonOperatorCannotAsk = "OperatorCannotAsk"
	reasonStarting          = "Starting"
	reasonArchiving         = "Archiving"
	reasonCurrent           = "Current"
	reasonBehind            = "Behind"
	reasonFirstCopy         = "FirstCopy"
	reasonNotKnown          = "NotKnown"
)

// personReasons are the reasons of problems that remain until a person acts.
var personReasons = []string{archiving.ReasonTakenOver, archiving.ReasonForeign, archiving.ReasonNewerFormat,
	archiving.ReasonWrongKey, archiving.ReasonNotCreateOnce, "Credentials", "Forbidden", "NoBucket", "Full"}

// observed holds what a reconcile has observed about an archive. Its methods make decisions and do no I/O.
type observed struct {
	archive *v1alpha1.RecordArchive
	store   *v1alpha1.RecordStore // nil if there is none, or it was not read
	now     time.Time

	credentials fleet.BucketCredentials
	keysHash    string // identifies the encryption keys; empty if there are none

	deployment *appsv1.Deployment // nil if there is none yet
	pod        *corev1.Pod        // the newest pod; nil if there is none
	report     *archiving.Report  // nil if the pod has not reported
	silent     error              // why there is no report
	drillJob   string             // what the Job of a drill does, for the end of a sentence; empty if there is none
}

// runs reports whether the pod has a process that can be asked.
func (seen *observed) runs() bool {
	return fleet.Runs(seen.pod)
}

// verdict is the status of one condition.
type verdict struct {
	status          metav1.ConditionStatus
	reason, message string
}

// archives decides the condition Archiving from the report of the pod or, without a report, from the reason why there
// is none. out is the outcome of the steps that create the pod.
func (seen *observed) archives(out step.Outcome) verdict {
	r := seen.report
	switch {
	case r == nil:
		return seen.podless(out)
	case r.State == archiving.Ended, r.State == archiving.Waiting:
		return verdict{metav1.ConditionFalse, troubleReason(r), troubleWords(r)}
	case r.Trouble != nil && r.Current() != archiving.Current:
		return verdict{metav1.ConditionFalse, r.Trouble.Reason, r.Trouble.Message}
	case r.State == archiving.Starting:
		return verdict{metav1.ConditionUnknown, reasonStarting, "the archiver reads how far the archive is"}
	}
	words := "the store is archived: " + r.Sentence()
	if r.Trouble != nil {
		words += "; last trouble: " + r.Trouble.Message
	}
	return verdict{metav1.ConditionTrue, reasonArchiving, words}
}

// podless decides condition Archiving while no process reports.
func (seen *observed) podless(out step.Outcome) verdict {
	switch trouble := podTrouble(seen.pod); {
	case !out.IsComplete() && seen.pod == nil:
		return verdict{metav1.ConditionFalse, out.Reason(), out.Message()}
	case seen.pod == nil:
		return verdict{metav1.ConditionFalse, reasonPodMissing, "the archive has no pod" + deploymentTrouble(seen.deployment)}
	case trouble != "":
		return verdict{metav1.ConditionFalse, reasonPodFails, trouble}
	case seen.runs() && workload.PodReady(seen.pod):
		return verdict{metav1.ConditionUnknown, reasonOperatorCannotAsk, fmt.Sprintf(
			"the operator cannot ask pod %s, which is ready: %v", seen.pod.Name, seen.silent)}
	}
	return verdict{metav1.ConditionFalse, reasonPodStarts, fmt.Sprintf("pod %s starts", seen.pod.Name)}
}

// deploymentTrouble says why a Deployment has no pods. The result is empty if the Deployment gives no reason.
func deploymentTrouble(d *appsv1.Deployment) string {
	if d == nil {
		return ""
	}
	for _, c := range d.Status.Conditions {
		if c.Type == appsv1.DeploymentReplicaFailure && c.Status == corev1.ConditionTrue {
			return ": " + c.Message
		}
	}
	return ""
}

// podTrouble describes, in the words of Kubernetes, why a pod does not run. The result is empty if Kubernetes reports
// no problem, for example because the pod is still starting.
func podTrouble(pod *corev1.Pod) string {
	if pod == nil {
		return ""
	}
	for _, c := range pod.Status.ContainerStatuses {
		if w := c.State.Waiting; w != nil && w.Reason != "ContainerCreating" && w.Reason != "PodInitializing" {
			words := fmt.Sprintf("%s: %s: %s", pod.Name, w.Reason, w.Message)
			if end := c.LastTerminationState.Terminated; end != nil && end.Message != "" {
				words += ": " + step.Tail(end.Message, 512)
			}
			return words
		}
	}
	if c := workload.Unscheduled(pod); c.Type != "" {
		return fmt.Sprintf("%s: %s", pod.Name, c.Message)
	}
	return ""
}

func troubleReason(r *archiving.Report) string {
	if r.Trouble == nil {
		return reasonStarting
	}
	return r.Trouble.Reason
}

func troubleWords(r *archiving.Report) string {
	switch {
	case r.Trouble == nil:
		return "the archiver waits, and does not say for what"
	case r.Trouble.Reason == archiving.ReasonTakenOver:
		return r.Trouble.Message + ". Stop the other archiver, then delete this pod, which writes nothing any more"
	}
	return r.Trouble.Message
}

// current decides the condition ArchiveCurrent, which is True only if the bucket has acknowledged recent objects.
// While no archiver reports, the operator uses its own clock to determine how far the archive lags behind.
func (seen *observed) current() verdict {
	s, r := &seen.archive.Status, seen.report
	allowed := archiving.Allowed(interval(seen.archive))
	switch {
	case r != nil && r.LagSeconds == nil && r.Waiting > 0:
		return verdict{metav1.ConditionFalse, reasonFirstCopy, r.Sentence()}
	case s.ArchivedThrough == nil:
		return verdict{metav1.ConditionUnknown, reasonNotKnown, "it is not known yet how far the store is archived"}
	}
	lag := max(seen.now.Sub(s.ArchivedThrough.Time), 0)
	// The archiver computes the lag by its own clock, so that the clocks of two machines are not compared.
	if r != nil && r.LagSeconds != nil {
		lag = time.Duration(*r.LagSeconds * float64(time.Second))
	}
	if lag > allowed {
		words := fmt.Sprintf("everything until %s is archived (%s), and nothing later",
			s.ArchivedThrough.UTC().Format(time.RFC3339), archiving.Ago(lag))
		if r != nil && r.Trouble != nil {
			words += ": " + r.Trouble.Message
		}
		return verdict{metav1.ConditionFalse, reasonBehind, words}
	}
	return verdict{metav1.ConditionTrue, reasonCurrent, fmt.Sprintf(
		"what the store has acknowledged is archived within %s", allowed)}
}

// interval returns the time between two objects of an archive.
func interval(archive *v1alpha1.RecordArchive) time.Duration {
	if archive.Spec.Interval == nil {
		return 10 * time.Second
	}
	return archive.Spec.Interval.Duration
}

// takeReport copies the pod's report into the status. An archiver that has just started does not know yet up to which
// time the store is archived, so the last known time is kept until it does.
func (seen *observed) takeReport() {
	s, r := &seen.archive.Status, seen.report
	if s.URL != seen.archive.Spec.URL { // the status describes the archive at another URL
		*s = v1alpha1.RecordArchiveStatus{URL: seen.archive.Spec.URL, Conditions: s.Conditions}
	}
	s.ObservedGeneration = seen.archive.Generation
	if r == nil {
		s.State = ""
		if s.ArchivedThrough != nil {
			s.LagSeconds = new(int64(max(seen.now.Sub(s.ArchivedThrough.Time), 0) / time.Second))
		}
		return
	}
	s.State, s.Version = string(r.State), r.Version
	s.Objects, s.Bytes = new(r.Objects), new(r.Bytes)
	takeUpkeep(s, r.Upkeep)
	if r.LastObject != nil {
		s.LastObject = new(metav1.NewTime(*r.LastObject))
	}
	if r.State == archiving.Archiving {
		s.Groups, s.WaitingGroups, s.Holes = new(bounded(r.Groups)), new(bounded(r.Waiting)), new(bounded(r.Holes))
	}
	switch {
	case r.LagSeconds != nil && r.ArchivedThrough != nil:
		s.ArchivedThrough, s.LagSeconds = new(metav1.NewTime(*r.ArchivedThrough)), new(int64(*r.LagSeconds))
	case r.State == archiving.Archiving && r.Waiting > 0:
		s.ArchivedThrough, s.LagSeconds = nil, nil
	}
}

func bounded(n int) int32 { return int32(min(max(n, 0), 1<<30)) } //nolint:gosec // bounded

// outcome returns how a reconcile ended, from the outcome of the steps that make the pod and from the conditions.
func (seen *observed) outcome(out step.Outcome, archives, current verdict) step.Outcome {
	switch {
	case !out.IsComplete():
		return out
	case archives.status == metav1.ConditionFalse && slices.Contains(personReasons, archives.reason):
		return step.Fail(archives.reason, archives.message).Again(step.PauseShort)
	case archives.status != metav1.ConditionTrue:
		return step.Wait(archives.reason, archives.message, step.PauseShort)
	case current.status == metav1.ConditionFalse:
		return step.Wait(current.reason, current.message, step.PauseShort)
	}
	return step.Complete().Again(step.PauseShort)
}

// summarize writes all conditions, and returns the outcome of the reconcile.
func (seen *observed) summarize(out step.Outcome) step.Outcome {
	seen.takeReport()
	seen.takeDrill()
	seen.setRestoreProven()
	s, generation := &seen.archive.Status, seen.archive.Generation
	archives, current := seen.archives(out), seen.current()
	step.SetCondition(&s.Conditions, generation, v1alpha1.ConditionArchiving, archives.status, archives.reason,
		archives.message)
	step.SetCondition(&s.Conditions, generation, v1alpha1.ConditionArchiveCurrent, current.status, current.reason,
		current.message)
	out = seen.outcome(out, archives, current)
	step.Summarize(&s.Conditions, generation, out, "the store is archived")
	return out
}

// refuse writes the conditions of an archive that archives nothing.
func (seen *observed) refuse(out step.Outcome) {
	s, generation := &seen.archive.Status, seen.archive.Generation
	*s = v1alpha1.RecordArchiveStatus{ObservedGeneration: generation, URL: seen.archive.Spec.URL, Conditions: s.Conditions}
	step.SetFalse(&s.Conditions, generation, v1alpha1.ConditionArchiving, out.Reason(), out.Message())
	meta.RemoveStatusCondition(&s.Conditions, v1alpha1.ConditionArchiveCurrent)
	meta.RemoveStatusCondition(&s.Conditions, v1alpha1.ConditionRestoreProven)
	step.Summarize(&s.Conditions, generation, out, "")
}

// told returns a status without the numbers that change frequently.
func told(s v1alpha1.RecordArchiveStatus) v1alpha1.RecordArchiveStatus {
	s.ArchivedThrough, s.LagSeconds, s.LastObject, s.Objects, s.Bytes = nil, nil, nil, nil, nil
	s.Conditions = slices.Clone(s.Conditions)
	for i := range s.Conditions { // messages also contain numbers that change frequently
		s.Conditions[i].Message = ""
	}
	return s
}
