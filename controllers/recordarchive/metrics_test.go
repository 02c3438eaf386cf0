package recordarchive

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"sheaf.dev/sheaf/api/v1alpha1"
)

// An archive counts as not proven since its newest proof, or since it was made if it is to have drills. Without drills,
// it has no such series.
func TestSinceWhenAnArchiveIsNotProven(t *testing.T) {
	proven := now.Add(time.Hour)
	proof := &v1alpha1.ArchiveDrillStatus{Proven: new(metav1.NewTime(proven))}
	for name, c := range map[string]struct {
		wanted bool
		drill  *v1alpha1.ArchiveDrillStatus
		want   int64
	}{
		"no drills":        {},
		"none has run":     {wanted: true, want: now.Unix()},
		"none proves":      {drill: &v1alpha1.ArchiveDrillStatus{Result: "failed"}, want: now.Unix()},
		"a proof":          {wanted: true, drill: proof, want: proven.Unix()},
		"a proof, by hand": {drill: proof, want: proven.Unix()},
	} {
		m := &archiveMetrics{archives: map[types.NamespacedName]figures{}}
		a := &v1alpha1.RecordArchive{}
		a.Name, a.CreationTimestamp, a.Status.Drill = "a", metav1.NewTime(now), c.drill
		if c.wanted {
			a.Spec.Drill = &v1alpha1.ArchiveDrill{}
		}
		m.observe(a)
		if got := m.archives[types.NamespacedName{Name: "a"}].unproven; got != float64(c.want) {
			t.Errorf("%s: %v, want %d", name, got, c.want)
		}
	}
}
