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
		Message: fmt.Sprintf("the plan of the placement changed: %s wanted on other shards "+
			"than before, %s new", step.Count(state.Targets, "group is", "groups are"),
			step.Count(state.Missing, "group is", "groups are"))})
}
