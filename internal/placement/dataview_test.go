package placement

import (
	"testing"
	"time"

	"github.com/google/uuid"
)

// The hold of a group is the lowest index of its views, 0 while one is opened, and none without views.
func TestTheHoldOfAGroupIsTheLowestOfItsViews(t *testing.T) {
	a, b := uuid.New(), uuid.New()
	view := func(groups ...DataViewGroup) DataView { return DataView{ID: uuid.New(), Groups: groups} }
	chosen := func(id uuid.UUID, index uint64) DataViewGroup {
		return DataViewGroup{Name: "a", UUID: id, Index: index, Chosen: true}
	}
	lost := chosen(a, 3)
	lost.Lost = "no room"
	for name, row := range map[string]struct {
		views []DataView
		at    uint64
		on    bool
	}{
		"no view":             {},
		"another group":       {views: []DataView{view(chosen(b, 7))}},
		"one":                 {views: []DataView{view(chosen(a, 7), chosen(b, 2))}, at: 7, on: true},
		"the lowest":          {views: []DataView{view(chosen(a, 7)), view(chosen(a, 5))}, at: 5, on: true},
		"one is being opened": {views: []DataView{view(chosen(a, 7)), view(DataViewGroup{Name: "a", UUID: a})}, on: true},
		"lost":                {views: []DataView{view(lost)}},
		"lost beside another": {views: []DataView{view(lost), view(chosen(a, 8))}, at: 8, on: true},
	} {
		if at, on := HoldOf(row.views, a); at != row.at || on != row.on {
			t.Errorf("%s: holds from %d on (%v), want %d (%v)", name, at, on, row.at, row.on)
		}
	}
}

// The oldest view that needs one of the groups is given up first.
func TestTheOldestViewIsGivenUpFirst(t *testing.T) {
	a, b := uuid.New(), uuid.New()
	begun := time.Unix(1, 0)
	view := func(age int, groups ...DataViewGroup) DataView {
		return DataView{ID: uuid.New(), Opened: begun.Add(-time.Duration(age) * time.Second), Groups: groups}
	}
	ga, gb := DataViewGroup{Name: "a", UUID: a, Chosen: true}, DataViewGroup{Name: "b", UUID: b, Chosen: true}
	lost := ga
	lost.Lost = "no room"
	young, old, other, broken := view(1, ga, gb), view(5, ga), view(9, gb), view(9, lost)
	all := []DataView{young, old, other, broken}
	if v, g, found := OldestOf(all, map[uuid.UUID]bool{a: true}); !found || v.ID != old.ID || g.UUID != a {
		t.Errorf("of group a: view opened at %v, group %s (%v)", v.Opened, g.Name, found)
	}
	if v, g, found := OldestOf(all, map[uuid.UUID]bool{a: true, b: true}); !found || v.ID != other.ID || g.UUID != b {
		t.Errorf("of both: view opened at %v, group %s (%v)", v.Opened, g.Name, found)
	}
	if _, _, found := OldestOf(all, map[uuid.UUID]bool{uuid.New(): true}); found {
		t.Error("a view needs a group that it does not have")
	}
}

func TestAViewLosesAGroupOnce(t *testing.T) {
	v := DataView{ID: uuid.New(), Expires: time.Unix(1, 0), Groups: []DataViewGroup{{Name: "a", UUID: uuid.New()},
		{Name: "b", UUID: uuid.New(), Chosen: true}}}
	if v.IsOpen() || v.Validate() != nil {
		t.Error("a view without an index is open, or is not valid:", v.Validate())
	}
	next, lost := v.Lose("a", "no room")
	if g, _ := next.Group("a"); !lost || g.Lost != "no room" || !next.IsOpen() {
		t.Error("not lost:", next)
	}
	if g, _ := v.Group("a"); g.Lost != "" {
		t.Error("the view before has changed")
	}
	if _, again := next.Lose("a", "again"); again {
		t.Error("lost twice")
	}
	if _, known := v.Lose("c", "no room"); known {
		t.Error("lost without being there")
	}
	if _, found := v.Group("c"); found {
		t.Error("a group that the view does not have was found")
	}
	v.Groups[0].Name = "c"
	if v.Validate() == nil {
		t.Error("groups that are not in order are valid")
	}
}
