package recordarchive

import (
	"context"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"

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
	n, a := &NamedPoints{}, &v1alpha1.RecordArchive{ObjectMeta: metav1.ObjectMeta{UID: "a"}}
	if p := n.get(a.UID, "x"); p.Name != "" {
		t.Errorf("%+v", p)
	}
	n.set(t.Context(), a, named(archiving.NamedPoint{Name: "x", Dropped: true}))
	if !n.get(a.UID, "x").Dropped || n.get("b", "x").Dropped || n.get(a.UID, "y").Dropped {
		t.Error("x is not dropped, or others are")
	}
	if n.set(t.Context(), a, nil); n.get(a.UID, "x").Dropped {
		t.Error("a pod that does not report says that x is dropped")
	}
}

// named returns the report of a pod about points.
func named(points ...archiving.NamedPoint) *archiving.Report {
	return &archiving.Report{Upkeep: &archiving.Upkeep{Named: points}}
}

// backups is a client that only lists RecordBackups.
type backups struct {
	client.Client
	all []v1alpha1.RecordBackup
}

func (c backups) List(_ context.Context, list client.ObjectList, _ ...client.ListOption) error {
	list.(*v1alpha1.RecordBackupList).Items = c.all
	return nil
}

// A RecordBackup hears at once of what its archive's pod has reported about its point, and only of news.
func TestABackupHearsOfItsPoint(t *testing.T) {
	r := &BackupReconciler{Named: &NamedPoints{}, Client: backups{all: []v1alpha1.RecordBackup{backup("x"), backup("y"),
		backup("z", func(b *v1alpha1.RecordBackup) { b.Spec.ArchiveRef.Name = "other" })}}}
	a := &v1alpha1.RecordArchive{ObjectMeta: metav1.ObjectMeta{Name: "quotes", UID: "a"}}
	queue := workqueue.NewTypedRateLimitingQueue(step.Failures())
	defer queue.ShutDown()
	if err := r.hear(t.Context(), queue); err != nil {
		t.Fatal(err)
	}
	made := archiving.NamedPoint{Name: "x-6a204bd8", Time: &now}
	for _, c := range []struct {
		name   string
		report *archiving.Report
		heard  []string
	}{
		{"a point that fails", named(archiving.NamedPoint{Name: "x-6a204bd8", Error: "a hole"}), []string{"x"}},
		{"it is made", named(made, archiving.NamedPoint{Name: "z-6a204bd8", Time: &now}), []string{"x"}},
		{"nothing new", named(made, archiving.NamedPoint{Name: "z-6a204bd8", Time: new(now)}), nil},
		{"another one is made", named(made, archiving.NamedPoint{Name: "y-6a204bd8", Time: &now}), []string{"y"}},
		{"no report", nil, nil},
	} {
		r.Named.set(t.Context(), a, c.report)
		var heard []string
		for queue.Len() > 0 {
			request, _ := queue.Get()
			queue.Done(request)
			heard = append(heard, request.Name)
		}
		if !slices.Equal(heard, c.heard) {
			t.Errorf("%s: %v hear of it, want %v", c.name, heard, c.heard)
		}
	}
}
