package replica

import (
	"testing"
	"time"

	"pgregory.net/rapid"
)

// The window behaves like a plain list of the last writes, from which whatever is too old or too many is taken away.
func TestWindowRemembersTheLastWrites(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := window{writesMax: rapid.IntRange(1, 40).Draw(t, "writesMax"), age: time.Duration(rapid.IntRange(1, 30).Draw(t, "age"))}
		var model []windowSlot
		now, index := int64(0), uint64(0)
		known := func(id [16]byte) int {
			for i, s := range model {
				if s.requestID == id {
					return i
				}
			}
			return -1
		}
		for range rapid.IntRange(1, 200).Draw(t, "steps") {
			now += int64(rapid.IntRange(0, 3).Draw(t, "passes"))
			id := requestID(rapid.Uint64Range(0, 60).Draw(t, "id"), 0)
			for len(model) > 0 && now-model[0].commitTime > int64(w.age) {
				model = model[1:]
			}
			at := known(id)
			result, found := w.find(id, now)
			if found != (at >= 0) {
				t.Fatalf("request id %v at %d: found %v, want %v", id[0], now, found, at >= 0)
			}
			if found {
				want := Result{Index: model[at].index, CommitTime: model[at].commitTime, Repeated: true, Existed: model[at].deleted}
				if result != want {
					t.Fatalf("got %+v, want %+v", result, want)
				}
				continue
			}
			index++
			s := windowSlot{requestID: id, index: index, commitTime: now, deleted: index%2 == 0}
			w.add(s)
			model = append(model, s)
			if len(model) > w.writesMax {
				model = model[1:]
			}
			if rapid.IntRange(0, 9).Draw(t, "trim") == 0 {
				w.trim(now)
			}
			if w.held() != len(model) || len(w.at) != len(model) {
				t.Fatalf("%d held, %d in the map, want %d", w.held(), len(w.at), len(model))
			}
		}
	})
}

// What the log gives back after a start comes before what was applied since.
func TestWindowPutsOlderWritesBefore(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		writesMax := rapid.IntRange(1, 20).Draw(t, "writesMax")
		older, newer := rapid.IntRange(0, 30).Draw(t, "older"), rapid.IntRange(0, 30).Draw(t, "newer")
		whole := window{writesMax: writesMax, age: time.Hour}
		parts := window{writesMax: writesMax, age: time.Hour}
		var before []windowSlot
		for i := range older + newer {
			s := windowSlot{requestID: requestID(uint64(i), 1), index: uint64(i + 1), commitTime: int64(i)}
			whole.add(s)
			if i < older {
				before = append(before, s)
			} else {
				parts.add(s)
			}
		}
		parts.putBefore(before)
		for i := range older + newer {
			id := requestID(uint64(i), 1)
			want, wantFound := whole.find(id, 100)
			got, found := parts.find(id, 100)
			if got != want || found != wantFound {
				t.Fatalf("write %d of %d and %d: got %+v %v, want %+v %v", i, older, newer, got, found, want, wantFound)
			}
		}
	})
}

func TestWindowGivesMemoryBack(t *testing.T) {
	w := window{writesMax: 100, age: time.Second}
	for i := range uint64(100) {
		w.add(windowSlot{requestID: requestID(i, 0), index: i + 1, commitTime: int64(i)})
	}
	w.trim(int64(time.Hour))
	if w.at != nil || w.slots != nil {
		t.Fatal("memory is kept although nothing is remembered")
	}
	w.add(windowSlot{requestID: requestID(1, 0), index: 500, commitTime: int64(time.Hour)})
	if r, found := w.find(requestID(1, 0), int64(time.Hour)); !found || r.Index != 500 {
		t.Fatalf("after trim: %+v %v", r, found)
	}
}
