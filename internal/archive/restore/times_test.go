package restore

import (
	"bytes"
	"errors"
	"io/fs"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"sheaf.dev/sheaf/internal/archive/object"
	"sheaf.dev/sheaf/internal/archive/reader"
	"sheaf.dev/sheaf/internal/test/archivetest"
)

// groupsByName returns the groups of a restore, by name.
func groupsByName(r *Restore) map[string]Group {
	groups := map[string]Group{}
	for _, g := range r.Groups() {
		groups[g.Name] = g
	}
	return groups
}

func at(t *testing.T, a *reader.Archive, when time.Time) *Restore {
	t.Helper()
	r, err := New(t.Context(), a, newStore, when)
	if err != nil {
		t.Fatal(err)
	}
	r.limits = tiny
	return r
}

// A store is restored as of every half second. Each group then either has the state of the model as of the last entry
// before that time, or is reported with the reason why it has none. Groups that had been deleted by then are left
// out.
func TestAStoreIsRestoredAsOfATime(t *testing.T) {
	b := archivetest.NewMemory()
	w := archivetest.Sample(t, b, object.Key{}, 50)
	restored, refused, gone := 0, 0, 0
	for ns := archivetest.Begin; ns.Before(w.Now()); ns = ns.Add(time.Second / 2) {
		r := at(t, open(t, b, w), ns)
		groups := groupsByName(r)
		for _, model := range w.Groups {
			g, ok := groups[model.Name]
			last := uint64(0)
			for index := range model.Through() {
				if c := model.CommitTime(index + 1); c != 0 && c <= ns.UnixNano() {
					last = index + 1
				}
			}
			switch {
			case !ok && model.Gone:
				gone++
			case !ok:
				t.Errorf("%s at %v is not there", model.Name, ns)
			case g.UUID != GroupUUID(newStore, model.UUID) || g.Source != model.UUID:
				t.Errorf("group %+v", g)
			case g.Err != nil:
				refused++
				if _, err := r.Image(t.Context(), g.UUID, founder); !errors.Is(err, reader.ErrRefused) {
					t.Errorf("%s at %v: error %v", model.Name, ns, err)
				}
			default:
				restored++
				i, err := r.Image(t.Context(), g.UUID, founder)
				if err == nil {
					err = errors.Join(check(t.Context(), i, model, last), i.Close())
				}
				if err != nil {
					t.Errorf("%s at %v: %v", model.Name, ns, err)
				}
			}
		}
	}
	if restored < 50 || refused < 20 || gone < 10 {
		t.Errorf("%d restored, %d refused, %d gone", restored, refused, gone)
	}
}

// If a group was deleted and created again, the one that existed at the time is restored.
func TestGroupThatExistedAtTheTimeIsRestored(t *testing.T) {
	b := archivetest.NewMemory()
	w := archivetest.New(t, b, archivetest.SampleStore, object.Key{})
	old, other := w.NewGroup("name", 1), w.NewGroup("name", 2)
	old.Put(1, "old")
	w.Log(old)
	before := w.Now()
	old.Delete(1)
	old.Gone = true
	w.Log(old)
	other.Put(1, "new")
	w.Log(other)
	for when, want := range map[time.Time]*archivetest.Group{before: old, w.Now(): other} {
		g := groupsByName(at(t, open(t, b, w), when))["name"]
		if g.Source != want.UUID || g.Err != nil {
			t.Errorf("at %v: %+v, not group %s", when, g, want.UUID)
		}
	}
}

// A group whose objects are missing or damaged is reported, and the other groups can be restored.
func TestABrokenGroupIsNamed(t *testing.T) {
	b := archivetest.NewMemory()
	w := archivetest.Sample(t, b, object.Key{}, 50)
	name := w.Name(object.CatalogueName(w.Groups[0].UUID, 2))
	for what, content := range map[string][]byte{
		"cut": b.Get(name)[:100], "of another kind": b.Get(w.Name(object.ArchiveName)),
	} {
		b.Set(name, bytes.Clone(content))
		r := at(t, open(t, b, w), w.Now())
		broken := groupsByName(r)[""]
		if broken.Source != w.Groups[0].UUID || !reader.IsBroken(broken.Err) {
			t.Errorf("%s: %+v", what, broken)
		}
		if _, err := r.Image(t.Context(), broken.UUID, founder); !reader.IsBroken(err) {
			t.Errorf("%s: error %v", what, err)
		}
		i, err := r.Image(t.Context(), GroupUUID(newStore, w.Groups[1].UUID), founder)
		if err == nil {
			err = check(t.Context(), i, w.Groups[1], w.Groups[1].Through())
		}
		if err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// All groups of a store with hash routing are listed, including those that the archive does not have.
func TestHashRoutingNamesAllGroups(t *testing.T) {
	b := archivetest.NewMemory()
	w := archivetest.New(t, b, archivetest.SampleStore, object.Key{})
	g := w.NewGroup("1", 1)
	g.Put(1, "x")
	w.Log(g)
	b.Set(w.Name(object.ArchiveName), w.Encode(&object.Archive{
		Store: "quotes", Created: archivetest.Begin.UnixNano(), Routing: "hash", Groups: 3, Lanes: 1,
	}, nil))
	r := at(t, open(t, b, w), w.Now())
	groups := groupsByName(r)
	if len(groups) != 3 || groups["1"].Err != nil || !errors.Is(groups["0"].Err, fs.ErrNotExist) ||
		!errors.Is(groups["2"].Err, fs.ErrNotExist) || r.Archive().Groups != 3 || r.Store() != newStore {
		t.Errorf("groups %+v", groups)
	}
}

// If there is memory for one group, only one image may be open at a time. A second call for the same group uses the
// plan again.
func TestOneImageIsOpenAtATime(t *testing.T) {
	b := archivetest.NewMemory()
	w := archivetest.Sample(t, b, object.Key{}, 50)
	r := at(t, open(t, b, w), w.Now())
	r.patience, r.room = 0, imageBytes+1<<20
	r.images = newImages(r.room)
	alpha, beta := GroupUUID(newStore, w.Groups[0].UUID), GroupUUID(newStore, w.Groups[1].UUID)
	first, err := r.Image(t.Context(), alpha, founder)
	if err != nil {
		t.Fatal(err)
	}
	for _, g := range []uuid.UUID{alpha, beta} {
		if _, err := r.Image(t.Context(), g, founder); !errors.Is(err, ErrBusy) {
			t.Errorf("error %v", err)
		}
	}
	for range 2 { // a second Close must not release the reservation of another image
		if err := first.Close(); err != nil {
			t.Fatal(err)
		}
	}
	b.Opens()
	again, err := r.Image(t.Context(), alpha, founder+2)
	if err != nil || b.Opens() > 0 || again.plan != first.plan {
		t.Fatalf("the group was read again, error %v", err)
	}
	_ = first.Close()
	if _, err := r.Image(t.Context(), beta, founder); !errors.Is(err, ErrBusy) {
		t.Errorf("error %v", err)
	}
	_ = again.Close()
	names := b.Names()
	name := names[slices.IndexFunc(names, func(name string) bool {
		return strings.Contains(name, w.Groups[3].UUID.String()+"/seg/")
	})] // the bodies of log objects are in memory
	content := b.Get(name)
	b.Set(name, nil)
	// A failed Image releases the reservation, too.
	if _, err := r.Image(t.Context(), GroupUUID(newStore, w.Groups[3].UUID), founder); !reader.IsBroken(err) {
		t.Errorf("error %v", err)
	}
	b.Set(name, content)
	other, err := r.Image(t.Context(), beta, founder)
	if err != nil || len(r.images.idle) > 0 {
		t.Fatalf("error %v, plans %v", err, r.images.idle)
	}
	_ = other.Close()
}

func TestInvalidRestoreIsRefused(t *testing.T) {
	b := archivetest.NewMemory()
	w := archivetest.Sample(t, b, object.Key{}, 50)
	for _, store := range []uuid.UUID{w.Store, {}} {
		if _, err := New(t.Context(), open(t, b, w), store, w.Now()); err == nil {
			t.Errorf("store %s is accepted", store)
		}
	}
	r := at(t, open(t, b, w), w.Now())
	if _, err := r.Image(t.Context(), w.Groups[0].UUID, founder); !errors.Is(err, ErrUnknown) {
		t.Errorf("error %v", err)
	}
	if _, err := r.Image(t.Context(), GroupUUID(newStore, w.Groups[0].UUID), 0); err == nil {
		t.Error("a founder without an id is accepted")
	}
}

// A restore of everything that was archived takes each group as it was last archived, even if the archive covers one of
// the groups only up to an earlier time. A source that starts again takes the same state, although the archive has
// grown.
func TestEverythingThatIsArchivedIsRestored(t *testing.T) {
	b := archivetest.NewMemory()
	w := archivetest.New(t, b, archivetest.SampleStore, object.Key{})
	idle, busy := w.NewGroup("idle", 1), w.NewGroup("busy", 2)
	idle.Put(1, "written once")
	w.Log(idle, busy)
	w.Wait(60)
	busy.Put(2, "written last")
	w.Log(busy) // no object says that the group idle is covered up to now
	all := func(upTo time.Time) *Restore {
		t.Helper()
		r, err := NewUpTo(t.Context(), open(t, b, w), newStore, upTo)
		if err != nil {
			t.Fatal(err)
		}
		r.limits = tiny
		return r
	}
	groups, err := open(t, b, w).Groups(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	last := reader.Newest(groups)
	if every := reader.Covered(groups); !every.Before(last) || every.UnixNano() >= busy.CommitTime(busy.Through()) {
		t.Fatalf("all groups are covered up to %v, one up to %v: the test needs a last write between them", every, last)
	}
	states := map[string]uint64{"idle": idle.Through(), "busy": busy.Through()}
	for range 2 {
		for name, g := range groupsByName(all(last)) {
			if g.Err != nil || g.Index != states[name] {
				t.Errorf("%s as of index %d, archived up to %d; error %v", name, g.Index, states[name], g.Err)
			}
		}
		w.Wait(60)
		busy.Put(2, "written later")
		w.Log(busy)
	}
	// If objects are missing, the end of what is left is not the state of the group.
	w.Wait(60)
	idle.Put(1, "lost")
	lost := w.Name(w.Log(idle))
	idle.Put(1, "not readable")
	w.Log(idle)
	if err := b.Delete(t.Context(), lost); err != nil {
		t.Fatal(err)
	}
	if g := groupsByName(all(w.Now()))["idle"]; !errors.Is(g.Err, reader.ErrRefused) {
		t.Errorf("a group of which an object is missing: %+v", g)
	}
}
