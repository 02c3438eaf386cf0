package index

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"sync"
	"testing"

	"pgregory.net/rapid"
)

// manyRows makes the rows of segments with ids from [0, ids).
func manyRows(seed uint64, segments, each int, ids int64) []Rows {
	out := make([]Rows, segments)
	var wait sync.WaitGroup
	for i := range out {
		wait.Go(func() {
			r := rand.New(rand.NewPCG(seed, uint64(i)))
			rows := make([]slot, each)
			for j := range rows {
				id := r.Int64N(ids)
				if ids >= int64(segments*each) {
					id = int64(i*each + j)
				}
				rows[j] = slot{id, MakeLoc(0, int64(j+2)*128, 128, r.IntN(5) == 0)}
			}
			slices.SortFunc(rows, func(a, b slot) int {
				return cmp.Or(cmp.Compare(Hash(a.id), Hash(b.id)), cmp.Compare(a.loc, b.loc))
			})
			out[i].Ordinal = uint32(2*i + 2)
			for _, row := range rows {
				out[i].IDs = append(out[i].IDs, row.id)
				out[i].Places = append(out[i].Places, uint64(row.loc))
			}
		})
	}
	wait.Wait()
	return out
}

func TestBulkMaxEqualsMaxOfEachRow(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		rows := manyRows(rapid.Uint64().Draw(t, "seed"), rapid.IntRange(0, 5).Draw(t, "segments"),
			rapid.IntRange(0, 400).Draw(t, "each"), rapid.Int64Range(1, 300).Draw(t, "ids"))
		rand.Shuffle(len(rows), func(i, j int) { rows[i], rows[j] = rows[j], rows[i] })
		model := map[int64]Loc{}
		told := 0
		for i := range rows {
			rows[i].Skip = func(row int) bool { return rows[i].Places[row]>>16%7 == 0 }
			for j, id := range rows[i].IDs {
				if loc := Loc(rows[i].Places[j]) | Loc(rows[i].Ordinal)<<44; !rows[i].Skip(j) {
					told++
					if model[id].Less(loc) {
						model[id] = loc
					}
				}
			}
		}
		table, err := New(rapid.SampledFrom([]int64{0, 10, 5000}).Draw(t, "records"), nil)
		if err != nil {
			t.Fatal(err)
		}
		defer table.Close()
		var mu sync.Mutex
		lost := map[Loc]bool{}
		err = table.BulkMax(rows, rapid.IntRange(1, 3).Draw(t, "workers"), func(loc Loc) {
			mu.Lock()
			defer mu.Unlock()
			lost[loc] = true
		})
		if err != nil {
			t.Fatal(err)
		}
		checkEqual(t, table, model)
		if len(lost) != told-len(model) {
			t.Fatalf("%d places are told as lost, want %d", len(lost), told-len(model))
		}
	})
}

func TestKnownIdNeedsNoRoomAndSetMayGoBack(t *testing.T) {
	refuse := false
	table, err := New(0, func(int64) error {
		if refuse {
			return ErrClosed
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	defer table.Close()
	var known []int64
	refused := false
	for id := int64(0); !refused; id++ {
		refuse = len(known) >= 10_000
		_, err := table.Set(id, MakeLoc(4, 128, 128, false))
		if refused = err != nil; !refused {
			known = append(known, id)
		}
	}
	for _, id := range known {
		if old, err := table.Set(id, MakeLoc(2, 128, 128, true)); err != nil || old != MakeLoc(4, 128, 128, false) {
			t.Fatalf("Set(%d) = %v, %v", id, old, err)
		}
		if _, won, err := table.Max(id, MakeLoc(3, 128, 128, false)); err != nil || !won {
			t.Fatalf("Max(%d) = %v, %v", id, won, err)
		}
	}
	if table.Len() != int64(len(known)) || table.Live() != table.Len() {
		t.Fatalf("Len %d, Live %d, want %d", table.Len(), table.Live(), len(known))
	}
}

func BenchmarkBulkMax(b *testing.B) {
	sizes := []int{100_000, 1_000_000}
	if os.Getenv("SHEAF_SOAK") != "" {
		sizes = append(sizes, 10_000_000)
	}
	for _, n := range sizes {
		each := min(n, 250_000)
		rows := manyRows(1, n/each, each, int64(n))
		b.Run(fmt.Sprintf("records=%d", n), func(b *testing.B) {
			for b.Loop() {
				table, err := New(int64(n), nil)
				if err != nil {
					b.Fatal(err)
				}
				if err := table.BulkMax(rows, 2, func(Loc) {}); err != nil {
					b.Fatal(err)
				}
				table.Close()
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(n), "ns/record")
		})
	}
}
