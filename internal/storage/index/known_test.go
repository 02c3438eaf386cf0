package index

import (
	"testing"

	"sheaf.dev/sheaf/internal/test/must"
)

func TestKnownIdNeedsNoSpace(t *testing.T) {
	refuse := false
	table, err := New(0, func(int64) error {
		if refuse {
			return ErrClosed
		}
		return nil
	})
	must.OK(t, err)
	defer table.Close()
	var known []int64
	refused := false
	for id := int64(0); !refused; id++ {
		refuse = len(known) >= 10_000
		_, _, err := table.Max(id, MakeLoc(2, 128, 128, false))
		if refused = err != nil; !refused {
			known = append(known, id)
		}
	}
	for _, id := range known {
		if _, won, err := table.Max(id, MakeLoc(3, 128, 128, false)); err != nil || !won {
			t.Fatalf("Max(%d) = %v, %v", id, won, err)
		}
	}
	if table.Len() != int64(len(known)) || table.Live() != table.Len() {
		t.Fatalf("Len %d, Live %d, want %d", table.Len(), table.Live(), len(known))
	}
}
