package prune

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"sheaf.dev/sheaf/internal/archive/object"
	"sheaf.dev/sheaf/internal/archive/reader"
)

// atBase calls do once, after a Run has read the points, and before it creates a base.
func (a *aged) atBase(do func()) {
	lists := 0
	a.b.onList = func(prefix string) {
		if !strings.HasSuffix(prefix, a.w.Name("")) {
			return
		}
		if lists++; lists == 3 { // the first ones are those of honour and find
			a.b.onList = nil
			do()
		}
	}
}

// create creates a point at the commit time of an index that is older than the window.
func (a *aged) create(name string, index uint64) error {
	_, err := a.store.CreatePoint(a.t.Context(), PointSpec{Name: name, Made: object.MadeByHand,
		Time: time.Unix(0, a.g.CommitTime(index))}, a.w.Now())
	return err
}

// isKept checks that the group can be read as of a point, and that nothing of the archive is missing.
func (a *aged) isKept(name string, index uint64) {
	a.t.Helper()
	archive, err := a.store.open(a.t.Context())
	if err != nil {
		a.t.Fatal(err)
	}
	read, err := archive.Group(a.t.Context(), a.g.UUID)
	if err != nil {
		a.t.Fatal(err)
	}
	if at, err := archive.Point(a.t.Context(), name); err != nil || at[a.g.UUID] != index {
		a.t.Fatalf("point %s: %v, %v", name, at, err)
	}
	m := &model{t: a.t, bucket: a.b, w: a.w, store: a.store}
	m.equal(a.t.Context(), read, a.g, index)
	m.check()
}

// A point is created after a run has read the points, and before it makes a base without the point's versions. The same
// run makes the base again. If it is killed before that, the next one does so before it deletes anything.
func TestAPointThatIsCreatedDuringARunIsKept(t *testing.T) {
	for _, isKilled := range []bool{false, true} {
		t.Run(fmt.Sprintf("killed %v", isKilled), func(t *testing.T) {
			a := newAged(t)
			a.atBase(func() {
				if err := a.create("late", 5); err != nil {
					t.Fatal(err)
				}
			})
			a.b.fail = func(name string, _ []byte) error {
				if isKilled && strings.HasSuffix(name, object.BaseName(a.g.UUID, 2)) {
					return errors.New("killed")
				}
				return nil
			}
			r, err := a.store.Run(t.Context(), Options{Window: window, Now: a.w.Now})
			if isKilled != (err != nil) || !isKilled && r.Honoured != 1 {
				t.Errorf("%+v, %v", r, err)
			}
			a.b.fail = nil
			if isKilled {
				a.pass(25)
				if r := a.prune(Options{DryRun: true}); r.Honoured != 1 || len(names(a.b.Memory, "/base/")) != 1 {
					t.Errorf("dry run: %+v", r)
				}
				if r := a.prune(Options{}); r.Honoured != 1 {
					t.Errorf("the next run: %+v", r)
				}
			}
			for range 3 {
				a.isKept("late", 5)
				a.pass(25)
				if r := a.prune(Options{}); r.Honoured != 0 {
					t.Errorf("a later run: %+v", r)
				}
			}
			if bases := names(a.b.Memory, "/base/"); len(bases) != 1 {
				t.Errorf("%q", bases)
			}
		})
	}
}

// A run prunes the archive after a point's indexes were determined, and before the point exists. The point is not
// created.
func TestAPointThatWasPrunedMeanwhileIsRefused(t *testing.T) {
	a := newAged(t)
	a.b.fail = func(name string, _ []byte) error {
		if strings.Contains(name, "/"+object.PointPrefix) {
			a.b.fail = nil
			a.prune(Options{})
		}
		return nil
	}
	if err := a.create("late", 5); !errors.Is(err, reader.ErrRefused) {
		t.Errorf("the point was created: %v", err)
	}
	points, err := a.store.Points(t.Context())
	if err != nil || len(points) != 1 || !points[0].Dropped {
		t.Errorf("%+v, %v", points, err)
	}
}
