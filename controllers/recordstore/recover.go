package recordstore

import (
	"context"
	"fmt"

	"sheaf.dev/sheaf/api/v1alpha1"
	"sheaf.dev/sheaf/controllers/fleet"
	"sheaf.dev/sheaf/controllers/step"
)

// placementLost returns the outcome if etcd is empty for a store that has data. For a managed etcd and several
// copies, it rebuilds the placement from the volumes if every shard answers and all answers agree. Otherwise an
// administrator has to decide.
func (r *Reconciler) placementLost(ctx context.Context, run *storeRun) step.Outcome {
	store, why := run.store, ""
	step.SetTrue(&store.Status.Conditions, store.Generation, v1alpha1.ConditionEtcdReady, "Ready", "etcd answers")
	if store.Spec.Etcd.Managed != nil && run.copies() > 1 {
		err := run.placement.Recover(ctx, fleet.PlacementSpecOf(run.store, run.first.shards), shardsAt(run))
		if err == nil {
			message := fmt.Sprintf("etcd was empty: the placement of store %s was rebuilt from the volumes of its shards",
				store.Status.StoreUID)
			step.SetTrue(&store.Status.Conditions, store.Generation, v1alpha1.ConditionPlacementReady, "PlacementRebuilt",
				message)
			step.Report(ctx, r.Events, store, step.News{Reason: "PlacementRebuilt", Action: "Rebuild", Message: message})
			return step.Wait("PlacementRebuilt", message, step.PauseShort)
		}
		why = fmt.Sprintf(
			"It is rebuilt by itself when every shard answers and all that their volumes hold fits together, which is not so: "+
				"%s. ",
			step.Tail(err.Error(), 600))
	}
	message := why + lostMessage(run)
	step.SetFalse(&store.Status.Conditions, store.Generation, v1alpha1.ConditionPlacementReady, "PlacementLost", message)
	return step.Fail("PlacementLost", message).Again(step.PauseShort)
}

// etcdRolledBack returns the outcome if etcd holds an older state of the store than one that was observed before. The
// shards correct it.
func (r *Reconciler) etcdRolledBack(run *storeRun, err error) step.Outcome {
	message := fmt.Sprintf("%v. Where a shard that it waits for does not come back, see docs/operations/etcd.md", err)
	step.SetFalse(&run.store.Status.Conditions, run.store.Generation, v1alpha1.ConditionEtcdReady, "EtcdRolledBack",
		message)
	return step.Wait("EtcdRolledBack", message, step.PauseShort)
}
