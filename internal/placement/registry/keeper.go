package registry

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"sheaf.dev/sheaf/internal/placement"
)

// Every process that writes groups and targets also writes the wake keys of a store (see wakes.go). Older versions of
// Sheaf do not, and they may run at the same time during an upgrade or a partial rollback. Therefore one of the
// shards that rely on wake keys acts as the keeper: it follows all groups, and writes the wake keys that are missing.
// The keeper is a shard, because only shards need wake keys. As long as any shard relies on wake keys, one shard is
// the keeper, regardless of the versions of the planners, the gateways and the other shards.

// keeperTerm limits how long one shard is the keeper. The next keeper lists everything again.
const keeperTerm = 10 * time.Minute

// startKeeper makes this follower the keeper of the store's wake keys, in a goroutine of its own, unless another
// shard is the keeper. The keeper stops when ctx is done. Because ctx is the context of the follower's watch, the
// keeper also starts again after a rollback of etcd.
func (w *watcher) startKeeper(ctx context.Context) {
	if !w.keeping.CompareAndSwap(false, true) {
		return
	}
	w.wait.Go(func() {
		defer w.keeping.Store(false)
		k := &keeper{keys: w.store.keys, groups: map[string]naming{}, targets: map[string]naming{},
			wakes: map[string]map[string]int64{}}
		err := k.keep(ctx, w.own.Shard, keeperTerm)
		if err != nil && ctx.Err() == nil {
			k.logger.Warn("keys that tell shards of their groups are not kept any more: another shard goes on",
				"shard", w.own.Shard, "error", err)
		}
	})
}

// naming holds the shards that are named in the key of a group or target, and the revision at which that key was
// written.
type naming struct {
	shards []string
	at     int64
}

// keeper compares the wake keys with the groups and targets.
type keeper struct {
	keys

	groups  map[string]naming
	targets map[string]naming
	// wakes holds the revisions of the wake keys, by group and then by shard.
	wakes   map[string]map[string]int64
	written int // number of missing wake keys that this keeper has written
}

// keep acts as the keeper until ctx is done, the term has ended, or something fails. It returns nil immediately if
// another shard is the keeper.
func (k *keeper) keep(ctx context.Context, by string, term time.Duration) error {
	granted, err := k.client.Grant(ctx, leaseSeconds)
	if err != nil {
		return fmt.Errorf("keeping wakes: %w", err)
	}
	defer k.revoke(granted.ID)
	answer, err := k.client.Txn(ctx).If(k.at(keeperKey, 0)).Then(clientv3.OpPut(k.prefix+keeperKey, by,
		clientv3.WithLease(granted.ID))).Commit()
	if err != nil {
		return fmt.Errorf("keeping wakes: %w", err)
	}
	if !answer.Succeeded {
		return nil
	}
	var wait sync.WaitGroup
	defer wait.Wait()
	ctx, cancel := context.WithTimeout(ctx, term)
	defer cancel()
	wait.Go(func() {
		defer cancel()
		k.keepAlive(ctx, granted.ID)
	})
	if err := k.run(ctx); ctx.Err() == nil {
		return fmt.Errorf("keeping wakes: %w", err)
	}
	return nil // ctx is done or the term has ended, and neither is an error
}

// run lists all groups, targets and wake keys, and then follows them until the watch breaks or ctx is done. It
// returns the reason as an error.
func (k *keeper) run(ctx context.Context) error {
	from, end := k.prefix+groupsKey, clientv3.GetPrefixRangeEnd(k.prefix+wakesKey)
	touched := map[string]bool{}
	revision, _, err := k.pages(ctx, from, end, 0, func(kv *mvccpb.KeyValue) error {
		k.take(kv, false, touched)
		return nil
	})
	if err != nil {
		return err
	}
	if err := k.repair(ctx, touched); err != nil {
		return err
	}
	// All keys are watched as one range, so that all changes of a transaction arrive together. If the wake key is
	// missing even then, the writer of the group or target has not written it.
	for change := range k.client.Watch(clientv3.WithRequireLeader(ctx), from, clientv3.WithRange(end),
		clientv3.WithRev(revision+1)) {
		if err := change.Err(); err != nil {
			return err
		}
		touched := map[string]bool{}
		for _, e := range change.Events {
			k.take(e.Kv, e.Type == clientv3.EventTypeDelete, touched)
		}
		if err := k.repair(ctx, touched); err != nil {
			return err
		}
	}
	return errors.New("the watch ended")
}

// take applies the change of one key, and adds the key's group to touched.
func (k *keeper) take(kv *mvccpb.KeyValue, gone bool, touched map[string]bool) {
	kind, rest, _ := strings.Cut(k.name(kv.Key), "/")
	var n naming
	switch kind + "/" {
	case groupsKey:
		if g, err := decodeGroup(rest, kv.Value, kv.ModRevision); err == nil && !gone {
			n = naming{concerned(g, placement.Target{}), kv.ModRevision}
		} else if !gone {
			return // if the value is invalid, the previous value stays in force, as it does in the followers
		}
		k.groups[rest], touched[rest] = n, true
	case targetsKey:
		if t, err := decodeTarget(rest, kv.Value, kv.ModRevision); err == nil && !gone {
			n = naming{concerned(placement.Group{}, t), kv.ModRevision}
		} else if !gone {
			return
		}
		k.targets[rest], touched[rest] = n, true
	case wakesKey:
		shard, group, _ := strings.Cut(rest, "/")
		if k.wakes[group] == nil {
			k.wakes[group] = map[string]int64{}
		}
		if k.wakes[group][shard] = kv.ModRevision; gone {
			delete(k.wakes[group], shard)
		}
		touched[group] = true
	}
}

// missing returns the writes that bring a group's wake keys up to date. After these writes, each shard that the group
// or its target names has a wake key at least as new as the group, and no other shard has a wake key for it.
func (k *keeper) missing(group string) (ops []clientv3.Op) {
	g, t := k.groups[group], k.targets[group]
	wanted := map[string]bool{}
	for _, shard := range slices.Concat(g.shards, t.shards) {
		if !wanted[shard] && k.wakes[group][shard] < max(g.at, t.at) {
			ops = append(ops, clientv3.OpPut(k.wakeKey(shard, group), ""))
		}
		wanted[shard] = true
	}
	for _, shard := range slices.Sorted(maps.Keys(k.wakes[group])) {
		if !wanted[shard] {
			ops = append(ops, clientv3.OpDelete(k.wakeKey(shard, group)))
		}
	}
	return ops[:min(len(ops), wakesMax)] // when the watch reports these writes, the keeper writes the rest
}

// repair writes the missing wake keys of each group, provided that neither the group nor its target has changed since
// they were read. If one of them has changed, the watch reports the group again.
func (k *keeper) repair(ctx context.Context, groups map[string]bool) error {
	var ops []clientv3.Op
	for group := range groups {
		missing := k.missing(group)
		if len(missing) == 0 {
			continue
		}
		seen := pair{placement.Group{Revision: k.groups[group].at}, placement.Target{Revision: k.targets[group].at}}
		ops = append(ops, clientv3.OpTxn(k.unchanged(group, seen), missing, nil))
	}
	if len(ops) == 0 {
		return nil
	}
	if k.written == 0 {
		k.logger.Info("keys that tell shards of their groups were missing: an older program writes groups, or did", "prefix",
			k.prefix, "groups", len(ops))
	}
	k.written += len(ops)
	return k.write(ctx, ops)
}
