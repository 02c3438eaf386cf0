package registry

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"sheaf.dev/sheaf/internal/placement"
)

// These constants are used by a watcher that follows the groups of one shard.
const (
	readAgain = time.Second // delay before the next read if etcd did not respond
	// At every strayLooks-th check, the follower reads all groups whose changes no wake key might report. Some of them
	// are groups that it follows although their wake key is missing or older than the group. Such a group may be a
	// stray, which has a folder on this volume but does not name this shard. Or it may have been written by an older
	// version of Sheaf, and the keeper has not added the wake key yet. If the next write then moved the group away
	// from this shard, no wake key would be deleted, and the shard would not be notified. The others are groups that
	// have a folder on this shard's volume but are not followed yet.
	strayLooks = 5
)

// Follow does for shards what Watch does for other processes. Because shards hold the true state, Follow also sends
// them views after etcd was rolled back, with SetBack or Freeze set. The argument before is the latest state of the
// store that the shard has seen, as recorded on its volume.
//
// A shard follows its own groups, and all shards. The first view covers everything, and so does the first view after
// the watch broke or meta changed. All other views cover only the shard's own groups, for each of which the follower
// reads the group's key and its target's key.
func (s *Store) Follow(ctx context.Context, before placement.Progress, own placement.Own) <-chan placement.View {
	s.See(before)
	return s.watch(ctx, &watcher{store: s, follow: true, own: own})
}

// errListAgain means that the keys must be listed again because of a change.
var errListAgain = errors.New("list again")

// runOwn is like run(), but follows only a shard's own groups.
func (w *watcher) runOwn(ctx context.Context) error {
	for {
		st, err := w.store.listFor(ctx, false, w.last)
		if err != nil {
			return err
		}
		w.listed, w.last = true, st
		w.store.noteAnswer()
		// The shard's own groups must be determined before the view is sent to the reader. If the shard creates a folder
		// between these two steps, the new group is not followed yet, but lookOwn will make the follower read it. In the
		// reverse order, the follower would assume that the reader got the new group with the view, although the view did
		// not contain it.
		own := placement.View{Groups: st.groups, Targets: st.targets}.Of(w.own)
		// The view is sent even if a view with the same epoch was sent before. That earlier view may lack a group, because
		// the group's wake key had not been written yet.
		st.view.Own, st.news = true, true
		w.give(st)
		st.groups, st.targets, st.changed.groups, st.changed.targets = own.Groups, own.Targets, true, true
		f := &ownFollower{watcher: w, st: st, shardAt: map[string]int64{}, touched: map[string]bool{},
			woken: map[string]int64{}}
		prefix := w.store.prefix + wakesKey + w.own.Shard + "/"
		if _, _, err := w.store.pages(ctx, prefix, clientv3.GetPrefixRangeEnd(prefix), st.revision,
			func(kv *mvccpb.KeyValue) error {
				f.woken[strings.TrimPrefix(string(kv.Key), prefix)] = kv.ModRevision
				return nil
			}, clientv3.WithKeysOnly()); err != nil {
			return err
		}
		if err := f.run(ctx); !errors.Is(err, errListAgain) {
			return err
		}
	}
}

// ownFollower follows the groups of one shard, starting from a listing of all keys.
type ownFollower struct {
	*watcher

	st      *state
	shardAt map[string]int64 // for each shard, the revision at which its registration was last read or reported
	touched map[string]bool  // groups to be read
	woken   map[string]int64 // revisions of the existing wake keys, by group
	peers   map[string]bool  // shards that the followed groups name; nil if the set must be computed again
	looks   int
}

// run follows changes until the watch breaks, ctx is done, or a change makes a new listing necessary.
func (f *ownFollower) run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(clientv3.WithRequireLeader(ctx))
	defer cancel()
	changes := f.watchOwn(ctx)
	look := time.NewTicker(lookEvery)
	defer look.Stop()
	settle := time.NewTimer(time.Hour)
	settle.Stop()
	defer settle.Stop()
	dirty := false
	for {
		var change clientv3.WatchResponse
		var ok bool
		select {
		case change, ok = <-changes[0]:
		case change, ok = <-changes[1]:
		case change, ok = <-changes[2]:
		case change, ok = <-changes[3]:
		case change, ok = <-changes[4]:
		case <-settle.C:
			done, err := f.refresh(ctx)
			if err != nil {
				return err
			}
			if dirty = !done; dirty {
				settle.Reset(readAgain)
			}
			continue
		case <-look.C:
			if err := f.lookOwn(ctx); err != nil {
				return err
			}
			if len(f.touched) > 0 && !dirty {
				dirty = true
				settle.Reset(viewDebounce)
			}
			continue
		}
		if !ok {
			return ctx.Err()
		}
		if err := change.Err(); err != nil {
			return err
		}
		relevant, err := f.take(change.Events)
		if err != nil {
			return err
		}
		if relevant && !dirty {
			dirty = true
			settle.Reset(viewDebounce)
		}
	}
}

// watchOwn watches all keys that may concern the shard, beginning at the revision of the listing. It can afford to
// watch all registrations, because they change rarely: once when a shard starts, and once when it stops.
func (f *ownFollower) watchOwn(ctx context.Context) (changes [5]clientv3.WatchChan) {
	s, from := f.store, clientv3.WithRev(f.st.revision+1)
	// These keys change rarely. Without progress notifications, a watch on them would resume at an old revision, which
	// etcd may have compacted already.
	progress := clientv3.WithProgressNotify()
	for i, key := range []string{metaKey, frozenKey, statesKey + f.own.Shard} {
		changes[i] = s.client.Watch(ctx, s.prefix+key, from, progress)
	}
	for i, prefix := range []string{shardsKey, wakesKey + f.own.Shard + "/"} {
		changes[3+i] = s.client.Watch(ctx, s.prefix+prefix, from, progress, clientv3.WithPrefix())
	}
	return changes
}

// take applies changes. It returns true if the view has changed or if a group must be read.
func (f *ownFollower) take(events []*clientv3.Event) (relevant bool, err error) {
	for _, e := range events {
		name := f.store.name(e.Kv.Key)
		gone := e.Type == clientv3.EventTypeDelete
		kind, rest, _ := strings.Cut(name, "/")
		switch {
		case kind == metaKey, kind == frozenKey && (gone || f.st.view.Freeze == nil || e.Kv.ModRevision <= f.st.freezeAt):
			// A freeze may be the first sign that etcd was rolled back. In that case, the known state dates from before the
			// rollback, and may lack shards that are registered only in the current etcd. A process that reconciles the store
			// must query these shards, too. Therefore everything has to be listed and checked again.
			return false, errListAgain
		case kind+"/" == wakesKey:
			_, group, _ := strings.Cut(rest, "/")
			f.touched[group], relevant = true, true
			if f.woken[group] = e.Kv.ModRevision; gone {
				delete(f.woken, group)
			}
			continue
		case kind+"/" == shardsKey:
			if e.Kv.ModRevision <= f.shardAt[rest] {
				continue // a later revision of this registration was already read
			}
			f.shardAt[rest] = e.Kv.ModRevision
		}
		if f.st.change(f.store.keys, e) && (kind+"/" != shardsKey || f.isPeer(rest)) {
			relevant, f.st.news = true, true
			f.st.revision = max(f.st.revision, e.Kv.ModRevision)
		}
	}
	return relevant, nil
}

// isPeer reports whether the registration of a shard matters to the follower. While the store is frozen, every
// registration matters.
func (f *ownFollower) isPeer(shard string) bool {
	if f.peers == nil {
		f.peers = map[string]bool{f.own.Shard: true}
		for name, g := range f.st.groups {
			for _, peer := range concerned(g, f.st.targets[name]) {
				f.peers[peer] = true
			}
		}
	}
	return f.peers[shard] || f.st.view.Freeze != nil
}

// refresh reads the touched groups and sends a view. It returns false if etcd does not respond, and an error if etcd
// was rolled back.
func (f *ownFollower) refresh(ctx context.Context) (done bool, err error) {
	if len(f.touched) > 0 {
		ctx, cancel := context.WithTimeout(ctx, leaseSeconds*time.Second)
		defer cancel()
		err := f.readTouched(ctx)
		if errors.Is(err, errSetBack) {
			return false, err
		}
		if err != nil {
			f.store.logger.Debug("groups that were written cannot be read, tried again", "shard", f.own.Shard, "error", err)
			return false, nil
		}
	}
	f.give(f.st)
	return true, nil
}

// readTouched reads the touched groups and their targets at one revision. It then reads the registrations of the
// shards that these groups and targets name. It does not use the state from the registration watch, because the watch
// may lag, and a shard might already have a different volume.
func (f *ownFollower) readTouched(ctx context.Context) error {
	s, st := f.store, f.st
	var keys []string
	for group := range f.touched {
		keys = append(keys, groupsKey+group, targetsKey+group)
	}
	for group := range f.touched {
		keys = append(keys, shardKeys(concerned(st.groups[group], st.targets[group]))...)
	}
	slices.Sort(keys)
	keys = slices.Compact(keys)
	found, at, err := s.read(ctx, keys)
	if err != nil {
		return err
	}
	if why := cmp.Or(st.isBehind(at, st.content), f.older(found)); why != "" {
		return s.setBackSince(st, why)
	}
	st.looked = at.revision
	var more []string // shards that are named now but were not named before
	for group := range f.touched {
		for _, key := range shardKeys(namedBy(group, found[groupsKey+group], found[targetsKey+group])) {
			if _, asked := slices.BinarySearch(keys, key); !asked {
				more = append(more, key)
			}
		}
	}
	if len(more) > 0 {
		foundMore, later, err := s.read(ctx, more)
		if err != nil {
			return err
		}
		f.setAll(more, foundMore, later.revision)
	}
	f.setAll(keys, found, at.revision)
	for group := range f.touched {
		if !f.own.Has(st.groups[group], st.targets[group]) {
			delete(st.groups, group)
			delete(st.targets, group)
			st.changed.groups, st.changed.targets = true, true
		}
	}
	clear(f.touched)
	return nil
}

// older compares the keys that were just read with the known groups and targets. It returns the name of a group or
// target that is now missing or has a lower revision, or an empty string if there is none.
func (f *ownFollower) older(found map[string]*mvccpb.KeyValue) string {
	for group := range f.touched {
		for _, key := range []string{groupsKey + group, targetsKey + group} {
			var now int64
			if kv := found[key]; kv != nil {
				now = kv.ModRevision
			}
			if seen := f.st.revisionOf(key); now < seen {
				return wordsOlder(key, now, seen)
			}
		}
	}
	return ""
}

func shardKeys(shards []string) []string {
	keys := make([]string, 0, len(shards))
	for _, shard := range shards {
		keys = append(keys, shardsKey+shard)
	}
	return keys
}

// namedBy returns the shards that a group and its target name. The arguments are the keys of both, and nil stands for
// a key that does not exist.
func namedBy(name string, group, target *mvccpb.KeyValue) []string {
	var g placement.Group
	var t placement.Target
	if group != nil {
		// If the group's value is invalid, g stays as it is.
		g, _ = decodeGroup(name, group.Value, group.ModRevision)
	}
	if target != nil {
		t, _ = decodeTarget(name, target.Value, target.ModRevision)
	}
	return concerned(g, t)
}

// setAll applies keys that were read at the given revision. If a key was not found, it was deleted.
func (f *ownFollower) setAll(keys []string, found map[string]*mvccpb.KeyValue, revision int64) {
	st, changed := f.st, false
	for _, name := range keys {
		kind, rest, _ := strings.Cut(name, "/")
		if kind+"/" == shardsKey {
			if f.shardAt[rest] > revision {
				continue // a later change of this key was already reported
			}
			f.shardAt[rest] = revision
		}
		kv := found[name]
		switch {
		case kv == nil:
			changed = st.has(name) || changed
			st.drop(name)
		case kind+"/" == shardsKey || st.revisionOf(name) != kv.ModRevision:
			changed = st.put(f.store.keys, name, kv) || changed
		}
	}
	f.peers = nil
	if changed {
		st.revision, st.news = max(st.revision, revision), true
	}
}

// has reports whether the state contains a group or target with the given key.
func (st *state) has(name string) bool {
	kind, rest, _ := strings.Cut(name, "/")
	if kind+"/" == shardsKey {
		_, ok := st.shards[rest]
		return ok
	}
	return st.revisionOf(name) != 0
}

// revisionOf returns the revision of the group or target with the given key, or 0 if the state does not contain it.
func (st *state) revisionOf(name string) int64 {
	if o, unusable := st.unusable[name]; unusable {
		return o.Revision
	}
	kind, rest, _ := strings.Cut(name, "/")
	if kind+"/" == groupsKey {
		return st.groups[rest].Revision
	}
	return st.targets[rest].Revision
}

// lookOwn compares etcd with the listing, and starts a keeper if no shard acts as the keeper of the wake keys. It
// also makes the follower read each group whose changes no wake key would report.
func (f *ownFollower) lookOwn(ctx context.Context) error {
	counts, err := f.look(ctx, f.st, keeperKey)
	if err != nil {
		return err
	}
	if f.looks++; f.looks%strayLooks == 0 {
		for name, g := range f.st.groups {
			if t := f.st.targets[name]; f.woken[name] < max(g.Revision, t.Revision) && f.own.Has(g, t) {
				f.touched[name] = true
			}
		}
		if f.own.Held != nil {
			for _, name := range f.own.Held() {
				if _, followed := f.st.groups[name]; !followed {
					// The folder was created after the follower had last determined the shard's groups. If the group is on another
					// shard, there is no wake key that would notify this shard, so the follower has to read the group now.
					f.touched[name] = true
				}
			}
		}
	}
	if len(counts) == 1 && counts[0] == 0 && f.st.hasMeta {
		f.startKeeper(ctx)
	}
	return nil
}
