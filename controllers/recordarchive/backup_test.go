package recordarchive

import (
	"regexp"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"sheaf.dev/sheaf/api/v1alpha1"
	"sheaf.dev/sheaf/controllers/step"
	"sheaf.dev/sheaf/internal/status/archiving"
)

// backup returns a RecordBackup that is an hour old.
func backup(name string, change ...func(b *v1alpha1.RecordBackup)) v1alpha1.RecordBackup {
	b := v1alpha1.RecordBackup{}
	b.Name, b.UID, b.CreationTimestamp = name, "6a204bd8-9a53", metav1.NewTime(now.Add(-time.Hour))
	b.Finalizers = []string{v1alpha1.Finalizer}
	b.Spec.ArchiveRef.Name = "quotes"
	for _, c := range change {
		c(&b)
	}
	return b
}

func ttl(d time.Duration) func(b *v1alpha1.RecordBackup) {
	return func(b *v1alpha1.RecordBackup) { b.Spec.TTL = &metav1.Duration{Duration: d} }
}

// pointName is what docs/archive.md allows as the name of a point.
var pointName = regexp.MustCompile(`^[a-z0-9][a-z0-9.-]{0,62}$`)

// Points are wanted only until their outcome is known, and dropped only if somebody deletes the RecordBackup.
func TestPointsOfBackups(t *testing.T) {
	deleted := func(b *v1alpha1.RecordBackup) { b.DeletionTimestamp = new(metav1.NewTime(now)) }
	made := func(b *v1alpha1.RecordBackup) { b.Status.Time = new(metav1.NewTime(now)) }
	points := wantedPoints([]v1alpha1.RecordBackup{
		backup("made", made), backup("new", ttl(2*time.Hour)), backup("deleted", made, deleted),
		backup("ended", ttl(time.Hour)), backup("ended-and-deleted", ttl(time.Hour), deleted),
		backup("other", func(b *v1alpha1.RecordBackup) { b.Spec.ArchiveRef.Name = "other" }),
		backup("unseen", func(b *v1alpha1.RecordBackup) { b.Finalizers = nil }),
		backup("left", deleted, func(b *v1alpha1.RecordBackup) { b.Finalizers = []string{"somebody.else/x"} }),
	}, "quotes", now)
	if len(points) != 2 || points[0] != (archiving.WantedPoint{Name: "deleted-6a204bd8", Drop: true}) ||
		points[1].Name != "new-6a204bd8" || points[1].Drop || !points[1].Until.Equal(now.Add(time.Hour)) {
		t.Errorf("%+v", points)
	}
	many := make([]v1alpha1.RecordBackup, 200)
	for i := range many {
		many[i] = backup("a")
	}
	if points := wantedPoints(many, "quotes", now); len(points) != archiving.WantedPointsMax {
		t.Errorf("%d points are wanted at once", len(points))
	}
	for _, name := range []string{"a", "before-1.2", strings.Repeat("a", 253), strings.Repeat("a", 53) + "-b"} {
		b := backup(name)
		if point := backupPoint(&b); !pointName.MatchString(point) {
			t.Errorf("%s cannot be the name of a point", point)
		}
	}
}

func TestConditionsOfABackup(t *testing.T) {
	archive := &v1alpha1.RecordArchive{}
	archive.Name = "quotes"
	at := now.Add(-time.Minute)
	for name, c := range map[string]struct {
		backup       v1alpha1.RecordBackup
		archive      *v1alpha1.RecordArchive
		is           archiving.NamedPoint
		ready, stall string
		time         bool
	}{
		"new":      {backup: backup("a"), archive: archive, ready: "False PointPending"},
		"no store": {backup: backup("a"), ready: "False ArchiveUnknown", stall: "True ArchiveUnknown"},
		"made": {backup: backup("a"), archive: archive, is: archiving.NamedPoint{Time: &at}, ready: "True Ready",
			time: true},
		"fails": {backup: backup("a"), archive: archive, is: archiving.NamedPoint{Error: "in a hole"},
			ready: "False PointFailed"},
		"made before, and the pod does not say so any more": {backup: backup("a", ttl(2*time.Hour),
			func(b *v1alpha1.RecordBackup) { b.Status.Time = new(metav1.NewTime(at)) }), archive: archive,
			ready: "True Ready", time: true},
		"ended": {backup: backup("a", ttl(time.Hour)), archive: archive, is: archiving.NamedPoint{Time: &at},
			ready: "False Expired", stall: "True Expired", time: true},
	} {
		b := &c.backup
		out := decideBackup(b, c.archive, c.is, now)
		step.Summarize(&b.Status.Conditions, 1, out, "the point is kept")
		for kind, want := range map[string]string{v1alpha1.ConditionReady: c.ready, v1alpha1.ConditionStalled: c.stall} {
			got := ""
			if found := meta.FindStatusCondition(b.Status.Conditions, kind); found != nil {
				got = string(found.Status) + " " + found.Reason
			}
			if got != want {
				t.Errorf("%s: %s is %q, want %q", name, kind, got, want)
			}
		}
		if (b.Status.Time != nil) != c.time || b.Status.Point != "a-6a204bd8" ||
			(b.Status.Until != nil) != (b.Spec.TTL != nil) {
			t.Errorf("%s: %+v", name, b.Status)
		}
	}
}

// What a pod has reported about points counts until it reports something else.
func TestNamedPoints(t *testing.T) {
	n, id := &NamedPoints{}, types.UID("a")
	if p := n.get(id, "x"); p.Name != "" {
		t.Errorf("%+v", p)
	}
	n.set(id, &archiving.Report{Upkeep: &archiving.Upkeep{Named: []archiving.NamedPoint{{Name: "x", Dropped: true}}}})
	if !n.get(id, "x").Dropped || n.get("b", "x").Dropped || n.get(id, "y").Dropped {
		t.Error("x is not dropped, or others are")
	}
	if n.set(id, nil); n.get(id, "x").Dropped {
		t.Error("a pod that does not report says that x is dropped")
	}
}
