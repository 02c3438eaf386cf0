package recordarchive

import (
	"testing"
	"time"

	"sheaf.dev/sheaf/api/v1alpha1"
	"sheaf.dev/sheaf/internal/status/archiving"
)

// A pod that has just started knows neither the points nor the last prune, so the status keeps them. A pod that does
// neither has no such status.
func TestUpkeepInTheStatus(t *testing.T) {
	s := &v1alpha1.RecordArchiveStatus{}
	trouble := &archiving.Trouble{Message: "no"}
	at := now.Add(-time.Hour)
	takeUpkeep(s, &archiving.Upkeep{})
	if s.Points != nil || s.Prune != nil {
		t.Errorf("not known yet: %+v", s)
	}
	takeUpkeep(s, &archiving.Upkeep{Points: new(2), NewestPoint: "b", NewestPointTime: &at, NextPoint: &at, Prunes: true,
		LastPrune: &at, DeletedObjects: 3, DeletedBytes: 4})
	if p := s.Points; p.Kept != 2 || p.Newest != "b" || !p.NewestTime.Time.Equal(at) || p.Next == nil || p.Message != "" {
		t.Errorf("%+v", p)
	}
	if p := s.Prune; !p.LastTime.Time.Equal(at) || p.DeletedObjects != 3 || p.DeletedBytes != 4 || p.Message != "" {
		t.Errorf("%+v", p)
	}
	takeUpkeep(s, &archiving.Upkeep{Prunes: true, PointTrouble: trouble, InUse: "a restore"})
	if s.Points.Kept != 2 || s.Points.Message != "no" || s.Prune.LastTime == nil ||
		s.Prune.Message != "the archive is read by a restore" {
		t.Errorf("after a restart: %+v, %+v", s.Points, s.Prune)
	}
	takeUpkeep(s, &archiving.Upkeep{Points: new(0), PruneTrouble: trouble, Prunes: true})
	if s.Points.Kept != 0 || s.Points.Message != "" || s.Prune.Message != "no" {
		t.Errorf("%+v, %+v", s.Points, s.Prune)
	}
	if takeUpkeep(s, nil); s.Points != nil || s.Prune != nil {
		t.Errorf("neither points nor prune: %+v", s)
	}
}

func TestAWrongScheduleStartsNoPod(t *testing.T) {
	seen := &observed{archive: &v1alpha1.RecordArchive{}}
	if out := pointsSchedule(seen); !out.IsComplete() {
		t.Errorf("no schedule: %s", out.Message())
	}
	seen.archive.Spec.Points = &v1alpha1.ArchivePoints{Schedule: "0 3 * * *"}
	if out := pointsSchedule(seen); !out.IsComplete() {
		t.Errorf("each day: %s", out.Message())
	}
	seen.archive.Spec.Points.Schedule = "0 3 30 2 *"
	if out := pointsSchedule(seen); out.IsComplete() || out.Reason() != reasonScheduleWrong {
		t.Errorf("February 30: %s", out.Message())
	}
}
