package archiver

import (
	"context"
	"errors"
	"iter"
	"maps"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"

	"sheaf.dev/sheaf/internal/archive/object"
	"sheaf.dev/sheaf/internal/archive/reader"
	"sheaf.dev/sheaf/internal/storage/group/format"
)

// add1 writes one entry of a kind.
func (m *model) add1(g *modelGroup, kind format.Kind, id int64) uint64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	e := format.Entry{Kind: kind, ID: id, Index: g.applied() + 1, Term: 3, CommitTime: time.Now().UnixNano()}
	g.all, g.kept = append(g.all, e), append(g.kept, e)
	return e.Index
}

// holdOf returns the index that the archiver has last reported for a group.
func (m *model) holdOf(g *modelGroup) uint64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return g.hold
}

// deletesOf returns the index up to which deletes of a group may be missing.
func (m *model) deletesOf(g *modelGroup) uint64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return g.deletes
}

// recordsAsOf reads a group's records from the bucket as a user of the archive does.
func (s *scene) recordsAsOf(g *modelGroup, at uint64) (ids []int64, err error) {
	s.t.Helper()
	a, err := reader.Open(context.Background(), newView(s.memory, 0, 0), s.model.store, nil)
	if err != nil {
		s.t.Fatal(err)
	}
	r, err := a.Group(context.Background(), g.id)
	if err != nil {
		s.t.Fatal(err)
	}
	for v, err := range r.State(context.Background(), at) {
		if err != nil {
			return nil, err
		}
		ids = append(ids, v.Entry.ID)
	}
	slices.Sort(ids)
	return ids, nil
}

// Deletes are dropped before they are archived. The archive must not show the deleted records as of any index behind
// the hole, and must still have the history before it.
func TestDeletesThatTheStoreHasDroppedAreFound(t *testing.T) {
	inScene(t, 1, smallLimits, func(s *scene) {
		t, g, m := s.t, s.model.one(0), s.model
		m.add1(g, format.KindPut, 100)
		for id := int64(101); id < 106; id++ {
			m.add1(g, format.KindPut, id)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		archived := m.holdOf(g)
		for id := int64(100); id < 104; id++ {
			m.add1(g, format.KindDelete, id)
		}
		m.add1(g, format.KindPut, 101) // the delete of record 101 was superseded, and record 101 exists
		m.compact(g, true)
		m.compact(g, true)
		last := g.applied()
		m.add1(g, format.KindPut, 102) // record 102 did not exist before, and its delete is missing
		time.Sleep(12 * time.Minute)
		synctest.Wait()
		r := s.current().groups[g.id]
		if want := (object.Hole{From: archived + 1, To: m.deletesOf(g)}); len(r.holes) != 1 || r.holes[0].From != want.From ||
			r.holes[0].To < want.To || r.holes[0].To > last {
			t.Errorf("the holes are %v; the deletes above %d and up to %d are missing", r.holes, archived, m.deletesOf(g))
		}
		for at, want := range map[uint64][]int64{
			archived - 1: {100, 101, 102, 103, 104},
			archived:     {100, 101, 102, 103, 104, 105},
			last:         {101, 104, 105},
			last + 1:     {101, 102, 104, 105},
		} {
			got, err := s.recordsAsOf(g, at)
			got = slices.DeleteFunc(got, func(id int64) bool { return id < 100 })
			if err != nil || !slices.Equal(got, want) {
				t.Errorf("as of index %d the records are %v, %v, want %v", at, got, err, want)
			}
		}
		if _, err := s.recordsAsOf(g, archived+1); err == nil {
			t.Error("a read in the hole is answered")
		}
		if report, err := reader.Verify(context.Background(), s.view, m.store, nil, reader.VerifyOptions{}); err != nil ||
			len(report.Problems) > 0 {
			t.Errorf("verify: %+v, %v", report.Problems, err)
		}
	})
}

// While an object of the group's archive is missing, nobody can find out which deletes are missing. The archiver says
// so, and does not continue. If a leader that has the deletes answers, the archiver continues without a hole.
func TestALeaderThatHasTheDeletesIsTaken(t *testing.T) {
	inScene(t, 1, smallLimits, func(s *scene) {
		t, g, m := s.t, s.model.one(0), s.model
		m.onAsked(nil)
		m.add1(g, format.KindPut, 100)
		time.Sleep(12 * time.Minute)
		synctest.Wait()
		saved := maps.Clone(s.memory.objects)
		s.memory.mu.Lock()
		for name := range s.memory.objects {
			if strings.Contains(name, "/seg/") {
				delete(s.memory.objects, name)
			}
		}
		s.memory.mu.Unlock()
		m.add1(g, format.KindDelete, 100)
		m.mu.Lock()
		g.deletes = g.applied()
		m.mu.Unlock()
		before := m.holdOf(g)
		time.Sleep(12 * time.Minute)
		synctest.Wait()
		if at := s.Status(); at.Errors[ReasonSource] == 0 || !strings.Contains(at.LastError, "/seg/") {
			t.Errorf("the status has the errors %v, the last one is %s", at.Errors, at.LastError)
		}
		if m.holdOf(g) != before {
			t.Errorf("the archiver has continued from %d to %d", before, m.holdOf(g))
		}
		s.memory.mu.Lock()
		maps.Copy(s.memory.objects, saved)
		s.memory.mu.Unlock()
		m.mu.Lock()
		g.deletes = 0
		m.mu.Unlock()
		time.Sleep(12 * time.Minute)
		synctest.Wait()
		if r := s.current().groups[g.id]; len(r.holes) > 0 {
			t.Errorf("holes %v", r.holes)
		}
	})
}

// heldCatalogue lets the archiver put versions of record 100 into a segment, and holds up the catalogue that would list
// the segment until the returned channel is closed. The record is then deleted, and the delete is dropped.
func (s *scene) heldCatalogue(g *modelGroup) (blocked chan struct{}) {
	s.t.Helper()
	s.model.onAsked(nil)
	s.model.steady = true
	time.Sleep(30 * time.Second)
	synctest.Wait()
	path := object.CataloguePrefix(g.id)
	blocked = make(chan struct{})
	waits := make(chan struct{})
	s.view.change(func(v *view) {
		v.hook = func(op, name string) {
			if op == "create" && strings.Contains(name, path) {
				close(waits)
				<-blocked
			}
		}
	})
	s.model.mu.Lock()
	for range 9 {
		e := format.Entry{Kind: format.KindPut, ID: 100, Index: g.applied() + 1, Term: 3, CommitTime: time.Now().UnixNano(),
			Data: make([]byte, 1500)}
		g.all, g.kept = append(g.all, e), append(g.kept, e)
	}
	s.model.mu.Unlock()
	<-waits
	s.model.add1(g, format.KindDelete, 100)
	for range 2 {
		s.model.compact(g, true)
	}
	return blocked
}

// isGone checks that the first archiver was taken over, that the archive has everything, and that record 100 is gone.
func (s *scene) isGone(first *process, g *modelGroup) {
	s.t.Helper()
	synctest.Wait()
	var other *TakenOverError
	if err := first.end(); !errors.As(err, &other) {
		s.t.Errorf("the first archiver ended by %v", err)
	}
	if got, err := s.recordsAsOf(g, g.applied()); err != nil || slices.Contains(got, 100) {
		s.t.Errorf("at the end, the records are %v, error %v", got, err)
	}
	all := map[uuid.UUID]uint64{g.id: g.applied()}
	if _, err := s.model.check(s.memory, all); err != nil {
		s.t.Error(err)
	}
}

// While a copy is made, the archiver's predecessor tries to create a catalogue. It lists a record that was put behind
// the end of the archive with which the copy is compared. The record was deleted, and nothing has the delete.
func TestNoLateCatalogueComesWithinACopy(t *testing.T) {
	inScene(t, 2, smallLimits, func(s *scene) {
		t, g := s.t, s.model.one(0)
		blocked := s.heldCatalogue(g)
		first := s.process
		s.model.add1(g, format.KindPut, 101)
		copies, goOn := make(chan struct{}, 1), make(chan struct{})
		s.view = newView(s.memory, 1, 0)
		s.view.hook = func(op, name string) {
			if op == "create" && strings.Contains(name, "/seg/") && strings.Contains(name, g.id.String()) {
				select {
				case copies <- struct{}{}:
					<-goOn
				default:
				}
			}
		}
		s.process = begin(s.model, s.view, smallLimits)
		time.Sleep(time.Minute)
		synctest.Wait()
		if len(copies) == 0 {
			t.Fatal("no copy is in progress")
		}
		close(blocked)
		for range 2 * smallLimits.renewAfter { // so that a new catalogue of each group is due
			s.model.write(s.model.one(1), 10)
			time.Sleep(10 * time.Second)
		}
		close(goOn)
		time.Sleep(12 * time.Minute)
		s.isGone(first, g)
	})
}

// A copy has no entries, so it needs no catalogue. The archiver's predecessor tries to create one long after it.
func TestNoLateCatalogueComesBehindACopy(t *testing.T) {
	inScene(t, 2, smallLimits, func(s *scene) {
		t, g := s.t, s.model.one(0)
		blocked := s.heldCatalogue(g)
		first := s.process
		s.view = newView(s.memory, 1, 0)
		s.process = begin(s.model, s.view, smallLimits)
		time.Sleep(12 * time.Minute)
		synctest.Wait()
		if s.model.holdOf(g) != g.applied() {
			t.Errorf("the archive ends at %d, and the group at %d", s.model.holdOf(g), g.applied())
		}
		close(blocked)
		time.Sleep(12 * time.Minute)
		s.isGone(first, g)
	})
}

// A catalogue of the archiver's predecessor turns up before the archive is read for a copy. The archiver adopts the
// catalogue at once. Otherwise no copy would succeed until the group needs a catalogue for another reason.
func TestALateCatalogueDoesNotStopCopies(t *testing.T) {
	inScene(t, 2, smallLimits, func(s *scene) {
		g := s.model.one(0)
		blocked := s.heldCatalogue(g)
		first := s.process
		s.model.add1(g, format.KindPut, 101)
		isLate := false
		s.model.onAsked(func(map[uuid.UUID]uint64) { // the archiver has started
			if !isLate {
				isLate = true
				close(blocked)
				time.Sleep(time.Second)
			}
		})
		s.view = newView(s.memory, 1, 0)
		s.process = begin(s.model, s.view, smallLimits, func(o *Options) { o.Roll = 24 * time.Hour })
		time.Sleep(3 * copyAgainPause)
		s.isGone(first, g)
	})
}

// A void entry of a deleted record does not count as a version of the record. Neither does a void entry take an index.
func TestADifferenceIgnoresVoidEntries(t *testing.T) {
	put := func(id int64, at uint64) *format.Entry {
		return &format.Entry{Kind: format.KindPut, ID: id, Index: at, CommitTime: int64(at)}
	}
	d := newDifference(reader.End{Live: []reader.Live{{ID: 1}, {ID: 2}, {ID: 3}, {ID: 4}}, Term: 2, CommitTime: 10},
		10, 20,
		false)
	commit := int64(0)
	for _, e := range []*format.Entry{put(2, 5), put(1, 7), put(9, 7), put(1, 13), put(3, 19), put(8, 12), put(8, 14),
		put(8, 15), put(8, 18), put(4, 21)} {
		d.truncate(e.Index)
		d.add(e, min(commit, int64(e.Index)))
		commit = e.CommitTime
	}
	last, ok := d.close(commit)
	var got [][3]uint64
	for e := range d.deletes() {
		got = append(got, [3]uint64{uint64(e.ID), e.Index, uint64(e.CommitTime)})
		if e.Kind != format.KindDelete || e.Term != 2 {
			t.Errorf("%+v", e)
		}
	}
	// Record 2 has a version in the copy. The versions of records 1 and 3 are void, and that of record 4 is too new.
	if want := [][3]uint64{{1, 11, 10}, {3, 13, 12}, {4, 16, 15}}; !ok || last != 16 || !slices.Equal(got, want) {
		t.Errorf("deletes (record, index, commit time) %v, the last one at %d, %t, want %v", got, last, ok, want)
	}
	d = newDifference(reader.End{Live: []reader.Live{{ID: 1}}}, 10, 10, false)
	if last, ok := d.close(0); ok {
		t.Errorf("there is no index for a delete, and it got %d", last)
	}
}

// A full disk may drop the deletes of most records of a group. A delete takes memory only while it is used.
func TestMissingDeletesAreNotInMemoryAllAtOnce(t *testing.T) {
	const records = 1 << 16
	live := make([]reader.Live, records)
	for i := range live {
		live[i].ID = int64(i)
	}
	d := newDifference(reader.End{Live: live, Term: 2, CommitTime: 10}, 10, 10+records, false)
	if last, ok := d.close(0); !ok || last != 10+records {
		t.Fatalf("the last delete has index %d, %t", last, ok)
	}
	next, stop := iter.Pull(d.deletes())
	defer stop()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	e, ok := next()
	runtime.ReadMemStats(&after)
	if !ok || e.Index != 11 {
		t.Fatalf("the first delete is %+v, %t", e, ok)
	}
	if bytes := after.TotalAlloc - before.TotalAlloc; bytes > 16*records {
		t.Errorf("before the first of %d deletes is used, they take %d bytes", records, bytes)
	}
}

// The commit time of a dropped delete is not known. If its index is the only free one, reads as of the times at which
// the record may still have existed are refused. While the delete is the last entry of the group, there is no index
// behind it that could say so, and the archiver does not continue.
func TestTheTimeOfADroppedDeleteIsNotInvented(t *testing.T) {
	inScene(t, 1, smallLimits, func(s *scene) {
		t, g, m := s.t, s.model.one(0), s.model
		m.add1(g, format.KindPut, 100)
		time.Sleep(time.Minute)
		synctest.Wait()
		before := m.holdOf(g)
		existed := time.Now()
		time.Sleep(time.Second)
		m.add1(g, format.KindDelete, 100)
		for range 2 {
			m.compact(g, true)
		}
		if before+1 != m.deletesOf(g) {
			t.Fatalf("archived up to %d, deletes are missing up to %d: the test needs one free index", before, m.deletesOf(g))
		}
		time.Sleep(12 * time.Minute)
		synctest.Wait()
		if at := s.Status(); m.holdOf(g) != before || at.Errors[ReasonSource] == 0 {
			t.Errorf("the archiver has continued from %d to %d, with the errors %v", before, m.holdOf(g), at.Errors)
		}
		m.add1(g, format.KindPut, 101)
		time.Sleep(12 * time.Minute)
		synctest.Wait()
		a, err := reader.Open(context.Background(), s.view, m.store, nil)
		if err != nil {
			t.Fatal(err)
		}
		r, err := a.Group(context.Background(), g.id)
		if err != nil {
			t.Fatal(err)
		}
		if index, err := r.At(context.Background(), existed); !errors.Is(err, reader.ErrRefused) {
			t.Errorf("when the record existed, the index was %d, error %v", index, err)
		}
		if got, err := s.recordsAsOf(g, g.applied()); err != nil || slices.Contains(got, 100) || !slices.Contains(got, 101) {
			t.Errorf("at the end, the records are %v, error %v", got, err)
		}
	})
}
