package recordarchive

import (
	"context"
	"fmt"
	"slices"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"sheaf.dev/sheaf/controllers/step"
	"sheaf.dev/sheaf/internal/base/schedule"
	"sheaf.dev/sheaf/internal/kube/workload"
	"sheaf.dev/sheaf/internal/status/archiving"
)

// ensureDrill starts a drill if the schedule wants one, and none runs. A drill is a Job, which is made anew each time.
// While the store is not archived, no drill begins.
func ensureDrill(ctx context.Context, c client.Client, live client.Reader, seen *observed, image string) step.Outcome {
	spec := seen.archive.Spec.Drill
	if spec == nil {
		return step.Complete()
	}
	times, err := schedule.Parse(spec.Schedule)
	if err != nil {
		return step.Fail(reasonSchedule, fmt.Sprintf("spec.drill.schedule: %v", err))
	}
	job := &batchv1.Job{}
	key := types.NamespacedName{Namespace: seen.archive.Namespace, Name: workload.Drill(seen.store.Name)}
	there, err := step.Read(ctx, live, "Job", key, job)
	switch {
	case err != nil:
		return step.Retry(err)
	case there && !metav1.IsControlledBy(job, seen.archive):
		return step.Fail("NameTaken", fmt.Sprintf("Job %s is not of this RecordArchive, so that no drill runs: delete it",
			key.Name))
	case there:
		seen.drillJob = drillWords(job)
	}
	if seen.archive.Spec.CredentialsSecretRef != nil && seen.credentials.Hash == "" ||
		seen.archive.Spec.Encryption != nil && seen.keysHash == "" {
		return step.Complete() // the steps that read the Secrets say why there are no credentials or keys
	}
	if seen.report == nil || seen.report.State != archiving.Archiving || !seen.drillDue(times, job) {
		return step.Complete()
	}
	if there {
		if !ended(job) {
			return step.Complete()
		}
		err := c.Delete(ctx, job, client.PropagationPolicy(metav1.DeletePropagationBackground),
			client.Preconditions{UID: &job.UID})
		return step.Retry(client.IgnoreNotFound(err)) // the next reconcile makes another one
	}
	job = workload.DrillJob(workload.ArchiveInput{Store: seen.store, Archive: seen.archive, Image: image,
		Credentials: seen.credentials.Keys, CredentialsHash: seen.credentials.Hash, KeysHash: seen.keysHash})
	if err := controllerutil.SetControllerReference(seen.archive, job, c.Scheme()); err != nil {
		return step.Retry(err)
	}
	err = c.Create(ctx, job)
	switch {
	case apierrors.IsAlreadyExists(err):
		return step.Complete() // the one of before is still being deleted
	case apierrors.IsInvalid(err), apierrors.IsForbidden(err):
		return step.Fail("ObjectRefused", fmt.Sprintf("the API server refuses the Job of a drill: %v. Correct what it names "+
			"in spec", err))
	case err != nil:
		return step.Retry(err)
	}
	seen.archive.Status.DrillStarted = new(metav1.NewTime(seen.now))
	seen.drillJob = drillWords(job)
	return step.Complete()
}

// drillDue reports whether a time of the schedule has passed since the last drill began, or since the archive was made.
// The argument job is the last Job; it is empty if there is none.
func (seen *observed) drillDue(times *schedule.Schedule, job *batchv1.Job) bool {
	s := &seen.archive.Status
	last := []time.Time{seen.archive.CreationTimestamp.Time, job.CreationTimestamp.Time}
	if s.DrillStarted != nil {
		last = append(last, s.DrillStarted.Time)
	}
	if s.Drill != nil {
		last = append(last, s.Drill.Time.Time)
	}
	return !times.Next(slices.MaxFunc(last, time.Time.Compare)).After(seen.now)
}

func ended(job *batchv1.Job) bool {
	return slices.ContainsFunc(job.Status.Conditions, func(c batchv1.JobCondition) bool {
		return (c.Type == batchv1.JobComplete || c.Type == batchv1.JobFailed) && c.Status == corev1.ConditionTrue
	})
}

// drillWords says what a Job does, as the end of a sentence.
func drillWords(job *batchv1.Job) string {
	if ended(job) {
		return fmt.Sprintf("; Job %s has ended: its log says how", job.Name)
	}
	return fmt.Sprintf("; Job %s runs one", job.Name)
}
