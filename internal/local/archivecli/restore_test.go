package archivecli

import (
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"sheaf.dev/sheaf/internal/archive/object"
	"sheaf.dev/sheaf/internal/test/archivetest"
)

// The source of a restore starts again after the archive has got older and newer entries. It serves what it served
// before.
func TestASourceThatStartsAgainServesTheSameState(t *testing.T) {
	b := archivetest.NewMemory()
	w := archivetest.New(t, b, archivetest.SampleStore, object.Key{})
	busy, slow := w.NewGroup("busy", 1), w.NewGroup("slow", 2)
	for _, g := range w.Groups {
		g.Put(1, "one")
		w.Copy(g, 10)
	}
	w.Log(busy, slow)
	slow.Put(1, "written before the restore, and archived later")
	busy.Put(1, "two")
	w.Log(busy)
	into := uuid.UUID{9}
	s := Source{Bucket: b, Store: w.Store.String()}
	var warned []string
	start := func(s Source, upTo time.Time) (map[string]uint64, time.Time) {
		t.Helper()
		r, when, err := s.RestoreAsArchived(t.Context(), into, upTo, w.Now,
			func(text string) { warned = append(warned, text) })
		if err != nil {
			t.Fatal(err)
		}
		indexes := map[string]uint64{}
		for _, g := range r.Groups() {
			indexes[g.Name] = g.Index
		}
		return indexes, when
	}
	s.NoUse = true
	if got, _ := start(s, time.Time{}); got["slow"] != 1 || len(pointsOf(b)) > 0 {
		t.Errorf("without a use: %v, points %q", got, pointsOf(b))
	}
	s.NoUse = false
	first, when := start(s, time.Time{})
	if first["busy"] != 2 || first["slow"] != 1 || len(pointsOf(b)) != 1 {
		t.Fatalf("%v, points %q", first, pointsOf(b))
	}
	slow.Put(1, "written behind the restore")
	late := w.NewGroup("late", 3)
	late.Put(1, "one")
	w.Copy(late, 10)
	w.Log(busy, slow, late)
	for _, upTo := range []time.Time{{}, when} {
		if again, at := start(s, upTo); again["busy"] != 2 || again["slow"] != 1 || len(again) != 2 || !at.Equal(when) {
			t.Errorf("up to %v: %v as of %v, before %v as of %v", upTo, again, at, first, when)
		}
	}
	if _, _, err := s.RestoreAsArchived(t.Context(), into, when.Add(1), w.Now, nil); err == nil ||
		!strings.Contains(err.Error(), "has begun as of") {
		t.Errorf("another time: %v", err)
	}
	if len(warned) > 0 {
		t.Errorf("warned: %q", warned)
	}
}

func pointsOf(b *archivetest.Memory) (found []string) {
	for _, name := range b.Names() {
		if strings.Contains(name, "/"+object.PointPrefix) {
			found = append(found, name)
		}
	}
	return found
}
