package shardpool

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/api/equality"

	"sheaf.dev/sheaf/controllers/fleet"
	"sheaf.dev/sheaf/controllers/step"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"sheaf.dev/sheaf/api/v1alpha1"
	"sheaf.dev/sheaf/internal/workload"
)

// listShards reads the pool's Shards, and what was seen of its shards last.
func (w *poolWork) listShards(ctx context.Context) error {
	var list v1alpha1.ShardList
	if err := w.Client.List(ctx, &list, client.InNamespace(w.pool.Namespace)); err != nil {
		return fmt.Errorf("list Shards of ShardPool %s: %w", w.pool.Name, err)
	}
	w.objects, w.last, w.silent = map[int32]*v1alpha1.Shard{}, map[int32]v1alpha1.ShardStatus{}, map[string]bool{}
	for i := range list.Items {
		if fleet.IsSilent(&list.Items[i].Status) { // of any pool of the store
			w.silent[list.Items[i].Name] = true
		}
		switch s := &list.Items[i]; {
		case s.Spec.Pool != w.pool.Name:
		case s.Name == workload.Shard(w.pool.Name, s.Spec.Number):
			w.objects[s.Spec.Number] = s
		default: // made by hand
			w.misnamed = append(w.misnamed, s)
		}
	}
	for _, s := range v1alpha1.ShardsOf(w.before, list.Items) {
		w.last[s.Number] = s
	}
	return nil
}

// writeShards makes the pool's Shards what was seen of its shards, and tells what has changed. What the API server
// refuses of one shard does not stop the others.
func (w *poolWork) writeShards(ctx context.Context) error {
	if !w.decided {
		return nil
	}
	var mu sync.Mutex
	var failed []error
	written := map[int32]bool{}
	var group errgroup.Group
	group.SetLimit(writesAtOnce)
	there := map[int32]bool{}
	for _, s := range w.statuses {
		there[s.Number] = true
		group.Go(func() error {
			changed, err := w.writeShard(ctx, s)
			mu.Lock()
			defer mu.Unlock()
			written[s.Number] = changed && err == nil
			failed = append(failed, err)
			return nil
		})
	}
	_ = group.Wait() // errors are in failed
	for _, n := range slices.Sorted(maps.Keys(w.objects)) {
		if s := w.objects[n]; !there[n] && s.Of(w.pool) {
			err := w.removeCertificates(ctx, s.Name) // first: afterwards nobody knows of it
			if err == nil {
				err = w.deleteShard(ctx, s)
			}
			failed = append(failed, err)
		}
	}
	for _, s := range w.misnamed {
		failed = append(failed, w.deleteShard(ctx, s))
	}
	for _, s := range w.statuses {
		if written[s.Number] {
			w.tellChange(ctx, w.last[s.Number].State, s)
		}
	}
	return errors.Join(failed...)
}

// writeShard makes one Shard, and writes its status where that is due and only on what was read: an older status must
// not take back what is recorded there, such as the UUID of the volume.
func (w *poolWork) writeShard(ctx context.Context, status v1alpha1.ShardStatus) (changed bool, err error) {
	shard := w.objects[status.Number]
	switch {
	case shard == nil:
		if shard, err = w.makeShard(ctx, status.Number); err != nil {
			return false, err
		}
	case !shard.Of(w.pool):
		// It is of an earlier pool of this name. The garbage collector would take it, too, and a new one is made at the
		// next look.
		return false, w.deleteShard(ctx, shard)
	default:
		if shard, err = w.mendShard(ctx, shard); err != nil {
			return false, err
		}
	}
	since := step.PauseNumbers
	if at, ok := w.written.Load(shard.UID); ok {
		since = w.now().Sub(at.(time.Time))
	}
	if !step.WriteDue(shard.Status, status, fleet.ToldOfShard, since) {
		return false, nil
	}
	before := shard.DeepCopy()
	shard.Status = status
	patch := client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})
	if err := w.Client.Status().Patch(ctx, shard, patch, client.FieldOwner(step.ManagerOfStatus)); err != nil {
		return false, fmt.Errorf("write the status of Shard %s: %w", shard.Name, err)
	}
	w.written.Store(shard.UID, w.now())
	return true, nil
}

// shardOf is the Shard of a number as it is to be, without its status.
func (w *poolWork) shardOf(n int32) (*v1alpha1.Shard, error) {
	shard := &v1alpha1.Shard{Spec: v1alpha1.ShardSpec{Pool: w.pool.Name, Number: n}}
	shard.Namespace, shard.Name = w.pool.Namespace, workload.Shard(w.pool.Name, n)
	shard.Labels = workload.ShardLabels(w.store.Name, w.pool.Name, n)
	if err := controllerutil.SetControllerReference(w.pool, shard, w.Client.Scheme()); err != nil {
		return nil, fmt.Errorf("make Shard %s: %w", shard.Name, err)
	}
	return shard, nil
}

func (w *poolWork) makeShard(ctx context.Context, n int32) (*v1alpha1.Shard, error) {
	shard, err := w.shardOf(n)
	if err != nil {
		return nil, err
	}
	if err := w.Client.Create(ctx, shard, client.FieldOwner(v1alpha1.FieldManager)); err != nil {
		return nil, fmt.Errorf("make Shard %s: %w", shard.Name, err)
	}
	return shard, nil
}

// mendShard gives a Shard the labels and the owner that it is to have, where somebody took them away. Its spec cannot
// be changed.
func (w *poolWork) mendShard(ctx context.Context, shard *v1alpha1.Shard) (*v1alpha1.Shard, error) {
	wanted, err := w.shardOf(shard.Spec.Number)
	if err != nil {
		return nil, err
	}
	mended := shard.DeepCopy()
	if mended.Labels == nil {
		mended.Labels = map[string]string{}
	}
	maps.Copy(mended.Labels, wanted.Labels)
	if metav1.GetControllerOf(shard) == nil {
		others := slices.DeleteFunc(mended.OwnerReferences, func(o metav1.OwnerReference) bool { return o.UID == w.pool.UID })
		mended.OwnerReferences = slices.Concat(others, wanted.OwnerReferences)
	}
	if equality.Semantic.DeepEqual(shard.ObjectMeta, mended.ObjectMeta) {
		return mended, nil
	}
	patch := client.MergeFromWithOptions(shard, client.MergeFromWithOptimisticLock{})
	if err := w.Client.Patch(ctx, mended, patch, client.FieldOwner(v1alpha1.FieldManager)); err != nil {
		return nil, fmt.Errorf("mend labels and owner of Shard %s: %w", shard.Name, err)
	}
	return mended, nil
}

// deleteShard deletes the very Shard that was seen.
func (w *poolWork) deleteShard(ctx context.Context, shard *v1alpha1.Shard) error {
	w.written.Delete(shard.UID)
	if err := w.Client.Delete(ctx, shard, client.Preconditions{UID: &shard.UID}); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("delete Shard %s: %w", shard.Name, err)
	}
	return nil
}

// staleWrite says whether a write failed because the cache was behind, so that it passes by itself.
func staleWrite(err error) bool {
	return apierrors.IsConflict(err) || apierrors.IsNotFound(err) || apierrors.IsAlreadyExists(err)
}

// statesByWorst are all states of shards, the worst first: those that need a person, those that are waited for, those
// in which all is well.
var statesByWorst = []v1alpha1.ShardState{
	v1alpha1.ShardDiskLost, v1alpha1.ShardNodeLost, v1alpha1.ShardForeign, v1alpha1.ShardFormatBlocked,
	v1alpha1.ShardFileSystemMismatch, v1alpha1.ShardMemoryTooSmall,
	v1alpha1.ShardCrashLooping, v1alpha1.ShardUnreachable, v1alpha1.ShardNodeDown, v1alpha1.ShardImagePull,
	v1alpha1.ShardNoStorageClass, v1alpha1.ShardNoVolume, v1alpha1.ShardUnschedulable, v1alpha1.ShardPending,
	v1alpha1.ShardLoading, v1alpha1.ShardDraining,
	v1alpha1.ShardServing, v1alpha1.ShardParked,
}

// severityOf a state: its place among all, and before all where it is of a later version.
func severityOf(state v1alpha1.ShardState) int { return slices.Index(statesByWorst, state) }

// severityOfShard puts a shard with damaged or lost groups among those that need a person.
func severityOfShard(s *v1alpha1.ShardStatus) int {
	if !fleet.NeedsPerson(s.State) && s.DamagedGroups+s.LostGroups > 0 {
		return severityOf(v1alpha1.ShardMemoryTooSmall)
	}
	return severityOf(s.State)
}

// worstShards are at most ShardStatusesMax of a pool's shards, by number: the worst ones, of equals those with the
// lowest numbers.
func worstShards(all []v1alpha1.ShardStatus) []v1alpha1.ShardStatus {
	list := slices.Clone(all)
	byNumber := func(a, b v1alpha1.ShardStatus) int { return cmp.Compare(a.Number, b.Number) }
	slices.SortFunc(list, func(a, b v1alpha1.ShardStatus) int {
		return cmp.Or(cmp.Compare(severityOfShard(&a), severityOfShard(&b)), byNumber(a, b))
	})
	list = list[:min(v1alpha1.ShardStatusesMax, len(list))]
	slices.SortFunc(list, byNumber)
	return list
}

// countStates counts shards by their state, the worst state first.
func countStates(all []v1alpha1.ShardStatus) (counts []v1alpha1.ShardStateCount) {
	of := map[v1alpha1.ShardState]int32{}
	for _, s := range all {
		of[s.State]++
	}
	for state, n := range of {
		counts = append(counts, v1alpha1.ShardStateCount{State: state, Shards: n})
	}
	slices.SortFunc(counts, func(a, b v1alpha1.ShardStateCount) int {
		return cmp.Or(cmp.Compare(severityOf(a.State), severityOf(b.State)), cmp.Compare(a.State, b.State))
	})
	return counts
}
