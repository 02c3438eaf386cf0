package recordarchive

import (
	"fmt"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sheaf.dev/sheaf/api/v1alpha1"
	"sheaf.dev/sheaf/controllers/step"
	"sheaf.dev/sheaf/internal/status/archiving"
)

// Reasons of the condition RestoreProven.
const (
	reasonProven      = "Proven"
	reasonDiffers     = "Differs"
	reasonDrillFailed = "DrillFailed"
	reasonNotTried    = "NotTried"
	reasonSchedule    = "ScheduleInvalid"
)

// takeDrill copies what the archiver knows of the newest drill into the status. While the archiver does not report, the
// status tells of the drill that was the newest one before.
func (seen *observed) takeDrill() {
	s, r := &seen.archive.Status, seen.report
	if r == nil || r.Drill == nil {
		return
	}
	d := r.Drill
	s.Drill = &v1alpha1.ArchiveDrillStatus{Time: metav1.NewTime(d.Time), Groups: bounded(d.Groups), Records: d.Records,
		Seconds: d.Seconds, Result: d.Result}
	if !d.Point.IsZero() {
		s.Drill.Point = new(metav1.NewTime(d.Point))
	}
	if d.Proven != nil {
		s.Drill.Proven = new(metav1.NewTime(*d.Proven))
	}
}

// restoreProven decides the condition RestoreProven from the newest drill. Differences are known only from a report, so
// without one the condition keeps its words.
func (seen *observed) restoreProven() verdict {
	d := seen.archive.Status.Drill
	proven := "no drill has proven yet that the archive can be restored"
	if d.Proven != nil {
		proven = fmt.Sprintf("a drill of %s has proven that the archive can be restored",
			d.Proven.UTC().Format(time.RFC3339))
	}
	switch d.Result {
	case archiving.DrillProven:
		return verdict{metav1.ConditionTrue, reasonProven, proven}
	case archiving.DrillDiffers:
		words := fmt.Sprintf("the drill of %s found differences", d.Time.UTC().Format(time.RFC3339))
		if r := seen.report; r != nil && r.Drill != nil {
			words += ": " + strings.Join(r.Drill.Differences, "; ")
		} else if is := seen.condition(v1alpha1.ConditionRestoreProven); is != nil && is.Reason == reasonDiffers {
			words = is.Message
		}
		return verdict{metav1.ConditionFalse, reasonDiffers, words}
	}
	words := "the newest drill did not find out whether the archive can be restored; " + proven
	if r := seen.report; r != nil && r.Drill != nil {
		words += ": " + r.Drill.Error
	}
	return verdict{metav1.ConditionUnknown, reasonDrillFailed, words}
}

func (seen *observed) condition(kind string) *metav1.Condition {
	return meta.FindStatusCondition(seen.archive.Status.Conditions, kind)
}

// setRestoreProven writes the condition RestoreProven. An archive that had no drill, and is to
// have none, does not have it.
func (seen *observed) setRestoreProven() {
	s := &seen.archive.Status
	var v verdict
	switch {
	case s.Drill != nil:
		v = seen.restoreProven()
	case seen.archive.Spec.Drill != nil:
		v = verdict{metav1.ConditionUnknown, reasonNotTried, "no drill has ended yet" + seen.drillJob}
	default:
		meta.RemoveStatusCondition(&s.Conditions, v1alpha1.ConditionRestoreProven)
		return
	}
	step.SetCondition(&s.Conditions, seen.archive.Generation, v1alpha1.ConditionRestoreProven, v.status, v.reason,
		step.Tail(v.message, 4096))
}
