package registry

import (
	"context"
	"fmt"
	"slices"

	clientv3 "go.etcd.io/etcd/client/v3"

	"sheaf.dev/sheaf/internal/placement"
)

// A shard watches only its own keys (ADR 27). A process that writes a group or its target also writes, in the same
// transaction, an empty key wakes/SHARD/GROUP for each shard that either of the two names. It deletes the keys for
// shards that neither of the two still names. A change of such a key only makes the shard look again, because the true
// state is in the keys of the group and its target. Older versions of Sheaf do not write these keys, so the keeper
// (keeper.go) writes the keys for them.

// wakesMax limits the number of shards that are woken for one group in one transaction. A group and its target name a
// dozen shards at most.
const wakesMax = 60

// concerned returns the shards that a group or its target names, sorted and without duplicates.
func concerned(g placement.Group, t placement.Target) []string {
	names := make([]string, 0, len(g.Members)+len(t.Shards))
	for _, m := range g.Members {
		names = append(names, m.Shard)
	}
	names = append(names, t.Shards...)
	names = slices.DeleteFunc(names, func(name string) bool { return placement.ValidateShardName(name) != nil })
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

// pair is a group and its target at one revision. If the Revision of the group or the target is 0, that one does not
// exist.
type pair struct {
	group  placement.Group
	target placement.Target
}

func (p pair) concerned() []string { return concerned(p.group, p.target) }

// unchanged returns the conditions that neither a group nor its target has changed since the pair was read.
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

// Look reads one group from etcd. It returns a view with the group, its target, and the shards that these name. If the
// store or the group does not exist, the view is empty, and there is no error.
func (s *Store) Look(ctx context.Context, group string) (placement.View, error) {
	found, at, err := s.read(ctx, []string{metaKey, frozenKey, groupsKey + group, targetsKey + group})
	if err != nil {
		return placement.View{}, err
	}
	st := newState()
	st.revision, st.cluster, st.view.Own = at.revision, at.cluster, true
	st.putAll(s.keys, found)
	for _, o := range st.unusable { // an unusable key of the group restricts what may be done to it
		return placement.View{}, fmt.Errorf("%w: %s", placement.ErrUnusable, o)
	}
	// This read is at a later revision, at which the named shards are already registered.
	if found, _, err = s.read(ctx, shardKeys(concerned(st.groups[group], st.targets[group]))); err != nil {
		return placement.View{}, err
	}
	st.putAll(s.keys, found)
	return st.publish(), nil
}
