package operator

import (
	"context"
	"fmt"
	"slices"

	"sheaf.dev/sheaf/api/v1alpha1"
	"sheaf.dev/sheaf/controllers/fleet"
	"sheaf.dev/sheaf/internal/base/parallel"
	"sheaf.dev/sheaf/internal/placement"
	"sheaf.dev/sheaf/internal/placement/rescue"
	"sheaf.dev/sheaf/internal/placement/survey"
)

// Recover rebuilds a store's placement from its shards' volumes. It writes to etcd only when the whole placement is
// complete.
func (p *placed) Recover(ctx context.Context, store *v1alpha1.RecordStore, shards []fleet.ShardAt) error {
	id, err := uidOf(store)
	if err != nil {
		return err
	}
	if len(shards) == 0 {
		return fmt.Errorf("%w: there is no ShardPool yet", fleet.ErrVolumesIncomplete)
	}
	volumes, err := p.surveyAll(ctx, shards)
	if err != nil {
		return err
	}
	if !slices.ContainsFunc(volumes, func(v rescue.FoundVolume) bool { return !v.Blank() }) {
		return fmt.Errorf("%w: none of the shards has a volume of store %s: see that the claims are those of the old store",
			fleet.ErrVolumesIncomplete, id)
	}
	rebuilt, err := rescue.Rebuild(id, volumes, nil)
	if err != nil {
		return fmt.Errorf("%w: %w", fleet.ErrVolumesIncomplete, err)
	}
	if err := fits(store, rebuilt, len(volumes)); err != nil {
		return err
	}
	return p.store.Restore(ctx, rebuilt, false)
}

// fits returns ErrVolumesIncomplete unless the placement that was rebuilt from a number of volumes is complete and is
// that of the store.
func fits(store *v1alpha1.RecordStore, rebuilt rescue.Rebuilt, volumes int) error {
	if len(rebuilt.Short) > 0 {
		return fmt.Errorf("%w: %s", fleet.ErrVolumesIncomplete, rebuilt.ShortWords())
	}
	if n := len(rebuilt.Missing); n > 0 {
		return fmt.Errorf("%w: %d groups are on none of the %d volumes, such as %s: give the store all shards that it had",
			fleet.ErrVolumesIncomplete, n, volumes, rebuilt.Missing[0])
	}
	if want := routingOf(store); rebuilt.Meta.Routing != want {
		return fmt.Errorf(
			"%w: the volumes were written with routing %+v, and spec.groups asks for %+v: create the RecordStore again with "+
				"those of the volumes",
			fleet.ErrVolumesIncomplete, rebuilt.Meta.Routing, want)
	}
	if want := copiesOf(store); rebuilt.Meta.Copies != want {
		return fmt.Errorf(
			"%w: the volumes were written with %d copies of each group, and spec.replication.copies is %d: make the "+
				"RecordStore again with that of the volumes",
			fleet.ErrVolumesIncomplete, rebuilt.Meta.Copies, want)
	}
	// With Hash routing, a group that waits is in Missing. The restore of the store itself has ended: its condition
	// Restored is checked before.
	if rebuilt.Restored() && rebuilt.Meta.Routing.Mode == placement.Named && store.Spec.Restore == nil {
		return fmt.Errorf("%w: the volumes hold groups that were restored from an archive, and no volume knows whether "+
			"others wait for their restore: such groups would begin empty. Start all shards, and rebuild the placement with "+
			"sheaf recover placement --store-uid %s --restore HOST:PORT of sheaf-archive source, or with --restore none if no "+
			"group waits any more", fleet.ErrVolumesIncomplete, rebuilt.Meta.StoreUUID)
	}
	return nil
}

// surveyAll asks all shards for the contents of their volumes. It fails unless every shard responds.
func (p *placed) surveyAll(ctx context.Context, shards []fleet.ShardAt) ([]rescue.FoundVolume, error) {
	volumes, errs := make([]rescue.FoundVolume, len(shards)), make([]error, len(shards))
	parallel.Times(len(shards), 16, func(i int) {
		ctx, cancel := context.WithTimeout(ctx, describeTimeout)
		defer cancel()
		volumes[i], errs[i] = survey.Volume(ctx, shards[i].Address,
			wayTo{shards[i], p.keys.of(shards[i].Store)}.credentials())
	})
	for i, err := range errs {
		if err != nil {
			return nil, fmt.Errorf("%w: asking the shard at %s: %w", fleet.ErrVolumesIncomplete, shards[i].Address, err)
		}
	}
	return volumes, nil
}
