// Package registry keeps the placement of a store in etcd. Shards register in it and follow their groups. Gateways
// follow all groups. One of the gateways, or the operator, writes the planner's decisions. Every write is
// conditional: the state that its writer has read must be unchanged. The registry also keeps the table of grants, and
// the records of how much the tenants use.
package registry

import (
	"context"
	"fmt"
	"log/slog"
	"path"
	"strings"
	"sync"

	"github.com/google/uuid"
	clientv3 "go.etcd.io/etcd/client/v3"

	"sheaf.dev/sheaf/client/call/routing"
	"sheaf.dev/sheaf/internal/placement"
)

// PrefixDefault is the prefix of the keys of all stores in etcd, unless NewStoreAt is given a different one.
const PrefixDefault = "/sheaf"

// Store keeps the placement of a store in etcd. It is safe for concurrent use. Each of its embedded parts can access
// only what its methods need: the parts that access etcd remember nothing, and the part memory has no access to etcd.
type Store struct {
	keys
	memory
	grants
	ledgers
	weights
	dataViews

	steps sync.Map // maps Shard.Boot to the Shard that was last passed to NextStep
	// making maps Bound.Prefix to a *longlock.Mutex, which is held while a group covered by the bound is created.
	making sync.Map
}

// NewStore returns a Store for the store with the given name. It does not access etcd. The name must pass
// ValidateShardName. If logger is nil, nothing is logged.
func NewStore(client *clientv3.Client, name string, logger *slog.Logger) (*Store, error) {
	return NewStoreAt(client, PrefixDefault, name, logger)
}

// NewStoreAt is like NewStore, but with a prefix other than PrefixDefault, for a shared etcd.
func NewStoreAt(client *clientv3.Client, prefix, name string, logger *slog.Logger) (*Store, error) {
	if err := routing.ValidateName("store", name); err != nil {
		return nil, err
	}
	if !strings.HasPrefix(prefix, "/") || strings.HasSuffix(prefix, "/") {
		return nil, fmt.Errorf("the prefix of stores in etcd %q: give one such as %s, with a slash before and none behind",
			prefix, PrefixDefault)
	}
	if logger == nil {
		logger = slog.New(slog.DiscardHandler)
	}
	k := keys{client: client, prefix: prefix + "/" + name + "/", logger: logger}
	return &Store{keys: k, grants: grants{k}, ledgers: ledgers{k}, weights: weights{k},
		dataViews: dataViews{k}}, nil
}

// Name returns the store's name, as given to NewStore or NewStoreAt.
func (s *Store) Name() string { return path.Base(s.prefix) }

// InitMeta creates the store if it does not exist, and returns the Meta that etcd holds afterwards. The caller has to
// compare it with its own Meta.
//
// If the store is to be restored from an archive, and etcd has no Meta but records of volumes, InitMeta returns
// ErrPlacementLost: such a store has a UUID that is known in advance, so that its creation cannot be told from a second
// one after etcd has lost it. Shards register only in a store that exists.
func (s *Store) InitMeta(ctx context.Context, meta placement.Meta) (placement.Meta, error) {
	if err := meta.Validate(); err != nil {
		return placement.Meta{}, err
	}
	if meta.Restore != nil {
		if err := s.neverExisted(ctx); err != nil {
			return placement.Meta{}, err
		}
	}
	there, err := s.create(ctx, metaKey, encode(meta))
	if err != nil {
		return placement.Meta{}, fmt.Errorf("create %s in etcd: %w", s.prefix+metaKey, err)
	}
	return decodeMeta(there)
}

// Meta reads the fixed properties of the store. It returns ErrNoMeta if the store does not exist.
func (s *Store) Meta(ctx context.Context) (placement.Meta, error) {
	there, err := s.get(ctx, metaKey)
	if err != nil {
		return placement.Meta{}, err
	}
	if there.ModRevision == 0 {
		return placement.Meta{}, s.noMeta()
	}
	meta, err := decodeMeta(there.Value)
	if err != nil {
		return placement.Meta{}, fmt.Errorf("%w: %s", placement.ErrUnusable, s.unusable(metaKey, there, err))
	}
	return meta, nil
}

// Group reads one group. It returns ErrNoGroup if the group does not exist.
func (s *Store) Group(ctx context.Context, name string) (placement.Group, error) {
	answer, err := s.client.Get(ctx, s.prefix+groupsKey+name)
	if err != nil {
		return placement.Group{}, fmt.Errorf("read group %s from etcd: %w", name, err)
	}
	if len(answer.Kvs) == 0 {
		return placement.Group{}, fmt.Errorf("%w: %s", placement.ErrNoGroup, name)
	}
	g, err := decodeGroup(name, answer.Kvs[0].Value, answer.Kvs[0].ModRevision)
	if err == nil && g.Deleted != "" {
		return placement.Group{}, fmt.Errorf("%w: %s was deleted at %s", placement.ErrNoGroup, name, g.Deleted)
	}
	return g, err
}

// PutGroup writes a group, provided that the group has not changed since it was read at g.Revision. If g.Revision is
// 0, the group must not exist yet. PutGroup returns the group with its new Revision, or ErrChanged. It notifies the
// shards that the group concerns.
func (s *Store) PutGroup(ctx context.Context, g placement.Group) (placement.Group, error) {
	return s.putGroup(ctx, g, func(placement.Group) (rider, error) { return rider{}, nil })
}

// PutGroupAsLeader is like PutGroup, but for the leader of a group with several copies. g.Term is the leader's term,
// and g.ConfIndex is the index of the last membership change that the leader has applied. If etcd holds a higher
// value for one of them, PutGroupAsLeader returns ErrStaleLeader. The caller is then no longer the leader, or has not
// applied all membership changes yet, and must not write the members.
func (s *Store) PutGroupAsLeader(ctx context.Context, g placement.Group) (placement.Group, error) {
	return s.putGroup(ctx, g, func(there placement.Group) (rider, error) {
		if there.Revision == 0 || there.Deleted != "" {
			return rider{}, fmt.Errorf("%w: %s", placement.ErrNoGroup, g.Name)
		}
		return rider{}, acceptsLeader(there, g)
	})
}

// rider is added to the transaction that writes a group. The transaction then also requires the conditions onlyIf,
// and also executes the operations of the rider.
type rider struct {
	onlyIf []clientv3.Cmp
	also   []clientv3.Op
}

// putGroup writes a group, provided that the group has not changed since it was read, and that the function look
// returns no error. It calls look before each attempt. It makes another attempt in two cases. In the first case,
// another process has changed the group's target in the meantime, so that other shards may have to be notified. In
// the second case, a condition of the rider is no longer true, so that look may now return something else.
func (s *Store) putGroup(ctx context.Context, g placement.Group,
	look func(there placement.Group) (rider, error)) (placement.Group, error) {
	if err := placement.ValidateGroupName(g.Name); err != nil {
		return placement.Group{}, err
	}
	if g.UUID == uuid.Nil {
		return placement.Group{}, fmt.Errorf("group %s: the UUID is zero: make a random one", g.Name)
	}
	for {
		pairs, frozen, err := s.pairs(ctx, g.Name)
		if err != nil {
			return placement.Group{}, fmt.Errorf("write group %s to etcd: %w", g.Name, err)
		}
		there := pairs[g.Name]
		besides, err := look(there.group)
		if err != nil {
			return placement.Group{}, err
		}
		if g.Restoring, err = stillRestoring(there.group, g); err != nil {
			return placement.Group{}, err
		}
		g.WritesFrom = placement.WritesAfter(there.group, g)
		switch {
		case frozen:
			return placement.Group{}, fmt.Errorf("group %s: %w: nothing is written until that is put right", g.Name,
				placement.ErrFrozen)
		case there.group.Deleted != "" && g.Revision == 0:
			besides.also = append(besides.also, clientv3.OpDelete(s.prefix+deletedKey+g.Name))
		case there.group.Revision != g.Revision:
			return placement.Group{}, fmt.Errorf("%w: %s", placement.ErrChanged, g.Name)
		}
		ops := append(s.wakeOps(g.Name, there.concerned(), concerned(g, there.target)), s.opPut(groupsKey+g.Name, g))
		onlyIf := append(s.unchanged(g.Name, there), s.notFrozen())
		answer, err := s.client.Txn(ctx).If(append(onlyIf, besides.onlyIf...)...).Then(append(ops, besides.also...)...).
			Commit()
		if err != nil {
			return placement.Group{}, fmt.Errorf("write group %s to etcd: %w", g.Name, err)
		}
		if answer.Succeeded {
			g.Revision = answer.Header.Revision
			return g, nil
		}
	}
}

// stillRestoring returns the value of Restoring that a group has after a write. The argument there is the group that
// etcd holds, and next is the group that is to replace it. Only a write with members ends the wait for a restore, and
// no write begins it: for this there are AddRestoring and Restore.
func stillRestoring(there, next placement.Group) (bool, error) {
	switch {
	case !there.Restoring && next.Restoring && len(next.Members) == 0:
		return false, fmt.Errorf("group %s does not wait for a restore", next.Name)
	case !there.Restoring:
		return false, nil
	case there.UUID != next.UUID:
		return false, fmt.Errorf("group %s waits for its restore as %s, and cannot be created as %s", there.Name, there.UUID,
			next.UUID)
	}
	return len(next.Members) == 0, nil
}

// acceptsLeader compares the group that etcd holds with the one that is to replace it, next. It returns an error if
// the replacement is not allowed, and nil otherwise.
func acceptsLeader(there, next placement.Group) error {
	if there.UUID != next.UUID {
		return fmt.Errorf("group %s: etcd knows it as %s, the leader as %s", there.Name, there.UUID, next.UUID)
	}
	if next.Term < there.Term || next.ConfIndex < there.ConfIndex {
		return fmt.Errorf("%w: group %s is at term %d and membership %d, this leader at term %d and membership %d",
			placement.ErrStaleLeader, there.Name, there.Term, there.ConfIndex, next.Term, next.ConfIndex)
	}
	return nil
}

// SetTargets writes targets, at most 50 in one transaction, and notifies the shards that the targets concern.
func (s *Store) SetTargets(ctx context.Context, targets []placement.Target) error {
	for len(targets) > 0 {
		names := make([]string, 0, len(targets))
		for _, t := range targets {
			names = append(names, t.Group)
		}
		there, _, err := s.pairs(ctx, names...)
		if err != nil {
			return err
		}
		// The write of a target is retried if the target or its group has been written by somebody else in the meantime.
		if targets, err = s.setTargets(ctx, targets, func(name string) pair { return there[name] }); err != nil {
			return err
		}
	}
	return nil
}

// setTargets writes each target, provided that neither the target nor its group has changed since they were read. The
// result changed holds the targets for which this was not the case. setTargets writes only if the conditions in
// onlyIf are true. Otherwise it returns errNotElected.
func (s *Store) setTargets(ctx context.Context, targets []placement.Target, read func(name string) pair,
	onlyIf ...clientv3.Cmp) (changed []placement.Target, err error) {
	ops := make([]clientv3.Op, 0, len(targets))
	for _, t := range targets {
		if err := placement.ValidateGroupName(t.Group); err != nil {
			return nil, err
		}
		before := read(t.Group)
		then := append(s.wakeOps(t.Group, before.concerned(), concerned(before.group, t)), s.opPut(targetsKey+t.Group, t))
		ops = append(ops, clientv3.OpTxn(s.unchanged(t.Group, before), then, nil))
	}
	done, err := s.writeEach(ctx, ops, onlyIf...)
	for i, done := range done {
		if !done {
			changed = append(changed, targets[i])
		}
	}
	return changed, err
}

// createGroups creates those of the given groups that the view lacks. Only the elected planner calls it.
func (s *Store) createGroups(ctx context.Context, view placement.View, groups []placement.Group,
	onlyIf ...clientv3.Cmp) error {
	ops := make([]clientv3.Op, 0, len(groups))
	for _, g := range groups {
		// The target, if there is one, was left behind by an earlier group with the same name.
		target := view.Targets[g.Name]
		// The nested transaction does nothing if the group already exists.
		ops = append(ops, clientv3.OpTxn(s.unchanged(g.Name, pair{target: target}),
			append(s.wakeOps(g.Name, nil, concerned(g, target)), s.opPut(groupsKey+g.Name, g)), nil))
	}
	return s.write(ctx, ops, onlyIf...)
}
