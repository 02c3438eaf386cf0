package finding

import (
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sheaf.dev/sheaf/api/v1alpha1"
)

func TestArchives(t *testing.T) {
	now := time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC)
	is := func(kind string, status metav1.ConditionStatus) func(*v1alpha1.RecordArchive) {
		return func(a *v1alpha1.RecordArchive) {
			a.Status.Conditions = append(a.Status.Conditions, metav1.Condition{Type: kind, Status: status, Reason: "Away",
				Message: "nothing answers"})
		}
	}
	until := func(age time.Duration) func(*v1alpha1.RecordArchive) {
		return func(a *v1alpha1.RecordArchive) { a.Status.ArchivedThrough = new(metav1.NewTime(now.Add(-age))) }
	}
	for name, c := range map[string]struct {
		is       []func(*v1alpha1.RecordArchive)
		findings []string // each starts with the severity
		sentence string
	}{
		"current": {is: []func(*v1alpha1.RecordArchive){is(v1alpha1.ConditionArchiving, metav1.ConditionTrue),
			is(v1alpha1.ConditionArchiveCurrent, metav1.ConditionTrue), until(4 * time.Second)}, sentence: "archived 4 s ago"},
		"new": {sentence: "not known yet"},
		"stopped": {is: []func(*v1alpha1.RecordArchive){is(v1alpha1.ConditionArchiving, metav1.ConditionFalse),
			is(v1alpha1.ConditionArchiveCurrent, metav1.ConditionFalse), until(time.Hour)},
			findings: []string{"problem nothing is archived, Away: nothing answers"}, sentence: "archived 60 min ago"},
		"behind": {is: []func(*v1alpha1.RecordArchive){is(v1alpha1.ConditionArchiving, metav1.ConditionTrue),
			is(v1alpha1.ConditionArchiveCurrent, metav1.ConditionFalse)},
			findings: []string{"warning Away: nothing answers"}, sentence: "nothing answers"},
		"holes": {is: []func(*v1alpha1.RecordArchive){func(a *v1alpha1.RecordArchive) { a.Status.Holes = new(int32(2)) }},
			findings: []string{"warning 2 holes are in the history"}, sentence: "not known yet"},
		"points": {is: []func(*v1alpha1.RecordArchive){until(4 * time.Second), func(a *v1alpha1.RecordArchive) {
			a.Status.Points = &v1alpha1.ArchivePointsStatus{NewestTime: new(metav1.NewTime(now.Add(-9 * time.Hour)))}
			a.Status.Prune = &v1alpha1.ArchivePruneStatus{}
		}}, sentence: "archived 4 s ago, newest point 9 h ago"},
		"no points": {is: []func(*v1alpha1.RecordArchive){until(4 * time.Second), func(a *v1alpha1.RecordArchive) {
			a.Status.Points = &v1alpha1.ArchivePointsStatus{Message: "in a hole"}
			a.Status.Prune = &v1alpha1.ArchivePruneStatus{Message: "forbidden"}
		}}, findings: []string{"warning a point of the schedule could not be made: in a hole",
			"warning the archive was not pruned: forbidden"}, sentence: "archived 4 s ago"},
		"proven": {is: []func(*v1alpha1.RecordArchive){until(4 * time.Second), func(a *v1alpha1.RecordArchive) {
			a.Status.Drill = &v1alpha1.ArchiveDrillStatus{Proven: new(metav1.NewTime(now.Add(-22 * time.Hour)))}
		}, is(v1alpha1.ConditionRestoreProven, metav1.ConditionTrue)}, sentence: "archived 4 s ago, restore proven 22 h ago"},
		"differs": {is: []func(*v1alpha1.RecordArchive){until(4 * time.Second),
			is(v1alpha1.ConditionRestoreProven, metav1.ConditionFalse)},
			findings: []string{"problem the archive cannot be restored as it should: nothing answers"},
			sentence: "archived 4 s ago"},
	} {
		a := v1alpha1.RecordArchive{}
		a.Name = "offsite"
		for _, change := range c.is {
			change(&a)
		}
		l := &look{Objects: Objects{Now: now, Store: &v1alpha1.RecordStore{}, Archives: []v1alpha1.RecordArchive{a}},
			told: map[string]bool{}}
		if l.archives(); len(l.found) != len(c.findings) {
			t.Errorf("%s: %v", name, l.found)
			continue
		}
		for i, want := range c.findings {
			if got := string(l.found[i].Severity) + " " + l.found[i].What; !strings.HasPrefix(got, want) {
				t.Errorf("%s: %q, want %q", name, got, want)
			}
		}
		if got := l.ArchiveSentence(&a); got != c.sentence {
			t.Errorf("%s: %q, want %q", name, got, c.sentence)
		}
	}
}
