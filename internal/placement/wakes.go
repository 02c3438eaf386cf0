package placement

import (
	"context"
	"fmt"
	"slices"

	"github.com/google/uuid"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// A shard watches only its own keys (ADR 27). A process that writes a group or its target also writes, in the same
// transaction, an empty key wakes/SHARD/GROUP for each shard that either of the two names. It deletes the keys for
// shards that neither of them names any more. Such a key only means "look again": the true state is read from the
// keys of the group and its target. Older programs do not write these keys. The keeper (keeper.go) writes the keys for
// them.

// wakesMax bounds the number of shards that are woken for one group in one transaction. A group and its target name a
// dozen shards at most.
const wakesMax = 60

// concerned returns the shards that a group or its target names, sorted and without duplicates.
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

// wakeOps returns the operations that wake the shards that a group concerns now, and those that it concerned before.
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

// Own says which groups a shard follows. These are the groups that name the shard or its volume, the groups that have
// the shard in their target, and the groups that are stored on its volume.
type Own struct {
	Shard string
	// Volume is the shard's volume. It is zero if the shard has no volume. A group on the volume may name another
	// shard, from which this shard takes the group over.
	Volume uuid.UUID
	// Holds reports whether a group has a folder on the shard's volume. If Holds is nil, no group has a folder. Holds
	// is called on another goroutine.
	Holds func(group uuid.UUID) bool
	// Held returns the names of the groups that have a folder on the volume, as far as these names are known. If Held
	// is nil, none are known. Held is called on another goroutine.
	Held func() []string
}

// has reports whether the shard follows the group.
func (o Own) has(g Group, t Target) bool { return o.isNamed(g, t) || o.holds(g) }

func (o Own) isNamed(g Group, t Target) bool {
	return slices.Contains(t.Shards, o.Shard) || slices.ContainsFunc(g.Members, func(m Member) bool {
		return m.Shard == o.Shard || o.Volume != uuid.Nil && m.VolumeUUID == o.Volume
	})
}

func (o Own) holds(g Group) bool { return o.Holds != nil && g.UUID != uuid.Nil && o.Holds(g.UUID) }

// Of returns the part of a view that a shard follows.
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

// pair is a group and its target at one revision. If the Revision of the group or the target is 0, that one does not
// exist.
type pair struct {
	group  Group
	target Target
}

func (p pair) concerned() []string { return concerned(p.group, p.target) }

// unchanged returns the conditions under which a pair has not changed since it was read.
func (k keys) unchanged(name string, p pair) []clientv3.Cmp {
	return []clientv3.Cmp{k.at(groupsKey+name, p.group.Revision), k.at(targetsKey+name, p.target.Revision)}
}

// pairs reads groups and their targets at one revision, and whether the store is frozen. A target that cannot be read
// counts as naming no shards.
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
			if p.group, err = decodeGroup(name, kv.Value, kv.ModRevision); err != nil {
				return nil, false, fmt.Errorf("group %s: %w", name, err)
			}
		}
		if kv := found[targetsKey+name]; kv != nil {
			p.target, _ = decodeTarget(name, kv.Value, kv.ModRevision)
			p.target.Revision = kv.ModRevision
		}
		pairs[name] = p
	}
	return pairs, found[frozenKey] != nil, nil
}

// Look reads one group from etcd. It returns a view of the group, its target, and the shards that these name. If the
// store or the group does not exist, the view is empty, and there is no error.
func (s *Store) Look(ctx context.Context, group string) (View, error) {
	found, at, err := s.read(ctx, []string{metaKey, frozenKey, groupsKey + group, targetsKey + group})
	if err != nil {
		return View{}, err
	}
	st := newState()
	st.revision, st.cluster, st.view.Own = at.revision, at.cluster, true
	st.putAll(s.keys, found)
	for _, o := range st.unusable { // each of these keys decides what may be done to the group
		return View{}, fmt.Errorf("%w: %s", ErrUnusable, o)
	}
	// This read is at a later revision, at which the named shards are already registered.
	if found, _, err = s.read(ctx, shardKeys(concerned(st.groups[group], st.targets[group]))); err != nil {
		return View{}, err
	}
	st.putAll(s.keys, found)
	return st.publish(), nil
}
