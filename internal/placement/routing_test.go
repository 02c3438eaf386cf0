package placement

import (
	"slices"
	"testing"
)

// CompareGroups sorts numeric names by value. It is a total order, so the sorted result does not depend on the order
// of the input.
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
