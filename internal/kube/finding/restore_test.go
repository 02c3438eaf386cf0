package finding

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sheaf.dev/sheaf/api/v1alpha1"
	"sheaf.dev/sheaf/internal/kube/workload"
)

func TestRestores(t *testing.T) {
	now := time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC)
	for name, c := range map[string]struct {
		reason   string // of condition Restored; empty: there is no such condition; True: it is True
		since    time.Duration
		stalled  string
		status   v1alpha1.RestoreStatus
		finding  string // starts with the severity
		do       string
		sentence string
	}{
		"not begun": {sentence: "not begun"},
		"done":      {reason: "True", sentence: "words"},
		"goes on": {reason: "Restoring", finding: "note the store is being restored: words",
			sentence: "Restoring: words"},
		"some groups cannot be restored": {reason: "Restoring", status: v1alpha1.RestoreStatus{RefusedGroups: 2},
			finding: "warning 2 groups cannot be restored from the archive", do: "logs deployment/quotes-restore",
			sentence: "Restoring: words"},
		"has just begun": {reason: "SourceStarts", finding: "note the restore waits for its source: words",
			sentence: "SourceStarts: words"},
		"the source has no pod": {reason: "SourceMissing", since: time.Hour,
			finding: "warning the restore waits for its source: words", do: "describe deployment quotes-restore",
			sentence: "SourceMissing: words"},
		"the source fails": {reason: "SourceFails", finding: "problem the restore makes no progress: words",
			do: "logs quotes-restore-x --previous", sentence: "SourceFails: words"},
		"without credentials": {reason: "SecretMissing", do: "describe recordstore quotes",
			finding: "problem the restore makes no progress, SecretMissing: words", sentence: "SecretMissing: words"},
		"stalled for that reason": {reason: "SecretMissing", stalled: "SecretMissing", sentence: "SecretMissing: words"},
		"stalled for another reason": {reason: "GroupsRefused", stalled: "Other", do: "describe recordstore quotes",
			finding: "problem the restore makes no progress, GroupsRefused: words", sentence: "GroupsRefused: words"},
	} {
		store := &v1alpha1.RecordStore{}
		store.Namespace, store.Name, store.Spec.Restore = "prod", "quotes", &v1alpha1.Restore{}
		store.Status.Restore = &c.status
		restored := metav1.Condition{Type: v1alpha1.ConditionRestored, Status: metav1.ConditionFalse, Reason: c.reason,
			Message: "words", LastTransitionTime: metav1.NewTime(now.Add(-c.since))}
		if c.reason == "True" {
			restored.Status = metav1.ConditionTrue
		}
		if c.reason != "" {
			store.Status.Conditions = append(store.Status.Conditions, restored)
		}
		if c.stalled != "" {
			store.Status.Conditions = append(store.Status.Conditions, metav1.Condition{Type: v1alpha1.ConditionStalled,
				Status: metav1.ConditionTrue, Reason: c.stalled})
		}
		pod := corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "quotes-restore-x",
			Labels: workload.Labels("quotes", workload.ContainerRestore)}}
		pod.Status.ContainerStatuses = []corev1.ContainerStatus{{RestartCount: 3}}
		l := &look{Objects: Objects{Now: now, Store: store, Pods: []corev1.Pod{pod}}, told: map[string]bool{}}
		l.restore()
		got, do := "", ""
		for _, f := range l.found {
			got, do = got+string(f.Severity)+" "+f.What, f.Do
		}
		if !strings.HasPrefix(got, c.finding) || c.finding == "" && got != "" || !strings.HasSuffix(do, c.do) {
			t.Errorf("%s: %q (%q), want %q (%q)", name, got, do, c.finding, c.do)
		}
		if got := l.RestoreSentence(); got != c.sentence {
			t.Errorf("%s: %q, want %q", name, got, c.sentence)
		}
	}
	if got := (&Objects{Store: &v1alpha1.RecordStore{}}).RestoreSentence(); got != "" {
		t.Errorf("a store that is not restored: %q", got)
	}
}

// Groups that wait for their restore are not reported as groups that do not serve.
func TestGroupsThatWaitForTheirRestoreAreNoProblem(t *testing.T) {
	for waiting, want := range map[int32]string{0: "12 of 64 groups do not serve", 10: "2 of 64 groups do not serve",
		12: ""} {
		store := &v1alpha1.RecordStore{}
		store.Status.Groups = v1alpha1.GroupCounts{Total: 64, Serving: 52}
		store.Status.Restore = &v1alpha1.RestoreStatus{WaitingGroups: &waiting}
		l := &look{Objects: Objects{Store: store}, told: map[string]bool{}}
		l.groups()
		got := ""
		for _, f := range l.found {
			got += f.What
		}
		if !strings.HasPrefix(got, want) || want == "" && got != "" {
			t.Errorf("%d wait: %q, want %q", waiting, got, want)
		}
	}
}
