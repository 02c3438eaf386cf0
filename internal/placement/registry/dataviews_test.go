package registry_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"

	"sheaf.dev/sheaf/internal/placement"
	"sheaf.dev/sheaf/internal/placement/registry"
	"sheaf.dev/sheaf/internal/test/memetcdtest"
	"sheaf.dev/sheaf/internal/test/must"
)

func newDataView(groups int) placement.DataView {
	v := placement.DataView{ID: uuid.New(), Opened: time.Now().UTC(), Expires: time.Now().Add(time.Hour).UTC()}
	for n := range groups {
		v.Groups = append(v.Groups, placement.DataViewGroup{Name: fmt.Sprintf("g%07d", n), UUID: uuid.New()})
	}
	return v
}

// Whoever follows views sees each change, and a view is written only where it is as it was read.
func TestViewsAreFollowed(t *testing.T) { synctest.Test(t, viewsAreFollowed) }

func viewsAreFollowed(t *testing.T) {
	store := newStore(t, memetcdtest.New(t).Client(t))
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	mustInit(t, ctx, store, namedMeta())
	seen := store.WatchDataViews(ctx)
	next := func(want int) registry.DataViews {
		t.Helper()
		got, ok := <-seen
		if !ok || len(got.List) != want {
			t.Fatalf("%d views instead of %d (%v)", len(got.List), want, ok)
		}
		return got
	}
	if none := next(0); none.At != 0 {
		t.Errorf("without views, they last changed at %d", none.At)
	}
	first, err := store.PutDataView(ctx, newDataView(3))
	must.OK(t, err)
	if got := next(1).List[0]; got.ID != first.ID || got.Revision != first.Revision || len(got.Groups) != 3 {
		t.Errorf("%+v instead of %+v", got, first)
	}
	again := first
	again.Revision = 0
	if _, err := store.PutDataView(ctx, again); !errors.Is(err, placement.ErrChanged) {
		t.Errorf("made twice: %v", err)
	}
	lost, _ := first.Lose("g0000001", "no room")
	lost, err = store.PutDataView(ctx, lost)
	must.OK(t, err)
	if g, _ := next(1).List[0].Group("g0000001"); g.Lost != "no room" {
		t.Errorf("%+v", g)
	}
	if err := store.DeleteDataView(ctx, first.ID, first.Revision); !errors.Is(err, placement.ErrChanged) {
		t.Errorf("removed although it has changed: %v", err)
	}
	if got, found, err := store.DataView(ctx, first.ID); err != nil || !found || got.Revision != lost.Revision {
		t.Errorf("%+v, %v, %v", got, found, err)
	}
	must.OK(t, store.DeleteDataView(ctx, first.ID, lost.Revision))
	if gone := next(0); gone.At <= lost.Revision {
		t.Errorf("the removal was at %d, the change before at %d", gone.At, lost.Revision)
	}
	if _, found, err := store.DataView(ctx, first.ID); err != nil || found {
		t.Errorf("%v, %v", found, err)
	}
}

// Views are not written while the store is frozen, and neither too many nor too large ones.
func TestWhatIsNoViewOfTheStore(t *testing.T) { synctest.Test(t, whatIsNoViewOfTheStore) }

func whatIsNoViewOfTheStore(t *testing.T) {
	store := newStore(t, memetcdtest.New(t).Client(t))
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if _, err := store.PutDataView(ctx, newDataView(1)); !errors.Is(err, placement.ErrChanged) {
		t.Errorf("a view of a store that does not exist: %v", err)
	}
	mustInit(t, ctx, store, namedMeta())
	if _, err := store.PutDataView(ctx, newDataView(0)); err == nil {
		t.Error("a view without groups was written")
	}
	if _, err := store.PutDataView(ctx, newDataView(20_000)); !errors.Is(err, registry.ErrViewTooLarge) {
		t.Errorf("20,000 groups: %v", err)
	}
	for range placement.DataViewsMax {
		_, err := store.PutDataView(ctx, newDataView(1))
		must.OK(t, err)
	}
	if _, err := store.PutDataView(ctx, newDataView(1)); !errors.Is(err, registry.ErrTooManyViews) {
		t.Errorf("one view too many: %v", err)
	}
	all, err := store.DataViews(ctx)
	must.OK(t, err)
	must.OK(t, store.Freeze(ctx, "a test", "it was set back"))
	v := all.List[0]
	v.Expires = v.Expires.Add(time.Hour)
	if _, err := store.PutDataView(ctx, v); !errors.Is(err, placement.ErrFrozen) {
		t.Errorf("a frozen store: %v", err)
	}
	if err := store.DeleteDataView(ctx, v.ID, v.Revision); !errors.Is(err, placement.ErrFrozen) {
		t.Errorf("a frozen store: %v", err)
	}
}
