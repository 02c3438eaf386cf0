package placement

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/google/uuid"
)

// Step is one of the successive states of a volume. Each start of a shard creates a new step, and a shard that writes
// creates one every few seconds. The superblock of the volume holds its step, and etcd records each one: if an image of
// the volume is restored, etcd knows a later step.
type Step struct {
	Number uint64    `json:"number"` // raised by one; 0: from a program that knows no steps
	Nonce  uuid.UUID `json:"nonce"`  // random
}

// VolumeRecord is etcd's record of a volume (key "volumes/UUID"), also while no shard runs on it.
type VolumeRecord struct {
	Volume     uuid.UUID `json:"volume"`
	Generation uint64    `json:"generation"` // the highest that was ever registered
	Step       Step      `json:"step"`       // the last that was registered
	// Boot is the process that registered the volume. Zero: no process did; the record was written from the
	// volume's state at that time (Store.Restore).
	Boot    uuid.UUID `json:"boot"`
	Shard   string    `json:"shard"`
	Address string    `json:"address"`
}

// Record returns the record that etcd should hold of a shard's volume.
func (s Shard) Record() VolumeRecord {
	return VolumeRecord{Volume: s.VolumeUUID, Generation: s.Generation, Step: s.Step, Boot: s.Boot, Shard: s.Name,
		Address: s.Address}
}

// MayFollow reports whether a shard may serve its volume, given etcd's record of the volume: nil, or ErrRolledBack with
// the reason. The process that was registered may. Any other one needs a volume in a later generation (or in the same
// one, if no process registered it) that is the successor of the registered volume: in the very step that was
// registered, or in a later one that was made by whoever knew that step to be registered. A volume that knows a later
// step to have been registered than etcd does is not at fault: etcd was set back.
func MayFollow(seen VolumeRecord, shard Shard) error {
	if shard.Boot != uuid.Nil && shard.Boot == seen.Boot {
		return nil
	}
	refuse := func(format string, args ...any) error {
		return fmt.Errorf("%w: volume %s: %s; it was registered by shard %s at %s", ErrRolledBack, shard.VolumeUUID,
			fmt.Sprintf(format, args...),
			seen.Shard, seen.Address)
	}
	registered, here, known := seen.Step, shard.Step, shard.Registered
	mayBeSame := seen.Boot == uuid.Nil && registered.Number > 0 // the steps decide whether it is the same process
	switch {
	case shard.Generation < seen.Generation, shard.Generation == seen.Generation && !mayBeSame:
		return refuse("it has generation %d, and generation %d of it was registered", shard.Generation, seen.Generation)
	case registered.Number == 0:
		return nil // by a program that knows no steps
	case here.Number < registered.Number:
		return refuse("it is in step %d of its states, and step %d was registered: it holds an earlier state of itself",
			here.Number, registered.Number)
	case registered.Number == here.Number && registered.Nonce != here.Nonce,
		registered.Number == known.Number && registered.Nonce != known.Nonce,
		known.Number < registered.Number && registered.Number < here.Number:
		return refuse(
			"it is in step %d of its states, and does not come of the step %d that was registered: one of the two is a copy",
			here.Number,
			registered.Number)
	}
	return nil
}

// numberMax is above all generations and steps that a volume reaches.
const numberMax = 1 << 62

// MayReplace reports whether a shard may replace one that is registered under its name: nil, or ErrNameTaken with the
// reason. It does not check whether the other shard is still alive.
func MayReplace(there, shard Shard) error {
	switch {
	case there.VolumeUUID != shard.VolumeUUID:
		return fmt.Errorf(
			"%w: shard %s at %s is live on volume %s, this one has volume %s: stop one of them, or give another name",
			ErrNameTaken, shard.Name, there.Address, there.VolumeUUID, shard.VolumeUUID)
	case shard.Boot != uuid.Nil && shard.Boot == there.Boot:
		return nil
	case there.Generation >= shard.Generation:
		return fmt.Errorf(
			"%w: shard %s at %s is live on generation %d of volume %s, this one has generation %d: the volume was cloned or "+
				"rolled back",
			ErrNameTaken, shard.Name, there.Address, there.Generation, there.VolumeUUID, shard.Generation)
	}
	return nil
}

// mayFollow is MayFollow for etcd's record of the shard's volume. It also returns that record.
func mayFollow(value []byte, shard Shard) (seen VolumeRecord, err error) {
	err = json.Unmarshal(value, &seen)
	if err == nil && (seen.Volume != shard.VolumeUUID || max(seen.Generation, seen.Step.Number) > numberMax) {
		err = fmt.Errorf("it is of volume %s, generation %d, step %d", seen.Volume, seen.Generation, seen.Step.Number)
	}
	if err != nil { // not ErrRolledBack: nothing is known against the volume
		return seen, fmt.Errorf("%w: key %s%s in etcd, which says in which state the volume was last, cannot be read: %w: "+
			"see that the volume was not set back and is no copy, then delete the key", ErrOdd, volumesKey,
			shard.VolumeUUID, err)
	}
	return seen, MayFollow(seen, shard)
}

// NextStep records in etcd that the volume of a registered shard is in its next step. ErrRolledBack: another process
// has registered the volume meanwhile, and this shard must stop serving. After any other error the caller must report
// the same step again.
func (s *Store) NextStep(ctx context.Context, shard Shard) error {
	s.steps.Store(shard.Boot, shard) // the step is on disk, so a new registration reports it
	key := volumesKey + shard.VolumeUUID.String()
	value, err := json.Marshal(shard.Record())
	if err != nil {
		return err
	}
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
		done, err := s.replace(ctx, key, value, s.at(key, there.ModRevision))
		if err != nil {
			return fmt.Errorf("write %s in etcd: %w", s.prefix+key, err)
		}
		if done {
			return nil
		}
	}
}
