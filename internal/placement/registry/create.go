package registry

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"sheaf.dev/sheaf/internal/base/longlock"
	"sheaf.dev/sheaf/internal/placement"
)

// CreateGroup creates a group if it does not exist yet, and returns the group that etcd then holds. It returns a
// *LimitError if a bound does not allow one more group. Even if several processes create groups at the same moment,
// no bound is ever exceeded. For this, every caller that creates a group covered by a bound must pass that bound.
func (s *Store) CreateGroup(ctx context.Context, g placement.Group, bounds ...placement.Bound) (
	there placement.Group, created bool, err error) {
	g.Revision = 0
	for _, b := range bounds {
		// Each created group changes the count that other calls have just read. Without this lock, concurrent calls would
		// therefore make each other fail.
		lock, _ := s.making.LoadOrStore(b.Prefix, &longlock.Mutex{})
		lock.(*longlock.Mutex).Lock()
		defer lock.(*longlock.Mutex).Unlock()
	}
	there, err = s.putGroup(ctx, g, func(there placement.Group) (rider, error) {
		if there.Revision != 0 && there.Deleted == "" || len(bounds) == 0 {
			return rider{}, nil
		}
		return s.within(ctx, bounds)
	})
	if errors.Is(err, placement.ErrChanged) {
		there, err = s.Group(ctx, g.Name)
		return there, false, err
	}
	return there, err == nil, err
}

// within counts the groups that each bound covers. If every bound allows one more group, within returns a rider,
// which is to be added to the transaction that creates the group. The rider makes this transaction fail if another
// group covered by one of the bounds has been created since the count.
func (s *Store) within(ctx context.Context, bounds []placement.Bound) (out rider, err error) {
	var ops []clientv3.Op
	for _, b := range bounds {
		ops = append(append(ops, clientv3.OpGet(s.prefix+withinKey+b.Prefix)), s.countOps(b.Prefix)...)
	}
	answer, err := s.client.Txn(ctx).Then(ops...).Commit()
	if err != nil {
		return rider{}, fmt.Errorf("count groups in etcd: %w", err)
	}
	for i, b := range bounds {
		if n := counted(answer.Responses[3*i+1:]); n >= b.Most {
			return rider{}, &placement.LimitError{Bound: b, Groups: n}
		}
		turn := only(answer.Responses[3*i].GetResponseRange().Kvs)
		out.onlyIf = append(out.onlyIf, s.at(withinKey+b.Prefix, turn.ModRevision))
		out.also = append(out.also, clientv3.OpPut(s.prefix+withinKey+b.Prefix, ""))
	}
	return out, nil
}

// countOps returns two operations that together count the groups whose names begin with a prefix. The function
// counted computes the number from the results of the two operations.
func (k keys) countOps(prefix string) []clientv3.Op {
	return []clientv3.Op{
		clientv3.OpGet(k.prefix+groupsKey+prefix, clientv3.WithPrefix(), clientv3.WithCountOnly()),
		clientv3.OpGet(k.prefix+deletedKey+prefix, clientv3.WithPrefix(), clientv3.WithCountOnly()),
	}
}

func counted(results []*etcdserverpb.ResponseOp) int64 {
	return results[0].GetResponseRange().Count - results[1].GetResponseRange().Count
}

// DeleteGroup records in etcd that a group is deleted, provided that the group has not changed since it was read and
// that the store is not frozen. Otherwise it returns ErrChanged or ErrFrozen, and the group is not deleted. After any
// other error, the outcome is unknown. The caller must be the group's leader, and must have ended the group first, so
// that the group contains no record and can never accept one. When the members see the deletion, they move their
// files to the trash.
func (s *Store) DeleteGroup(ctx context.Context, g placement.Group) error {
	pairs, frozen, err := s.pairs(ctx, g.Name)
	there := pairs[g.Name]
	switch {
	case err != nil:
		return fmt.Errorf("delete group %s in etcd: %w", g.Name, err)
	case frozen:
		return fmt.Errorf("group %s: %w: nothing is deleted until that is put right", g.Name, placement.ErrFrozen)
	// The UUID is compared, too, because an etcd that was rolled back uses the same revisions again.
	case there.group.Revision != g.Revision, there.group.UUID != g.UUID:
		return fmt.Errorf("%w: %s", placement.ErrChanged, g.Name)
	case there.group.Restoring:
		return fmt.Errorf("group %s waits for its restore: give up the restore first", g.Name)
	}
	deleted := placement.Group{Name: g.Name, UUID: g.UUID, Deleted: time.Now().UTC().Format(time.RFC3339)}
	// wakeOps deletes the members' wake keys. The deletion of a wake key notifies the shard just as a write does.
	ops := append(s.wakeOps(g.Name, there.concerned(), nil), s.opPut(groupsKey+g.Name, deleted),
		s.opPut(targetsKey+g.Name, placement.Target{Group: g.Name}), clientv3.OpPut(s.prefix+deletedKey+g.Name, ""))
	answer, err := s.client.Txn(ctx).If(append(s.unchanged(g.Name, there), s.notFrozen())...).Then(ops...).Commit()
	switch {
	case err != nil:
		return fmt.Errorf("delete group %s in etcd: %w", g.Name, err)
	case !answer.Succeeded:
		return fmt.Errorf("%w: %s", placement.ErrChanged, g.Name)
	}
	return nil
}
