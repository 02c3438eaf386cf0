package archiver

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"sheaf.dev/sheaf/internal/archive/object"
)

// keyIDs returns the key id of each object in a bucket.
func keyIDs(t *testing.T, m *memory) map[string]object.KeyID {
	t.Helper()
	ids := map[string]object.KeyID{}
	for _, name := range m.names("") {
		b, _ := m.get(name)
		e, err := object.DecodeEnvelope(b)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		ids[name] = e.KeyID
	}
	return ids
}

// An archiver without the key of an archive, or with another one, ends before it writes anything, and names the key.
// With the key, and a newer one before it, it continues the archive: what exists stays, and what is new is encrypted
// with the newer key.
func TestAnArchiverWithoutTheKeyWritesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &scene{t: t, model: newModel(7, 2), memory: newMemory()}
		s.model.write(s.model.one(0), 100)
		s.memory.rotate()
		keys := s.memory.keys
		s.restart(smallLimits)
		time.Sleep(10 * time.Minute)
		s.current()
		if err := s.end(); err != nil {
			t.Fatal(err)
		}
		first := keyIDs(t, s.memory)
		for name, id := range first {
			if plain := strings.HasSuffix(name, object.ArchiveName); plain != (id == object.KeyID{}) ||
				!plain && id != keys.First().ID() {
				t.Errorf("%s has key id %s", name, id)
			}
		}

		s.memory.rotate()
		newer := s.memory.keys
		s.model.write(s.model.one(0), 100)
		for what, wrong := range map[string]object.Keys{"no key": nil, "another key": newer[:1]} {
			s.memory.keys = wrong
			s.restart(smallLimits)
			time.Sleep(10 * time.Minute)
			err, ended := s.hasEnded()
			if !ended || !errors.Is(err, object.ErrKey) || !strings.Contains(err.Error(), keys.First().ID().String()) {
				t.Errorf("%s: %v", what, err)
			}
			s.stop()
			if n := len(s.memory.names("")); n != len(first) {
				t.Errorf("%s: %d objects became %d", what, len(first), n)
			}
		}

		s.memory.keys = newer
		s.restart(smallLimits)
		time.Sleep(10 * time.Minute)
		s.current()
		if err := s.end(); err != nil {
			t.Error(err)
		}
		created := 0
		for name, id := range keyIDs(t, s.memory) {
			if before, ok := first[name]; ok && id != before {
				t.Errorf("%s was replaced", name)
			} else if !ok && id != newer.First().ID() {
				t.Errorf("%s has key id %s", name, id)
			} else if !ok {
				created++
			}
		}
		if created == 0 {
			t.Error("nothing was archived with the newer key")
		}
	})
}

// An archiver that is superseded by one with a newer key stops. It cannot read who the other one is, and does not claim
// to know it.
func TestASupersededArchiverLacksTheNewerKey(t *testing.T) {
	inScene(t, 1, standardLimits, func(s *scene) {
		before := s.process
		s.memory.rotate()
		s.restart(standardLimits)
		s.model.write(s.model.one(0), 10)
		time.Sleep(time.Minute)
		err, ended := before.hasEnded()
		var other *TakenOverError
		if !ended || !errors.As(err, &other) || strings.Contains(err.Error(), "00000000-") {
			s.t.Errorf("the first archiver: %v", err)
		}
		names := s.memory.names("")
		if ids := keyIDs(s.t, s.memory); !slices.ContainsFunc(names, func(name string) bool {
			return ids[name] == s.memory.keys.First().ID()
		}) {
			s.t.Error("the second archiver has created nothing")
		}
	})
}
