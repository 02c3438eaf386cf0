package finding

import (
	"fmt"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sheaf.dev/sheaf/api/v1alpha1"
	"sheaf.dev/sheaf/internal/kube/workload"
)

// These are reasons of the condition Restored.
const (
	reasonRestoring     = "Restoring"
	reasonSourceStarts  = "SourceStarts"
	reasonSourceMissing = "SourceMissing"
	reasonSourceFails   = "SourceFails"
)

// restore reports a restore that goes on or makes no progress, and groups that cannot be restored. A problem that also
// stalls the store is reported only once.
func (l *look) restore() {
	conditions, name := l.Store.Status.Conditions, l.Store.Name
	c := isFalse(conditions, v1alpha1.ConditionRestored)
	stalled := meta.FindStatusCondition(conditions, v1alpha1.ConditionStalled)
	if c == nil || stalled != nil && stalled.Status == metav1.ConditionTrue && stalled.Reason == c.Reason {
		return
	}
	describe := l.kubectl("describe recordstore %s", name)
	switch c.Reason {
	case reasonRestoring:
		if s := l.Store.Status.Restore; s != nil && s.RefusedGroups > 0 {
			l.add(Warning, "RecordStore", name, l.kubectl("logs deployment/%s", workload.Restore(name)),
				"%s be restored from the archive. A group that cannot answers GROUP_LOADING until a person gives up its "+
					"restore. %s", groups(s.RefusedGroups, "group cannot", "groups cannot"), c.Message)
			return
		}
		l.add(Note, "RecordStore", name, "", "the store is being restored: %s", c.Message)
	case reasonSourceStarts, reasonSourceMissing:
		severity := Warning
		if !l.old(c.LastTransitionTime.Time) {
			severity = Note // the source has only just been created
		}
		l.add(severity, "RecordStore", name, l.kubectl("describe deployment %s", workload.Restore(name)),
			"the restore waits for its source: %s", c.Message)
	case reasonSourceFails:
		pods, _ := l.PodsOf(workload.ContainerRestore)
		do := l.kubectl("describe deployment %s", workload.Restore(name))
		if len(pods) > 0 {
			do = podCommand(l, &pods[0])
		}
		l.add(Problem, "RecordStore", name, do, "the restore makes no progress: %s", c.Message)
	default: // SecretMissing, GroupsRefused and others that a person has to correct
		l.add(Problem, "RecordStore", name, describe, "the restore makes no progress, %s: %s", c.Reason, c.Message)
	}
}

// RestoreSentence says how far the restore of a store is, for example "Restoring: 12 of 64 groups wait". The result is
// empty if the store is not restored from an archive.
func (o *Objects) RestoreSentence() string {
	store := o.Store
	if store.Spec.Restore == nil {
		return ""
	}
	c := meta.FindStatusCondition(store.Status.Conditions, v1alpha1.ConditionRestored)
	switch {
	case c == nil:
		return "not begun"
	case c.Status == metav1.ConditionTrue:
		return c.Message
	}
	return fmt.Sprintf("%s: %s", c.Reason, c.Message)
}
