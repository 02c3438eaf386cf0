package placement

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/google/uuid"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// epochJump leaves all epochs behind that anybody may have seen before etcd was lost.
const epochJump = 1 << 32

// FoundVolume is what one shard says that its volume holds.
type FoundVolume struct {
	Shard    string
	UUID     uuid.UUID
	Store    uuid.UUID
	Facts    *FoundFacts // nil: the volume does not know
	Replicas []FoundReplica
}

// FoundFacts is what a volume remembers of its store.
type FoundFacts struct {
	Routing    Routing
	Copies     int
	GroupsMax  int
	CreatedUTC string
	Epoch      uint64
}

// FoundReplica is one group on a volume.
type FoundReplica struct {
	Name            string // empty: its manifest cannot be read
	UUID            uuid.UUID
	Store           uuid.UUID
	RaftID          uint64 // 0: not known
	Voters          []uint64
	Term, Committed uint64
	Records, Bytes  int64
	Leader          bool
	Message         string // what is wrong with it
}

// Rebuilt is the placement of a store, made from its volumes.
type Rebuilt struct {
	Meta   Meta
	Groups []Group // by name
	// Missing are groups of Hash routing that no volume holds.
	Missing []string
	// Notes in words: what a person should look at before this is written.
	Notes []string
}

// Rebuild makes the placement of a store from what its volumes hold. It is pure. given stands in for facts that no volume
// knows; nil: none. An error says what contradicts itself.
func Rebuild(store uuid.UUID, volumes []FoundVolume, given *FoundFacts) (Rebuilt, error) {
	if len(volumes) == 0 {
		return Rebuilt{}, errors.New("no volume is given")
	}
	if err := sameStore(store, volumes); err != nil {
		return Rebuilt{}, err
	}
	facts, err := agreedFacts(volumes, given)
	if err != nil {
		return Rebuilt{}, err
	}
	out := Rebuilt{Meta: Meta{
		StoreUUID: store, Routing: facts.Routing, Copies: facts.Copies, GroupsMax: facts.GroupsMax, CreatedUTC: facts.CreatedUTC,
		EpochBase: facts.Epoch + epochJump,
	}}
	if err := out.Meta.Validate(); err != nil {
		return Rebuilt{}, err
	}
	return out, out.addGroups(store, volumes)
}

// sameStore refuses volumes of other stores, clones, and two shards of one name.
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

// agreedFacts are those that all volumes which know them agree on.
func agreedFacts(volumes []FoundVolume, given *FoundFacts) (FoundFacts, error) {
	var facts *FoundFacts
	from, epoch := "", uint64(0)
	for _, v := range volumes {
		if v.Facts == nil {
			continue
		}
		epoch = max(epoch, v.Facts.Epoch)
		now := *v.Facts
		now.Epoch = 0
		if facts == nil {
			facts, from = &now, v.Shard
			continue
		}
		if *facts != now {
			return FoundFacts{}, fmt.Errorf("the volumes of shards %s and %s disagree about the store: %+v, %+v", from, v.Shard, *facts, now)
		}
	}
	switch {
	case facts == nil && given == nil:
		return FoundFacts{}, errors.New("no volume remembers what its store is like: give --routing, and --groups for hash, as the store was made")
	case facts == nil:
		return *given, nil
	case given != nil && given.Routing != facts.Routing:
		return FoundFacts{}, fmt.Errorf("given is %+v, but the volumes remember %+v: leave it out", given.Routing, facts.Routing)
	}
	facts.Epoch = epoch
	return *facts, nil
}

// located is a replica and where it is.
type located struct {
	FoundReplica
	volume FoundVolume
}

// addGroups finds the members of each group.
func (r *Rebuilt) addGroups(store uuid.UUID, volumes []FoundVolume) error {
	replicas, ids := map[string][]located{}, map[string]uuid.UUID{}
	for _, v := range volumes {
		for _, f := range v.Replicas {
			if f.Name == "" || f.Store != store || f.Message != "" && f.RaftID == 0 {
				r.Notes = append(r.Notes, fmt.Sprintf("shard %s: group %s %s is left out: %s", v.Shard, f.Name, f.UUID,
					cmp.Or(f.Message, "it is of another store")))
				continue
			}
			if err := ValidateGroupName(f.Name); err != nil {
				return fmt.Errorf("shard %s: %w", v.Shard, err)
			}
			if id, ok := ids[f.Name]; ok && id != f.UUID {
				return fmt.Errorf("group %s was found as %s and as %s, the latter on shard %s: move the folder that is wrong away", f.Name, id, f.UUID, v.Shard)
			}
			ids[f.Name] = f.UUID
			replicas[f.Name] = append(replicas[f.Name], located{f, v})
		}
	}
	for _, name := range slices.Sorted(maps.Keys(replicas)) {
		g, err := r.group(name, replicas[name])
		if err != nil {
			return fmt.Errorf("group %s: %w", name, err)
		}
		r.Groups = append(r.Groups, g)
	}
	for n := range r.Meta.Routing.Groups {
		if name := GroupName(n); replicas[name] == nil {
			r.Missing = append(r.Missing, name)
		}
	}
	return nil
}

// group makes the state of one group: the replica that has heard most knows who its voters are.
func (r *Rebuilt) group(name string, found []located) (Group, error) {
	slices.SortFunc(found, func(a, b located) int {
		return cmp.Or(cmp.Compare(b.Term, a.Term), cmp.Compare(b.Committed, a.Committed), cmp.Compare(a.volume.Shard, b.volume.Shard))
	})
	newest := found[0]
	g := Group{Name: name, UUID: newest.UUID, Bytes: newest.Bytes, Records: newest.Records, Term: newest.Term}
	if r.Meta.Routing.Mode == Hash {
		n, err := strconv.Atoi(name)
		if err != nil || n < 0 || n >= r.Meta.Routing.Groups || GroupName(n) != name {
			return g, fmt.Errorf("the store has only groups 0 to %d", r.Meta.Routing.Groups-1)
		}
		g.KeyFirst, g.KeyLast = r.Meta.Routing.KeyRange(n)
	}
	for _, f := range found {
		switch {
		case f.RaftID == 0:
			return g, fmt.Errorf("shard %s does not say which voter it is: start it, so that it serves", f.volume.Shard)
		case !slices.Contains(newest.Voters, f.RaftID):
			r.Notes = append(r.Notes, fmt.Sprintf("group %s: the copy on shard %s is no voter any more, and left out", name, f.volume.Shard))
			continue
		case slices.ContainsFunc(g.Members, func(m Member) bool { return m.RaftID == f.RaftID }):
			return g, fmt.Errorf("shards %s and %s hold the same replica: one is a copy, move its folder away", g.Members[0].Shard, f.volume.Shard)
		}
		g.Members = append(g.Members, Member{Shard: f.volume.Shard, VolumeUUID: f.volume.UUID, RaftID: f.RaftID})
		if f.Leader {
			g.Leader = f.volume.Shard
		}
	}
	if missing := len(newest.Voters) - len(g.Members); missing > 0 {
		r.Notes = append(r.Notes, fmt.Sprintf("group %s: %d of its %d voters were not found", name, missing, len(newest.Voters)))
	}
	if g.Leader == "" && len(g.Members) > 0 {
		g.Leader = g.Members[0].Shard
	}
	return g, nil
}

// ErrStoreExists says that etcd holds placement of the store, or of another one. Nothing was written.
var ErrStoreExists = errors.New("etcd already holds a store here")

// Restore writes a placement that was rebuilt, meta last: nobody follows etcd before. Where etcd holds meta already, it
// answers ErrStoreExists; with force it replaces that of the same store, never that of another one.
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
	if st.hasMeta {
		r.Meta.EpochBase = max(r.Meta.EpochBase, st.view.Meta.EpochBase+epochJump)
	}
	known := map[string]bool{}
	ops := make([]clientv3.Op, 0, len(r.Groups)+1)
	for _, g := range r.Groups {
		known[g.Name] = true
		value, err := json.Marshal(g)
		if err != nil {
			return fmt.Errorf("encode group %s: %w", g.Name, err)
		}
		ops = append(ops, clientv3.OpPut(s.prefix+groupsKey+g.Name, string(value)))
	}
	var unknown []string
	for name := range st.groups {
		if !known[name] {
			unknown = append(unknown, name)
		}
	}
	if slices.Sort(unknown); len(unknown) > 0 && !force {
		return fmt.Errorf("%w: it holds groups that no volume has: %s", ErrStoreExists, strings.Join(unknown, ", "))
	}
	unchanged := clientv3.Compare(clientv3.ModRevision(s.prefix+metaKey), "=", st.metaRevision)
	if err := s.write(ctx, ops, unchanged); err != nil {
		return restoring(err)
	}
	value, err := json.Marshal(r.Meta)
	if err != nil {
		return fmt.Errorf("encode meta: %w", err)
	}
	return restoring(s.write(ctx, []clientv3.Op{clientv3.OpPut(s.prefix+metaKey, string(value))}, unchanged))
}

func restoring(err error) error {
	if errors.Is(err, ErrNotElected) {
		return fmt.Errorf("%w: another made it meanwhile: run this again", ErrStoreExists)
	}
	return err
}

// Registered lists the shards that are registered now, also where etcd holds nothing else.
func (s *Store) Registered(ctx context.Context) ([]Shard, error) {
	st, err := s.list(ctx)
	if err != nil {
		return nil, err
	}
	return slices.SortedFunc(maps.Values(st.shards), func(a, b Shard) int { return cmp.Compare(a.Name, b.Name) }), nil
}
