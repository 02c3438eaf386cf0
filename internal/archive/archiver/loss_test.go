package archiver

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"sheaf.dev/sheaf/internal/archive/reader"
	"sheaf.dev/sheaf/internal/storage/group/format"
)

// put writes a version of a record, and returns its index.
func (m *model) put(g *modelGroup, id int64, data string) uint64 {
	at := m.add1(g, format.KindPut, id)
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, entries := range [][]format.Entry{g.all, g.kept} {
		entries[len(entries)-1].Data = []byte(data)
	}
	return at
}

// dataAsOf reads the data of the group's records from the bucket.
func (s *scene) dataAsOf(g *modelGroup, at uint64) map[int64]string {
	s.t.Helper()
	a, err := reader.Open(s.t.Context(), newView(s.memory, 0, 0), s.model.store, nil)
	if err != nil {
		s.t.Fatal(err)
	}
	r, err := a.Group(s.t.Context(), g.id)
	if err != nil {
		s.t.Fatal(err)
	}
	data := make(map[int64]string)
	for v, err := range r.State(s.t.Context(), at) {
		if err != nil {
			s.t.Fatal(err)
		}
		data[v.Entry.ID] = string(v.Entry.Data)
	}
	return data
}

// Everything was archived, and then the store lost entries, and went on without them. From then on, the archive has
// what the store has: older versions, records that were deleted before, and no record that was lost. What it had before
// stays readable.
func TestWhatALossBringsBackIsArchived(t *testing.T) {
	for _, isBehind := range []bool{false, true} {
		inScene(t, 1, smallLimits, func(s *scene) {
			t, g, m := s.t, s.model.one(0), s.model
			m.put(g, 100, "old")
			m.put(g, 101, "old")
			m.put(g, 102, "old")
			m.put(g, 103, "old")
			greatest := m.add1(g, format.KindDelete, 103)
			lost := []uint64{m.put(g, 100, "new"), m.add1(g, format.KindDelete, 101), m.put(g, 103, "again"),
				m.put(g, 104, "lost")}
			if !isBehind {
				greatest = m.put(g, 105, "not lost")
			}
			time.Sleep(time.Minute)
			synctest.Wait()
			archived := m.holdOf(g)
			m.lose(g, greatest, lost...)
			end := m.put(g, 106, "behind the loss")
			time.Sleep(12 * time.Minute)
			synctest.Wait()
			if m.holdOf(g) != end {
				t.Fatalf("archived up to %d, the group ends at %d: %+v", m.holdOf(g), end, s.Status())
			}
			before := s.dataAsOf(g, archived)
			if before[100] != "new" || before[101] != "" || before[103] != "again" || before[104] != "lost" {
				t.Errorf("as of index %d, before the loss: %v", archived, before)
			}
			want := map[int64]string{100: "old", 101: "old", 102: "old", 106: "behind the loss"}
			if !isBehind {
				want[105] = "not lost"
			}
			after := s.dataAsOf(g, end)
			for id := int64(100); id < 107; id++ {
				if after[id] != want[id] {
					t.Errorf("behind the loss, record %d is %q, want %q", id, after[id], want[id])
				}
			}
			s.current()
		})
	}
}

// A group loses entries before its first copy. The archive then never had them, and has no hole for that: its history
// begins at the loss.
func TestAGroupLosesEntriesBeforeItsFirstCopy(t *testing.T) {
	for _, isBehind := range []bool{false, true} {
		inScene(t, 1, smallLimits, func(s *scene) {
			t, m := s.t, s.model
			m.mu.Lock()
			g := m.add(1)
			m.mu.Unlock()
			m.put(g, 100, "old")
			greatest := m.put(g, 101, "old")
			lost := []uint64{m.put(g, 100, "new"), m.add1(g, format.KindDelete, 101), m.add1(g, format.KindEmpty, 0),
				m.put(g, 102, "lost")}
			if !isBehind {
				greatest = m.put(g, 103, "not lost")
			}
			m.lose(g, greatest, lost...)
			begins := g.applied()
			end := m.put(g, 102, "behind the loss") // does not supersede the lost version, which was gone before
			time.Sleep(time.Minute)
			synctest.Wait()
			r := s.current().groups[g.id]
			if len(r.holes) > 0 || r.floor != begins {
				t.Errorf("the archive begins at %d, with the holes %v, want %d and none", r.floor, r.holes, begins)
			}
			want := map[int64]string{100: "old", 101: "old", 102: "behind the loss"}
			if !isBehind {
				want[103] = "not lost"
			}
			after := s.dataAsOf(g, end)
			for id := int64(100); id < 104; id++ {
				if after[id] != want[id] {
					t.Errorf("behind the loss, record %d is %q, want %q", id, after[id], want[id])
				}
			}
		})
	}
}

// Void entries of the copy hide neither the versions that came back nor the deletes.
func TestALossIgnoresVoidEntries(t *testing.T) {
	put := func(id int64, at uint64) *format.Entry { return &format.Entry{Kind: format.KindPut, ID: id, Index: at} }
	d := newDifference(reader.End{Live: []reader.Live{{ID: 1, Index: 8}, {ID: 2, Index: 9}}}, 10, 1<<32, true)
	entries := []*format.Entry{put(1, 3), put(2, 4), put(1, 7), put(3, 6), put(2, 9), put(4, 12), put(4, 7),
		put(5, 8), put(5, 10), put(5, 9), put(6, 8)}
	for _, e := range entries {
		d.truncate(e.Index)
		d.add(e, 0)
	}
	voids := newVoids(d.loss.voided)
	var counts []bool
	for _, e := range entries {
		counts = append(counts, !voids.next(e.Index))
	}
	want := []bool{true, true, false, true, false, false, true, false, false, false, true}
	if !slices.Equal(counts, want) {
		t.Errorf("the entries that count are %v, want %v", counts, want)
	}
}

// After a loss, an entry that no majority had may count in the store. The archive has another one with its index.
func TestALossTellsEntriesOfOneIndexApart(t *testing.T) {
	d := newDifference(reader.End{Live: []reader.Live{{ID: 1, Index: 8, Checksum: 5}, {ID: 2, Index: 9, Checksum: 6}}}, 10,
		1<<32, true)
	d.loss.begin(2)
	d.compare(&format.Entry{Kind: format.KindPut, ID: 1, Index: 8}, 5)
	d.compare(&format.Entry{Kind: format.KindPut, ID: 2, Index: 9}, 7)
	d.findBack()
	if back := d.loss.back; len(back) != 1 || back[0].ID != 2 {
		t.Errorf("what comes back is %v, want record 2", back)
	}
}
