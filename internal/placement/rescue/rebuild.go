// Package rescue derives a store's placement from what the volumes of its shards contain, after etcd was lost or
// rolled back to an older state. It makes no calls. Package survey queries the shards, and package registry writes
// the result to etcd.
package rescue

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/google/uuid"

	"sheaf.dev/sheaf/internal/placement"
)

// EpochJump is added to the epoch when etcd is rebuilt. It is so large that the new epoch is above every epoch that
// any process may have seen before etcd was lost.
const EpochJump = 1 << 32

// FoundVolume is what one shard reports about its volume.
type FoundVolume struct {
	Shard   string
	Address string
	UUID    uuid.UUID
	Store   uuid.UUID
	// Generation and Step are the values from the superblock.
	Generation uint64
	Step       placement.Step
	Facts      *FoundFacts // fixed properties of the store; nil if the volume does not record them
	Replicas   []FoundReplica
}

// Blank reports whether the shard has no volume yet. If so, v contains no other information.
func (v FoundVolume) Blank() bool {
	return v.Store == uuid.Nil && v.UUID == uuid.Nil && len(v.Replicas) == 0
}

// FoundFacts are the fixed properties of a store, as far as a volume remembers them.
type FoundFacts struct {
	Routing    placement.Routing
	Copies     int
	GroupsMax  int
	CreatedUTC string
	Epoch      uint64
}

// FoundReplica describes a replica that was found on a volume.
type FoundReplica struct {
	Name            string // empty if the manifest cannot be read
	UUID            uuid.UUID
	Store           uuid.UUID
	RaftID          uint64 // 0 if unknown
	Voters          []uint64
	Outgoing        []uint64 // voters of the previous membership, until the change to the new one is complete
	Learners        []uint64
	ConfIndex       uint64 // index of the change that led to the current membership
	Term, Committed uint64
	Joining         bool // whether the replica has a Raft id but no data yet
	Ended           bool // whether the group has ended, because it is being deleted or was deleted
	Foreign         bool // whether the replica was created on another volume; if so, it is ignored
	Records, Bytes  int64
	Leader          bool
	Message         string // describes a problem with the replica
}

// Rebuilt is a store's placement, derived from its volumes.
type Rebuilt struct {
	Meta   placement.Meta
	Groups []placement.Group // sorted by name
	// Volumes are the records of volumes that etcd should get if it has none. With them, etcd can again detect a volume
	// that was rolled back.
	Volumes []placement.VolumeRecord
	// Missing lists the groups of Hash routing that no volume holds.
	Missing []string
	// Again lists the groups that AddWaiting added, sorted by name. No volume that was found holds them. Each will be
	// restored from the archive, again if a volume that was not found holds it.
	Again []string
	// Short contains each group for which too few voters were found to continue, with the reason. These groups are also
	// in Groups.
	Short map[string]string
	// restored means that a volume holds a replica of a group that was restored from an archive.
	restored bool
	// Notes list what a person should check before the placement is written.
	Notes []string
}

// Rebuild derives a store's placement from the contents of its volumes. It is a pure function. If no volume records
// the store's properties, Rebuild uses those in given. If a volume records them, given may be nil. If the volumes
// contradict each other, Rebuild returns an error that describes the contradiction.
func Rebuild(store uuid.UUID, volumes []FoundVolume, given *FoundFacts) (Rebuilt, error) {
	volumes = slices.DeleteFunc(slices.Clone(volumes), FoundVolume.Blank)
	if len(volumes) == 0 {
		return Rebuilt{}, errors.New("no volume is given that holds anything")
	}
	if err := sameStore(store, volumes); err != nil {
		return Rebuilt{}, err
	}
	facts, err := agreedFacts(volumes, given)
	if err != nil {
		return Rebuilt{}, err
	}
	out := Rebuilt{Short: map[string]string{}, Meta: placement.Meta{
		StoreUUID: store, Routing: facts.Routing, Copies: facts.Copies, GroupsMax: facts.GroupsMax,
		CreatedUTC: facts.CreatedUTC,
		EpochBase:  facts.Epoch + EpochJump,
	}}
	if err := out.Meta.Validate(); err != nil {
		return Rebuilt{}, err
	}
	for _, v := range volumes {
		out.Volumes = append(out.Volumes, placement.VolumeRecord{Volume: v.UUID, Generation: v.Generation, Step: v.Step,
			Shard:   v.Shard,
			Address: v.Address})
	}
	return out, out.addGroups(store, volumes)
}

// sameStore returns an error if a volume belongs to another store, if one volume is a clone of another, or if two
// shards have the same name.
func sameStore(store uuid.UUID, volumes []FoundVolume) error {
	names, ids := map[string]bool{}, map[uuid.UUID]string{}
	for _, v := range volumes {
		if v.Store != store {
			return fmt.Errorf("shard %s: its volume %s is of store %s, not of %s", v.Shard, v.UUID, v.Store, store)
		}
		if err := placement.ValidateShardName(v.Shard); err != nil {
			return err
		}
		if names[v.Shard] {
			return fmt.Errorf("shard %s was given twice", v.Shard)
		}
		if other := ids[v.UUID]; other != "" {
			return fmt.Errorf("shards %s and %s both have volume %s: one is a clone, stop it", other, v.Shard, v.UUID)
		}
		names[v.Shard], ids[v.UUID] = true, v.Shard
	}
	return nil
}

// agreedFacts returns the store's properties with the highest epoch that any volume records. If no volume records the
// properties, it returns those in given. If two volumes disagree, it returns an error.
func agreedFacts(volumes []FoundVolume, given *FoundFacts) (FoundFacts, error) {
	var facts *FoundFacts
	from, epoch := "", uint64(0)
	for _, v := range volumes {
		if v.Facts == nil {
			continue
		}
		if v.Facts.Epoch > placement.NumberMax-EpochJump {
			return FoundFacts{}, fmt.Errorf("the volume of shard %s remembers epoch %d, which no store reaches: remove its "+
				"file store.json, which the shard writes again", v.Shard, v.Facts.Epoch)
		}
		epoch = max(epoch, v.Facts.Epoch)
		now := *v.Facts
		now.Epoch = 0
		if facts == nil {
			facts, from = &now, v.Shard
			continue
		}
		if *facts != now {
			return FoundFacts{}, fmt.Errorf("the volumes of shards %s and %s disagree about the store: %+v, %+v", from, v.Shard,
				*facts, now)
		}
	}
	switch {
	case facts == nil && given == nil:
		return FoundFacts{}, errors.New(
			"no volume remembers what its store is like: give --routing, and --groups for hash, as the store was made")
	case facts == nil:
		return *given, nil
	case given != nil && given.Routing != facts.Routing:
		return FoundFacts{}, fmt.Errorf("given is %+v, but the volumes remember %+v: leave it out", given.Routing,
			facts.Routing)
	}
	facts.Epoch = epoch
	return *facts, nil
}

// firstWordsMax is the maximum number of sentences that FirstWords keeps.
const firstWordsMax = 20

// FirstWords returns the first sentences of a list, followed by one that gives the number of the others.
func FirstWords(all []string) []string {
	if len(all) <= firstWordsMax {
		return all
	}
	return append(slices.Clone(all[:firstWordsMax]), fmt.Sprintf("and %d more", len(all)-firstWordsMax))
}

// ShortWords describes the groups in Short, for an error message.
func (r Rebuilt) ShortWords() string {
	words := make([]string, 0, len(r.Short))
	for _, name := range slices.Sorted(maps.Keys(r.Short)) {
		words = append(words, fmt.Sprintf("group %s: %s", name, r.Short[name]))
	}
	return strings.Join(FirstWords(words), "; ")
}
