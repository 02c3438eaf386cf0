package step

import (
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sheaf.dev/sheaf/api/v1alpha1"
)

// The time of a condition is when its status changed. A condition of the default status has the time 0, and gets a real
// one when the operator first sets it, even to the same status.
func TestTransitionTimes(t *testing.T) {
	before := metav1.NewTime(time.Now().Add(-time.Hour).Truncate(time.Second))
	for name, c := range map[string]struct {
		had  metav1.Condition
		kept bool
	}{
		"of the default status": {had: metav1.Condition{Status: metav1.ConditionTrue,
			LastTransitionTime: metav1.Unix(0, 0)}},
		"unchanged": {had: metav1.Condition{Status: metav1.ConditionTrue, LastTransitionTime: before}, kept: true},
		"changed":   {had: metav1.Condition{Status: metav1.ConditionFalse, LastTransitionTime: before}},
	} {
		c.had.Type = v1alpha1.ConditionReconciling
		all := []metav1.Condition{c.had}
		Summarize(&all, 1, Wait("Starts", "it starts", PauseShort), "")
		got := meta.FindStatusCondition(all, v1alpha1.ConditionReconciling).LastTransitionTime
		if c.kept != got.Equal(&before) || !c.kept && time.Since(got.Time) > time.Minute {
			t.Errorf("%s: it changed at %s", name, got)
		}
	}
}
