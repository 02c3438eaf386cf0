package placement

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/google/uuid"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// epochJump raises the epoch above all epochs that any process may have seen before etcd was lost.
const epochJump = 1 << 32

// FoundVolume is the report of one shard about its volume.
type FoundVolume struct {
	Shard   string
	Address string
	UUID    uuid.UUID
	Store   uuid.UUID
	// Generation and Step are the values in the superblock.
	Generation uint64
	Step       Step
	Facts      *FoundFacts // nil if the volume does not know the facts
	Replicas   []FoundReplica
}

// Blank reports whether the shard has no volume yet; v then holds no information.
func (v FoundVolume) Blank() bool {
	return v.Store == uuid.Nil && v.UUID == uuid.Nil && len(v.Replicas) == 0
}

// FoundFacts are the facts that a volume remembers about its store.
type FoundFacts struct {
	Routing    Routing
	Copies     int
	GroupsMax  int
	CreatedUTC string
	Epoch      uint64
}

// FoundReplica is one group on a volume.
type FoundReplica struct {
	Name            string // empty if the manifest cannot be read
	UUID            uuid.UUID
	Store           uuid.UUID
	RaftID          uint64 // 0 if unknown
	Voters          []uint64
	Outgoing        []uint64 // the voters of the previous membership, while both memberships must agree
	Learners        []uint64
	ConfIndex       uint64 // index of the membership change that made this membership
	Term, Committed uint64
	Joining         bool // the replica has a Raft id but no data yet
	Ended           bool // the group has ended: it is being deleted, or was deleted
	Foreign         bool // the replica was made on another volume, so it is ignored
	Records, Bytes  int64
	Leader          bool
	Message         string // describes a problem of the replica
}

// Rebuilt is the placement of a store, made from its volumes.
type Rebuilt struct {
	Meta   Meta
	Groups []Group // sorted by name
	// Volumes are the volumes to be registered if etcd knows nothing about them, so that an earlier state of a volume
	// is detected again.
	Volumes []VolumeRecord
	// Missing lists the groups of Hash routing that no volume holds.
	Missing []string
	// Short holds the groups for which too few voters were found to continue, with the reason. These groups are also
	// in Groups.
	Short map[string]string
	// Notes describe what a person should check before the placement is written.
	Notes []string
}

// Rebuild derives the placement of a store from the contents of its volumes. It is pure. The argument given supplies
// facts that no volume knows, and may be nil. An error describes a contradiction.
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
	out := Rebuilt{Short: map[string]string{}, Meta: Meta{
		StoreUUID: store, Routing: facts.Routing, Copies: facts.Copies, GroupsMax: facts.GroupsMax,
		CreatedUTC: facts.CreatedUTC,
		EpochBase:  facts.Epoch + epochJump,
	}}
	if err := out.Meta.Validate(); err != nil {
		return Rebuilt{}, err
	}
	for _, v := range volumes {
		out.Volumes = append(out.Volumes, VolumeRecord{Volume: v.UUID, Generation: v.Generation, Step: v.Step, Shard: v.Shard,
			Address: v.Address})
	}
	return out, out.addGroups(store, volumes)
}

// sameStore rejects volumes of other stores, clones, and two shards with the same name.
func sameStore(store uuid.UUID, volumes []FoundVolume) error {
	names, ids := map[string]bool{}, map[uuid.UUID]string{}
	for _, v := range volumes {
		if v.Store != store {
			return fmt.Errorf("shard %s: its volume %s is of store %s, not of %s", v.Shard, v.UUID, v.Store, store)
		}
		if err := ValidateShardName(v.Shard); err != nil {
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

// agreedFacts returns the facts on which all volumes that know them agree.
func agreedFacts(volumes []FoundVolume, given *FoundFacts) (FoundFacts, error) {
	var facts *FoundFacts
	from, epoch := "", uint64(0)
	for _, v := range volumes {
		if v.Facts == nil {
			continue
		}
		if v.Facts.Epoch > numberMax-epochJump {
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

// ErrStoreExists says that etcd already holds the placement of this store or another one. Nothing was written.
var ErrStoreExists = errors.New("etcd already holds a store here")

// Restore writes a rebuilt placement. It writes meta last, because no process follows an etcd without meta. It keeps
// the records of volumes in etcd. If etcd already holds meta, it returns ErrStoreExists; with force it replaces the
// meta of the same store, but never that of another store.
func (s *Store) Restore(ctx context.Context, r Rebuilt, force bool) error {
	if err := r.Meta.Validate(); err != nil {
		return err
	}
	st, err := s.list(ctx)
	if err != nil {
		return err
	}
	if st.hasMeta && st.view.Meta.StoreUUID != r.Meta.StoreUUID {
		return fmt.Errorf("%w: store %s below %s: nothing is changed", ErrStoreExists, st.view.Meta.StoreUUID, s.prefix)
	}
	if st.hasMeta && !force {
		return fmt.Errorf("%w: it is this store %s, with %d groups: nothing is lost, and nothing is changed", ErrStoreExists,
			r.Meta.StoreUUID, len(st.groups))
	}
	if len(r.Short) > 0 && !force {
		return fmt.Errorf("%w: %s", ErrShort, r.ShortWords())
	}
	if st.hasMeta {
		r.Meta.EpochBase = max(r.Meta.EpochBase, st.view.Meta.EpochBase+epochJump)
	}
	known := map[string]bool{}
	ops := make([]clientv3.Op, 0, len(r.Groups)+len(r.Volumes))
	// After the restore no target exists, so only members are woken.
	wakes := func(g Group) []clientv3.Op { return s.wakeOps(g.Name, nil, concerned(g, Target{})) }
	for _, g := range r.Groups {
		known[g.Name] = true
		value, err := json.Marshal(g)
		if err != nil {
			return fmt.Errorf("encode group %s: %w", g.Name, err)
		}
		ops = append(ops, clientv3.OpTxn(nil, append(wakes(g), clientv3.OpPut(s.prefix+groupsKey+g.Name, string(value)),
			clientv3.OpDelete(s.prefix+deletedKey+g.Name)), nil))
	}
	for _, v := range r.Volumes {
		value, err := json.Marshal(v)
		if err != nil {
			return fmt.Errorf("encode volume %s: %w", v.Volume, err)
		}
		key := volumesKey + v.Volume.String()
		ops = append(ops, clientv3.OpTxn([]clientv3.Cmp{s.at(key, 0)},
			[]clientv3.Op{clientv3.OpPut(s.prefix+key, string(value))}, nil))
	}
	var unknown []string
	for name, g := range st.groups {
		if !known[name] && g.Deleted == "" {
			unknown = append(unknown, name)
			ops = append(ops, clientv3.OpTxn(nil, wakes(g), nil))
		}
	}
	if slices.Sort(unknown); len(unknown) > 0 && !force {
		return fmt.Errorf("%w: it holds groups that no volume has: %s", ErrStoreExists, strings.Join(unknown, ", "))
	}
	unchanged := s.at(metaKey, st.metaRevision)
	err = s.write(ctx, []clientv3.Op{clientv3.OpDelete(s.prefix+wakesKey, clientv3.WithPrefix())}, unchanged)
	if err == nil {
		err = s.write(ctx, ops, unchanged)
	}
	if err != nil {
		return restoring(err)
	}
	value, err := json.Marshal(r.Meta)
	if err != nil {
		return fmt.Errorf("encode meta: %w", err)
	}
	return restoring(s.write(ctx, []clientv3.Op{
		clientv3.OpDelete(s.prefix+targetsKey, clientv3.WithPrefix()), // old targets; the planner sets new ones
		clientv3.OpPut(s.prefix+metaKey, string(value)), clientv3.OpDelete(s.prefix + frozenKey),
	}, unchanged))
}

// ErrShort says that too few voters were found for some groups. Nothing was written.
var ErrShort = errors.New("too few voters of some groups were found")

// shortWordsMax bounds the number of groups that ShortWords names, and the number of entries in Freeze.Waits.
const shortWordsMax = 20

// ShortWords says for which groups too few voters were found.
func (r Rebuilt) ShortWords() string {
	var words []string
	for _, name := range slices.Sorted(maps.Keys(r.Short)) {
		if len(words) == shortWordsMax {
			words = append(words, fmt.Sprintf("and %d more", len(r.Short)-shortWordsMax))
			break
		}
		words = append(words, fmt.Sprintf("group %s: %s", name, r.Short[name]))
	}
	return strings.Join(words, "; ")
}

func restoring(err error) error {
	if errors.Is(err, ErrNotElected) {
		return fmt.Errorf("%w: another made it meanwhile: run this again", ErrStoreExists)
	}
	return err
}

// Registered lists the shards that are registered now, even if etcd holds nothing else.
func (s *Store) Registered(ctx context.Context) ([]Shard, error) {
	st, err := s.list(ctx)
	if err != nil {
		return nil, err
	}
	return slices.SortedFunc(maps.Values(st.shards), func(a, b Shard) int { return cmp.Compare(a.Name, b.Name) }), nil
}
