package diskset

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/predicate"

	"sheaf.dev/sheaf/api/v1alpha1"
	"sheaf.dev/sheaf/controllers/fleet"
	"sheaf.dev/sheaf/controllers/step"
)

// gather reads the inputs of the decision from the cache.
func (r *Reconciler) gather(ctx context.Context, run *diskRun) step.Outcome {
	var (
		sets    v1alpha1.DiskSetList
		volumes corev1.PersistentVolumeList
		nodes   corev1.NodeList
		claims  corev1.PersistentVolumeClaimList
		stores  v1alpha1.RecordStoreList
		pools   v1alpha1.ShardPoolList
		shards  v1alpha1.ShardList
	)
	for _, list := range []struct {
		what string
		into client.ObjectList
	}{
		{"DiskSets", &sets},
		{"PersistentVolumes", &volumes},
		{"nodes", &nodes},
		{"claims", &claims},
		{"RecordStores", &stores},
		{"ShardPools", &pools},
		{"Shards", &shards},
	} {
		if err := r.Client.List(ctx, list.into); err != nil {
			return step.Retry(fmt.Errorf("list %s: %w", list.what, err))
		}
	}
	o := &observedDisks{
		set: run.set, volumes: volumes.Items,
		nodes: map[string]corev1.Node{}, stores: map[string]string{}, pools: map[string]bool{},
		blocked: map[string]v1alpha1.ShardStatus{},
		givenUp: map[types.UID]bool{},
	}
	for _, other := range sets.Items {
		if other.Name != run.set.Name {
			o.others = append(o.others, other)
		}
	}
	for _, node := range nodes.Items {
		o.nodes[node.Labels[corev1.LabelHostname]] = node
	}
	for _, claim := range claims.Items {
		if fleet.ClassOf(&claim) == run.set.Name && slices.Contains(run.set.Spec.Namespaces, claim.Namespace) {
			o.claims = append(o.claims, claim)
		}
	}
	for _, store := range stores.Items {
		if store.DeletionTimestamp == nil {
			o.stores[store.Namespace+"/"+store.Name] = store.Status.StoreUID
		}
	}
	seen := fleet.ObservedOf(pools.Items, shards.Items)
	for _, pool := range pools.Items {
		o.pools[pool.Namespace+"/"+pool.Name] = pool.DeletionTimestamp == nil
		for _, shard := range seen.Of(&pool) {
			if volume := blockedVolume(&shard); volume != "" {
				o.blocked[volume] = shard
			}
		}
		for _, claim := range fleet.ReplacedClaims(&pool) {
			o.givenUp[claim] = true
		}
	}
	if err := r.gatherJobs(ctx, o); err != nil {
		return step.Retry(err)
	}
	run.observed = o
	return step.Complete()
}

// blockedVolume returns the PersistentVolume that the kubelet refuses to format for a shard, or "" if there is none.
func blockedVolume(s *v1alpha1.ShardStatus) string {
	if s.State != v1alpha1.ShardFormatBlocked || s.Volume == nil {
		return ""
	}
	return s.Volume.PersistentVolume
}

// takesPods is a predicate that passes only those changes of a node that affect the assignment of disks.
var takesPods = step.Changed(fleet.TakesPods)

// storeIdentified is a predicate that passes an update of a store only if the update changes the store's UID.
var storeIdentified = step.Changed(func(store *v1alpha1.RecordStore) string { return store.Status.StoreUID })

// poolIsNew is a predicate that passes the creation and the deletion of a pool. It has to pass the creation because
// claims of the pool may have been observed before the pool itself.
var poolIsNew = predicate.Funcs{UpdateFunc: func(event.UpdateEvent) bool { return false }}

// formatBlockedChanged is a predicate that passes a Shard when its volume starts or stops waiting to be formatted.
var formatBlockedChanged = predicate.Funcs{
	CreateFunc: func(e event.CreateEvent) bool { return blockedVolumeOf(e.Object) != "" },
	UpdateFunc: func(e event.UpdateEvent) bool { return blockedVolumeOf(e.ObjectOld) != blockedVolumeOf(e.ObjectNew) },
	DeleteFunc: func(e event.DeleteEvent) bool { return blockedVolumeOf(e.Object) != "" },
}

func blockedVolumeOf(o client.Object) string {
	if shard, ok := o.(*v1alpha1.Shard); ok {
		return blockedVolume(&shard.Status)
	}
	return ""
}
