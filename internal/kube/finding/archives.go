package finding

import (
	"fmt"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sheaf.dev/sheaf/api/v1alpha1"
	"sheaf.dev/sheaf/internal/status/archiving"
)

// archives adds a finding if nothing is archived, if an archive is behind, or if an archive's history has holes.
func (l *look) archives() {
	for i := range l.Archives {
		a := &l.Archives[i]
		describe := l.kubectl("describe recordarchive %s", a.Name)
		stopped := isFalse(a.Status.Conditions, v1alpha1.ConditionArchiving)
		behind := isFalse(a.Status.Conditions, v1alpha1.ConditionArchiveCurrent)
		switch {
		case stopped != nil:
			l.add(Problem, "RecordArchive", a.Name, describe, "nothing is archived, %s: %s", stopped.Reason, stopped.Message)
		case behind != nil:
			l.add(Warning, "RecordArchive", a.Name, describe, "%s: %s", behind.Reason, behind.Message)
		}
		if p := a.Status.Points; p != nil && p.Message != "" {
			l.add(Warning, "RecordArchive", a.Name, describe, "a point of the schedule could not be made: %s", p.Message)
		}
		if p := a.Status.Prune; p != nil && p.Message != "" {
			l.add(Warning, "RecordArchive", a.Name, describe, "the archive was not pruned: %s", p.Message)
		}
		if proven := isFalse(a.Status.Conditions, v1alpha1.ConditionRestoreProven); proven != nil {
			l.add(Problem, "RecordArchive", a.Name, describe, "the archive cannot be restored as it should: %s",
				proven.Message)
		}
		if holes := a.Status.Holes; holes != nil && *holes > 0 {
			l.add(Warning, "RecordArchive", a.Name, "", "%s of the archive: within them nothing can be read as of a point in "+
				"time. Archive the store to a new URL to have a whole history from now on",
				groups(*holes, "hole is in the history", "holes are in the history"))
		}
	}
}

// ArchiveSentence says how current the archive of a store is, and when it was proven that it can be restored, for
// example "archived 4 s ago, restore proven 22 h ago", or why it is not known how current it is.
func (o *Objects) ArchiveSentence(a *v1alpha1.RecordArchive) string {
	if at := a.Status.ArchivedThrough; at != nil {
		sentence := fmt.Sprintf("archived %s", archiving.Ago(o.Now.Sub(at.Time)))
		if p := a.Status.Points; p != nil && p.NewestTime != nil {
			sentence += fmt.Sprintf(", newest point %s", archiving.Ago(o.Now.Sub(p.NewestTime.Time)))
		}
		if d := a.Status.Drill; d != nil && d.Proven != nil {
			sentence += fmt.Sprintf(", restore proven %s", archiving.Ago(o.Now.Sub(d.Proven.Time)))
		}
		return sentence
	}
	for _, kind := range []string{v1alpha1.ConditionArchiveCurrent, v1alpha1.ConditionReady} {
		if c := meta.FindStatusCondition(a.Status.Conditions, kind); c != nil && c.Status != metav1.ConditionTrue {
			return c.Message
		}
	}
	return "not known yet"
}
