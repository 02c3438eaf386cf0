package registry

import (
	"context"
	"fmt"
	"slices"

	clientv3 "go.etcd.io/etcd/client/v3"

	"sheaf.dev/sheaf/internal/placement"
)

// A shard watches only keys that concern it (ADR 27). For this purpose, a process that writes a group or its target
// also writes an empty key wakes/SHARD/GROUP, in the same transaction, for each shard that the group or the target
// names. For a shard that neither of them names any longer, it deletes that key. A change to such a wake key only
// tells the shard to look again, because the true state is in the keys of the group and its target. Older versions of
// Sheaf do not write wake keys, so the keeper (keeper.go) writes them instead.

// wakesMax limits the number of shards that are notified about one group in one transaction. That is more than
// enough, because a group and its target name at most a dozen shards.
const wakesMax = 60

// concerned returns the shards named in a group or its target, sorted and without duplicates.
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

// wakeOps returns the operations that notify the shards in now, and the shards in before, of a change to a group.
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

// pair is a group and its target at one revision. If one of them does not exist, its Revision is 0.
type pair struct {
	group  placement.Group
	target placement.Target
}

func (p pair) concerned() []string { return concerned(p.group, p.target) }

// unchanged returns the conditions that neither a group nor its target has changed since the pair was read.
func (k keys) unchanged(name string, p pair) []clientv3.Cmp {
	return []clientv3.Cmp{k.at(groupsKey+name, p.group.Revision), k.at(targetsKey+name, p.target.Revision)}
}

// pairs reads groups and their targets at one revision, and also whether the store is frozen. A target with an
// invalid value counts as a target without shards.
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

// Look reads one group from etcd. It returns a view that contains the group, its target, and the shards that either
// of them names. If the store or the group does not exist, the view is empty and there is no error.
func (s *Store) Look(ctx context.Context, group string) (placement.View, error) {
	found, at, err := s.read(ctx, []string{metaKey, frozenKey, groupsKey + group, targetsKey + group})
	if err != nil {
		return placement.View{}, err
	}
	st := newState()
	st.revision, st.cluster, st.view.Own = at.revision, at.cluster, true
	st.putAll(s.keys, found)
	// If the group's key or its target's key is invalid, nothing can be said about the group.
	for _, o := range st.unusable {
		return placement.View{}, fmt.Errorf("%w: %s", placement.ErrUnusable, o)
	}
	// The shards are read after the group and its target. By then, all shards that these name are registered.
	if found, _, err = s.read(ctx, shardKeys(concerned(st.groups[group], st.targets[group]))); err != nil {
		return placement.View{}, err
	}
	st.putAll(s.keys, found)
	return st.publish(), nil
}
