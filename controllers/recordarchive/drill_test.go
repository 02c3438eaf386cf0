package recordarchive

import (
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sheaf.dev/sheaf/api/v1alpha1"
	"sheaf.dev/sheaf/controllers/step"
	"sheaf.dev/sheaf/internal/status/archiving"
)

// The newest drill decides the condition RestoreProven. While the archiver does not report, the condition stays. An
// archive without a drill does not have it.
func TestTheNewestDrillProvesTheArchive(t *testing.T) {
	seen := observed{now: now, archive: &v1alpha1.RecordArchive{}, pod: pod("a", true, running)}
	proven := now.Add(-24 * time.Hour)
	for _, c := range []struct {
		name string
		is   *archiving.Drill
		want string // status and reason; empty if the condition must be absent
		says string
	}{
		{"no drill", nil, "", ""},
		{"a proof", &archiving.Drill{Time: proven, Point: proven, Result: archiving.DrillProven, Proven: &proven, Groups: 8,
			Records: 1000, Seconds: 7}, "True Proven", proven.Format(time.RFC3339)},
		{"no report", nil, "True Proven", proven.Format(time.RFC3339)},
		{"differences", &archiving.Drill{Time: now, Result: archiving.DrillDiffers, Proven: &proven, Differing: 2,
			Differences: []string{"group 1, record 7: it is not there"}}, "False Differs", "group 1, record 7"},
		{"no report of differences", nil, "False Differs", "group 1, record 7"},
		{"a drill that failed", &archiving.Drill{Time: now, Result: archiving.DrillFailed, Proven: &proven,
			Error: "the scratch folder has no room"}, "Unknown DrillFailed", "no room"},
	} {
		seen.report = nil
		if c.is != nil {
			seen.report = archiveReport(archiving.Archiving, 4, func(r *archiving.Report) { r.Drill = c.is })
		}
		seen.summarize(step.Complete())
		s, got, says := &seen.archive.Status, "", ""
		if found := meta.FindStatusCondition(s.Conditions, v1alpha1.ConditionRestoreProven); found != nil {
			got, says = string(found.Status)+" "+found.Reason, found.Message
		}
		if got != c.want || !strings.Contains(says, c.says) {
			t.Errorf("%s: %q: %s", c.name, got, says)
		}
		if c.want != "" && (s.Drill == nil || !s.Drill.Proven.Equal(new(metav1.NewTime(proven)))) {
			t.Errorf("%s: %+v", c.name, s.Drill)
		}
	}
	if seen.refuse(step.Fail(reasonStoreHasArchive, "another one")); seen.archive.Status.Drill != nil ||
		seen.condition(v1alpha1.ConditionRestoreProven) != nil {
		t.Errorf("a refused archive: %+v", seen.archive.Status)
	}
}
