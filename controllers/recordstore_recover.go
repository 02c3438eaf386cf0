package controllers

import (
	"context"
	"fmt"

	"sheaf.dev/sheaf/api/v1alpha1"
)

// placementLost is the outcome where etcd is empty for a store that has data. That of a managed etcd and several copies is
// rebuilt from the volumes, where every shard answers and all that they say fits; else a person decides.
func (r *RecordStoreReconciler) placementLost(ctx context.Context, run *storeRun) Outcome {
	store, why := run.store, ""
	SetTrue(&store.Status.Conditions, store.Generation, v1alpha1.ConditionEtcdReady, "Ready", "etcd answers")
	if store.Spec.Etcd.Managed != nil && run.copies() > 1 {
		err := run.placement.Recover(ctx, placementSpec(run), shardAddresses(run.pools, run.seen))
		if err == nil {
			message := fmt.Sprintf("etcd was empty: the placement of store %s was rebuilt from the volumes of its shards", store.Status.StoreUID)
			SetTrue(&store.Status.Conditions, store.Generation, v1alpha1.ConditionPlacementReady, "PlacementRebuilt", message)
			tell(ctx, r.Events, store, news{reason: "PlacementRebuilt", action: "Rebuild", message: message})
			return Wait("PlacementRebuilt", message, PauseShort)
		}
		why = fmt.Sprintf("It is rebuilt by itself when every shard answers and all that their volumes hold fits together, which is not so: %s. ",
			tail(err.Error(), 600))
	}
	message := why + lostMessage(run)
	SetFalse(&store.Status.Conditions, store.Generation, v1alpha1.ConditionPlacementReady, "PlacementLost", message)
	out := Fail("PlacementLost", message)
	out.after = PauseShort
	return out
}

// etcdRolledBack is the outcome where etcd holds an older state of the store than was seen before. The shards put it right.
func (r *RecordStoreReconciler) etcdRolledBack(run *storeRun, err error) Outcome {
	message := fmt.Sprintf("%v. Where a shard that it waits for does not come back, see docs/operations.md", err)
	SetFalse(&run.store.Status.Conditions, run.store.Generation, v1alpha1.ConditionEtcdReady, "EtcdRolledBack", message)
	return Wait("EtcdRolledBack", message, PauseShort)
}
