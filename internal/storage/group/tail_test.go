package group

import (
	"slices"
	"testing"

	"pgregory.net/rapid"

	"sheaf.dev/sheaf/internal/test/soaktest"
)

// TestTailIsAList pushes, trims and truncates at random, and compares the tail with a list. When the list is empty, the
// tail must keep no array.
func TestTailIsAList(t *testing.T) {
	soaktest.Check(t, func(rt *rapid.T) {
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
				tail.truncate(first + uint64(n))
				list = list[:n]
			},
			"": func(rt *rapid.T) {
				var got []uint64
				for i := range tail.entries {
					got = append(got, tail.entries[i].entry.Index)
				}
				if !slices.Equal(got, list) {
					rt.Fatalf("entries %v, want %v", got, list)
				}
				if len(list) > 0 && (tail.at(first).entry.Index != first || tail.at(first+uint64(len(list))) != nil ||
					tail.at(first-1) != nil) {
					rt.Fatalf("what is at %d, before it and behind %d more is wrong", first, len(list))
				}
				if len(list) == 0 && cap(tail.entries) > 0 {
					rt.Error("an empty tail keeps its array")
				}
			},
		})
	})
}
