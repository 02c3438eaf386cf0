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
