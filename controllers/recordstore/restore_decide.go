package recordstore

import (
	"fmt"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sheaf.dev/sheaf/api/v1alpha1"
	"sheaf.dev/sheaf/controllers/step"
	"sheaf.dev/sheaf/internal/kube/workload"
	"sheaf.dev/sheaf/internal/status/archiving"
)

// Reasons of condition Restored, besides those of package fleet for the Secret of the bucket.
const (
	reasonRestored      = "Restored"
	reasonRestoring     = "Restoring"
	reasonSourceStarts  = "SourceStarts"
	reasonSourceMissing = "SourceMissing" // the source has no pod
	reasonSourceFails   = "SourceFails"
	reasonSourceSilent  = "OperatorCannotAsk"
	reasonOtherTime     = "OtherTime"     // the source serves another state than the one with which the restore began
	reasonGroupsDiffer  = "GroupsDiffer"  // spec.groups differs from the archived store
	reasonGroupsRefused = "GroupsRefused" // some groups cannot be restored
	reasonNoLister      = "NoGatewayWanted"
	reasonNoImage       = "NoImage"
)

// restoreGoesOn are the reasons of condition Restored while a restore makes progress.
var restoreGoesOn = []string{reasonRestoring, reasonSourceStarts, reasonSourceMissing}

// observedRestore holds what a reconcile has observed about the source of a restore.
type observedRestore struct {
	asked  bool         // the source is to run, and was asked for
	out    step.Outcome // why the objects of the source could not be applied; complete if they were
	pinned bool         // the Deployment says as of when the source serves the archive

	deployment *appsv1.Deployment      // nil if there is none yet
	pod        *corev1.Pod             // the newest pod; nil if there is none
	report     *archiving.SourceReport // nil if the pod has not reported
	silent     error                   // why there is no report
}

// restoreState says what etcd holds about a restore.
type restoreState int

const (
	restoreUnknown restoreState = iota // etcd was not read in this reconcile, or not all of it is known
	restoreListing                     // the list of groups is not complete
	restoreWaiting                     // some groups are not restored
	restoreDone                        // no group waits
)

// restoreState returns what etcd held about the restore when this reconcile read it. What is not known is never taken
// for the end of the restore.
func (seen *observed) restoreState() restoreState {
	switch {
	case !seen.hasPlaces, seen.places.AllKnown() != nil, seen.places.AnyLost():
		return restoreUnknown
	case seen.places.Meta.Restore != nil && seen.places.Meta.Restore.Listing:
		return restoreListing
	case seen.waitingGroups() > 0:
		return restoreWaiting
	}
	return restoreDone
}

// waitingGroups counts the groups that wait for their restore.
func (seen *observed) waitingGroups() (n int32) {
	for _, g := range seen.places.Groups {
		if g.Restoring {
			n++
		}
	}
	return n
}

// isRestoring reports whether a store needs the source of its restore. It uses the last observation of etcd, which
// condition Restored records, because the source has to run before etcd is read.
func isRestoring(store *v1alpha1.RecordStore) bool {
	return store.Spec.Restore != nil && !meta.IsStatusConditionTrue(store.Status.Conditions, v1alpha1.ConditionRestored)
}

// restoreTime returns the time as of which a store is restored, or "" if it is not recorded yet.
func restoreTime(store *v1alpha1.RecordStore) string {
	if store.Status.Restore == nil {
		return ""
	}
	return store.Status.Restore.Time
}

// sourceTrouble says why the source of the restore does not serve what it should. The outcome is complete if it serves.
func (seen *observed) sourceTrouble() step.Outcome {
	found := &seen.restore
	switch {
	case !found.out.IsComplete():
		return found.out
	case found.pod == nil:
		words := "the source of the restore has no pod"
		if found.deployment != nil {
			for _, c := range found.deployment.Status.Conditions {
				if c.Type == appsv1.DeploymentReplicaFailure && c.Status == corev1.ConditionTrue {
					words += ": " + c.Message
				}
			}
		}
		return step.Wait(reasonSourceMissing, words, step.PauseShort)
	case found.report == nil || found.report.State != archiving.Serving:
		if why := podTrouble(found.pod); why != "" {
			return step.Wait(reasonSourceFails, "the source of the restore does not serve: "+why, step.PauseShort)
		}
		if found.silent != nil && workload.PodReady(found.pod) {
			return step.Wait(reasonSourceSilent, fmt.Sprintf("the operator cannot ask pod %s, which is ready: %v",
				found.pod.Name, found.silent), step.PauseShort)
		}
		return step.Wait(reasonSourceStarts, "the source of the restore reads which groups the archive has", step.PauseShort)
	}
	return seen.otherTime()
}

// otherTime fails if the source serves another state than the one with which the restore began.
func (seen *observed) otherTime() step.Outcome {
	began, now := restoreTime(seen.store), seen.restore.report.Time
	if began == "" || now != nil && now.UTC().Format(time.RFC3339Nano) == began {
		return step.Complete()
	}
	is := "an unknown time"
	if now != nil {
		is = now.UTC().Format(time.RFC3339Nano)
	}
	if !seen.restore.pinned || seen.store.Spec.Restore.Point == "" { // the pod of the former template is being replaced
		return step.Wait(reasonSourceStarts, fmt.Sprintf("the source of the restore is replaced: it serves %s, and the "+
			"restore is as of %s", is, began), step.PauseShort)
	}
	return step.Fail(reasonOtherTime, fmt.Sprintf("the restore began as of %s, and point %s of the archive is %s now: it "+
		"was deleted and made again. Create the point with the former time", began, seen.store.Spec.Restore.Point,
		is)).Again(step.PauseShort)
}

// mayBegin says whether the placement of a restored store may be created. From then on, the gateways write the list of
// groups into etcd, and nothing of it can be changed.
func (seen *observed) mayBegin() step.Outcome {
	store, report := seen.store, seen.restore.report
	if out := seen.sourceTrouble(); !out.IsComplete() {
		return out
	}
	groups := store.Spec.Groups
	routing, count := strings.ToLower(string(groups.Routing)), 0
	if groups.Count != nil {
		count = int(*groups.Count)
	}
	switch {
	case routing != report.Routing || count != report.HashGroups:
		wanted := "groups: {routing: Named}"
		if report.Routing == strings.ToLower(string(v1alpha1.RoutingHash)) {
			wanted = fmt.Sprintf("groups: {routing: Hash, count: %d}", report.HashGroups)
		}
		return step.Fail(reasonGroupsDiffer, fmt.Sprintf("spec.groups is not that of the archived store, which a restore "+
			"keeps: make a new RecordStore with %s", wanted)).Again(step.PauseShort)
	case report.RefusedGroups > 0 && !store.Spec.Restore.Partly:
		return step.Fail(reasonGroupsRefused, fmt.Sprintf("%s. The restore has not begun: choose another time, or make a "+
			"new RecordStore with spec.restore.partly: true to restore the others", refusedWords(report))).Again(step.PauseShort)
	case workload.GatewayReplicas(store) == 0:
		return step.Fail(reasonNoLister, "spec.gateway.replicas is 0, and a gateway has to write the list of groups into "+
			"etcd: set it to at least 1 until the store is restored").Again(step.PauseShort)
	case !seen.restore.pinned:
		return step.Wait(reasonRestoring, "the source starts again as of "+restoreTime(store), time.Second)
	}
	return step.Complete()
}

// refusedWords describes the groups that cannot be restored.
func refusedWords(r *archiving.SourceReport) string {
	words := step.CountOf(r.RefusedGroups, r.Groups, "group", "groups") + " cannot be restored"
	for i, g := range r.Refused {
		if i == 3 {
			break
		}
		if words += "; "; !strings.HasPrefix(g.Error, "group ") {
			words += "group " + g.Group + ": "
		}
		words += step.Truncate(g.Error, 300)
	}
	return words
}

// setRestored writes condition Restored, and the numbers of the restore.
func (seen *observed) setRestored() {
	store := seen.store
	if store.Spec.Restore == nil {
		return
	}
	state, trouble := seen.restoreState(), step.Complete()
	if seen.restore.asked {
		trouble = seen.sourceTrouble()
		if trouble.IsComplete() && !store.Status.PlacementInitialized {
			trouble = seen.mayBegin()
		}
	}
	seen.countRestored(state)
	began := meta.FindStatusCondition(store.Status.Conditions, v1alpha1.ConditionRestored)
	switch {
	case state == restoreDone:
		sayTrue(store, v1alpha1.ConditionRestored, reasonRestored, joinWords("every group of the archive is restored, as of "+
			restoreTime(store), seen.writesWords()))
	case state == restoreUnknown && began != nil && (began.Status == metav1.ConditionTrue || !seen.restore.asked):
		// Without a look at etcd and at the source, the last look counts.
	case state == restoreUnknown && !seen.restore.asked:
		sayFalse(store, v1alpha1.ConditionRestored, reasonSourceMissing, "the source of the restore is not made yet")
	case !trouble.IsComplete():
		sayFalse(store, v1alpha1.ConditionRestored, trouble.Reason(), joinWords(trouble.Message(), seen.waitingWords(state)))
	case state == restoreWaiting && seen.onlyRefused():
		sayFalse(store, v1alpha1.ConditionRestored, reasonGroupsRefused, refusedWords(seen.restore.report)+
			". Every other group is restored. Give up the restore of these (sheaf recover give-up) to have them empty")
	default:
		words := joinWords(seen.waitingWords(state), seen.sourceWords())
		if r := seen.restore.report; r != nil && r.RefusedGroups > 0 {
			words = joinWords(words, refusedWords(r))
		}
		sayFalse(store, v1alpha1.ConditionRestored, reasonRestoring, words)
	}
}

// onlyRefused reports whether no more groups wait than those that cannot be restored.
func (seen *observed) onlyRefused() bool {
	r := seen.restore.report
	return r != nil && r.RefusedGroups > 0 && int(seen.waitingGroups()) <= r.RefusedGroups
}

// countRestored writes the numbers of a restore.
func (seen *observed) countRestored(state restoreState) {
	status := seen.store.Status.Restore
	if status == nil { // the source has never served
		return
	}
	if r := seen.restore.report; r != nil && r.State == archiving.Serving {
		status.Groups, status.RefusedGroups = int32(r.Groups), int32(r.RefusedGroups) //nolint:gosec // at most 100000
	}
	switch state {
	case restoreUnknown:
	case restoreListing:
		status.WaitingGroups = nil
	case restoreWaiting, restoreDone:
		status.WaitingGroups = new(seen.waitingGroups())
	}
}

// waitingWords says how many groups wait for their restore.
func (seen *observed) waitingWords(state restoreState) string {
	switch state {
	case restoreListing:
		return "a gateway writes the list of groups into etcd"
	case restoreWaiting:
		total := max(seen.waitingGroups(), seen.store.Status.Groups.Total)
		if s := seen.store.Status.Restore; s != nil {
			total = max(total, s.Groups)
		}
		return step.CountOf(seen.waitingGroups(), total, "group waits", "groups wait")
	case restoreUnknown:
		if seen.store.Status.PlacementInitialized {
			return "it is not known how many groups wait"
		}
	case restoreDone:
	}
	return ""
}

// writesWords says how many restored groups accept no writes yet. It is empty if all do.
func (seen *observed) writesWords() string {
	n, total := int32(0), int32(len(seen.places.Groups)) //nolint:gosec // at most 100000
	for _, g := range seen.places.Groups {
		if g.WritesFrom > 0 {
			n++
		}
	}
	if n == 0 {
		return ""
	}
	return step.CountOf(n, total, "group accepts", "groups accept") +
		" no writes until a majority of its copies has joined"
}

// sourceWords describes a source that serves.
func (seen *observed) sourceWords() string {
	if restoreTime(seen.store) == "" {
		return "the source serves"
	}
	return "the source serves the archive as of " + restoreTime(seen.store)
}

func joinWords(parts ...string) string {
	var all []string
	for _, p := range parts {
		if p != "" {
			all = append(all, p)
		}
	}
	return strings.Join(all, "; ")
}

// awaitRestored waits until no group waits for its restore.
func (seen *observed) awaitRestored() step.Outcome {
	if seen.store.Spec.Restore == nil || seen.restoreState() == restoreDone {
		return step.Complete()
	}
	if shardsWanted(seen.pools) == 0 { // the next step says so
		return step.Complete()
	}
	seen.setRestored()
	c := meta.FindStatusCondition(seen.store.Status.Conditions, v1alpha1.ConditionRestored)
	if c == nil || c.Status == metav1.ConditionTrue {
		return step.Complete() // etcd was not read
	}
	if trouble := seen.sourceTrouble(); trouble.IsStalled() && seen.restore.asked || c.Reason == reasonGroupsRefused {
		return step.Fail(c.Reason, c.Message).Again(step.PauseShort)
	}
	return step.Wait(c.Reason, c.Message, step.PauseShort)
}
