package placement

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// Times of the watch.
const (
	// viewSettle lets a burst of changes come together into one view.
	viewSettle = 2 * time.Millisecond
	// weightsSettle is for changes of nothing but the sizes of groups, which each shard tells now and then.
	weightsSettle = time.Second
	// lookEvery: a watch on an etcd that was wiped or restored waits in silence for a revision that is far away.
	lookEvery = 2 * time.Second
)

// sayFailing is the time without a listing after which that is worth a word. Tests make it shorter.
var sayFailing = 5 * time.Second

// View lists everything now, at one revision. ErrNoMeta where the store does not exist.
func (s *Store) View(ctx context.Context) (View, error) {
	st, err := s.existing(ctx)
	if err != nil {
		return View{}, err
	}
	return s.withDomains(st.publish()), nil
}

// noMeta is ErrNoMeta that says where the store was looked for.
func (k keys) noMeta() error { return fmt.Errorf("%w: no key %s", ErrNoMeta, k.prefix+metaKey) }

// Watch gives a view as soon as the store exists, and a newer one after changes, each coherent at one revision, epochs
// growing; where only what groups weigh has changed, the epoch stays. A slow reader gets only the newest. It goes on
// over etcd's outages and compactions. The channel is closed when ctx ends.
//
// Where etcd has lost the store, holds another one by then, or was set back to an earlier state, nothing is given: the
// reader keeps the last view, and gets the next one when placement was rebuilt or reconciled. A reader that begins then
// gets what there is, with View.Freeze set.
func (s *Store) Watch(ctx context.Context) <-chan View {
	return s.watch(ctx, &watcher{store: s})
}

func (s *Store) watch(ctx context.Context, w *watcher) <-chan View {
	out := make(chan View, 1)
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
			err := run(ctx) // whatever ended it, the remedy is to list again
			if time.Since(began) > retryMax {
				tries.Again()
			}
			if w.listed {
				failing, said = time.Now(), false
			}
			if !said && time.Since(failing) > sayFailing && ctx.Err() == nil {
				said = true
				slog.Warn("etcd cannot be listed: tried again, what was known before goes on", "prefix", s.prefix, "since", failing,
					"error", err)
			}
			tries.Wait(ctx)
		}
	}()
	return out
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
	// follow: it is for a shard. Views of an etcd that was set back are given too, and they are of its own groups.
	follow  bool
	own     Own
	wait    sync.WaitGroup // of what runs beside
	keeping atomic.Bool    // the wakes
	held    string         // why no view is given now, as it was logged; empty: one was
	last    *state         // as it was listed and followed last; nil: never
	listed  bool           // the present run has listed etcd
}

// run lists, then follows changes until the watch breaks or ctx ends.
func (w *watcher) run(ctx context.Context) error {
	st, err := w.store.listFor(ctx, true, w.last)
	if err != nil {
		return err
	}
	w.listed, w.last = true, st
	w.store.hear()
	w.give(st)
	ctx, cancel := context.WithCancel(clientv3.WithRequireLeader(ctx))
	defer cancel()
	// The keys of volumes and wakes come behind the others. They are in no view, and all shards that write change those
	// of their volumes every few seconds.
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
			// All changes of one revision come in one response (fragments are not asked for).
			if st.apply(w.store.keys, change.Events) && !dirty {
				dirty = true
				settle.Reset(viewSettle)
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
				settle.Reset(weightsSettle)
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

// Errors by which a state that was listed is followed no more.
var (
	errSetBack     = errors.New("etcd was emptied or set back")
	errMetaChanged = errors.New("what is fixed about the store has changed")
)

// look compares etcd with what was listed, and answers how often each key of more is there: nil where etcd does not
// answer, which is no news.
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
		return nil, nil // the watch goes on over outages
	}
	w.store.hear()
	meta, newest := only(answer.Responses[0].GetResponseRange().Kvs), only(answer.Responses[1].GetResponseRange().Kvs)
	for _, r := range answer.Responses[2:] {
		counts = append(counts, r.GetResponseRange().Count)
	}
	if why := st.isBehind(readAt{answer.Header.Revision, answer.Header.ClusterId}, newest.ModRevision); why != "" {
		return nil, w.store.setBackSince(st, why)
	}
	if meta.ModRevision != st.metaRevision {
		return nil, errMetaChanged // the watch has not told yet: to list again does no harm
	}
	st.looked = answer.Header.Revision
	w.store.saw(st)
	return counts, nil
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
	if w.given && st.epoch() == w.epoch && st.setBack == w.setBack && !st.news {
		return
	}
	st.news = false
	w.store.saw(st)
	view := w.store.withDomains(st.publish())
	w.given, w.epoch, w.setBack, w.known, w.held = true, view.Epoch, view.SetBack, view.Meta.StoreUUID, ""
	offer(w.out, view)
}

// offer replaces what the reader of a channel of one has not taken yet. Nobody else may send.
func offer[T any](out chan T, value T) {
	select {
	case <-out:
	default:
	}
	out <- value
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

// list reads all keys that a view is made of at one revision, in pages.
func (s *Store) list(ctx context.Context) (*state, error) { return s.listFor(ctx, true, nil) }

// existing is list of a store that is there: ErrNoMeta where it is not.
func (s *Store) existing(ctx context.Context) (*state, error) {
	st, err := s.list(ctx)
	if err == nil && !st.hasMeta {
		err = s.noMeta()
	}
	return st, err
}

// listFor is list with or without the weights of groups. last is what was followed before, with which it is compared;
// nil: nothing was.
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
	st.compare(before, last)
	s.saw(st)
	return st, nil
}

// listRange adds a range of keys to a state, at its revision; the first one sets that.
func (k keys) listRange(ctx context.Context, st *state, from, end string) error {
	revision, cluster, err := k.pages(ctx, from, end, st.revision, func(kv *mvccpb.KeyValue) error {
		_, err := st.put(k.name(kv.Key), kv)
		return err
	})
	if err == nil && st.revision == 0 {
		st.revision, st.cluster = revision, cluster
	}
	return err
}
