package rescue_test

import (
	"testing"

	"sheaf.dev/sheaf/internal/placement"
	"sheaf.dev/sheaf/internal/placement/rescue"
)

// A message names the first ten groups that would be restored again, in the order of their names.
func TestGroupsThatWouldBeRestoredAgainAreNamed(t *testing.T) {
	r := rescue.Rebuilt{Groups: []placement.Group{{Name: "c"}}}
	var listed []placement.Group
	for _, name := range []string{"l", "k", "j", "i", "h", "g", "f", "e", "d", "c", "b", "a"} {
		listed = append(listed, placement.Group{Name: name, Restoring: true})
		if len(listed) == 3 {
			few := r
			few.AddWaiting(placement.Restore{}, listed)
			if got := few.AgainWords(); got != "j, k, l" {
				t.Errorf("three groups: %q", got)
			}
		}
	}
	r.AddWaiting(placement.Restore{}, listed)
	if got := r.AgainWords(); got != "a, b, d, e, f, g, h, i, j, k and 1 more" {
		t.Errorf("%q", got)
	}
}
