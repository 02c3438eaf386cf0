package shardpool

import (
	"context"
	"fmt"
	"strings"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"sheaf.dev/sheaf/api/v1alpha1"
	"sheaf.dev/sheaf/controllers/fleet"
	"sheaf.dev/sheaf/controllers/step"
)

// replaceDisks gives up volumes of shards that are DiskLost, where every group of theirs goes on without them: the
// shard then starts on what is there now, a blank volume, and gets its copies anew. Where a group would not, nothing is
// done, and it is named: a person may still bring the disk back.
func (w *poolWork) replaceDisks(ctx context.Context) step.Outcome {
	if w.store.Spec.Replication.Copies <= 1 || w.Register == nil {
		return step.Complete()
	}
	for i, o := range w.shards {
		uuid := o.Last.Volume.UUID
		// Only what the shard itself has found: it looked at the volume. What cannot even be mounted needs a person.
		if w.statuses[i].State != v1alpha1.ShardDiskLost || o.Report == nil || uuid == "" || o.forgotten(uuid) {
			continue
		}
		view, known := w.look(ctx)
		if !known {
			return w.note(step.Wait(reasonPlacementOff, fmt.Sprintf("shard %s has lost its disk, and etcd was not asked for its groups: %v", o.Name, w.viewErr), step.PauseShort))
		}
		lost := func(c fleet.CopyPlace) bool { return strings.EqualFold(c.Volume, uuid) }
		if names := view.Undecided(lost); len(names) > 0 {
			w.statuses[i].Message = step.Cut(fmt.Sprintf("%d groups have too few other copies to go on without this one (%s), so it is not given up by itself: %s",
				len(names), fleet.GroupWords(names), w.statuses[i].Message), o.MessageMax)
			continue
		}
		if err := w.forget(ctx, uuid); err != nil {
			return step.Retry(err)
		}
		w.tell(ctx, "VolumeGivenUp", "Replace", step.ShardObject(w.pool, o.Name), "shard %s: volume %s is given up, as every group on it has a majority elsewhere", o.Name, uuid)
		return w.note(step.Wait("ReplacingDisk", fmt.Sprintf("shard %s has lost volume %s, and starts on another one: every group has a majority elsewhere", o.Name, uuid), step.PauseShort))
	}
	return step.Complete()
}

// forget notes on the pool that a volume is given up, as a person would: what follows comes to the same end after a
// crash.
func (w *poolWork) forget(ctx context.Context, uuid string) error {
	return w.annotatePool(ctx, func(pool *v1alpha1.ShardPool) { addForgotten(pool, uuid) })
}

// addForgotten adds a volume to those that are given up.
func addForgotten(pool *v1alpha1.ShardPool, uuid string) {
	value := uuid
	if before := pool.Annotations[v1alpha1.AnnotationForgetVolumes]; before != "" {
		value = before + "," + uuid
	}
	step.Annotate(&pool.Annotations, v1alpha1.AnnotationForgetVolumes, value)
}

// annotatePool changes the pool's annotations at once, where it is still as it was read.
func (w *poolWork) annotatePool(ctx context.Context, change func(*v1alpha1.ShardPool)) error {
	pool := w.before.DeepCopy()
	change(pool)
	if err := w.Client.Patch(ctx, pool, client.MergeFromWithOptions(w.before, client.MergeFromWithOptimisticLock{})); err != nil {
		return fmt.Errorf("annotate ShardPool %s with a volume that is given up: %w", w.pool.Name, err)
	}
	w.pool.ObjectMeta = pool.ObjectMeta
	w.before = w.before.DeepCopy()
	w.before.ObjectMeta = *pool.ObjectMeta.DeepCopy()
	return nil
}
