package registry

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"sync/atomic"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"sheaf.dev/sheaf/internal/placement"
)

// These are the delays and intervals of the watch.
const (
	// viewDebounce is the time for which changes are collected, so that a burst of changes results in a single view.
	viewDebounce = 2 * time.Millisecond
	// weightsDebounce is used instead of viewDebounce if only the sizes of groups have changed. Each shard reports these
	// from time to time.
	weightsDebounce = time.Second
	// lookEvery is the interval at which the listed state is compared with etcd. If etcd was wiped or restored, a watch
	// would otherwise wait silently for a revision that etcd reaches only in the distant future.
	lookEvery = 2 * time.Second
)

// sayFailing is the time after which the watch logs a warning if no listing succeeds. Tests use a shorter time.
var sayFailing = 5 * time.Second

// View lists the current placement, at one revision. It returns ErrNoMeta if the store does not exist.
func (s *Store) View(ctx context.Context) (placement.View, error) {
	st, err := s.existing(ctx)
	if err != nil {
		return placement.View{}, err
	}
	return s.withDomains(st.publish()), nil
}

// withDomains adds to a view the failure domains of shards that were registered earlier. A shard thus keeps its domain
// while its process restarts or its node is down, and no second copy is placed in that domain. A process that has just
// started does not know these domains, and therefore treats such a shard as a domain of its own.
func (m *memory) withDomains(view placement.View) placement.View {
	m.mu.Lock()
	defer m.mu.Unlock()
	var next map[string]string // the map is new, because earlier views share the previous one
	for name, shard := range view.Shards {
		if m.domains[name] == shard.Domain {
			continue
		}
		if next == nil {
			next = make(map[string]string, len(view.Shards))
			maps.Copy(next, m.domains)
		}
		next[name] = shard.Domain
	}
	if next != nil {
		m.domains = next
	}
	view.Domains = m.domains
	return view
}

// noMeta returns an error that wraps ErrNoMeta and names the missing key.
func (k keys) noMeta() error {
	return fmt.Errorf("%w: no key %s", placement.ErrNoMeta, k.prefix+metaKey)
}

// Watch sends a view as soon as the store exists, and a newer view after each change. Each view shows the state at
// one revision. Its epoch is higher than that of the previous view, or equal if only the sizes of groups have
// changed. A slow reader receives only the newest view. Watch continues after outages and compactions of etcd. It
// closes the channel when ctx is done.
//
// If etcd has lost the store, holds a different store, or was rolled back to an earlier state, Watch sends no view.
// The reader then keeps the view that it has, and receives the next one after the placement has been rebuilt or
// reconciled. A reader that starts during this time receives the current content of etcd, with View.Freeze set.
func (s *Store) Watch(ctx context.Context) <-chan placement.View {
	return s.watch(ctx, &watcher{store: s})
}

func (s *Store) watch(ctx context.Context, w *watcher) <-chan placement.View {
	out := make(chan placement.View, 1)
	w.out = out
	go func() {
		defer close(out)
		defer w.wait.Wait()
		tries, failing, said := retries(), time.Now(), false
		for ctx.Err() == nil {
			began := time.Now()
			w.listed = false
			run := w.run
			if w.follow {
				run = w.runOwn
			}
			err := run(ctx) // after any error, the watch lists everything again
			if time.Since(began) > retryMax {
				tries.Again()
			}
			if w.listed {
				failing, said = time.Now(), false
			}
			if errors.Is(err, placement.ErrUnusable) {
				w.store.hold(err.Error())
			}
			if !said && time.Since(failing) > sayFailing && ctx.Err() == nil {
				said = true
				s.logger.Warn("etcd cannot be listed: tried again, what was known before goes on", "prefix", s.prefix,
					"since", failing, "error", err)
			}
			tries.Wait(ctx)
		}
	}()
	return out
}

// watcher sends views to one reader. Only its own goroutine uses it.
type watcher struct {
	store *Store
	out   chan placement.View
	sent  *placement.View // view that was sent last; nil if none was sent yet
	// follow is true if the reader is a shard. A shard receives views of its own groups, even if etcd was rolled back.
	follow  bool
	own     placement.Own
	wait    sync.WaitGroup // waits for the goroutines that the watcher has started
	keeping atomic.Bool    // whether this follower is running the keeper of the wake keys
	held    string         // reason why no view is sent, as logged last; empty if views are sent
	last    *state         // latest listed state; nil before the first listing
	listed  bool           // whether the current run has finished its listing
}

// run lists all keys, and then follows changes until the watch breaks or ctx is done.
func (w *watcher) run(ctx context.Context) error {
	st, err := w.store.listFor(ctx, true, w.last)
	if err != nil {
		return err
	}
	w.listed, w.last = true, st
	w.store.noteAnswer()
	w.give(st)
	ctx, cancel := context.WithCancel(clientv3.WithRequireLeader(ctx))
	defer cancel()
	// The watch leaves out the keys of volumes and wakes, which sort after all others. Views do not contain them, and
	// every shard that writes changes the key of its volume every few seconds.
	from := clientv3.WithRev(st.revision + 1)
	changes := w.store.client.Watch(ctx, w.store.prefix, clientv3.WithRange(w.store.prefix+volumesKey), from)
	weights := w.store.client.Watch(ctx, w.store.prefix+weightsKey, clientv3.WithPrefix(), from)
	look := time.NewTicker(lookEvery)
	defer look.Stop()
	settle := time.NewTimer(time.Hour)
	settle.Stop()
	defer settle.Stop()
	dirty, weighed := false, false
	for {
		select {
		case change, ok := <-changes:
			if !ok {
				return ctx.Err()
			}
			if err := change.Err(); err != nil {
				return err
			}
			// All changes of one revision arrive in one response, because this watch does not request fragments.
			if st.apply(w.store.keys, change.Events) && !dirty {
				dirty = true
				settle.Reset(viewDebounce)
			}
		case change, ok := <-weights:
			if !ok {
				return ctx.Err()
			}
			if err := change.Err(); err != nil {
				return err
			}
			if st.applyWeights(w.store.keys, change.Events) && !dirty && !weighed {
				weighed = true
				settle.Reset(weightsDebounce)
			}
		case <-settle.C:
			dirty, weighed = false, false
			w.give(st)
		case <-look.C:
			if _, err := w.look(ctx, st); err != nil {
				return err
			}
		}
	}
}

// These errors mean that the listed state must not be followed any further.
var (
	errSetBack     = errors.New("etcd was emptied or set back")
	errMetaChanged = errors.New("what is fixed about the store has changed")
)

// look compares the listed state with etcd. For each key in more, counts contains 1 if the key exists and 0
// otherwise. If etcd does not respond, counts and err are nil, because that is not an error.
func (w *watcher) look(ctx context.Context, st *state, more ...string) (counts []int64, err error) {
	ctx, cancel := context.WithTimeout(ctx, lookEvery)
	defer cancel()
	ops := make([]clientv3.Op, 0, 2+len(more))
	ops = append(ops, clientv3.OpGet(w.store.prefix+metaKey), clientv3.OpGet(w.store.prefix+st.contentKey))
	for _, key := range more {
		ops = append(ops, clientv3.OpGet(w.store.prefix+key, clientv3.WithCountOnly()))
	}
	answer, err := w.store.client.Txn(ctx).Then(ops...).Commit()
	if err != nil {
		return nil, nil // the watch itself continues after outages
	}
	w.store.noteAnswer()
	meta, newest := only(answer.Responses[0].GetResponseRange().Kvs), only(answer.Responses[1].GetResponseRange().Kvs)
	for _, r := range answer.Responses[2:] {
		counts = append(counts, r.GetResponseRange().Count)
	}
	if why := st.isBehind(readAt{answer.Header.Revision, answer.Header.ClusterId}, newest.ModRevision); why != "" {
		return nil, w.store.setBackSince(st, why)
	}
	if meta.ModRevision != st.metaRevision {
		return nil, errMetaChanged // The watch has not reported this change yet. Listing once more does no harm.
	}
	st.looked = answer.Header.Revision
	w.store.saw(st)
	return counts, nil
}

// give sends a view of the state. It sends nothing if holdBack returns a reason, or if nothing has changed. If the
// reader has not received the previous view yet, the new view replaces it.
func (w *watcher) give(st *state) {
	reason := w.holdBack(st)
	if !w.follow {
		w.store.hold(reason)
	}
	if reason != "" {
		if w.held != reason && w.sent != nil {
			w.store.logger.Warn("etcd is not followed, what was known before goes on", "prefix", w.store.prefix,
				"reason", reason)
		}
		w.held = reason
		return
	}
	if w.sent != nil && st.epoch() == w.sent.Epoch && st.setBack == w.sent.SetBack && !st.news {
		return
	}
	st.news = false
	w.store.saw(st)
	w.store.reportUnusable(w.store.logger, st.unusable)
	view := w.store.withDomains(st.publish())
	w.sent, w.held = &view, ""
	offer(w.out, view)
}

// offer sends a value on a channel with a capacity of one. If the reader has not received the previous value yet, the
// new value replaces it. There must be no other sender.
func offer[T any](out chan T, value T) {
	select {
	case <-out:
	default:
	}
	out <- value
}

// holdBack returns the reason why a state must not be sent, or an empty string if it may be sent.
func (w *watcher) holdBack(st *state) string {
	switch {
	case !st.hasMeta:
		return "it holds no such store: rebuild it with sheaf recover placement"
	case w.sent != nil && st.view.Meta.StoreUUID != w.sent.Meta.StoreUUID:
		return fmt.Sprintf("it holds store %s, known is store %s", st.view.Meta.StoreUUID, w.sent.Meta.StoreUUID)
	case st.setBack != "" && !w.follow:
		return "it was set back to an earlier state: " + st.setBack
	case st.view.Freeze != nil && w.sent != nil && !w.follow:
		return st.view.Freeze.String()
	}
	return ""
}

// list reads all keys that a view needs, in pages, but at one revision.
func (s *Store) list(ctx context.Context) (*state, error) { return s.listFor(ctx, true, nil) }

// existing is like list, but returns ErrNoMeta if the store does not exist.
func (s *Store) existing(ctx context.Context) (*state, error) {
	st, err := s.list(ctx)
	if err == nil && !st.hasMeta {
		err = s.noMeta()
	}
	return st, err
}

// listFor is like list, but reads the sizes of groups only if weights is true. The argument last is the state that
// was followed before, to which the new state is compared. It may be nil.
func (s *Store) listFor(ctx context.Context, weights bool, last *state) (*state, error) {
	st, before := newState(), s.before()
	st.asked.key = before.ContentKey
	if err := s.listRange(ctx, st, s.prefix, s.prefix+wakesKey); err != nil {
		return nil, err
	}
	if weights {
		if err := s.listRange(ctx, st, s.prefix+weightsKey, clientv3.GetPrefixRangeEnd(s.prefix+weightsKey)); err != nil {
			return nil, err
		}
	}
	st.goOnWithMeta(last)
	st.compare(before, last)
	st.goOnWith(last)
	s.reportUnusable(s.logger, st.unusable)
	if err := st.unusableMeta(); err != nil {
		return nil, err
	}
	s.saw(st)
	return st, nil
}

// listRange adds a range of keys to the state. The first range determines the state's revision, and all further
// ranges are read at that revision.
func (k keys) listRange(ctx context.Context, st *state, from, end string) error {
	revision, cluster, err := k.pages(ctx, from, end, st.revision, func(kv *mvccpb.KeyValue) error {
		st.put(k, k.name(kv.Key), kv)
		return nil
	})
	if err == nil && st.revision == 0 {
		st.revision, st.cluster = revision, cluster
	}
	return err
}
