package recordarchive

import (
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sheaf.dev/sheaf/api/v1alpha1"
	"sheaf.dev/sheaf/controllers/step"
	"sheaf.dev/sheaf/internal/base/schedule"
	"sheaf.dev/sheaf/internal/status/archiving"
)

// reasonScheduleWrong means that spec.points.schedule is no schedule.
const reasonScheduleWrong = "ScheduleWrong"

// pointsSchedule fails if the schedule of the points cannot be read. The pod would end again and again.
func pointsSchedule(seen *observed) step.Outcome {
	if p := seen.archive.Spec.Points; p != nil {
		if _, err := schedule.Parse(p.Schedule); err != nil {
			return step.Fail(reasonScheduleWrong, fmt.Sprintf("spec.points.schedule: %v", err))
		}
	}
	return step.Complete()
}

// takeUpkeep copies what the pod reports about points and pruning into the status. A pod that has just started has not
// read the points and has not pruned yet, so what was known before is kept until it has.
func takeUpkeep(s *v1alpha1.RecordArchiveStatus, u *archiving.Upkeep) {
	if u == nil {
		s.Points, s.Prune = nil, nil
		return
	}
	if u.Points != nil {
		s.Points = &v1alpha1.ArchivePointsStatus{Kept: bounded(*u.Points), Newest: u.NewestPoint,
			NewestTime: kubeTime(u.NewestPointTime), Next: kubeTime(u.NextPoint)}
	}
	if t := u.PointTrouble; t != nil {
		if s.Points == nil {
			s.Points = &v1alpha1.ArchivePointsStatus{}
		}
		s.Points.Message = step.Tail(t.Message, upkeepMessageMax)
	}
	if !u.Prunes {
		s.Prune = nil
		return
	}
	last := kubeTime(u.LastPrune)
	if last == nil && s.Prune != nil {
		last = s.Prune.LastTime
	}
	s.Prune = &v1alpha1.ArchivePruneStatus{LastTime: last, DeletedObjects: u.DeletedObjects, DeletedBytes: u.DeletedBytes}
	switch {
	case u.PruneTrouble != nil:
		s.Prune.Message = step.Tail(u.PruneTrouble.Message, upkeepMessageMax)
	case u.InUse != "":
		s.Prune.Message = "the archive is read by " + step.Tail(u.InUse, upkeepMessageMax)
	}
}

// upkeepMessageMax is the maximum length in bytes of a message about points or pruning.
const upkeepMessageMax = 1024

// kubeTime returns nil if the time is not known.
func kubeTime(t *time.Time) *metav1.Time {
	if t == nil {
		return nil
	}
	return new(metav1.NewTime(*t))
}
