package shardpool

import (
	"context"
	"fmt"
	"strings"

	"sheaf.dev/sheaf/api/v1alpha1"
	"sheaf.dev/sheaf/controllers/fleet"
	"sheaf.dev/sheaf/controllers/shardpool/observed"
	"sheaf.dev/sheaf/controllers/step"
	"sheaf.dev/sheaf/internal/placement"
)

// replaceDisks gives up the volumes of shards that are DiskLost, if all of their groups can continue without them.
// Such a shard then starts on its current volume, which is blank, and its copies are rebuilt. If a group could not
// continue, replaceDisks changes nothing and names the group, because an administrator may still bring the disk back.
//
// The argument statuses has the statuses of the shards, in the same order. If a volume is not given up, replaceDisks
// puts the reason into the message of its shard.
func replaceDisks(ctx context.Context, h writer, places *places, shards []*observed.Shard,
	statuses []v1alpha1.ShardStatus) step.Outcome {
	if places.store.Spec.Replication.Copies <= 1 || !places.known() {
		return step.Complete()
	}
	for i, o := range shards {
		uuid := o.Last.Volume.UUID
		// replaceDisks handles only losses that the shard itself has found by reading the volume. A volume that cannot
		// even be mounted needs an administrator.
		if statuses[i].State != v1alpha1.ShardDiskLost || o.Report == nil || uuid == "" || o.Forgotten(uuid) {
			continue
		}
		view, err := places.look(ctx)
		if err != nil {
			return step.Wait(reasonPlacementOff, fmt.Sprintf(
				"shard %s has lost its disk, and etcd was not asked for its groups: %v", o.Name, err), step.PauseShort)
		}
		lost := func(m placement.Member) bool { return strings.EqualFold(m.VolumeUUID.String(), uuid) }
		if names := view.Undecided(lost); len(names) > 0 {
			statuses[i].Message = step.Truncate(fmt.Sprintf(
				"%s too few other copies to go on without this one (%s), so it is not given up by itself: %s",
				step.Count(len(names), "group has", "groups have"), fleet.GroupWords(names), statuses[i].Message), o.MessageMax)
			continue
		}
		// Record this in the same form as if an administrator had done it. If the operator crashes now, the replacement is
		// then completed in the same way.
		if err := h.annotate(ctx, func(pool *v1alpha1.ShardPool) { addForgotten(pool, uuid) }); err != nil {
			return step.Retry(err)
		}
		h.tell(ctx, "VolumeGivenUp", "Replace", step.ShardObject(h.pool, o.Name),
			"shard %s: volume %s is given up, as every group on it has a majority elsewhere", o.Name, uuid)
		return step.Wait(reasonReplacing, fmt.Sprintf(
			"shard %s has lost volume %s, and starts on another one: every group has a majority elsewhere", o.Name, uuid),
			step.PauseShort)
	}
	return step.Complete()
}

// addForgotten adds a volume to the volumes that are given up.
func addForgotten(pool *v1alpha1.ShardPool, uuid string) {
	value := uuid
	if before := pool.Annotations[v1alpha1.AnnotationForgetVolumes]; before != "" {
		value = before + "," + uuid
	}
	step.Annotate(&pool.Annotations, v1alpha1.AnnotationForgetVolumes, value)
}
