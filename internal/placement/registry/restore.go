package registry

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	clientv3 "go.etcd.io/etcd/client/v3"

	"sheaf.dev/sheaf/internal/placement"
	"sheaf.dev/sheaf/internal/placement/rescue"
)

// Restore writes a rebuilt placement. It writes meta last, because no process follows an etcd that has no meta. It
// keeps the records of volumes that etcd already has. If etcd already has meta, Restore returns ErrStoreExists. If
// force is set, it replaces the meta of the same store, but never that of a different store. A store that is restored
// from an archive remains one, and its groups that wait for their restore and are on no volume wait on.
func (s *Store) Restore(ctx context.Context, r rescue.Rebuilt, force bool) error {
	if err := r.Meta.Validate(); err != nil {
		return err
	}
	st, err := s.list(ctx)
	if err != nil {
		return err
	}
	if st.hasMeta && st.view.Meta.StoreUUID != r.Meta.StoreUUID {
		return fmt.Errorf("%w: store %s below %s: nothing is changed", placement.ErrStoreExists, st.view.Meta.StoreUUID,
			s.prefix)
	}
	if st.hasMeta && !force {
		return fmt.Errorf("%w: it is this store %s, with %d groups: nothing is lost, and nothing is changed",
			placement.ErrStoreExists, r.Meta.StoreUUID, len(st.groups))
	}
	if len(r.Short) > 0 && !force {
		return fmt.Errorf("%w: %s", ErrShort, r.ShortWords())
	}
	if st.hasMeta {
		r.Meta.EpochBase = max(r.Meta.EpochBase, st.view.Meta.EpochBase+rescue.EpochJump)
	}
	if st.hasMeta && r.Meta.Restore == nil {
		r.Meta.Restore = st.view.Meta.Restore
	}
	ops, known := s.rebuiltOps(r, st.groups)
	for _, v := range r.Volumes {
		key := volumesKey + v.Volume.String()
		ops = append(ops, clientv3.OpTxn([]clientv3.Cmp{s.at(key, 0)}, []clientv3.Op{s.opPut(key, v)}, nil))
	}
	var unknown []string
	for name, g := range st.groups {
		if !known[name] && g.Deleted == "" {
			unknown = append(unknown, name)
			ops = append(ops, clientv3.OpTxn(nil, s.wakesOf(g), nil))
		}
	}
	if slices.Sort(unknown); len(unknown) > 0 && !force {
		return fmt.Errorf("%w: it holds groups that no volume has: %s", placement.ErrStoreExists, strings.Join(unknown, ", "))
	}
	unchanged := s.at(metaKey, st.metaRevision)
	err = s.write(ctx, []clientv3.Op{clientv3.OpDelete(s.prefix+wakesKey, clientv3.WithPrefix())}, unchanged)
	if err == nil {
		err = s.write(ctx, ops, unchanged)
	}
	if err != nil {
		return restoring(err)
	}
	return restoring(s.write(ctx, []clientv3.Op{
		// The old targets are deleted. The planner sets new ones.
		clientv3.OpDelete(s.prefix+targetsKey, clientv3.WithPrefix()),
		s.opPut(metaKey, r.Meta), clientv3.OpDelete(s.prefix + frozenKey),
	}, unchanged))
}

// rebuiltOps returns the operations that write the rebuilt groups over the groups that etcd holds, and the names of the
// rebuilt groups. Groups that are on no volume stay as they are if etcd knows them.
func (s *Store) rebuiltOps(r rescue.Rebuilt, groups map[string]placement.Group) (ops []clientv3.Op,
	known map[string]bool) {
	known = map[string]bool{}
	ops = make([]clientv3.Op, 0, len(r.Groups)+len(r.Volumes))
	for _, g := range r.Groups {
		known[g.Name] = true
		there, has := groups[g.Name]
		if has && len(g.Members) == 0 {
			ops = append(ops, clientv3.OpTxn(nil, s.wakesOf(there), nil))
			continue // no volume holds the group, and etcd knows more about it
		}
		if has && there.UUID == g.UUID {
			g.WritesFrom = placement.WritesAfter(there, g)
		}
		ops = append(ops, clientv3.OpTxn(nil, append(s.wakesOf(g), s.opPut(groupsKey+g.Name, g),
			clientv3.OpDelete(s.prefix+deletedKey+g.Name)), nil))
	}
	return ops, known
}

// wakesOf returns the operations that notify the shards of a group's members. Restore deletes all targets, so no other
// shards have to be notified.
func (s *Store) wakesOf(g placement.Group) []clientv3.Op {
	return s.wakeOps(g.Name, nil, concerned(g, placement.Target{}))
}

// ErrShort means that too few voters of some groups were found, and that therefore nothing was written.
var ErrShort = errors.New("too few voters of some groups were found")

func restoring(err error) error {
	if errors.Is(err, errNotElected) {
		return fmt.Errorf("%w: another made it meanwhile: run this again", placement.ErrStoreExists)
	}
	return err
}

// Registered lists the shards that are currently registered. It works even if etcd holds nothing else about the
// store.
func (s *Store) Registered(ctx context.Context) ([]placement.Shard, error) {
	st, err := s.list(ctx)
	if err != nil {
		return nil, err
	}
	return slices.SortedFunc(maps.Values(st.shards), func(a, b placement.Shard) int {
		return cmp.Compare(a.Name, b.Name)
	}), nil
}
