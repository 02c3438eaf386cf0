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
	// viewDebounce combines a burst of changes into one view.
	viewDebounce = 2 * time.Millisecond
	// weightsDebounce is used if only the sizes of groups have changed, which each shard reports from time to time.
	weightsDebounce = time.Second
	// lookEvery is the interval at which etcd is compared with the listed state. Without these comparisons, a watch on an
	// etcd that was wiped or restored would silently wait for a revision in the distant future.
	lookEvery = 2 * time.Second
)

// sayFailing is how long no listing must have succeeded before the watch logs a warning. Tests use a shorter time.
var sayFailing = 5 * time.Second

// View lists the placement now, at one revision. It returns ErrNoMeta if the store does not exist.
func (s *Store) View(ctx context.Context) (placement.View, error) {
	st, err := s.existing(ctx)
	if err != nil {
		return placement.View{}, err
	}
	return s.withDomains(st.publish()), nil
}

// withDomains adds the failure domains of shards that were registered earlier to a view, so that a shard whose process
// restarts, or whose node is down, remains in its domain, and no second copy is placed in that domain. A process that
// has just started has not seen these domains, and treats such a shard as a domain of its own.
func (m *memory) withDomains(view placement.View) placement.View {
	m.mu.Lock()
	defer m.mu.Unlock()
	var next map[string]string // a new map, because earlier views share the previous one
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

// noMeta returns an ErrNoMeta whose message includes the missing key.
func (k keys) noMeta() error {
	return fmt.Errorf("%w: no key %s", placement.ErrNoMeta, k.prefix+metaKey)
}

// Watch sends a view as soon as the store exists, and a newer one after changes. Each view is consistent at one
// revision. Its epoch is higher than that of the previous view, or the same if only the weights of groups have changed.
// A slow reader receives only the newest view. Watch continues after outages and compactions of etcd. The channel is
// closed when ctx is done.
//
// If etcd has lost the store, holds another store, or was rolled back to an earlier state, no view is sent. The reader
// keeps the last view, and receives the next one after the placement has been rebuilt or reconciled. A reader that
// starts during this time receives the current content, with View.Freeze set.
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
			err := run(ctx) // after any error, the watch lists again
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

// watcher feeds one reader. Only its own goroutine uses it.
type watcher struct {
	store *Store
	out   chan placement.View
	sent  *placement.View // the view that was sent last, or nil if none was
	// follow means that the reader is a shard, which receives views of its own groups, even from an etcd that was
	// rolled back.
	follow  bool
	own     placement.Own
	wait    sync.WaitGroup // goroutines that run in parallel
	keeping atomic.Bool    // this follower runs the keeper of the wakes
	held    string         // logged reason why no view is sent now; empty if a view was sent
	last    *state         // the state as last listed and followed, or nil before the first listing
	listed  bool           // the current run has finished its listing
}

// run lists etcd, and then follows changes until the watch breaks or ctx is done.
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
	// The keys of volumes and wakes sort after the others, and the watch leaves them out. No view contains them, and
	// every shard that writes changes its volume's key every few seconds.
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
			// All changes of one revision arrive in one response (fragments are not requested).
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

// After one of these errors, a watcher stops following a listed state.
var (
	errSetBack     = errors.New("etcd was emptied or set back")
	errMetaChanged = errors.New("what is fixed about the store has changed")
)

// look compares etcd with the listed state. For each key in more it returns 1 if the key exists and 0 if it does not.
// It returns nil if etcd does not respond, which is not an error.
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
		return nil, nil // the watch continues after outages
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
		return nil, errMetaChanged // the watch has not reported it yet; another listing does no harm
	}
	st.looked = answer.Header.Revision
	w.store.saw(st)
	return counts, nil
}

// give sends a view of the state, unless holdBack returns a reason or nothing has changed. The view replaces one that
// the reader has not received yet.
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

// offer sends a value on a channel of capacity one, and replaces the previous value if the reader has not received it
// yet. The caller must be the only sender.
func offer[T any](out chan T, value T) {
	select {
	case <-out:
	default:
	}
	out <- value
}

// holdBack returns why a state must not be sent. It returns an empty string if it may be sent.
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

// list reads all keys that a view needs at one revision, in pages.
func (s *Store) list(ctx context.Context) (*state, error) { return s.listFor(ctx, true, nil) }

// existing is like list, but returns ErrNoMeta if the store does not exist.
func (s *Store) existing(ctx context.Context) (*state, error) {
	st, err := s.list(ctx)
	if err == nil && !st.hasMeta {
		err = s.noMeta()
	}
	return st, err
}

// listFor is like list, but reads the weights of groups only if weights is set. The argument last is the state that was
// followed before, for comparison. It may be nil.
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

// listRange adds a range of keys to a state, at the state's revision. The first range sets that revision.
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
