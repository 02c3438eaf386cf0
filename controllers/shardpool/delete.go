package shardpool

import (
	"context"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"sheaf.dev/sheaf/api/v1alpha1"
	"sheaf.dev/sheaf/controllers/shardpool/observed"
	"sheaf.dev/sheaf/controllers/step"
	"sheaf.dev/sheaf/internal/kube/workload"
)

// finalize releases a pool that is being deleted. The garbage collector deletes the objects that the pool owns.
// finalize deletes claims with volumes if the deletion policy says so. It always deletes claims without a volume,
// because they hold no data and would request a disk from their class indefinitely. finalize does not wait for
// deletions to complete, because a claim is deleted only after its pod.
func (w *work) finalize(ctx context.Context) step.Outcome {
	if !slices.Contains(w.pool.Finalizers, v1alpha1.Finalizer) {
		return step.Complete()
	}
	store, lives, err := storeOfDeleted(ctx, w.r.Client, w.r.Live, w.pool)
	if err != nil {
		return step.Retry(err)
	}
	seen, err := readObjects(ctx, w.r.Client, w.pool)
	if err != nil {
		return step.Retry(err)
	}
	seen.Store = store
	if lives && w.pool.Annotations[v1alpha1.AnnotationDeleteWithGroups] != "true" {
		leaving := leaving{cached: w.r.Client, pool: w.pool, places: w.placesOf(seen)}
		if out := leaving.letGo(ctx, seen); !out.IsComplete() {
			return out
		}
	}
	if err := w.writer.removeClaims(ctx, seen, deletionPolicy(seen) == v1alpha1.DeletionDelete); err != nil {
		return step.Retry(err)
	}
	if err := step.RemoveFinalizer(ctx, w.r.Client, w.pool); err != nil {
		return step.Retry(err)
	}
	for _, shard := range seen.Objects {
		w.r.written.Delete(shard.UID)
	}
	return step.Complete()
}

// letGo moves the groups off the shards of a deleted pool whose store continues to exist.
func (l leaving) letGo(ctx context.Context, seen *observed.Pool) step.Outcome {
	forced := fmt.Sprintf(
		"If these groups may be unavailable, annotate this ShardPool %s=true; or delete RecordStore %s too",
		v1alpha1.AnnotationDeleteWithGroups, l.pool.Spec.StoreRef.Name)
	if !l.places.known() {
		if words := holdsGroups(seen.Last); words != "" {
			return step.Fail("PoolHoldsGroups", fmt.Sprintf("the pool is not deleted, as its store lives and %s. %s", words,
				forced))
		}
		return step.Complete()
	}
	var waits step.Outcome
	for _, n := range seen.Numbers() {
		name := workload.Shard(l.pool.Name, n)
		if err := l.places.empty(ctx, name); err != nil {
			return step.Wait(reasonPlacementOff, fmt.Sprintf(
				"the pool is not deleted yet, as the placement cannot be read: %v. %s", err, forced), step.PauseShort)
		}
		if view, err := l.places.look(ctx); err == nil && len(view.Holds(name)) == 0 {
			continue
		}
		out := l.emptying(ctx, name, "is of a pool that is being deleted", "give the store other shards for them")
		if waits.IsComplete() || out.IsStalled() && !waits.IsStalled() {
			waits = out
		}
	}
	if !waits.IsComplete() {
		waits = waits.Saying(waits.Message() + ". " + forced)
		return waits
	}
	for _, n := range seen.Numbers() {
		if err := l.places.forget(ctx, workload.Shard(l.pool.Name, n)); err != nil {
			return step.Wait("PlacementNeedsShard", fmt.Sprintf("the pool is not deleted yet: %v. %s", err, forced),
				step.PauseShort)
		}
	}
	return step.Complete()
}

// storeOfDeleted returns the store of a pool that is being deleted, or nil if the store does not exist. The result
// lives is true if the store will continue to exist, so that its groups are still needed. Otherwise the store or its
// namespace is being deleted as well. In this case, neither the pool nor the store waits for the other.
func storeOfDeleted(ctx context.Context, cached, live client.Reader,
	pool *v1alpha1.ShardPool) (store *v1alpha1.RecordStore, lives bool, err error) {
	namespace := &corev1.Namespace{}
	if _, err := step.Read(ctx, cached, "namespace", types.NamespacedName{Name: pool.Namespace}, namespace); err != nil {
		return nil, false, err
	}
	store = &v1alpha1.RecordStore{}
	err = live.Get(ctx, storeKey(pool), store)
	if apierrors.IsNotFound(err) {
		return nil, false, nil
	}
	if err != nil {
		return nil, false, fmt.Errorf("read RecordStore %s: %w", pool.Spec.StoreRef.Name, err)
	}
	return store, store.DeletionTimestamp == nil && namespace.DeletionTimestamp == nil, nil
}

// holdsGroups names the shards that hold groups. The result is empty if there are none.
func holdsGroups(last map[int32]v1alpha1.ShardStatus) string {
	var words []string
	for _, n := range slices.Sorted(maps.Keys(last)) {
		if s := last[n]; s.Groups > 0 {
			words = append(words, fmt.Sprintf("shard %s holds %d of its groups", s.Name, s.Groups))
		}
	}
	return step.ShardWords(words)
}

// deletionPolicy returns the deletion policy of the store or, if the store does not exist, the policy that the
// StatefulSets record.
func deletionPolicy(seen *observed.Pool) v1alpha1.DeletionPolicy {
	if seen.Store != nil {
		return seen.Store.Spec.DeletionPolicy
	}
	for _, set := range seen.Sets {
		if policy := set.Annotations[workload.AnnotationDeletionPolicy]; policy != "" {
			return v1alpha1.DeletionPolicy(policy)
		}
	}
	return v1alpha1.DeletionRetain
}

// removeClaims deletes all claims, or only those without a volume. It deletes their StatefulSets first, because an
// existing StatefulSet creates its claim again.
func (h writer) removeClaims(ctx context.Context, seen *observed.Pool, all bool) error {
	for n, set := range seen.Sets {
		claim := seen.Claims[n] // nil if the claim has not been created yet
		if all || claim != nil && claim.Spec.VolumeName == "" {
			if err := h.removeSet(ctx, set, metav1.DeletePropagationBackground); err != nil {
				return err
			}
		}
	}
	for _, claim := range seen.Claims {
		if err := h.removeClaim(ctx, claim, all); err != nil {
			return err
		}
	}
	return nil
}
