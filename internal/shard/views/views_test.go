package views

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"

	"sheaf.dev/sheaf/internal/placement"
	"sheaf.dev/sheaf/internal/placement/registry"
)

// etcd is a fake of registry.Store with one view.
type etcd struct {
	view  placement.DataView
	found bool
	err   error
}

func (e *etcd) WatchDataViews(context.Context) <-chan registry.DataViews { return nil }

func (e *etcd) DataView(context.Context, uuid.UUID) (placement.DataView, bool, error) {
	return e.view, e.found, e.err
}

func (e *etcd) PutDataView(_ context.Context, v placement.DataView) (placement.DataView, error) {
	if e.err == nil {
		v.Revision++
		e.view = v
	}
	return v, e.err
}

func viewOf(group uuid.UUID, index uint64) placement.DataView {
	return placement.DataView{ID: uuid.New(), Revision: 1, Expires: time.Now().Add(time.Hour),
		Groups: []placement.DataViewGroup{{Name: "a", UUID: group, Index: index, Chosen: index > 0}}}
}

// A view that is gone from etcd is held for a while, and as long as etcd is known to be rolled back.
func TestAHoldOutlivesItsViewForAWhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		group, held := uuid.New(), false
		s := New(&etcd{}, func() bool { return held }, func() {})
		want := func(what string, at uint64, on, known bool) {
			t.Helper()
			if gotAt, gotOn, gotKnown := s.HoldOf(group); gotAt != at || gotOn != on || gotKnown != known {
				t.Errorf("%s: holds from %d on (%v, known %v), want %d (%v, known %v)", what, gotAt, gotOn, gotKnown, at, on, known)
			}
		}
		want("nothing heard", 0, false, false)
		first, second := viewOf(group, 7), viewOf(group, 9)
		s.take(registry.DataViews{List: []placement.DataView{first, second}, At: 2}, time.Now())
		want("two views", 7, true, true)
		s.take(registry.DataViews{List: []placement.DataView{second}, At: 3}, time.Now())
		want("one is closed", 7, true, true)
		time.Sleep(leaveGrace)
		want("one was closed", 9, true, true)
		held = true
		s.take(registry.DataViews{At: 1}, time.Now())
		time.Sleep(2 * leaveGrace)
		want("etcd was rolled back", 7, true, true)
		held = false
		want("etcd was reconciled", 0, false, true)
	})
}

// Find asks etcd about a view that is not known to be open.
func TestFindAsksEtcdAboutWhatIsNotKnown(t *testing.T) {
	group := uuid.New()
	known, opening, open := viewOf(group, 7), viewOf(group, 0), viewOf(group, 5)
	down := errors.New("etcd is down")
	for name, row := range map[string]struct {
		id   uuid.UUID
		etcd etcd
		want error
	}{
		"known":           {known.ID, etcd{err: down}, nil},
		"not known":       {open.ID, etcd{view: open, found: true}, nil},
		"being opened":    {opening.ID, etcd{view: opening, found: true}, ErrOpening},
		"opened just now": {opening.ID, etcd{view: open, found: true}, nil},
		"gone":            {open.ID, etcd{}, ErrGone},
		"etcd is down":    {open.ID, etcd{err: down}, down},
	} {
		s := New(&row.etcd, func() bool { return false }, func() {})
		s.take(registry.DataViews{List: []placement.DataView{known, opening}, At: 1}, time.Now())
		if v, err := s.Find(t.Context(), row.id); !errors.Is(err, row.want) || err == nil && !v.IsOpen() {
			t.Errorf("%s: %v, %v, want %v", name, v.ID, err, row.want)
		}
	}
}

// A group that a view has lost is no longer held, and reads hear of it.
func TestALostGroupIsNotHeld(t *testing.T) {
	group := uuid.New()
	v := viewOf(group, 7)
	e := &etcd{}
	s := New(e, func() bool { return false }, func() {})
	s.take(registry.DataViews{List: []placement.DataView{v}, At: 1}, time.Now())
	e.err = placement.ErrChanged
	if err := s.Lose(t.Context(), &v, "a", "no room"); !errors.Is(err, placement.ErrChanged) {
		t.Error(err)
	}
	if _, on, _ := s.HoldOf(group); !on {
		t.Error("the hold has ended, and etcd has not taken the change")
	}
	e.err = nil
	if err := s.Lose(t.Context(), &v, "a", "no room"); err != nil {
		t.Error(err)
	}
	if _, on, _ := s.HoldOf(group); on {
		t.Error("a lost group is held")
	}
	got, err := s.Find(t.Context(), v.ID)
	if err != nil || got.Groups[0].Lost != "no room" || e.view.Groups[0].Lost == "" {
		t.Errorf("%+v, %v", got, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := s.Await(ctx, uuid.New()); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}
