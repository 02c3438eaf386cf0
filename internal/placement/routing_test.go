package placement

import (
	"slices"
	"testing"
)

// Numbers are sorted by value. The order is total, so names in any order are sorted into the same one.
func TestGroupsAreOrderedByNumber(t *testing.T) {
	want := []string{"0", "1", "2", "10", "11", "100", "1a", "a", "b"}
	for turn := range want {
		got := slices.Concat(want[turn:], want[:turn])
		slices.Reverse(got)
		if slices.SortFunc(got, CompareGroups); !slices.Equal(got, want) {
			t.Errorf("%v", got)
		}
	}
}
