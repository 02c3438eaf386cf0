package placement

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// Times of the watch.
const (
	// viewSettle lets a burst of changes come together into one view.
	viewSettle = 2 * time.Millisecond
	retryFirst = 50 * time.Millisecond
	retryMax   = 2 * time.Second
)

// View lists everything now, at one revision. ErrNoMeta where the store does not exist.
func (s *Store) View(ctx context.Context) (View, error) {
	st, err := s.list(ctx)
	if err != nil {
		return View{}, err
	}
	if !st.hasMeta {
		return View{}, fmt.Errorf("%w: no key %s", ErrNoMeta, s.prefix+metaKey)
	}
	return st.publish(), nil
}

// Watch gives a view as soon as the store exists, and a newer one after changes, each coherent at one revision, epochs
// growing. A slow reader gets only the newest. It goes on over etcd's outages and compactions. The channel is closed
// when ctx ends.
func (s *Store) Watch(ctx context.Context) <-chan View {
	out := make(chan View, 1)
	go func() {
		defer close(out)
		w := &watcher{store: s, out: out}
		delay := retryFirst
		for ctx.Err() == nil {
			began := time.Now()
			_ = w.run(ctx) // whatever ended it, the remedy is to list again
			if time.Since(began) > retryMax {
				delay = retryFirst
			}
			sleep(ctx, delay)
			delay = min(2*delay, retryMax)
		}
	}()
	return out
}

// sleep waits, or until ctx ends.
func sleep(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}

// watcher feeds one reader. Only its goroutine touches it.
type watcher struct {
	store *Store
	out   chan View
	epoch uint64 // of the last view given
	given bool
}

// run lists, then follows changes until the watch breaks or ctx ends.
func (w *watcher) run(ctx context.Context) error {
	st, err := w.store.list(ctx)
	if err != nil {
		return err
	}
	w.give(st)
	ctx, cancel := context.WithCancel(clientv3.WithRequireLeader(ctx))
	defer cancel()
	changes := w.store.client.Watch(ctx, w.store.prefix, clientv3.WithPrefix(), clientv3.WithRev(st.revision+1))
	settle := time.NewTimer(time.Hour)
	settle.Stop()
	defer settle.Stop()
	dirty := false
	for {
		select {
		case change, ok := <-changes:
			if !ok {
				return ctx.Err()
			}
			if err := change.Err(); err != nil {
				return err
			}
			// All changes of one revision come in one response (fragments are not asked for).
			if st.apply(w.store, change.Events) && !dirty {
				dirty = true
				settle.Reset(viewSettle)
			}
		case <-settle.C:
			dirty = false
			w.give(st)
		}
	}
}

// give replaces what the reader has not taken yet.
func (w *watcher) give(st *state) {
	if !st.hasMeta || w.given && uint64(st.revision) <= w.epoch {
		return
	}
	view := st.publish()
	w.given, w.epoch = true, view.Epoch
	for {
		select {
		case w.out <- view:
			return
		default:
		}
		select {
		case <-w.out:
		default:
		}
	}
}

// state is the changing picture of etcd; published maps are copies, made only where something changed.
type state struct {
	revision int64 // that of the listing, then of the last change
	hasMeta  bool
	view     View
	stale    [3]bool // shards, groups, targets: changed since published
	shards   map[string]Shard
	groups   map[string]Group
	targets  map[string]Target
}

// publish makes a View that nobody changes any more.
func (st *state) publish() View {
	if st.stale[0] {
		st.view.Shards = maps.Clone(st.shards)
	}
	if st.stale[1] {
		st.view.Groups = maps.Clone(st.groups)
	}
	if st.stale[2] {
		st.view.Targets = maps.Clone(st.targets)
	}
	st.stale = [3]bool{}
	st.view.Epoch = uint64(st.revision)
	return st.view
}

// list reads all keys at one revision, in pages.
func (s *Store) list(ctx context.Context) (*state, error) {
	st := &state{
		shards: map[string]Shard{}, groups: map[string]Group{}, targets: map[string]Target{},
		stale: [3]bool{true, true, true},
	}
	from, end := s.prefix, clientv3.GetPrefixRangeEnd(s.prefix)
	for {
		options := []clientv3.OpOption{clientv3.WithRange(end), clientv3.WithLimit(listPageKeys)}
		if st.revision > 0 {
			options = append(options, clientv3.WithRev(st.revision))
		}
		answer, err := s.client.Get(ctx, from, options...)
		if err != nil {
			return nil, fmt.Errorf("list %s in etcd: %w", s.prefix, err)
		}
		if st.revision == 0 {
			st.revision = answer.Header.Revision
		}
		for _, kv := range answer.Kvs {
			if _, err := st.put(s.name(kv.Key), kv); err != nil {
				return nil, err
			}
		}
		if !answer.More {
			return st, nil
		}
		from = string(answer.Kvs[len(answer.Kvs)-1].Key) + "\x00"
	}
}

// apply takes changes in and says whether the view is another then.
func (st *state) apply(s *Store, events []*clientv3.Event) bool {
	changed := false
	for _, e := range events {
		name := s.name(e.Kv.Key)
		var relevant bool
		if e.Type == clientv3.EventTypeDelete {
			relevant = st.drop(name)
		} else {
			var err error
			// A value that cannot be read leaves what was known before: whoever wrote it is at fault, not this reader.
			if relevant, err = st.put(name, e.Kv); err != nil {
				relevant = false
			}
		}
		if relevant {
			changed = true
			st.revision = e.Kv.ModRevision
		}
	}
	return changed
}

// put takes one key in.
func (st *state) put(name string, kv *mvccpb.KeyValue) (relevant bool, err error) {
	kind, rest, _ := strings.Cut(name, "/")
	switch kind + "/" {
	case metaKey + "/":
		st.view.Meta, err = decodeMeta(kv.Value)
		st.hasMeta = err == nil
	case shardsKey:
		var shard Shard
		err = json.Unmarshal(kv.Value, &shard)
		shard.Alive = true
		if err == nil && shard.Name != rest {
			err = errors.New("names another shard")
		}
		if err == nil {
			st.shards[rest], st.stale[0] = shard, true
		}
	case groupsKey:
		var g Group
		if g, err = decodeGroup(kv.Value, kv.ModRevision); err == nil && g.Name != rest {
			err = errors.New("names another group")
		}
		if err == nil {
			st.groups[rest], st.stale[1] = g, true
		}
	case targetsKey:
		var t Target
		if err = json.Unmarshal(kv.Value, &t); err == nil && t.Group != rest {
			err = errors.New("names another group")
		}
		if err == nil {
			st.targets[rest], st.stale[2] = t, true
		}
	default:
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("key %s in etcd: %w", name, err)
	}
	return true, nil
}

// drop takes one key out. Meta stays: a store is not unmade under its users.
func (st *state) drop(name string) bool {
	kind, rest, _ := strings.Cut(name, "/")
	switch kind + "/" {
	case shardsKey:
		delete(st.shards, rest)
		st.stale[0] = true
	case groupsKey:
		delete(st.groups, rest)
		st.stale[1] = true
	case targetsKey:
		delete(st.targets, rest)
		st.stale[2] = true
	default:
		return false
	}
	return true
}
