package writes

import (
	"encoding/binary"
	"testing"
	"time"
	"unsafe"

	"pgregory.net/rapid"

	"sheaf.dev/sheaf/internal/storage/group/format"
	"sheaf.dev/sheaf/internal/test/soaktest"
)

func requestID(a, b uint64) (id [16]byte) {
	binary.LittleEndian.PutUint64(id[:], a+1)
	binary.LittleEndian.PutUint64(id[8:], b)
	return id
}

// slotFor returns the slot of a write that was applied at the given time.
func slotFor(id [16]byte, index uint64, at int64) windowSlot {
	return windowSlot{requestID: id, index: index, time: at, delete: index%2 == 0, at: at}
}

// TestWindowRemembersTheLastWrites compares the window with a plain list of the last writes. Writes that are too old,
// or that exceed the maximum number, are removed from the list.
func TestWindowRemembersTheLastWrites(t *testing.T) {
	soaktest.Check(t, func(t *rapid.T) {
		bounds := format.RequestWindow{Writes: rapid.IntRange(1, 40).Draw(t, "writes"),
			Age: time.Duration(rapid.IntRange(1, 30).Draw(t, "age"))}
		bounds.AgeMin = time.Duration(rapid.IntRange(0, int(bounds.Age)).Draw(t, "ageMin"))
		bounds.WritesMax = bounds.Writes + rapid.IntRange(0, 20).Draw(t, "more")
		w := window{RequestWindow: bounds}
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
		forget := func(more int) {
			for len(model) > 0 {
				age, n := time.Duration(now-model[0].at), len(model)+more
				if age <= bounds.Age && n <= bounds.WritesMax && (n <= bounds.Writes || age <= bounds.AgeMin) {
					return
				}
				model = model[1:]
			}
		}
		for range rapid.IntRange(1, 200).Draw(t, "steps") {
			now += int64(rapid.IntRange(0, 3).Draw(t, "passes"))
			id := requestID(rapid.Uint64Range(0, 60).Draw(t, "id"), 0)
			if rapid.IntRange(0, 9).Draw(t, "trim") == 0 {
				w.trim(now)
				forget(0)
			}
			at := known(id)
			if at >= 0 && time.Duration(now-model[at].at) > bounds.Age {
				at = -1
			}
			found := w.find(id, now)
			if (found != nil) != (at >= 0) || found != nil && *found != model[at] {
				t.Fatalf("request id %v at %d: found %+v, want number %d of %+v", id[0], now, found, at, model)
			}
			if found != nil {
				continue
			}
			index++
			s := slotFor(id, index, now)
			w.add(s)
			forget(1)
			model = append(model, s)
			if w.held() != len(model) || len(w.at) != len(model) {
				t.Fatalf("%d held, %d in the map, want %d", w.held(), len(w.at), len(model))
			}
		}
	})
}

// TestWindowPutsOlderWritesBefore checks that writes that are read from the log after a start are placed before those
// that were applied since the start.
func TestWindowPutsOlderWritesBefore(t *testing.T) {
	soaktest.Check(t, func(t *rapid.T) {
		writes := rapid.IntRange(1, 20).Draw(t, "writes")
		older, newer := rapid.IntRange(0, 30).Draw(t, "older"), rapid.IntRange(0, 30).Draw(t, "newer")
		bounds := format.RequestWindow{Writes: writes, WritesMax: 2 * writes, Age: time.Hour}
		whole, parts := window{RequestWindow: bounds}, window{RequestWindow: bounds}
		var before []windowSlot
		for i := range older + newer {
			s := slotFor(requestID(uint64(i), 1), uint64(i+1), int64(i))
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
			want, got := whole.find(id, 100), parts.find(id, 100)
			if (got == nil) != (want == nil) || got != nil && *got != *want {
				t.Fatalf("write %d of %d and %d: got %+v, want %+v", i, older, newer, got, want)
			}
		}
	})
}

func TestWindowGivesMemoryBack(t *testing.T) {
	w := window{RequestWindow: format.RequestWindow{Writes: 100, WritesMax: 1 << 20, AgeMin: time.Second, Age: time.Hour}}
	const writes = 100_000
	for i := range uint64(writes) {
		w.add(slotFor(requestID(i, 0), i+1, 1))
	}
	if w.held() != writes {
		t.Fatalf("%d held: what is young is forgotten", w.held())
	}
	for w.trim(int64(time.Minute)) {
	}
	for range 5 {
		w.trim(int64(time.Minute)) // memory is released step by step
	}
	if w.held() != 100 || len(w.slots) > 1024 || len(w.at) != 100 {
		t.Fatalf("%d held in %d slots and %d of the map", w.held(), len(w.slots), len(w.at))
	}
	for i := range uint64(writes) {
		if found := w.find(requestID(i, 0), int64(time.Minute)); (found != nil) != (i >= writes-100) || found != nil &&
			found.index != i+1 {
			t.Fatalf("write %d: %+v", i, found)
		}
	}
	w.trim(int64(2 * time.Hour))
	if w.at != nil || w.slots != nil {
		t.Fatal("memory is kept although nothing is remembered")
	}
	w.add(slotFor(requestID(1, 0), 500, int64(time.Hour)))
	if r := w.find(requestID(1, 0), int64(time.Hour)); r == nil || r.index != 500 {
		t.Fatalf("after trim: %+v", r)
	}
}

func TestAWindowSlotIsSmall(t *testing.T) {
	if n := unsafe.Sizeof(windowSlot{}); n > 56 {
		t.Errorf("a slot has %d bytes", n)
	}
}
