package registry

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"sheaf.dev/sheaf/internal/placement"
)

// A store that is restored from an archive is created in three steps, each of which several gateways may repeat:
//
//  1. InitMeta writes meta, with Restore.Listing set.
//  2. AddRestoring writes the keys of all groups that do not exist, in the order of the list.
//  3. AddRestoring reads all keys at one revision. If none is missing, it clears Listing. This is the commit point:
//     from now on, groups are placed.
//
// etcd may be set back between two of these calls. So the last write requires that the newest of the keys that were
// read is unchanged. If etcd has that key, it also has all keys that were written before it.

// neverExisted returns ErrPlacementLost if etcd has no meta but records of volumes.
func (s *Store) neverExisted(ctx context.Context) error {
	answer, err := s.client.Txn(ctx).Then(clientv3.OpGet(s.prefix+metaKey, clientv3.WithCountOnly()),
		clientv3.OpGet(s.prefix+volumesKey, clientv3.WithPrefix(), clientv3.WithCountOnly())).Commit()
	if err != nil {
		return fmt.Errorf("read %s from etcd: %w", s.prefix+metaKey, err)
	}
	meta, volumes := answer.Responses[0].GetResponseRange().Count, answer.Responses[1].GetResponseRange().Count
	if meta == 0 && volumes > 0 {
		return fmt.Errorf("%w: below %s, %d volumes have registered, so the store has existed: a second restore would make "+
			"its groups anew: rebuild it with sheaf recover placement --restore", placement.ErrPlacementLost, s.prefix,
			volumes)
	}
	return nil
}

// ErrOtherRestore means that a store is no restore, or that it is a restore of other groups or as of another time.
var ErrOtherRestore = errors.New("this is not the store of that restore")

// listingTime limits each request of AddRestoring to etcd.
const listingTime = 30 * time.Second

// AddRestoring writes the keys of the groups of a restore, and then ends the listing of the store. The argument groups
// are all groups of the store as of the time at. Each has Restoring set, and they have different names. AddRestoring
// writes only keys that do not exist, so it may be repeated, and several processes may call it at the same time. If
// the listing has ended, it does nothing. It has no time limit over all, because a store may have many groups, but each
// of its requests to etcd has one. It returns
//   - ErrOtherRestore if etcd holds another store, a store that is no restore, a restore as of another time, or another
//     group with the name of one of the groups. Nothing more is written;
//   - ErrFrozen while the store is frozen;
//   - ErrChanged if meta was changed or etcd was set back meanwhile. The caller may call it again.
func (s *Store) AddRestoring(ctx context.Context, store uuid.UUID, at time.Time, groups []placement.Group) error {
	meta, revision, err := s.listingMeta(ctx, store, at)
	if err != nil || !meta.Restore.Listing {
		return err
	}
	onlyIf := []clientv3.Cmp{s.at(metaKey, revision), s.notFrozen()}
	if meta.Restore.At == "" {
		meta.Restore.At = timeText(at)
		if revision, err = s.putMeta(ctx, meta, onlyIf); err != nil {
			return err
		}
		onlyIf[0] = s.at(metaKey, revision)
	}
	if err := s.addMissing(ctx, groups, meta.WritesFrom(), onlyIf); err != nil {
		return err
	}
	newest, err := s.complete(ctx, groups)
	if err != nil {
		return err
	}
	meta.Restore.Listing = false
	_, err = s.putMeta(ctx, meta, append(onlyIf, newest...))
	return err
}

// listingMeta returns a copy of meta, which the caller may change, and its revision. It checks that the store is the
// restore of the given store UUID and time.
func (s *Store) listingMeta(ctx context.Context, store uuid.UUID, at time.Time) (meta placement.Meta, revision int64,
	err error) {
	ctx, cancel := context.WithTimeout(ctx, listingTime)
	defer cancel()
	there, err := s.get(ctx, metaKey)
	if err != nil {
		return meta, 0, err
	}
	if there.ModRevision == 0 {
		return meta, 0, s.noMeta()
	}
	if meta, err = decodeMeta(there.Value); err != nil {
		return meta, 0, fmt.Errorf("%w: %w", placement.ErrUnusable, err)
	}
	switch {
	case meta.StoreUUID != store:
		err = fmt.Errorf("%w: etcd holds store %s, and the source restores into store %s", ErrOtherRestore, meta.StoreUUID,
			store)
	case meta.Restore == nil:
		err = fmt.Errorf("%w: store %s was not created from an archive", ErrOtherRestore, store)
	case meta.Restore.At != "" && !meta.Restore.Time().Equal(at):
		err = fmt.Errorf("%w: the restore of store %s began as of %s, and the source has %s: start the source with the "+
			"former time", ErrOtherRestore, store, meta.Restore.At, timeText(at))
	}
	return meta, there.ModRevision, err
}

func timeText(at time.Time) string { return at.UTC().Format(time.RFC3339Nano) }

// putMeta writes meta if the conditions are true, and returns its revision. Otherwise it returns ErrChanged.
func (s *Store) putMeta(ctx context.Context, meta placement.Meta, onlyIf []clientv3.Cmp) (revision int64, err error) {
	ctx, cancel := context.WithTimeout(ctx, listingTime)
	defer cancel()
	answer, err := s.client.Txn(ctx).If(onlyIf...).Then(s.opPut(metaKey, meta)).Commit()
	if err != nil {
		return 0, fmt.Errorf("write %s to etcd: %w", s.prefix+metaKey, err)
	}
	if !answer.Succeeded {
		return 0, s.listingChanged(ctx)
	}
	return answer.Header.Revision, nil
}

// listingChanged returns the error for a transaction whose conditions were false.
func (s *Store) listingChanged(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, listingTime)
	defer cancel()
	frozen, err := s.get(ctx, frozenKey)
	switch {
	case err != nil:
		return err
	case frozen.ModRevision > 0:
		return fmt.Errorf("listing the groups of the restore: %w", placement.ErrFrozen)
	}
	return fmt.Errorf("listing the groups of the restore: %w", placement.ErrChanged)
}

// addMissing writes the keys that do not exist, if the conditions are true. Otherwise it returns ErrChanged or
// ErrFrozen. The argument from is Group.WritesFrom of each new key. addMissing first reads which keys exist, so that it
// continues where an earlier call was cut.
func (s *Store) addMissing(ctx context.Context, groups []placement.Group, from int, onlyIf []clientv3.Cmp) error {
	first, there := s.prefix+groupsKey, map[string]bool{}
	_, _, err := s.pagesWithin(ctx, listingTime, first, clientv3.GetPrefixRangeEnd(first), 0,
		func(kv *mvccpb.KeyValue) error {
			there[string(kv.Key[len(first):])] = true
			return nil
		}, clientv3.WithKeysOnly())
	if err != nil {
		return err
	}
	var ops []clientv3.Op
	for _, g := range groups {
		g.WritesFrom = from
		if !there[g.Name] { // another gateway may create the key meanwhile
			ops = append(ops, clientv3.OpTxn([]clientv3.Cmp{s.at(groupsKey+g.Name, 0)},
				[]clientv3.Op{s.opPut(groupsKey+g.Name, g)}, nil))
		}
	}
	for chunk := range slices.Chunk(ops, txnOpsMax) {
		if err := s.addChunk(ctx, chunk, onlyIf); err != nil {
			return err
		}
	}
	return nil
}

// addChunk applies at most txnOpsMax operations in one transaction.
func (s *Store) addChunk(ctx context.Context, ops []clientv3.Op, onlyIf []clientv3.Cmp) error {
	soon, cancel := context.WithTimeout(ctx, listingTime)
	defer cancel()
	err := s.write(soon, ops, onlyIf...)
	if errors.Is(err, errNotElected) {
		return s.listingChanged(ctx)
	}
	return err
}

// Waiting returns the properties of the store that etcd holds, and the groups that wait for their restore, in the order
// of their names. It works for frozen stores as well. If etcd holds no store, both are empty.
func (s *Store) Waiting(ctx context.Context) (meta placement.Meta, groups []placement.Group, err error) {
	st, err := s.list(ctx)
	if err != nil || !st.hasMeta {
		return meta, nil, err
	}
	for _, g := range st.groups {
		if g.Restoring {
			groups = append(groups, g)
		}
	}
	slices.SortFunc(groups, func(a, b placement.Group) int { return strings.Compare(a.Name, b.Name) })
	return st.view.Meta, groups, nil
}

// GiveUpRestore ends the wait of a group for its restore: a shard creates the group empty. The group gets a new UUID,
// so that a shard that is installing the group cannot report it any more. GiveUpRestore returns ErrChanged if the group
// has changed since it was read, or does not wait. It returns another error while the list of groups is not complete:
// the list has the former UUID of the group, and could never be completed.
func (s *Store) GiveUpRestore(ctx context.Context, g placement.Group) error {
	listed, err := s.listedMeta(ctx)
	if err != nil {
		return fmt.Errorf("give up the restore of group %s in etcd: %w", g.Name, err)
	}
	pairs, frozen, err := s.pairs(ctx, g.Name)
	there := pairs[g.Name]
	switch {
	case err != nil:
		return fmt.Errorf("give up the restore of group %s in etcd: %w", g.Name, err)
	case frozen:
		return fmt.Errorf("group %s: %w: nothing is written until that is put right", g.Name, placement.ErrFrozen)
	case there.group.Revision != g.Revision, there.group.UUID != g.UUID, !there.group.Restoring:
		return fmt.Errorf("%w: %s", placement.ErrChanged, g.Name)
	}
	empty := placement.Group{Name: g.Name, UUID: uuid.New(), KeyFirst: there.group.KeyFirst, KeyLast: there.group.KeyLast}
	ops := append(s.wakeOps(g.Name, there.concerned(), concerned(empty, there.target)), s.opPut(groupsKey+g.Name, empty))
	answer, err := s.client.Txn(ctx).If(append(s.unchanged(g.Name, there), s.notFrozen(), listed)...).Then(ops...).Commit()
	switch {
	case err != nil:
		return fmt.Errorf("give up the restore of group %s in etcd: %w", g.Name, err)
	case !answer.Succeeded:
		return fmt.Errorf("%w: %s", placement.ErrChanged, g.Name)
	}
	return nil
}

// listedMeta returns the condition that meta is unchanged. It returns an error while groups are listed.
func (s *Store) listedMeta(ctx context.Context) (unchanged clientv3.Cmp, err error) {
	there, err := s.get(ctx, metaKey)
	if err != nil {
		return unchanged, err
	}
	if there.ModRevision == 0 {
		return unchanged, s.noMeta()
	}
	meta, err := decodeMeta(there.Value)
	switch {
	case err != nil:
		return unchanged, fmt.Errorf("%w: %w", placement.ErrUnusable, err)
	case meta.Listing():
		return unchanged, fmt.Errorf("%s: try again when the list is complete", meta.WaitsForList())
	}
	return s.at(metaKey, there.ModRevision), nil
}

// SetRestoreSource changes the address at which shards and gateways find the source of a restore. It returns
// ErrOtherRestore unless the store is that restore.
func (s *Store) SetRestoreSource(ctx context.Context, store uuid.UUID, at time.Time, source string) error {
	meta, revision, err := s.listingMeta(ctx, store, at)
	if err != nil || meta.Restore.Source == source {
		return err
	}
	meta.Restore.Source = source
	if err := meta.Validate(); err != nil {
		return err
	}
	_, err = s.putMeta(ctx, meta, []clientv3.Cmp{s.at(metaKey, revision), s.notFrozen()})
	return err
}

// complete reads the keys of all groups at one revision. If the key of each listed group exists, it returns the
// condition that the newest key is unchanged; if there is no key at all, it returns no condition. It returns
// ErrOtherRestore if a key belongs to a group of another restore, and ErrChanged if a key is missing.
func (s *Store) complete(ctx context.Context, groups []placement.Group) (newest []clientv3.Cmp, err error) {
	missing := make(map[string]placement.Group, len(groups))
	for _, g := range groups {
		missing[g.Name] = g
	}
	from, newestAt := s.prefix+groupsKey, int64(0)
	_, _, err = s.pagesWithin(ctx, listingTime, from, clientv3.GetPrefixRangeEnd(from), 0,
		func(kv *mvccpb.KeyValue) error {
			name := string(kv.Key[len(from):])
			there, err := decodeGroup(name, kv.Value, kv.ModRevision)
			g, listed := missing[name]
			switch {
			case listed && err != nil:
				return fmt.Errorf("%w: group %s: %w", placement.ErrUnusable, name, err)
			case listed && there.UUID != g.UUID:
				return fmt.Errorf("%w: etcd has group %s as %s, and the source lists it as %s", ErrOtherRestore, name, there.UUID,
					g.UUID)
			case !listed && err == nil && there.Restoring:
				return fmt.Errorf("%w: group %s waits for its restore, and the source does not list it: start the source with the "+
					"archive and the time with which the restore began", ErrOtherRestore, name)
			}
			delete(missing, name)
			if kv.ModRevision > newestAt {
				newestAt, newest = kv.ModRevision, []clientv3.Cmp{s.at(groupsKey+name, kv.ModRevision)}
			}
			return nil
		})
	if err == nil && len(missing) > 0 {
		return nil, s.listingChanged(ctx)
	}
	return newest, err
}
