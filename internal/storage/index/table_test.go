package index

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"pgregory.net/rapid"

	"sheaf.dev/sheaf/internal/test/must"
	"sheaf.dev/sheaf/internal/test/soaktest"
)

func newTable(tb testing.TB, records int64) *Table {
	tb.Helper()
	table, err := New(records, nil)
	must.OK(tb, err)
	tb.Cleanup(table.Close)
	return table
}

func TestLocPacks(t *testing.T) {
	soaktest.Check(t, func(t *rapid.T) {
		ordinal := rapid.Uint32Range(1, OrdinalMax).Draw(t, "ordinal")
		offset := rapid.Int64Range(0, OffsetMax/8).Draw(t, "offset") * 8
		length := rapid.Int64Range(0, LengthMax).Draw(t, "length")
		tombstone := rapid.Bool().Draw(t, "tombstone")
		loc := MakeLoc(ordinal, offset, length, tombstone)
		if loc.Ordinal() != ordinal || loc.Offset() != offset || loc.Tombstone() != tombstone {
			t.Fatalf("packed %d %d %v, got %d %d %v", ordinal, offset, tombstone, loc.Ordinal(), loc.Offset(), loc.Tombstone())
		}
		if bound := loc.LengthBound(); bound < length || bound > length+63 {
			t.Fatalf("length %d has bound %d", length, bound)
		}
	})
}

// TestTableEqualsMap checks that the table gives the same results as a map after any sequence of calls.
func TestTableEqualsMap(t *testing.T) {
	soaktest.Check(t, func(t *rapid.T) {
		table, err := New(rapid.SampledFrom([]int64{0, 1, 5000}).Draw(t, "records"), nil)
		must.OK(t, err)
		defer table.Close()
		model := map[int64]Loc{}
		ids := rapid.OneOf(rapid.Int64Range(0, 40), rapid.Int64())
		for range rapid.IntRange(1, 3000).Draw(t, "calls") {
			id := ids.Draw(t, "id")
			loc := MakeLoc(rapid.Uint32Range(1, 9).Draw(t, "ordinal"), rapid.Int64Range(1, 99).Draw(t, "offset")*8, 64,
				rapid.Bool().Draw(t, "tombstone"))
			switch rapid.IntRange(0, 3).Draw(t, "call") {
			case 0, 1:
				old, won, err := table.Max(id, loc)
				want := model[id] == 0 || model[id].Less(loc)
				if err != nil || old != model[id] || won != want {
					t.Fatalf("Max(%d, %x) = %x %v %v, want %x %v", id, loc, old, won, err, model[id], want)
				}
				if want {
					model[id] = loc
				}
			case 2:
				if got, want := table.CompareAndSwap(id, model[id], loc), model[id] != 0; got != want {
					t.Fatalf("CompareAndSwap(%d) = %v", id, got)
				} else if got {
					model[id] = loc
				}
			case 3:
				if got, want := table.CompareAndDelete(id, model[id]), model[id] != 0; got != want {
					t.Fatalf("CompareAndDelete(%d) = %v", id, got)
				}
				delete(model, id)
			}
		}
		checkEqual(t, table, model)
	})
}

// TestDeleteInFullTable checks that deletes do not break a long run that wraps around the end of a stripe.
func TestDeleteInFullTable(t *testing.T) {
	table, model := newTable(t, 0), map[int64]Loc{}
	for id := range int64(50_000) {
		loc := MakeLoc(1, (id+1)*8, 64, id%7 == 0)
		if _, _, err := table.Max(id, loc); err != nil {
			t.Fatal(err)
		}
		model[id] = loc
	}
	for id := range int64(50_000) {
		if id%3 != 0 {
			if !table.CompareAndDelete(id, model[id]) {
				t.Fatalf("id %d was not there", id)
			}
			delete(model, id)
		}
	}
	checkEqual(t, table, model)
}

type fataler interface {
	Helper()
	Fatalf(format string, args ...any)
}

func checkEqual(t fataler, table *Table, model map[int64]Loc) {
	t.Helper()
	var live int64
	for id, want := range model {
		if got, ok := table.Get(id); !ok || got != want {
			t.Fatalf("Get(%d) = %x %v, want %x", id, got, ok, want)
		}
		live += int64(alive(want))
	}
	seen := map[int64]Loc{}
	table.Range(func(id int64, loc Loc) bool { seen[id] = loc; return true })
	if len(seen) != len(model) || table.Len() != int64(len(model)) || table.Live() != live {
		t.Fatalf("%d ids, Len %d, Live %d; want %d, %d live", len(seen), table.Len(), table.Live(), len(model), live)
	}
}

// hintRows returns rows sorted by Hash.
func hintRows(n int) (ids []int64, places []uint64) {
	ids = make([]int64, n)
	for i := range ids {
		ids[i] = int64(i)*7919 - math.MaxInt32
	}
	slices.SortFunc(ids, func(a, b int64) int {
		if Hash(a) < Hash(b) {
			return -1
		}
		return 1
	})
	places = make([]uint64, n)
	for i := range places {
		places[i] = uint64(MakeLoc(0, int64(i%(OffsetMax/8))*8+8, 100, false))
	}
	return ids, places
}

func TestFillEqualsMax(t *testing.T) {
	ids, places := hintRows(100_000)
	filled, single := newTable(t, 0), newTable(t, 200_000)
	var mu sync.Mutex
	lost := map[Loc]int{}
	onLost := func(loc Loc) { mu.Lock(); lost[loc]++; mu.Unlock() }
	odd := func(row int) bool { return row%2 == 1 }
	for _, ordinal := range []uint32{2, 3, 1} {
		must.OK(t, filled.Fill(ids, places, ordinal, odd, onLost))
		if live := filled.Live(); live != int64(len(ids)/2) {
			t.Fatalf("ordinal %d: %d live", ordinal, live)
		}
	}
	for r := 0; r < len(ids); r += 2 {
		if _, _, err := single.Max(ids[r], Loc(places[r])|3<<44); err != nil {
			t.Fatal(err)
		}
		if lost[Loc(places[r])|2<<44] != 1 || lost[Loc(places[r])|1<<44] != 1 {
			t.Fatalf("row %d: the superseded places were not told once each", r)
		}
	}
	model := map[int64]Loc{}
	single.Range(func(id int64, loc Loc) bool { model[id] = loc; return true })
	checkEqual(t, filled, model)
}

// TestMemoryPerRecord checks that the table takes at most 24 bytes per record if New knows the number of records, and
// at most 34 while the table grows.
func TestMemoryPerRecord(t *testing.T) {
	if testing.Short() {
		t.Skip("two million calls by one goroutine: make race has nothing to find in them; make test runs it")
	}
	const n = 1_000_000
	ids, places := hintRows(n)
	var now, peak int64
	take := func(bytes int64) error { now += bytes; peak = max(peak, now); return nil }
	sized, err := New(n, take)
	must.OK(t, err)
	for r, id := range ids {
		if _, _, err := sized.Max(id, Loc(places[r])|1<<44); err != nil {
			t.Fatal(err)
		}
	}
	if per := float64(peak) / n; per > 24 || peak != sized.MemoryBytes() || peak != BytesFor(n) {
		t.Errorf("sized: %.1f bytes per record, %d mapped, %d planned", per, sized.MemoryBytes(), BytesFor(n))
	}
	sized.Close()
	if now != 0 {
		t.Fatalf("%d bytes not given back", now)
	}
	// The test inserts the records in random order. Hints are sorted by Hash. If the records were inserted in that
	// order, each one would be placed at the end of one long run.
	rand.New(rand.NewPCG(1, 0)).Shuffle(n, func(i, j int) {
		ids[i], ids[j], places[i], places[j] = ids[j], ids[i], places[j], places[i]
	})
	peak = 0
	growing, err := New(0, take)
	must.OK(t, err)
	defer growing.Close()
	worst := 0.0
	for r, id := range ids {
		peak = now
		if _, _, err := growing.Max(id, Loc(places[r])|1<<44); err != nil {
			t.Fatal(err)
		}
		if r >= 100_000 {
			worst = max(worst, float64(peak)/float64(r+1))
		}
	}
	if worst > 34 {
		t.Errorf("growing: %.1f bytes per record", worst)
	}
}

// TestGrowthRefused checks that the table is unchanged if it is not allowed to grow, and that it works again when
// memory is available.
func TestGrowthRefused(t *testing.T) {
	full := errors.New("full")
	refuse, refused := false, 0
	table, err := New(0, func(bytes int64) error {
		if refuse && bytes > 0 {
			refused++
			return full
		}
		return nil
	})
	must.OK(t, err)
	defer table.Close()
	model := map[int64]Loc{}
	put := func(id int64) error {
		loc := MakeLoc(1, id*8+8, 64, false)
		_, _, err := table.Max(id, loc)
		if err == nil {
			model[id] = loc
		}
		return err
	}
	for id := range int64(3000) {
		must.OK(t, put(id))
	}
	refuse = true
	for id := int64(3000); id < 9000; id++ {
		if err := put(id); err != nil && !errors.Is(err, full) {
			t.Fatal(err)
		}
	}
	if refused == 0 {
		t.Fatal("no growth was refused")
	}
	checkEqual(t, table, model)
	refuse = false
	for id := int64(3000); id < 9000; id++ {
		if _, ok := model[id]; !ok {
			must.OK(t, put(id))
		}
	}
	checkEqual(t, table, model)
}

func TestUseAfterClose(t *testing.T) {
	table := newTable(t, 100)
	if _, _, err := table.Max(1, MakeLoc(1, 8, 8, false)); err != nil {
		t.Fatal(err)
	}
	table.Close()
	if _, ok := table.Get(1); ok {
		t.Error("Get found an id after Close")
	}
	if _, _, err := table.Max(1, MakeLoc(1, 8, 8, false)); !errors.Is(err, ErrClosed) {
		t.Errorf("Max after Close: %v", err)
	}
	if table.CompareAndSwap(1, 1, 2) || table.CompareAndDelete(1, 1) || table.MemoryBytes() != 0 {
		t.Error("the table changed after Close")
	}
}

func TestConcurrentUse(t *testing.T) {
	table := newTable(t, 0)
	var wait sync.WaitGroup
	const writers, each = 4, 20_000
	for w := range writers {
		wait.Go(func() {
			for i := range int64(each) {
				id := i * 3
				loc := MakeLoc(uint32(w+1), i*8+8, 64, false)
				if _, _, err := table.Max(id, loc); err != nil {
					t.Error(err)
				}
				if got, ok := table.Get(id); !ok || got.Less(loc) {
					t.Errorf("Get(%d) = %x, below what was set", id, got)
				}
			}
		})
	}
	wait.Wait()
	if table.Len() != each || table.Live() != each {
		t.Fatalf("Len %d", table.Len())
	}
}

func FuzzHashIsBijective(f *testing.F) {
	f.Add(int64(0), int64(1))
	f.Fuzz(func(t *testing.T, a, b int64) {
		if (a == b) != (Hash(a) == Hash(b)) {
			t.Fatalf("Hash(%d) and Hash(%d)", a, b)
		}
	})
}

func BenchmarkFill(b *testing.B) {
	sizes := []int{100_000, 1_000_000}
	if soaktest.Long() {
		sizes = append(sizes, 10_000_000)
	}
	for _, n := range sizes {
		ids, places := hintRows(n)
		b.Run(fmt.Sprintf("records=%d", n), func(b *testing.B) {
			for b.Loop() {
				table, err := New(int64(n), nil)
				must.OK(b, err)
				must.OK(b, table.Fill(ids, places, 1, nil, func(Loc) {}))
				table.Close()
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(n), "ns/record")
		})
	}
}

func BenchmarkGet(b *testing.B) {
	ids, places := hintRows(1_000_000)
	table := newTable(b, 1_000_000)
	must.OK(b, table.Fill(ids, places, 1, nil, func(Loc) {}))
	b.RunParallel(func(pb *testing.PB) {
		for i := 0; pb.Next(); i = (i + 7919) % len(ids) {
			if _, ok := table.Get(ids[i]); !ok {
				b.Fatal("absent")
			}
		}
	})
}

// Range calls fn for each id, in no particular order, until fn returns false. The function fn must not call the table.
func (t *Table) Range(fn func(id int64, loc Loc) bool) {
	for i := range t.stripes {
		if !t.stripes[i].each(fn) {
			return
		}
	}
}

func (s *stripe) each(fn func(id int64, loc Loc) bool) bool {
	s.mu.RLock()
	defer s.mu.RUnlock()
	for i := range s.slots {
		if at := s.slots[i]; at.loc != 0 && !fn(at.id, at.loc) {
			return false
		}
	}
	return true
}
