package archiver

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"

	"sheaf.dev/sheaf/internal/archive/object"
	"sheaf.dev/sheaf/internal/archive/reader"
	"sheaf.dev/sheaf/internal/test/archivetest"
)

// While an archiver starts, its predecessor still writes: a catalogue with segments whose entries are in no log object,
// a log object that continues from it, and the first copy of a group. Compaction then drops what the predecessor has
// archived. In whichever step of the start this happens, the archiver continues from there, without a hole. A short run
// tries one step in four, because all steps run the same goroutines.
func TestAnArchiverStartsWhileItsPredecessorWrites(t *testing.T) {
	stride := int64(1)
	if testing.Short() {
		stride = 4
	}
	for step, more := int64(1), true; more && !t.Failed(); step += stride {
		inScene(t, 2, smallLimits, func(s *scene) {
			s.model.steady = true
			time.Sleep(30 * time.Second)
			first, g := s.process, s.model.one(0)
			var steps atomic.Int64
			s.view = newView(s.memory, 1, 0)
			begun := make(chan struct{})
			s.view.change(func(v *view) {
				v.hook = func(string, string) {
					if steps.Add(1) != step {
						return
					}
					<-begun
					if more = s.Status().Epoch == 0; !more {
						return // the start is over
					}
					s.model.mu.Lock()
					added := s.model.add(7)
					s.model.mu.Unlock()
					s.model.write(added, 100)
					s.writeMuch(g)
					time.Sleep(25 * time.Second)
					s.model.write(g, 10)
					s.model.write(added, 100)
					time.Sleep(25 * time.Second)
					s.model.compact(g, false)
					s.model.compact(added, false)
				}
			})
			s.process = begin(s.model, s.view, smallLimits)
			close(begun)
			time.Sleep(2 * time.Minute)
			s.writeMuch(g)
			time.Sleep(12 * time.Minute)
			s.tookOver(first, fmt.Sprintf("step %d", step))
		})
		if !more && step < 8 {
			t.Errorf("a start had only %d steps", step)
		}
	}
}

// An archiver that was taken over creates one more catalogue, just when its successor is about to create the catalogue
// of this number. The successor continues from the late catalogue.
func TestALateCatalogueIsAdopted(t *testing.T) {
	for name, c := range map[string]struct {
		before, after func(s *scene, g *modelGroup) // writes before and after the late catalogue was made
		group         byte
	}{
		"new entries": {
			before: func(s *scene, g *modelGroup) { s.writeMuch(g) },
			after:  func(s *scene, g *modelGroup) { s.writeMuch(g) },
		},
		"in the middle of a round": { // a jump of the index requires a log object before the entries behind it
			before: func(s *scene, g *modelGroup) { s.writeMuch(g) },
			after: func(s *scene, g *modelGroup) {
				s.writeMuch(g)
				s.model.jump(g)
				s.model.write(g, 10)
			},
		},
		"a first copy": {
			before: func(s *scene, g *modelGroup) {
				s.model.mu.Lock()
				s.model.add(7)
				s.model.mu.Unlock()
				s.writeMuch(s.model.one(7))
			},
			after: func(s *scene, _ *modelGroup) { s.writeMuch(s.model.one(7)) },
			group: 7,
		},
	} {
		t.Run(name, func(t *testing.T) {
			inScene(t, 2, smallLimits, func(s *scene) {
				t := s.t
				s.model.steady = true
				time.Sleep(30 * time.Second)
				first, g := s.process, s.model.one(0)
				path := object.CataloguePrefix(uuid.UUID{2, c.group})
				blocked, waits := make(chan struct{}), false
				s.view.change(func(v *view) {
					v.hook = func(op, name string) {
						if op == "create" && strings.Contains(name, path) {
							waits = true
							<-blocked
						}
					}
				})
				c.before(s, g)
				time.Sleep(30 * time.Second)
				if synctest.Wait(); !waits {
					t.Fatal("the first archiver creates no catalogue")
				}
				c.after(s, g)
				s.view = newView(s.memory, 1, 0)
				var late []byte // the late catalogue
				s.view.hook = func(op, name string) {
					if op == "create" && strings.Contains(name, path) && late == nil {
						close(blocked)
						time.Sleep(time.Minute)
						late, _ = s.memory.get(name)
					}
				}
				s.process = begin(s.model, s.view, smallLimits)
				time.Sleep(3 * time.Minute)
				if synctest.Wait(); late == nil {
					t.Fatal("no late catalogue was created")
				}
				s.model.compact(s.model.one(c.group), false)
				s.writeMuch(s.model.one(c.group))
				time.Sleep(12 * time.Minute)
				s.tookOver(first, name)
			})
		})
	}
}

// An archiver is held up in its start while a successor takes over and creates catalogues. It must not continue from
// the successor's catalogues, because its own would name an older log object.
func TestACatalogueOfASuccessorIsNotAdopted(t *testing.T) {
	inScene(t, 2, smallLimits, func(s *scene) {
		t := s.t
		s.model.steady = true
		time.Sleep(30 * time.Second)
		if err := s.end(); err != nil {
			t.Fatal(err)
		}
		g := s.model.one(0)
		var tookOver, held atomic.Bool
		s.view = newView(s.memory, 1, 0)
		s.view.hook = func(op, name string) {
			switch {
			case op == "create" && strings.Contains(name, object.LogPrefix):
				tookOver.Store(true)
			case tookOver.Load() && held.CompareAndSwap(false, true): // the archiver reads the catalogues again
				time.Sleep(5 * time.Minute)
				s.writeMuch(g)
			}
		}
		first := begin(s.model, s.view, smallLimits)
		time.Sleep(time.Minute)
		s.restart(smallLimits)
		s.writeMuch(g)
		time.Sleep(20 * time.Minute)
		s.tookOver(first, "held up")
	})
}

// No listing has the folder of a group yet. The group nevertheless continues from its catalogue and its pieces. If the
// archiver reads no log object with one of its pieces when it starts, it learns that from a second copy.
func TestAGroupThatIsNotListedYetContinues(t *testing.T) {
	for name, c := range map[string]struct{ catalogues, copies int }{
		"log objects have its pieces":             {0, 0},
		"all of its pieces are before catalogues": {2, 1},
	} {
		inScene(t, 1, smallLimits, func(s *scene) {
			t := s.t
			s.model.steady = true
			time.Sleep(5 * time.Minute)
			s.model.mu.Lock()
			g := s.model.add(7)
			s.model.mu.Unlock()
			for range 3 {
				s.model.write(g, 10)
				s.model.write(g, 10)
				time.Sleep(15 * time.Second)
			}
			for range c.catalogues {
				s.writeMuch(s.model.one(0))
				time.Sleep(15 * time.Second)
			}
			synctest.Wait()
			if err := s.end(); err != nil {
				t.Fatal(err)
			}
			for range 20 {
				s.model.write(g, 10)
			}
			s.model.compact(g, false)
			s.view = newView(s.memory, 1, 1)
			s.view.only = faultStale
			source := &copying{Source: s.model}
			s.process = begin(s.model, s.view, smallLimits, func(o *Options) { o.Source = source })
			time.Sleep(30 * time.Second)
			s.writeMuch(g)
			time.Sleep(12 * time.Minute)
			synctest.Wait()
			if s.view.fired[faultStale] == 0 || source.copies != c.copies {
				t.Errorf("%s: %d listings were out of date, and %d copies were made", name, s.view.fired[faultStale],
					source.copies)
			}
			s.tookOver(nil, name)
		})
	}
}

// copying counts the copies.
type copying struct {
	Source
	copies int
}

// Copy implements Source.
func (c *copying) Copy(ctx context.Context, id uuid.UUID) (GroupCopy, error) {
	c.copies++
	return c.Source.Copy(ctx, id)
}

// A predecessor could not read the group's newest catalogue, so its late one lacks a segment. The archiver keeps its
// own state, passes the number over, and creates a catalogue with all segments soon.
func TestALateCatalogueThatLacksASegmentIsPassedOver(t *testing.T) {
	id := uuid.UUID{2}
	one, two := object.SegmentRef{First: 1, Last: 10, ID: "1"}, object.SegmentRef{First: 11, Last: 20, ID: "2"}
	for name, c := range map[string]object.Catalogue{
		"a segment is missing": {Group: id, Segments: []object.SegmentRef{one}, Through: 30, Log: 3},
		"it ends earlier":      {Group: id, Segments: []object.SegmentRef{one, two}, Through: 19, Log: 3},
	} {
		own := object.Catalogue{Group: id, Segments: []object.SegmentRef{one, two}, Through: 20, Log: 4}
		g := &group{id: id, catalogue: own, number: 2, next: 25, fresh: []object.SegmentRef{{First: 21, Last: 25, ID: "3"}}}
		g.adopt(&c)
		if g.number != 3 || !g.isBroken || len(g.catalogue.Segments) != 2 || g.catalogue.Log != 4 || len(g.fresh) != 1 ||
			g.next != 25 {
			t.Errorf("%s: number %d, broken %v, catalogue %+v, fresh %v, next %d", name, g.number, g.isBroken, g.catalogue,
				g.fresh, g.next)
		}
	}
}

// writeMuch writes so much to a group that an archiver with smallLimits makes a segment of it at once.
func (s *scene) writeMuch(g *modelGroup) {
	for range 9 {
		s.model.write(g, 1500)
	}
}

// jump raises the index of a group's last entry.
func (m *model) jump(g *modelGroup) {
	m.write(g, 10)
	m.mu.Lock()
	defer m.mu.Unlock()
	g.all[len(g.all)-1].Index += 1 << 32
	g.kept[len(g.kept)-1].Index += 1 << 32
}

// tookOver checks that the current archiver has taken over from the first one, if that is not nil, and that it goes on.
// The archive has everything, no hole, no fault, and no segments that overlap.
func (s *scene) tookOver(first *process, when string) {
	t := s.t
	t.Helper()
	synctest.Wait()
	if err, ended := s.hasEnded(); ended {
		t.Errorf("%s: the archiver ended by %v", when, err)
	}
	var other *TakenOverError
	if first != nil {
		if err := first.end(); !errors.As(err, &other) || other.Writer != s.chain.writer {
			t.Errorf("%s: the archiver that was taken over ended by %v", when, err)
		}
	}
	for id, r := range s.current().groups {
		if len(r.holes) > 0 {
			t.Errorf("%s: group %s has the holes %v", when, id, r.holes)
		}
	}
	if n := s.Status().Errors[ReasonGap]; n != 0 {
		t.Errorf("%s: %d gaps, the last error is %q", when, n, s.Status().LastError)
	}
	b := s.memory.copy()
	report, err := reader.Verify(t.Context(), b, s.model.store, nil, reader.VerifyOptions{})
	if err != nil || len(report.Problems) > 0 {
		t.Errorf("%s: problems %v, error %v", when, report.Problems, err)
	}
	a, err := reader.Open(t.Context(), b, s.model.store, nil)
	if err != nil {
		t.Fatal(err)
	}
	groups, err := a.Groups(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, g := range groups {
		if g.Overlaps() {
			t.Errorf("%s: prune will not rewrite %s, because its segments overlap", when, g)
		}
	}
}

// copy returns the bucket's content as a bucket whose listings return the sizes of objects.
func (m *memory) copy() *archivetest.Memory {
	b := archivetest.NewMemory()
	for _, name := range m.names("") {
		content, _ := m.get(name)
		b.Set(name, content)
	}
	return b
}
