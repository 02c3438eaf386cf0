package registry

import (
	"context"
	"encoding/json"
	"fmt"

	"sheaf.dev/sheaf/internal/placement"
)

// mayFollow does what MayFollow does, given the value of etcd's key for the shard's volume. It also returns the
// decoded record.
func mayFollow(value []byte, shard placement.Shard) (seen placement.VolumeRecord, err error) {
	err = json.Unmarshal(value, &seen)
	if err == nil && (seen.Volume != shard.VolumeUUID || max(seen.Generation, seen.Step.Number) > placement.NumberMax) {
		err = fmt.Errorf("it is of volume %s, generation %d, step %d", seen.Volume, seen.Generation, seen.Step.Number)
	}
	if err != nil { // not ErrRolledBack, because nothing is known against the volume
		return seen, fmt.Errorf("%w: key %s%s in etcd, which says in which state the volume was last, cannot be read: %w: "+
			"see that the volume was not set back and is no copy, then delete the key", placement.ErrUnusable, volumesKey,
			shard.VolumeUUID, err)
	}
	return seen, placement.MayFollow(seen, shard)
}

// NextStep records in etcd that the volume of a registered shard is in its next step. It returns ErrRolledBack if
// another process has registered the volume meanwhile; this shard must then stop serving. After any other error the
// caller must report the same step again.
func (s *Store) NextStep(ctx context.Context, shard placement.Shard) error {
	s.steps.Store(shard.Boot, shard) // the step is on disk, so a new registration must report it
	key := volumesKey + shard.VolumeUUID.String()
	for {
		there, err := s.get(ctx, key)
		if err != nil {
			return err
		}
		if there.ModRevision > 0 {
			if _, err := mayFollow(there.Value, shard); err != nil {
				return err
			}
		}
		done, err := s.replace(ctx, key, encode(shard.Record()), s.at(key, there.ModRevision))
		if err != nil {
			return fmt.Errorf("write %s in etcd: %w", s.prefix+key, err)
		}
		if done {
			return nil
		}
	}
}
