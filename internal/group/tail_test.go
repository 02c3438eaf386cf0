package group

import (
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// TestTailIsAList pushes, trims, cuts and releases at random: the tail holds what a list does, and its array nothing else.
func TestTailIsAList(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		var tail tail
		first, list := uint64(1), []uint64{}
		rt.Repeat(map[string]func(*rapid.T){
			"push": func(rt *rapid.T) {
				batch := make([]tailEntry, rapid.IntRange(1, 20).Draw(rt, "entries"))
				for i := range batch {
					batch[i].entry.Index = first + uint64(len(list))
					list = append(list, batch[i].entry.Index)
				}
				tail.push(first, batch)
			},
			"trim": func(rt *rapid.T) {
				n := rapid.IntRange(0, len(list)).Draw(rt, "entries")
				tail.trim(first + uint64(n) - 1)
				first, list = first+uint64(n), list[n:]
			},
			"cut": func(rt *rapid.T) {
				n := rapid.IntRange(0, len(list)).Draw(rt, "left")
				tail.cut(first + uint64(n))
				list = list[:n]
			},
			"release": func(rt *rapid.T) {
				tail.release()
				if len(list) == 0 && tail.array != nil {
					rt.Error("an empty tail keeps its array")
				}
			},
			"": func(rt *rapid.T) {
				var got []uint64
				for i := range tail.entries {
					got = append(got, tail.entries[i].entry.Index)
				}
				if !slices.Equal(got, list) {
					rt.Fatalf("entries %v, want %v", got, list)
				}
				if len(list) > 0 && (tail.at(first).entry.Index != first || tail.at(first+uint64(len(list))) != nil || tail.at(first-1) != nil) {
					rt.Fatalf("what is at %d, before it and behind %d more is wrong", first, len(list))
				}
				kept := 0
				for _, e := range tail.array[:cap(tail.array)] {
					if e.entry.Index != 0 {
						kept++
					}
				}
				if kept != len(list) {
					rt.Fatalf("the array keeps %d entries of %d", kept, len(list))
				}
			},
		})
	})
}

// TestTailUsesItsArrayAgain: where entries come and go and few are there at a time, as with a group that is written to, no new array is made.
func TestTailUsesItsArrayAgain(t *testing.T) {
	var tail tail
	batch := func(first uint64, entries int) (b []tailEntry) {
		for i := range entries {
			b = append(b, tailEntry{entry: Entry{Index: first + uint64(i)}})
		}
		return b
	}
	tail.push(1, batch(1, 100))
	array := cap(tail.array)
	for at := uint64(101); at < 2000; at += 10 {
		tail.trim(at - 11) // ten are left
		tail.push(at-10, batch(at, 10))
		if cap(tail.array) != array || len(tail.entries) != 20 || tail.entries[0].entry.Index != at-10 {
			t.Fatalf("at %d: room for %d entries, %d before; %d entries from %d on", at, cap(tail.array), array, len(tail.entries), tail.entries[0].entry.Index)
		}
	}
}
