package recordstore

import (
	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"sheaf.dev/sheaf/api/v1alpha1"
	"sheaf.dev/sheaf/controllers/step"
)

// sayGrants sets the conditions GrantsInForce and IssuersReady from the findings of the controller of grants. A store
// without issuers has no condition IssuersReady.
func (r *Reconciler) sayGrants(run *storeRun) {
	key, conditions, generation := client.ObjectKeyFromObject(run.store), &run.store.Status.Conditions,
		run.store.Generation
	what, known := r.Grants.Of(key)
	if !known {
		return
	}
	step.SetCondition(conditions, generation, v1alpha1.ConditionGrantsInForce, what.Status(), what.Reason, what.Message)
	if issuers, has := r.Grants.IssuersOf(key); has {
		step.SetCondition(conditions, generation, v1alpha1.ConditionIssuersReady, issuers.Status(), issuers.Reason,
			issuers.Message)
	} else {
		meta.RemoveStatusCondition(conditions, v1alpha1.ConditionIssuersReady)
	}
}
