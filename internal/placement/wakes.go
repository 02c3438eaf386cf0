package placement

import (
	"context"
	"fmt"
	"slices"

	"github.com/google/uuid"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// A shard watches only what is its own (ADR 27). Whoever writes a group or its target puts, in the same transaction, a
// key wakes/SHARD/GROUP without a value for each shard that either of them names, and deletes those of shards that
// neither names any more. Such a key says nothing but "look again": what is true is read from the keys of the group and
// its target. Programs of before this do not write them; the keeper (keeper.go) does it for them.

// wakesMax bounds the shards that are told of one group in one transaction. A group and its target name a dozen at
// most.
const wakesMax = 60

// concerned are the shards that a group or its target names, each once, in order.
func concerned(g Group, t Target) []string {
	names := make([]string, 0, len(g.Members)+len(t.Shards))
	for _, m := range g.Members {
		names = append(names, m.Shard)
	}
	names = append(names, t.Shards...)
	names = slices.DeleteFunc(names, func(name string) bool { return ValidateShardName(name) != nil })
	slices.Sort(names)
	return slices.Compact(names)
}

func (k keys) wakeKey(shard, group string) string { return k.prefix + wakesKey + shard + "/" + group }

// wakeOps tell the shards that a group concerns now, and those that it concerned before, that it is written.
func (k keys) wakeOps(group string, before, now []string) []clientv3.Op {
	ops := make([]clientv3.Op, 0, len(before)+len(now))
	for _, shard := range now {
		ops = append(ops, clientv3.OpPut(k.wakeKey(shard, group), ""))
	}
	for _, shard := range before {
		if !slices.Contains(now, shard) {
			ops = append(ops, clientv3.OpDelete(k.wakeKey(shard, group)))
		}
	}
	return ops[:min(len(ops), wakesMax)] // the keeper writes the rest
}

// Own says which groups a shard follows: those that name it or its volume, or are wanted on it, and those on its
// volume.
type Own struct {
	Shard string
	// Volume is the shard's; zero: none. Its groups may name another shard, from which it is being adopted.
	Volume uuid.UUID
	// Holds tells whether a group has a folder on the shard's volume; nil: none has. It is called from another
	// goroutine.
	Holds func(group uuid.UUID) bool
	// Held are the names of these groups, as far as they are known; nil: none are. It is called from another goroutine.
	Held func() []string
}

// has tells whether a group is the shard's own.
func (o Own) has(g Group, t Target) bool { return o.isNamed(g, t) || o.holds(g) }

func (o Own) isNamed(g Group, t Target) bool {
	return slices.Contains(t.Shards, o.Shard) || slices.ContainsFunc(g.Members, func(m Member) bool {
		return m.Shard == o.Shard || o.Volume != uuid.Nil && m.VolumeUUID == o.Volume
	})
}

func (o Own) holds(g Group) bool { return o.Holds != nil && g.UUID != uuid.Nil && o.Holds(g.UUID) }

// Of is the part of a view that a shard follows.
func (v View) Of(own Own) View {
	groups, targets := map[string]Group{}, map[string]Target{}
	for name, g := range v.Groups {
		if own.has(g, v.Targets[name]) {
			groups[name] = g
		}
	}
	for name, t := range v.Targets {
		if _, ok := groups[name]; ok || own.has(Group{}, t) {
			targets[name] = t
		}
	}
	v.Groups, v.Targets, v.Own = groups, targets, true
	return v
}

// pair is a group and its target at one revision. A Revision of 0: it is not there.
type pair struct {
	group  Group
	target Target
}

func (p pair) concerned() []string { return concerned(p.group, p.target) }

// unchanged are the conditions under which a pair is as it was read.
func (k keys) unchanged(name string, p pair) []clientv3.Cmp {
	return []clientv3.Cmp{k.at(groupsKey+name, p.group.Revision), k.at(targetsKey+name, p.target.Revision)}
}

// pairs reads groups and their targets at one revision, and whether the store is frozen. A target that cannot be read
// names nobody.
func (k keys) pairs(ctx context.Context, names ...string) (pairs map[string]pair, frozen bool, err error) {
	keys := make([]string, 0, 2*len(names)+1)
	for _, name := range names {
		keys = append(keys, groupsKey+name, targetsKey+name)
	}
	found, _, err := k.read(ctx, append(keys, frozenKey))
	if err != nil {
		return nil, false, err
	}
	pairs = make(map[string]pair, len(names))
	for _, name := range names {
		var p pair
		if kv := found[groupsKey+name]; kv != nil {
			if p.group, err = decodeGroup(kv.Value, kv.ModRevision); err != nil {
				return nil, false, fmt.Errorf("group %s: %w", name, err)
			}
		}
		if kv := found[targetsKey+name]; kv != nil {
			p.target, _ = decodeTarget(kv.Value, kv.ModRevision)
			p.target.Revision = kv.ModRevision
		}
		pairs[name] = p
	}
	return pairs, found[frozenKey] != nil, nil
}

// Look is what etcd holds of one group now: a view of the group, its target, and the shards that these name. A store
// that is not there, or a group, is an empty view, without an error.
func (s *Store) Look(ctx context.Context, group string) (View, error) {
	found, at, err := s.read(ctx, []string{metaKey, frozenKey, groupsKey + group, targetsKey + group})
	if err != nil {
		return View{}, err
	}
	st := newState()
	st.revision, st.cluster, st.view.Own = at.revision, at.cluster, true
	if err := st.putAll(found); err != nil {
		return View{}, err
	}
	// At a later revision: a shard that is named is there by then.
	if found, _, err = s.read(ctx, shardKeys(concerned(st.groups[group], st.targets[group]))); err != nil {
		return View{}, err
	}
	if err := st.putAll(found); err != nil {
		return View{}, err
	}
	return st.publish(), nil
}
