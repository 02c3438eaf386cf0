package care

import (
	"context"
	"testing"
	"time"

	"github.com/google/uuid"

	"sheaf.dev/sheaf/internal/placement"
	"sheaf.dev/sheaf/internal/placement/registry"
)

type weightsOfLeaders map[string]map[string]registry.Weight

func (w weightsOfLeaders) Weights(_ context.Context, shard string) (map[string]registry.Weight, error) {
	return w[shard], nil
}

// The report of a deleted group must not be used for a new group with the same name. Members of the new group may lack
// entries up to the reported index, so a tombstone could be dropped before they have it.
func TestTheReportOfADeletedGroupDoesNotCount(t *testing.T) {
	deleted, now := uuid.New(), uuid.New()
	h := &reportedWeights{fresh: time.Minute, shards: map[string]reportedWeight{},
		etcd: weightsOfLeaders{"a": {"quotes": {UUID: deleted, Everywhere: 900, Holds: true, Hold: 800}}}}
	state := placement.Group{Name: "quotes", UUID: now, Leader: "a"}
	if w := h.weightOf(t.Context(), state); w.Everywhere != 0 || w.Holds {
		t.Errorf("the report of the deleted group counts: %+v", w)
	}
	state.UUID = deleted
	if w := h.weightOf(t.Context(), state); w.Everywhere != 900 || w.Hold != 800 {
		t.Errorf("the report of the group does not count: %+v", w)
	}
}

// A report of a later term is the newer one. Of reports whose order is not known, the one with a hold decides, because
// history that was given up does not come back.
func TestTheNewestReportDecides(t *testing.T) {
	report := func(term, hold uint64) registry.Weight {
		return registry.Weight{Term: term, Hold: hold, Holds: hold > 0}
	}
	for _, c := range []struct {
		what     string
		w, other registry.Weight
		want     bool
	}{
		{"later term without a hold", report(3, 0), report(2, 9), true},
		{"earlier term with a hold", report(2, 9), report(3, 0), false},
		{"one term, the only hold", report(2, 9), report(2, 0), true},
		{"one term, the greater hold", report(2, 9), report(2, 8), true},
		{"one term, no hold", report(2, 0), report(2, 9), false},
		{"of an older version, with a hold", report(0, 9), report(3, 0), true},
		{"of an older version, without a hold", report(0, 0), report(3, 9), false},
		{"after a hold of an older version", report(3, 0), report(0, 9), false},
		{"after none of an older version", report(3, 0), report(0, 0), true},
	} {
		if got := isNewer(c.w, c.other); got != c.want {
			t.Errorf("%s: %v", c.what, got)
		}
	}
}
