package recordstore

import (
	"context"
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"sheaf.dev/sheaf/api/v1alpha1"
	"sheaf.dev/sheaf/controllers/fleet"
	"sheaf.dev/sheaf/controllers/step"
	"sheaf.dev/sheaf/internal/kube/workload"
)

func (r *Reconciler) applyGateway(ctx context.Context, run *storeRun) step.Outcome {
	store := run.store
	run.gateway = workload.GatewayDeployment(store, workload.ImageOf(store, r.Image), run.access)
	refused := step.Notes{}
	refused.Add(r.apply(ctx, store, workload.GatewayService(store), workload.GatewaysBudget(store), run.gateway))
	var live appsv1.Deployment
	if err := r.Client.Get(ctx, client.ObjectKeyFromObject(run.gateway), &live); err == nil {
		run.gateway = &live
	} else if !apierrors.IsNotFound(err) { // the cache may be stale
		return step.Retry(fmt.Errorf("read Deployment %s: %w", client.ObjectKeyFromObject(run.gateway), err))
	}
	return refused.With(r.gatewayTrouble(ctx, run))
}

// apply applies objects that the store owns. If the API server refuses one object, the others are still applied.
func (r *Reconciler) apply(ctx context.Context, store *v1alpha1.RecordStore, objects ...client.Object) step.Outcome {
	var troubles step.Notes
	for _, o := range objects {
		_, err := step.Apply(ctx, r.Client, store, o)
		switch {
		case err == nil:
		case !step.Passing(err) && (apierrors.IsInvalid(err) || apierrors.IsForbidden(err) || apierrors.IsBadRequest(err)):
			troubles.Add(step.Fail("ObjectRefused", fmt.Sprintf(
				"the API server refuses an object of this store: %v. Correct what it names in spec, "+
					"or delete the object of that name where another owns it", err)))
		default:
			troubles.Add(step.Retry(err))
		}
	}
	return troubles.With(step.Complete())
}

// applyFences creates the wanted NetworkPolicies and deletes those of its own that are no longer wanted. If the
// operator does not know its namespace, it creates none, because a NetworkPolicy would block it from etcd.
func (r *Reconciler) applyFences(ctx context.Context, run *storeRun) step.Outcome {
	for _, f := range workload.NetworkPolicies(run.store, r.Namespace) {
		switch {
		case !f.Wanted:
			if err := r.removeNetworkPolicy(ctx, run.store, f.Policy); err != nil {
				return step.Retry(err)
			}
		case r.Namespace != "":
			if out := r.apply(ctx, run.store, f.Policy); !out.IsComplete() {
				return out
			}
		}
	}
	return step.Complete()
}

// removeNetworkPolicy deletes a NetworkPolicy that belongs to the store.
func (r *Reconciler) removeNetworkPolicy(ctx context.Context, store *v1alpha1.RecordStore,
	policy *networkingv1.NetworkPolicy) error {
	var live networkingv1.NetworkPolicy
	err := r.Client.Get(ctx, client.ObjectKeyFromObject(policy), &live)
	if err == nil && metav1.IsControlledBy(&live, store) && live.DeletionTimestamp == nil {
		err = r.Client.Delete(ctx, &live, client.Preconditions{UID: &live.UID})
	}
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("delete NetworkPolicy %s: %w", client.ObjectKeyFromObject(policy), err)
	}
	return nil
}

// shardsWanted returns the wanted number of shards of all pools.
func shardsWanted(pools []v1alpha1.ShardPool) int32 {
	n := int32(0)
	for _, pool := range pools {
		n += fleet.PoolShards(&pool)
	}
	return n
}
