package recordstore

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"sheaf.dev/sheaf/api/v1alpha1"
	"sheaf.dev/sheaf/controllers/step"
	"sheaf.dev/sheaf/internal/kube/workload"
)

// applyGateway applies the objects of the gateways, and reads their state.
func applyGateway(ctx context.Context, w *writer, seen *observed) step.Outcome {
	store := seen.store
	seen.gateway = workload.GatewayDeployment(store, seen.image, seen.access)
	refused := step.Notes{}
	refused.Add(w.apply(ctx, workload.GatewayService(store), workload.GatewaysBudget(store), seen.gateway))
	var live appsv1.Deployment
	if there, err := step.Read(ctx, w, "Deployment", client.ObjectKeyFromObject(seen.gateway), &live); err != nil {
		return step.Retry(err)
	} else if there { // the cache may be stale and not contain the Deployment yet
		seen.gateway = &live
	}
	return refused.With(gatewayTrouble(ctx, w, seen))
}

// applyFences creates the wanted NetworkPolicies, and deletes those of the store that are no longer wanted. If the
// operator does not know its own namespace, applyFences creates none, because they could then cut the operator off from
// etcd.
func applyFences(ctx context.Context, w *writer, own string) step.Outcome {
	for _, f := range workload.NetworkPolicies(w.store, own) {
		switch {
		case !f.Wanted:
			if err := removeNetworkPolicy(ctx, w, f.Policy); err != nil {
				return step.Retry(err)
			}
		case own != "":
			if out := w.apply(ctx, f.Policy); !out.IsComplete() {
				return out
			}
		}
	}
	return step.Complete()
}

// removeNetworkPolicy deletes a NetworkPolicy that belongs to the store.
func removeNetworkPolicy(ctx context.Context, w *writer, policy *networkingv1.NetworkPolicy) error {
	var live networkingv1.NetworkPolicy
	there, err := step.Read(ctx, w, "NetworkPolicy", client.ObjectKeyFromObject(policy), &live)
	if err != nil || !there || !metav1.IsControlledBy(&live, w.store) || live.DeletionTimestamp != nil {
		return err
	}
	if err := w.Delete(ctx, &live, client.Preconditions{UID: &live.UID}); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("delete NetworkPolicy %s: %w", client.ObjectKeyFromObject(policy), err)
	}
	return nil
}

// gatewayTrouble finds the reason why a gateway does not run as the spec asks.
func gatewayTrouble(ctx context.Context, cached client.Reader, seen *observed) step.Outcome {
	store := seen.store
	if seen.gatewayRuns(seen.image) {
		return step.Complete()
	}
	var pods corev1.PodList
	err := cached.List(ctx, &pods, client.InNamespace(store.Namespace),
		client.MatchingLabels(workload.Selector(store.Name, workload.ContainerGateway)))
	if err != nil {
		return step.Retry(fmt.Errorf("list the pods of the gateway of store %s: %w", client.ObjectKeyFromObject(store), err))
	}
	slices.SortFunc(pods.Items, func(a, b corev1.Pod) int { return cmp.Compare(a.Name, b.Name) })
	for n := range pods.Items {
		if why := podTrouble(&pods.Items[n]); why != "" && !workload.PodReady(&pods.Items[n]) {
			seen.trouble = ": " + why
			return step.Complete()
		}
	}
	for _, c := range seen.gateway.Status.Conditions {
		if c.Type == appsv1.DeploymentReplicaFailure && c.Status == corev1.ConditionTrue {
			seen.trouble = ": " + c.Message
		}
	}
	return step.Complete()
}

// cordoned reports whether an administrator has cordoned a node, so that it takes no new pods. A deleted node is not
// cordoned.
func cordoned(ctx context.Context, cached client.Reader, name string) (bool, error) {
	node := &corev1.Node{}
	if err := cached.Get(ctx, client.ObjectKey{Name: name}, node); err != nil {
		return false, client.IgnoreNotFound(err)
	}
	return node.Spec.Unschedulable, nil
}

// applyBudgets applies the disruption budget of the store's shards. While a group lacks a copy, no serving shard of
// another failure domain may be evicted.
func applyBudgets(ctx context.Context, w *writer, seen *observed) step.Outcome {
	shards := shardsWanted(seen.pools)
	spare := int32(1)
	var free []string
	if seen.copies() <= 1 {
		var err error
		if seen.hasPlaces {
			free, err = emptied(&seen.places, seen.shards.ByName(), func(node string) (bool, error) {
				return cordoned(ctx, w, node)
			})
		} else if frees, failed := budgetFrees(ctx, w, seen.store, v1alpha1.ConditionEtcdReady); frees || failed != nil {
			return asRetry("read the disruption budget of the shards", failed)
		}
		if err != nil {
			return asRetry("read the node that is being emptied", err)
		}
		if len(free) > 0 {
			spare = 0
		}
	} else {
		whole := meta.IsStatusConditionTrue(seen.store.Status.Conditions, v1alpha1.ConditionRedundant)
		if now, known := seen.redundant(); known {
			whole = now.whole()
			free = disruptable(&seen.places, seen.shards.ByName())
		} else if frees, err := budgetFrees(ctx, w, seen.store, v1alpha1.ConditionRedundant); frees || err != nil {
			return asRetry("read the disruption budget of the shards", err)
		}
		if !whole || len(free) > 0 {
			spare = 0
		}
	}
	excluded := int32(len(free)) //nolint:gosec // bounded by the maximum number of shards of a store
	return w.apply(ctx, workload.ShardsBudget(seen.store, shards-spare-excluded, free...))
}

// asRetry returns a complete outcome if err is nil, and an outcome that retries otherwise.
func asRetry(what string, err error) step.Outcome {
	if err != nil {
		return step.Retry(fmt.Errorf("%s: %w", what, err))
	}
	return step.Complete()
}

// budgetFrees reports whether the existing budget already exempts a node or domain that is being emptied, as an
// earlier reconcile decided. Such a budget is kept until etcd has been asked, because it would otherwise change twice
// in each reconcile. budgetFrees returns false if, according to the condition of the given kind, etcd did not answer
// in the last reconcile. In that case the exemption ends.
func budgetFrees(ctx context.Context, cached client.Reader, store *v1alpha1.RecordStore, kind string) (bool, error) {
	asked := meta.FindStatusCondition(store.Status.Conditions, kind)
	if asked == nil || asked.Status == metav1.ConditionUnknown ||
		kind == v1alpha1.ConditionEtcdReady && asked.Status == metav1.ConditionFalse {
		return false, nil
	}
	live := workload.ShardsBudget(store, 0)
	if err := cached.Get(ctx, client.ObjectKeyFromObject(live), live); err != nil {
		return false, client.IgnoreNotFound(err)
	}
	return live.Spec.Selector != nil && len(live.Spec.Selector.MatchExpressions) > 0, nil
}
