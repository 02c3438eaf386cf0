package restore

import (
	"errors"
	"io/fs"
	"strings"
	"testing"

	"github.com/google/uuid"

	"sheaf.dev/sheaf/internal/archive/object"
	"sheaf.dev/sheaf/internal/archive/reader"
	"sheaf.dev/sheaf/internal/test/archivetest"
)

// A store is restored as of the indexes of a point, and not as of the indexes that the point's time would give. Groups
// that the point does not list are left out. Groups of the point that are missing or cannot be read exactly are named.
func TestAStoreIsRestoredAsOfAPoint(t *testing.T) {
	b := archivetest.NewMemory()
	w := archivetest.New(t, b, archivetest.SampleStore, object.Key{})
	first, second, other := w.NewGroup("first", 1), w.NewGroup("second", 2), w.NewGroup("other", 3)
	for _, data := range []string{"one", "two", "three"} {
		for _, g := range []*archivetest.Group{first, second, other} {
			g.Put(1, data)
		}
	}
	w.Log(first, second, other)
	point := &object.Point{Name: "p", Time: archivetest.Begin.UnixNano(), Groups: []object.PointGroup{
		{Group: first.UUID, Name: "first", Index: 2},
		{Group: second.UUID, Name: "second", Index: 9}, // the archive does not reach it
		{Group: uuid.UUID{0x99}, Name: "lost", Index: 1},
	}}
	r, err := NewAtPoint(t.Context(), open(t, b, w), newStore, point)
	if err != nil {
		t.Fatal(err)
	}
	r.limits = tiny
	groups := groupsByName(r)
	if len(groups) != 3 || groups["first"].Index != 2 || !errors.Is(groups["second"].Err, reader.ErrRefused) ||
		!errors.Is(groups["lost"].Err, fs.ErrNotExist) {
		t.Fatalf("groups %+v", groups)
	}
	i, err := r.Image(t.Context(), groups["first"].UUID, founder)
	if err == nil {
		err = errors.Join(check(t.Context(), i, first, 2), i.Close())
	}
	if err != nil {
		t.Error(err)
	}
	// A group that cannot be read has the name that it has in the point.
	b.Set(w.Name(object.CatalogueName(second.UUID, 1)), []byte("damaged"))
	if r, err = NewAtPoint(t.Context(), open(t, b, w), newStore, point); err != nil {
		t.Fatal(err)
	}
	if g := groupsByName(r)["second"]; g.Source != second.UUID || !reader.IsBroken(g.Err) {
		t.Errorf("group %+v", g)
	}
	b.Set(w.Name(object.CatalogueName(other.UUID, 1)), []byte("damaged"))
	if r, err = NewAtPoint(t.Context(), open(t, b, w), newStore, point); err != nil || len(r.Groups()) != 3 {
		t.Errorf("a damaged group that the point does not list: %+v, %v", groupsByName(r), err)
	}
}

// A restore of some groups lists only these. The others cannot be fetched, and a name that the archive does not have is
// refused, as is a part of a store with hash routing.
func TestOnlySomeGroupsAreRestored(t *testing.T) {
	b := archivetest.NewMemory()
	w := archivetest.New(t, b, archivetest.SampleStore, object.Key{})
	first, second := w.NewGroup("first", 1), w.NewGroup("second", 2)
	first.Put(1, "one")
	second.Put(1, "two")
	w.Log(first, second)
	r, err := New(t.Context(), open(t, b, w), newStore, w.Now())
	if err != nil {
		t.Fatal(err)
	}
	r.limits = tiny
	if err := r.Only([]string{"second", "third"}); !errors.Is(err, ErrNotOnly) || !strings.Contains(err.Error(), "third") {
		t.Errorf("a group that is not there: %v", err)
	}
	if err := r.Only([]string{"second"}); err != nil || len(r.Groups()) != 1 {
		t.Fatalf("%v, %+v", err, r.Groups())
	}
	if _, err := r.Image(t.Context(), GroupUUID(newStore, first.UUID), founder); !errors.Is(err, ErrUnknown) {
		t.Errorf("a group that is left out: %v", err)
	}
	i, err := r.Image(t.Context(), GroupUUID(newStore, second.UUID), founder)
	if err == nil {
		err = errors.Join(check(t.Context(), i, second, second.Through()), i.Close())
	}
	if err != nil {
		t.Error(err)
	}
	r.header.Routing = "hash"
	if err := r.Only([]string{"second"}); !errors.Is(err, ErrNotOnly) ||
		!strings.Contains(err.Error(), "a part of all ids") {
		t.Errorf("hash routing: %v", err)
	}
}
