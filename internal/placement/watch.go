package placement

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"strings"
	"time"

	"github.com/google/uuid"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// Times of the watch.
const (
	// viewSettle lets a burst of changes come together into one view.
	viewSettle = 2 * time.Millisecond
	retryFirst = 50 * time.Millisecond
	retryMax   = 2 * time.Second
	// lookEvery: a watch on an etcd that was wiped or restored waits in silence for a revision that is far away.
	lookEvery = 2 * time.Second
)

// sayFailing is the time without a listing after which that is worth a word. Tests make it shorter.
var sayFailing = 5 * time.Second

// View lists everything now, at one revision. ErrNoMeta where the store does not exist.
func (s *Store) View(ctx context.Context) (View, error) {
	st, err := s.list(ctx)
	if err != nil {
		return View{}, err
	}
	if !st.hasMeta {
		return View{}, fmt.Errorf("%w: no key %s", ErrNoMeta, s.prefix+metaKey)
	}
	return s.withDomains(st.publish()), nil
}

// Watch gives a view as soon as the store exists, and a newer one after changes, each coherent at one revision, epochs
// growing. A slow reader gets only the newest. It goes on over etcd's outages and compactions. The channel is closed
// when ctx ends.
//
// Where etcd has lost the store, holds another one by then, or was set back to an earlier state, nothing is given: the
// reader keeps the last view, and gets the next one when placement was rebuilt or reconciled. A reader that begins then
// gets what there is, with View.Freeze set.
func (s *Store) Watch(ctx context.Context) <-chan View {
	return s.watch(ctx, &watcher{store: s})
}

// Follow is Watch for shards, which tell what is true: they get views of an etcd that was set back too, with SetBack or
// Freeze set. before is how far the shard has seen the store, as its volume remembers it.
func (s *Store) Follow(ctx context.Context, before Seen) <-chan View {
	s.See(before)
	return s.watch(ctx, &watcher{store: s, follow: true})
}

func (s *Store) watch(ctx context.Context, w *watcher) <-chan View {
	out := make(chan View, 1)
	w.out = out
	go func() {
		defer close(out)
		delay, failing, said := retryFirst, time.Now(), false
		for ctx.Err() == nil {
			began := time.Now()
			w.listed = false
			err := w.run(ctx) // whatever ended it, the remedy is to list again
			if time.Since(began) > retryMax {
				delay = retryFirst
			}
			if w.listed {
				failing, said = time.Now(), false
			}
			if !said && time.Since(failing) > sayFailing && ctx.Err() == nil {
				said = true
				slog.Warn("etcd cannot be listed: tried again, what was known before goes on", "prefix", s.prefix, "since", failing, "error", err)
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
	// setBack of the last view given.
	setBack string
	given   bool
	known   uuid.UUID // the store of the views given
	// follow: views of an etcd that was set back are given too.
	follow bool
	held   string // why no view is given now, as it was logged; empty: one was
	listed bool   // the present run has listed etcd
}

// run lists, then follows changes until the watch breaks or ctx ends.
func (w *watcher) run(ctx context.Context) error {
	st, err := w.store.list(ctx)
	if err != nil {
		return err
	}
	w.listed = true
	w.store.hear()
	w.give(st)
	ctx, cancel := context.WithCancel(clientv3.WithRequireLeader(ctx))
	defer cancel()
	// The keys of volumes come last. They are in no view, and all shards that write change theirs every few seconds.
	changes := w.store.client.Watch(ctx, w.store.prefix, clientv3.WithRange(w.store.prefix+volumesKey), clientv3.WithRev(st.revision+1))
	look := time.NewTicker(lookEvery)
	defer look.Stop()
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
		case <-look.C:
			if err := w.look(ctx, st); err != nil {
				return err
			}
		}
	}
}

// errSetBack: etcd is not the one that was listed any more.
var errSetBack = errors.New("etcd was emptied or set back")

// look compares etcd with what was listed. An etcd that does not answer is no news.
func (w *watcher) look(ctx context.Context, st *state) error {
	ctx, cancel := context.WithTimeout(ctx, lookEvery)
	defer cancel()
	newest := st.contentKey
	content := st.content
	answer, err := w.store.client.Txn(ctx).Then(clientv3.OpGet(w.store.prefix+metaKey), clientv3.OpGet(w.store.prefix+newest)).Commit()
	if err != nil {
		return nil // the watch goes on over outages
	}
	w.store.hear()
	var revisions [2]int64
	for i, r := range answer.Responses {
		if kvs := r.GetResponseRange().Kvs; len(kvs) > 0 {
			revisions[i] = kvs[0].ModRevision
		}
	}
	// A change of meta that the watch has not told yet is listed again too: that does no harm.
	if answer.Header.Revision < st.revision || answer.Header.ClusterId != st.cluster || revisions[0] != st.metaRevision ||
		newest != "" && revisions[1] < content {
		return errSetBack
	}
	return nil
}

// give replaces what the reader has not taken yet.
func (w *watcher) give(st *state) {
	reason := w.holdBack(st)
	if !w.follow {
		w.store.mu.Lock()
		w.store.held = reason
		w.store.mu.Unlock()
	}
	if reason != "" {
		if w.held != reason && w.given {
			slog.Warn("etcd is not followed, what was known before goes on", "prefix", w.store.prefix, "reason", reason)
		}
		w.held = reason
		return
	}
	if w.given && st.epoch() == w.epoch && st.setBack == w.setBack {
		return
	}
	w.store.saw(st)
	view := w.store.withDomains(st.publish())
	w.given, w.epoch, w.setBack, w.known, w.held = true, view.Epoch, view.SetBack, view.Meta.StoreUUID, ""
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

// holdBack says why a state must not be given; empty: it may.
func (w *watcher) holdBack(st *state) string {
	switch {
	case !st.hasMeta:
		return "it holds no such store: rebuild it with sheaf recover placement"
	case w.given && st.view.Meta.StoreUUID != w.known:
		return fmt.Sprintf("it holds store %s, known is store %s", st.view.Meta.StoreUUID, w.known)
	case st.setBack != "" && !w.follow:
		return "it was set back to an earlier state: " + st.setBack
	case st.view.Freeze != nil && w.given && !w.follow:
		return st.view.Freeze.String()
	}
	return ""
}

// state is the changing picture of etcd; published maps are copies, made only where something changed.
type state struct {
	revision     int64 // that of the listing, then of the last change
	metaRevision int64 // of the last change of meta; 0: none is there
	hasMeta      bool
	content      int64  // see Mark
	contentKey   string // the key that was written then
	cluster      uint64
	base         uint64 // that of meta when it was compared
	setBack      string // why it is older than what was seen before; empty: it is not
	freezeAt     int64  // revision of the key frozen; 0: it is not there
	view         View
	stale        [4]bool // shards, groups, targets, states: changed since published
	shards       map[string]Shard
	groups       map[string]Group
	targets      map[string]Target
	states       map[string]ShardState
}

// epoch of the state.
func (st *state) epoch() uint64 { return st.view.Meta.EpochBase + uint64(st.revision) }

// mark of the state.
func (st *state) mark() Mark {
	return Mark{Base: st.view.Meta.EpochBase, Revision: st.revision, Content: st.content, Cluster: st.cluster}
}

// wrote notes when a key was written that is never deleted.
func (st *state) wrote(name string, revision int64) {
	if revision > st.content {
		st.content, st.contentKey = revision, name
	}
}

// compare finds out whether the state is older than what was seen before. Once it is, only a higher base ends that: writes to
// an older etcd raise its revision too.
func (st *state) compare(seen Seen) {
	if st.hasMeta && st.view.Meta.StoreUUID == seen.Store {
		st.setBack = st.mark().Behind(seen.Mark)
	}
	st.base = st.view.Meta.EpochBase
}

// publish makes a View that nobody changes any more.
func (st *state) publish() View {
	if st.stale[0] || st.stale[3] {
		st.view.Shards = maps.Clone(st.shards)
		for name, state := range st.states {
			if shard, ok := st.view.Shards[name]; ok {
				shard.State = state
				st.view.Shards[name] = shard
			}
		}
	}
	if st.stale[1] {
		st.view.Groups = maps.Clone(st.groups)
	}
	if st.stale[2] {
		st.view.Targets = maps.Clone(st.targets)
	}
	if st.stale[3] {
		st.view.States = maps.Clone(st.states)
	}
	st.stale = [4]bool{}
	st.view.Epoch, st.view.Mark, st.view.SetBack = st.epoch(), st.mark(), st.setBack
	return st.view
}

// list reads all keys at one revision, in pages.
func (s *Store) list(ctx context.Context) (*state, error) {
	st := &state{
		shards: map[string]Shard{}, groups: map[string]Group{}, targets: map[string]Target{}, states: map[string]ShardState{},
		stale: [4]bool{true, true, true, true},
	}
	from, end := s.prefix, clientv3.GetPrefixRangeEnd(s.prefix)
	before := s.before()
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
			st.revision, st.cluster = answer.Header.Revision, answer.Header.ClusterId
		}
		for _, kv := range answer.Kvs {
			if _, err := st.put(s.name(kv.Key), kv); err != nil {
				return nil, err
			}
		}
		if !answer.More {
			st.compare(before)
			s.saw(st)
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
		var meta Meta
		if meta, err = decodeMeta(kv.Value); err == nil {
			st.view.Meta, st.hasMeta, st.metaRevision = meta, true, kv.ModRevision
			st.wrote(name, kv.ModRevision)
			if meta.EpochBase > st.base {
				st.setBack = ""
			}
		}
	case frozenKey + "/":
		f := &Freeze{}
		if err = json.Unmarshal(kv.Value, f); err == nil {
			st.view.Freeze, st.freezeAt = f, kv.ModRevision
		}
	case volumesKey:
		st.wrote(name, kv.ModRevision)
		return false, nil
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
			st.wrote(name, kv.ModRevision)
		}
	case targetsKey:
		var t Target
		if err = json.Unmarshal(kv.Value, &t); err == nil && t.Group != rest {
			err = errors.New("names another group")
		}
		if err == nil {
			t.Revision = kv.ModRevision
			st.targets[rest], st.stale[2] = t, true
			st.wrote(name, kv.ModRevision)
		}
	case statesKey:
		var w wish
		if err = json.Unmarshal(kv.Value, &w); err == nil && w.Shard != rest {
			err = errors.New("names another shard")
		}
		if err == nil {
			err = w.State.validate()
		}
		if err == nil {
			st.states[rest], st.stale[3] = w.State, true
		}
	default:
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("key %s in etcd: %w", name, err)
	}
	return true, nil
}

// drop takes one key out. Without meta nothing is given any more: a store is not unmade under its users.
func (st *state) drop(name string) bool {
	kind, rest, _ := strings.Cut(name, "/")
	switch kind + "/" {
	case metaKey + "/":
		st.hasMeta, st.metaRevision = false, 0
	case frozenKey + "/":
		st.view.Freeze, st.freezeAt = nil, 0
	case statesKey:
		delete(st.states, rest)
		st.stale[3] = true
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
