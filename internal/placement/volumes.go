package placement

import (
	"fmt"

	"github.com/google/uuid"
)

// Step is one of the successive states of a volume. Each start of a shard creates a new step, and a shard that writes
// creates one every few seconds. The volume's superblock holds the current step, and etcd records each step. Therefore,
// etcd has a later step than a volume that was restored from an older image.
type Step struct {
	Number uint64    `json:"number"` // each step adds 1; 0 if written by a version of Sheaf without steps
	Nonce  uuid.UUID `json:"nonce"`  // random
}

// VolumeRecord is etcd's record of a volume. It is stored under the key "volumes/UUID", even while no shard runs on
// the volume.
type VolumeRecord struct {
	Volume     uuid.UUID `json:"volume"`
	Generation uint64    `json:"generation"` // the highest generation ever registered
	Step       Step      `json:"step"`       // the step registered last
	// Boot is the process that registered the volume. Boot is zero if no process registered the volume, because
	// a rebuild wrote the record from the volume's state at that time.
	Boot    uuid.UUID `json:"boot"`
	Shard   string    `json:"shard"`
	Address string    `json:"address"`
}

// Record returns the record that etcd should hold for a shard's volume.
func (s Shard) Record() VolumeRecord {
	return VolumeRecord{Volume: s.VolumeUUID, Generation: s.Generation, Step: s.Step, Boot: s.Boot, Shard: s.Name,
		Address: s.Address}
}

// MayFollow returns nil if a shard may serve its volume, given etcd's record of the volume, or ErrRolledBack with the
// reason. The process that is registered may serve the volume. Any other process needs a volume in a later generation
// (or in the same generation, if no process registered the volume) that is the successor of the registered volume. A
// successor is in the registered step, or in a later step created by a process that knew of that registration. If the
// volume records a later registered step than etcd, etcd was rolled back, and the volume may be served.
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
	mayBeSame := seen.Boot == uuid.Nil && registered.Number > 0 // whether it is the same process is decided by the steps
	switch {
	case shard.Generation < seen.Generation, shard.Generation == seen.Generation && !mayBeSame:
		return refuse("it has generation %d, and generation %d of it was registered", shard.Generation, seen.Generation)
	case registered.Number == 0:
		return nil // written by a program without steps
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

// NumberMax is above all generations and steps that a volume reaches, and above all epochs of a store.
const NumberMax = 1 << 62

// MayReplace returns nil if a shard may replace the one that is registered under its name, or ErrNameTaken with the
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
