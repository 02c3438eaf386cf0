package shardpool

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"sheaf.dev/sheaf/controllers/step"

	corev1 "k8s.io/api/core/v1"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"sheaf.dev/sheaf/api/v1alpha1"
	"sheaf.dev/sheaf/internal/workload"
)

// finalize lets go of a pool that is being deleted. What it owns is deleted with it, by the garbage collector; claims
// are deleted where the store says so, and those that have no volume in any case: they hold no data, and would ask
// their class for a disk for ever. It waits for nothing that is being deleted itself: the claims go when their pods
// have.
func (w *poolWork) finalize(ctx context.Context) step.Outcome {
	if !slices.Contains(w.pool.Finalizers, v1alpha1.Finalizer) {
		return step.Complete()
	}
	alone, err := w.deletedAlone(ctx)
	if err != nil {
		return step.Retry(err)
	}
	if err := w.lists(ctx); err != nil {
		return step.Retry(err)
	}
	if alone && w.pool.Annotations[v1alpha1.AnnotationDeleteWithGroups] != "true" {
		if out := w.letGo(ctx); !out.IsComplete() {
			return out
		}
	}
	if err := w.deleteClaims(ctx, w.deletionPolicy() == v1alpha1.DeletionDelete); err != nil {
		return step.Retry(err)
	}
	before := w.pool.DeepCopy()
	w.pool.Finalizers = slices.DeleteFunc(w.pool.Finalizers, func(f string) bool { return f == v1alpha1.Finalizer })
	err = w.Client.Patch(ctx, w.pool, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{}))
	if client.IgnoreNotFound(err) != nil {
		return step.Retry(fmt.Errorf("take the finalizer from ShardPool %s: %w", w.pool.Name, err))
	}
	return step.Complete()
}

// letGo empties the shards of a pool whose store lives on.
func (w *poolWork) letGo(ctx context.Context) step.Outcome {
	forced := fmt.Sprintf("If these groups may be unavailable, annotate this ShardPool %s=true; or delete RecordStore %s too",
		v1alpha1.AnnotationDeleteWithGroups, w.pool.Spec.StoreRef.Name)
	if w.Register == nil {
		if words := w.holdsGroups(); words != "" {
			return step.Fail("PoolHoldsGroups", fmt.Sprintf("the pool is not deleted, as its store lives and %s. %s", words, forced))
		}
		return step.Complete()
	}
	var waits step.Outcome
	for _, n := range w.numbers() {
		name := workload.Shard(w.pool.Name, n)
		if err := w.Register.Empty(ctx, w.store, name); err != nil {
			return step.Wait(reasonPlacementOff, fmt.Sprintf("the pool is not deleted yet, as the placement cannot be told: %v. %s", err, forced), step.PauseShort)
		}
		if view, known := w.look(ctx); known && len(view.Holds(name)) == 0 {
			continue
		}
		out := w.emptying(ctx, name, "is of a pool that is being deleted", "give the store other shards for them")
		if waits.IsComplete() || out.IsStalled() && !waits.IsStalled() {
			waits = out
		}
	}
	if !waits.IsComplete() {
		waits = waits.Saying(waits.Message() + ". " + forced)
		return waits
	}
	for _, n := range w.numbers() {
		if err := w.Register.Forget(ctx, w.store, workload.Shard(w.pool.Name, n)); err != nil {
			return step.Wait("PlacementNeedsShard", fmt.Sprintf("the pool is not deleted yet: %v. %s", err, forced), step.PauseShort)
		}
	}
	return step.Complete()
}

// numbers of the shards that exist, or existed when status was written.
func (w *poolWork) numbers() []int32 {
	numbers := slices.Collect(maps.Keys(w.sets))
	numbers = slices.AppendSeq(numbers, maps.Keys(w.last))
	slices.Sort(numbers)
	return slices.Compact(numbers)
}

// deletedAlone says whether the store lives on, so that its groups are needed. A store or namespace that is being
// deleted does not: nothing waits for it, and it waits for nothing.
func (w *poolWork) deletedAlone(ctx context.Context) (bool, error) {
	namespace := &corev1.Namespace{}
	if err := w.Client.Get(ctx, types.NamespacedName{Name: w.pool.Namespace}, namespace); client.IgnoreNotFound(err) != nil {
		return false, fmt.Errorf("read namespace %s: %w", w.pool.Namespace, err)
	}
	store := &v1alpha1.RecordStore{}
	err := w.Live.Get(ctx, types.NamespacedName{Namespace: w.pool.Namespace, Name: w.pool.Spec.StoreRef.Name}, store)
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("read RecordStore %s: %w", w.pool.Spec.StoreRef.Name, err)
	}
	w.store = store
	return store.DeletionTimestamp == nil && namespace.DeletionTimestamp == nil, nil
}

// holdsGroups says which shards hold groups; empty where none does.
func (w *poolWork) holdsGroups() string {
	var words []string
	for _, n := range slices.Sorted(maps.Keys(w.last)) {
		if s := w.last[n]; s.Groups > 0 {
			words = append(words, fmt.Sprintf("shard %s holds %d of its groups", s.Name, s.Groups))
		}
	}
	return step.ShardWords(words)
}

// deletionPolicy is the store's, or where that is gone, the one that the sets carry.
func (w *poolWork) deletionPolicy() v1alpha1.DeletionPolicy {
	if w.store != nil {
		return w.store.Spec.DeletionPolicy
	}
	for _, set := range w.sets {
		if policy := set.Annotations[workload.AnnotationDeletionPolicy]; policy != "" {
			return v1alpha1.DeletionPolicy(policy)
		}
	}
	return v1alpha1.DeletionRetain
}

// deleteClaims deletes claims, all or those without a volume. Their sets go first: one that lives makes its claim
// again.
func (w *poolWork) deleteClaims(ctx context.Context, all bool) error {
	for n, claim := range w.claims {
		if !all && claim.Spec.VolumeName != "" {
			continue
		}
		if err := w.deleteSet(ctx, w.sets[n], metav1.DeletePropagationBackground); err != nil {
			return err
		}
	}
	if all {
		for _, set := range w.sets { // those whose claim is not made yet
			if err := w.deleteSet(ctx, set, metav1.DeletePropagationBackground); err != nil {
				return err
			}
		}
	}
	for _, claim := range w.claims {
		var err error
		switch {
		case all:
			err = w.deleteClaim(ctx, claim)
		case claim.Spec.VolumeName == "" && claim.DeletionTimestamp == nil:
			err = w.remakeClaim(ctx, claim)
		}
		if err != nil {
			return err
		}
	}
	return nil
}
