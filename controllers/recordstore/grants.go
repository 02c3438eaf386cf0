package recordstore

import (
	"sigs.k8s.io/controller-runtime/pkg/client"

	"sheaf.dev/sheaf/api/v1alpha1"
)

// sayGrants sets the condition GrantsInForce by what the controller of grants has heard.
func (r *Reconciler) sayGrants(run *storeRun) {
	what, known := r.Grants.Of(client.ObjectKeyFromObject(run.store))
	if !known {
		return
	}
	setTruth(&run.store.Status.Conditions, run.store.Generation, v1alpha1.ConditionGrantsInForce, what.Good, what.Reason, what.Reason, what.Message)
}
