package recordarchive

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"sheaf.dev/sheaf/api/v1alpha1"
	"sheaf.dev/sheaf/controllers/fleet"
	"sheaf.dev/sheaf/controllers/step"
	"sheaf.dev/sheaf/internal/status/archiving"
)

var now = time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC)

// pod returns a pod of an archive whose container is in the given state.
func pod(name string, ready bool, state corev1.ContainerState) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, CreationTimestamp: metav1.NewTime(now)}}
	p.Status.PodIP = "10.0.0.1"
	p.Status.ContainerStatuses = []corev1.ContainerStatus{{State: state}}
	if ready {
		p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
	}
	return p
}

var running = corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}

// archiveReport returns a report with the given lag in seconds. If lag is negative, the report does not contain a lag.
func archiveReport(state archiving.State, lag float64, change ...func(*archiving.Report)) *archiving.Report {
	r := &archiving.Report{State: state, IntervalSeconds: 10, Groups: 4}
	if lag >= 0 {
		through := now.Add(-time.Duration(lag * float64(time.Second)))
		r.LagSeconds, r.ArchivedThrough = &lag, &through
	}
	for _, c := range change {
		c(r)
	}
	return r
}

func troubled(reason string) func(*archiving.Report) {
	return func(r *archiving.Report) {
		r.Trouble = &archiving.Trouble{Reason: reason, Message: "the bucket says so"}
	}
}

// If the pod of an archive has sent a report, the conditions of the archive depend only on this report.
func TestConditions(t *testing.T) {
	waiting := corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ImagePullBackOff",
		Message: "no image"}}
	for name, c := range map[string]struct {
		seen observed
		out  step.Outcome
		// Age of archivedThrough in the previous status; 0 if it was unknown.
		last                              time.Duration
		archives, current, ready, stalled string // expected conditions, each with its status and reason
		archivedThrough                   bool
	}{
		"archives": {seen: observed{pod: pod("a", true, running), report: archiveReport(archiving.Archiving, 4)},
			archives: "True Archiving", current: "True Current", ready: "True Ready", archivedThrough: true},
		"no pod yet": {archives: "False PodMissing", current: "Unknown NotKnown", ready: "False PodMissing"},
		"the Secret is missing": {out: step.Fail(fleet.ReasonSecretMissing, "no Secret"), archives: "False SecretMissing",
			current: "Unknown NotKnown", ready: "False SecretMissing", stalled: "True SecretMissing"},
		"the Secret is missing, the pod of before goes on": {out: step.Fail(fleet.ReasonSecretMissing, "no Secret"),
			seen:     observed{pod: pod("a", true, running), report: archiveReport(archiving.Archiving, 4)},
			archives: "True Archiving", current: "True Current", ready: "False SecretMissing", stalled: "True SecretMissing",
			archivedThrough: true},
		"no image": {seen: observed{pod: pod("a", false, waiting)}, archives: "False PodFails",
			current: "Unknown NotKnown", ready: "False PodFails"},
		"starts": {seen: observed{pod: pod("a", false, running), silent: errors.New("refused")}, last: 20 * time.Second,
			archives: "False PodStarts", current: "True Current", ready: "False PodStarts", archivedThrough: true},
		"the operator cannot ask": {seen: observed{pod: pod("a", true, running), silent: errors.New("timeout")},
			last: 20 * time.Second, archives: "Unknown OperatorCannotAsk", current: "True Current",
			ready: "False OperatorCannotAsk", archivedThrough: true},
		"nobody reports for long": {seen: observed{pod: pod("a", true, running), silent: errors.New("timeout")},
			last: 2 * time.Minute, archives: "Unknown OperatorCannotAsk", current: "False Behind",
			ready: "False OperatorCannotAsk", archivedThrough: true},
		"reads the bucket": {seen: observed{pod: pod("a", false, running), report: archiveReport(archiving.Starting, -1)},
			last: 20 * time.Second, archives: "Unknown Starting", current: "True Current", ready: "False Starting",
			archivedThrough: true},
		"first copies": {seen: observed{pod: pod("a", true, running), report: archiveReport(archiving.Archiving, -1,
			func(r *archiving.Report) { r.Waiting = 3 })}, last: 20 * time.Second,
			archives: "True Archiving", current: "False FirstCopy", ready: "False FirstCopy"},
		"an empty store": {seen: observed{pod: pod("a", true, running), report: archiveReport(archiving.Archiving, -1)},
			archives: "True Archiving", current: "Unknown NotKnown", ready: "True Ready"},
		"one error": {seen: observed{pod: pod("a", true, running), report: archiveReport(archiving.Archiving, 12,
			troubled("Busy"))}, archives: "True Archiving", current: "True Current", ready: "True Ready",
			archivedThrough: true},
		"the bucket is away": {seen: observed{pod: pod("a", true, running), report: archiveReport(archiving.Archiving, 61,
			troubled("Away"))}, archives: "False Away", current: "False Behind", ready: "False Away", archivedThrough: true},
		"too slow": {seen: observed{pod: pod("a", true, running), report: archiveReport(archiving.Archiving, 61)},
			archives: "True Archiving", current: "False Behind", ready: "False Behind", archivedThrough: true},
		"wrong credentials": {seen: observed{pod: pod("a", false, running), report: archiveReport(archiving.Waiting, -1,
			troubled("Credentials"))}, archives: "False Credentials", current: "Unknown NotKnown", ready: "False Credentials",
			stalled: "True Credentials"},
		"taken over": {seen: observed{pod: pod("a", false, running), report: archiveReport(archiving.Ended, 300,
			troubled(archiving.ReasonTakenOver))}, archives: "False TakenOver", current: "False Behind",
			ready: "False TakenOver", stalled: "True TakenOver", archivedThrough: true},
	} {
		seen := c.seen
		seen.now, seen.archive = now, &v1alpha1.RecordArchive{}
		seen.archive.Spec.URL, seen.archive.Status.URL = "s3://b", "s3://b"
		if c.last > 0 {
			seen.archive.Status.ArchivedThrough = new(metav1.NewTime(now.Add(-c.last)))
		}
		out := seen.summarize(c.out)
		s := &seen.archive.Status
		for kind, want := range map[string]string{v1alpha1.ConditionArchiving: c.archives,
			v1alpha1.ConditionArchiveCurrent: c.current, v1alpha1.ConditionReady: c.ready,
			v1alpha1.ConditionStalled: c.stalled} {
			got := ""
			if found := meta.FindStatusCondition(s.Conditions, kind); found != nil {
				got = string(found.Status) + " " + found.Reason
				if found.Message == "" {
					t.Errorf("%s: %s says nothing", name, kind)
				}
			}
			if got != want {
				t.Errorf("%s: %s is %q, want %q", name, kind, got, want)
			}
		}
		if (s.ArchivedThrough != nil) != c.archivedThrough || (s.LagSeconds != nil) && s.ArchivedThrough == nil {
			t.Errorf("%s: archived through %v, lag %v", name, s.ArchivedThrough, s.LagSeconds)
		}
		if out.After() == 0 {
			t.Errorf("%s: nobody looks again", name)
		}
	}
}

// When the URL of an archive changes, the status must not keep what was known about the archive at the old URL.
func TestAnotherURLIsAnotherArchive(t *testing.T) {
	seen := observed{now: now, archive: &v1alpha1.RecordArchive{}}
	seen.archive.Spec.URL = "s3://new"
	seen.archive.Status = v1alpha1.RecordArchiveStatus{URL: "s3://old", Holes: new(int32(3)),
		ArchivedThrough: new(metav1.NewTime(now))}
	seen.summarize(step.Complete())
	if s := seen.archive.Status; s.URL != "s3://new" || s.Holes != nil || s.ArchivedThrough != nil ||
		!meta.IsStatusConditionPresentAndEqual(s.Conditions, v1alpha1.ConditionArchiveCurrent, metav1.ConditionUnknown) {
		t.Errorf("%+v", s)
	}
}

// A number that is 0 is in the status as soon as it is known. A status is written as the difference to the one of
// before, in which a number is absent.
func TestZeroIsNotUnknown(t *testing.T) {
	before := &v1alpha1.RecordArchive{}
	before.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionReady, Status: metav1.ConditionUnknown}}
	seen := observed{now: now, archive: before.DeepCopy(), report: archiveReport(archiving.Archiving, 0,
		func(r *archiving.Report) {
			r.Groups, r.Upkeep = 0, &archiving.Upkeep{Points: new(0), Prunes: true}
			r.Drill = &archiving.Drill{Time: now, Result: archiving.DrillFailed}
		})}
	seen.summarize(step.Complete())
	patch, err := client.MergeFrom(before).Data(seen.archive)
	if err != nil {
		t.Fatal(err)
	}
	var got struct{ Status map[string]any }
	if err := json.Unmarshal(patch, &got); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{"lagSeconds", "groups", "waitingGroups", "holes", "objects", "bytes", "points kept",
		"prune deletedObjects", "prune deletedBytes", "drill groups", "drill records", "drill seconds"} {
		n, there, err := unstructured.NestedFieldNoCopy(got.Status, strings.Fields(path)...)
		if err != nil || !there || n != 0.0 {
			t.Errorf("%s is %v (%v), want 0", path, n, err)
		}
	}
	m := &archiveMetrics{archives: map[types.NamespacedName]figures{}}
	for _, a := range []*v1alpha1.RecordArchive{before, seen.archive} {
		m.observe(a)
		if holes := m.archives[types.NamespacedName{}].holes; (holes == nil) != (a == before) {
			t.Errorf("the metric of holes is %v", holes)
		}
	}
}

func TestTheNewestPodIsAsked(t *testing.T) {
	old, young := pod("old", true, running), pod("young", true, running)
	young.CreationTimestamp = metav1.NewTime(now.Add(time.Second))
	if got := fleet.NewestPod([]corev1.Pod{*old, *young}); got.Name != "young" {
		t.Errorf("%s of two", got.Name)
	}
	young.DeletionTimestamp = new(metav1.NewTime(now))
	for _, pods := range [][]corev1.Pod{{*old, *young}, {*young, *old}} {
		if got := fleet.NewestPod(pods); got.Name != "old" {
			t.Errorf("%s, which is being deleted", got.Name)
		}
	}
	if fleet.NewestPod(nil) != nil {
		t.Error("a pod of none")
	}
}

// If an archive must not run, its status keeps no earlier findings, and says why it must not run.
func TestARefusedArchive(t *testing.T) {
	seen := observed{now: now, archive: &v1alpha1.RecordArchive{}}
	seen.archive.Status = v1alpha1.RecordArchiveStatus{Groups: new(int32(3)), ArchivedThrough: new(metav1.NewTime(now))}
	seen.refuse(step.Fail(reasonStoreHasArchive, "another one"))
	s := seen.archive.Status
	if s.Groups != nil || s.ArchivedThrough != nil || meta.FindStatusCondition(s.Conditions,
		v1alpha1.ConditionArchiveCurrent) != nil || !strings.Contains(meta.FindStatusCondition(s.Conditions,
		v1alpha1.ConditionStalled).Message, "another one") {
		t.Errorf("%+v", s)
	}
}
