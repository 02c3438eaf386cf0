package recordstore

import (
	"context"
	"fmt"

	"sheaf.dev/sheaf/api/v1alpha1"
	"sheaf.dev/sheaf/controllers/fleet"
	"sheaf.dev/sheaf/controllers/step"
)

// plannedFor returns the generations of the store and its pools that the current plan takes into account.
func plannedFor(store *v1alpha1.RecordStore, pools []v1alpha1.ShardPool) *v1alpha1.Planned {
	out := &v1alpha1.Planned{Generation: store.Generation}
	for n := range pools[:min(len(pools), fleet.PlannedPoolsMax)] {
		out.Pools = append(out.Pools, v1alpha1.PlannedPool{Name: pools[n].Name, Generation: pools[n].Generation})
	}
	return out
}

// reportPlan logs what a plan has changed.
func reportPlan(ctx context.Context, state fleet.PlacementState) {
	if !state.Changed {
		return
	}
	step.LogNews(ctx, step.News{Reason: "PlanChanged", Action: "Plan",
		Message: fmt.Sprintf("the plan of the placement changed: %d groups are wanted on other shards "+
			"than before, %d groups are new", state.Targets, state.Missing)})
}
