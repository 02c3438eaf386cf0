package archiver

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
)

// The archiver is killed at each of its calls, before and after the call takes effect. The bucket then always holds a
// valid archive, and the next archiver continues it without a hole.
func TestAKillAtEveryStep(t *testing.T) {
	if testing.Short() {
		t.Skip("of the long run")
	}
	for _, before := range []bool{true, false} {
		for at, more := 1, true; more; at++ {
			synctest.Test(t, func(t *testing.T) {
				w := &world{t: t, model: newModel(3, 2), memory: newMemory()}
				asked := 0
				w.model.asked = func(marks map[uuid.UUID]uint64) {
					if asked++; asked%10 != 1 {
						return
					}
					if _, err := w.model.check(w.memory, marks); err != nil {
						t.Errorf("marks %v: %v", marks, err)
					}
				}
				for range 10 {
					w.model.write(w.model.one(0), 300)
				}
				w.model.write(w.model.one(1), 300)
				v := newView(w.memory, 1, 0)
				v.killAt, v.before = at, before
				p := begin(w.model, v, smallLimits)
				for n := range 30 {
					for range 1 + 20*(n/29) {
						w.model.write(w.model.one(byte(n%2)), 400)
					}
					time.Sleep(10 * time.Second)
				}
				time.Sleep(6 * time.Minute)
				synctest.Wait()
				if err := p.end(); err != nil {
					t.Fatal(err)
				}
				if more = v.isDead; !more && at < 40 {
					t.Errorf("there were only %d steps", at)
				}
				if _, err := readArchive(w.memory, w.model.store); err != nil {
					t.Errorf("step %d, before %v: what is left is no archive: %v", at, before, err)
				}
				p = begin(w.model, newView(w.memory, 2, 0), smallLimits)
				time.Sleep(2 * time.Minute)
				synctest.Wait()
				if err := p.end(); err != nil {
					t.Fatal(err)
				}
				all := map[uuid.UUID]uint64{}
				for id, g := range w.model.groups {
					all[id] = g.applied()
				}
				a, err := w.model.check(w.memory, all)
				if err != nil {
					t.Fatalf("step %d, before %v: %v", at, before, err)
				}
				for _, r := range a.groups {
					if len(r.holes) > 0 {
						t.Fatalf("step %d, before %v: holes %v", at, before, r.holes)
					}
				}
			})
			if t.Failed() {
				return
			}
		}
	}
}
