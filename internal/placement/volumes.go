package placement

import (
	"fmt"

	"github.com/google/uuid"
)

// Step identifies one of the successive states of a volume. A shard begins a new step each time that it starts, and
// every few seconds while it writes. The volume's superblock holds the current step, and etcd also records each step.
// Therefore, if a volume is restored from an older image, etcd has a later step than the volume.
type Step struct {
	Number uint64    `json:"number"` // grows by 1 with each step; 0 if written by a version without steps
	Nonce  uuid.UUID `json:"nonce"`  // random
}

// VolumeRecord is etcd's record of a volume. It is stored under the key "volumes/UUID", even while no shard runs on
// the volume.
type VolumeRecord struct {
	Volume     uuid.UUID `json:"volume"`
	Generation uint64    `json:"generation"` // highest generation that was ever registered
	Step       Step      `json:"step"`       // most recently registered step
	// Boot identifies the process that registered the volume. It is zero if the record was not written by such a
	// process, but was created when etcd was rebuilt from the contents of the volumes.
	Boot    uuid.UUID `json:"boot"`
	Shard   string    `json:"shard"`
	Address string    `json:"address"`
}

// Record returns the record that etcd should hold for a shard's volume.
func (s Shard) Record() VolumeRecord {
	return VolumeRecord{Volume: s.VolumeUUID, Generation: s.Generation, Step: s.Step, Boot: s.Boot, Shard: s.Name,
		Address: s.Address}
}

// MayFollow decides whether a shard may serve its volume, given etcd's record of that volume. It returns nil if the
// shard may, and otherwise ErrRolledBack with the reason.
//
// The process that is registered may always serve the volume. Any other process may do so only if the volume has a
// later generation than the registered one and is a successor of the registered state. If no process has registered
// the volume, the same generation suffices. The volume is a successor of the registered state if its step is the
// registered one, or a later step that was created by a process that knew of the registered one. If the volume knows
// of a later registered step than etcd does, etcd itself was rolled back, and the process may serve the volume.
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
	// A record that a rebuild has written names no process. In that case, the steps show whether the volume is still the
	// same one.
	mayBeSame := seen.Boot == uuid.Nil && registered.Number > 0
	switch {
	case shard.Generation < seen.Generation, shard.Generation == seen.Generation && !mayBeSame:
		return refuse("it has generation %d, and generation %d of it was registered", shard.Generation, seen.Generation)
	case registered.Number == 0:
		return nil // the record was written by a version of Sheaf without steps
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

// NumberMax is higher than any generation or step that a volume can reach, and higher than any epoch of a store.
const NumberMax = 1 << 62

// MayReplace returns nil if a shard may replace the shard that is registered under the same name, or ErrNameTaken
// with the reason. It does not check whether the other shard is still alive.
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
