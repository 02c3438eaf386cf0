package placement

import (
	"fmt"
	"sync"
	"time"

	"github.com/google/uuid"
)

// This file is the one rule by which an etcd is found to have been set back to an earlier state. A process remembers,
// for each store:
//
//   - The highest revision that the whole etcd was seen at. Every write raises it. It is noted with each listing, each
//     reading, and each look every two seconds, also where nothing came that the process watches for.
//   - The key that was written last of those that it knows and that are never deleted, and when.
//   - All groups and targets that it follows, and when each was written.
//
// An etcd whose revision is lower, or where one of these keys was written earlier than it was seen, or is not there,
// was set back. The first is what most older states show. The others tell one that was written to so much, before
// anybody looked, that its revision is higher again. Once found, that is not forgotten before etcd was rebuilt or
// reconciled, which raises Meta.EpochBase: by later looks alone the older etcd would soon pass.

// Seen is how far a store was seen.
type Seen struct {
	Store uuid.UUID
	Mark
	// SetBack is why etcd was found to be older than that; empty: it was not.
	SetBack string
}

// behind says why a state is older than what was seen of the same store before; empty: it is not.
func (st *state) behind(seen Seen) string {
	now := st.mark()
	why := now.Behind(seen.Mark)
	switch {
	case why != "" || now.Base > seen.Base:
		return why
	case st.asked.key != "" && st.asked.at < seen.Content:
		return wordsOlder(st.asked.key, st.asked.at, seen.Content)
	}
	return seen.SetBack
}

func wordsOlder(key string, now, seen int64) string {
	if now == 0 {
		return fmt.Sprintf("key %s is not there, seen was one of revision %d", key, seen)
	}
	return fmt.Sprintf("key %s is of revision %d, seen was %d", key, now, seen)
}

// compare finds out whether the state is older than what was seen before. Once it is, only a higher base ends that:
// writes to an older etcd raise its revision too.
func (st *state) compare(seen Seen, last *state) {
	if st.hasMeta && st.view.Meta.StoreUUID == seen.Store {
		if st.setBack = st.behind(seen); st.setBack == "" {
			st.setBack = st.older(last)
		}
	}
	st.base = st.view.Meta.EpochBase
}

// older says which group or target of an earlier state is older in this one; empty: none is. last may be nil.
func (st *state) older(last *state) string {
	if last == nil || last.view.Meta.StoreUUID != st.view.Meta.StoreUUID ||
		last.view.Meta.EpochBase != st.view.Meta.EpochBase {
		return ""
	}
	for name, g := range last.groups {
		if now := st.groups[name].Revision; now < g.Revision {
			return wordsOlder(groupsKey+name, now, g.Revision)
		}
	}
	for name, t := range last.targets {
		if now := st.targets[name].Revision; now < t.Revision {
			return wordsOlder(targetsKey+name, now, t.Revision)
		}
	}
	return ""
}

// memory is what this process remembers of a store.
type memory struct {
	mu    sync.Mutex // guards what follows
	seen  Seen       // how far this process has seen the store
	heard time.Time  // when etcd answered a watch last
	held  string     // why a Watch gives no view of what etcd holds now; empty: it does
	// domains of shards, as they were registered last; see withDomains.
	domains map[string]string
}

// Heard tells when etcd last answered a Watch or Follow of this Store, zero: never, and why a Watch does not give what
// etcd holds since then; empty: it does.
func (m *memory) Heard() (last time.Time, held string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.heard, m.held
}

// hear notes that etcd has answered.
func (m *memory) hear() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.heard = time.Now()
}

// saw remembers how far this process has seen the store, and that it was set back.
func (m *memory) saw(st *state) {
	if !st.hasMeta {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if st.setBack != "" {
		m.seen.found(st, st.setBack)
		return
	}
	now := Seen{Store: st.view.Meta.StoreUUID, Mark: st.mark()}
	if m.seen.Store != now.Store || now.Behind(Mark{Base: m.seen.Base, Revision: m.seen.Revision}) == "" {
		now.keep(m.seen)
		m.seen = now
	}
}

// found notes that a state was found older.
func (seen *Seen) found(st *state, why string) {
	if seen.Store == st.view.Meta.StoreUUID && seen.Base <= st.view.Meta.EpochBase && seen.SetBack == "" {
		seen.SetBack = why
	}
}

// keep takes over that etcd was found to be older, where it was not reconciled since.
func (seen *Seen) keep(before Seen) {
	if seen.Store == before.Store && seen.Base <= before.Base && seen.SetBack == "" {
		seen.SetBack = before.SetBack
	}
}

// Newest is how far this process has seen the store, where that is later than a mark of one of its views; else that
// mark.
func (m *memory) Newest(view Mark) Mark {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.seen.SetBack != "" || m.seen.Base != view.Base || m.seen.Behind(view) != "" {
		return view
	}
	return m.seen.Mark
}

// setBackSince notes that etcd is older than the state that was listed, and is the error that ends what follows it.
func (m *memory) setBackSince(st *state, why string) error {
	st.setBack = why
	m.saw(st)
	return fmt.Errorf("%w: %s", errSetBack, why)
}

// before is how far the store was seen before a reading begins. What is read then cannot be older: a reading asks the
// majority.
func (m *memory) before() Seen {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.seen
}

// See tells how far the store was seen by an earlier process.
func (m *memory) See(before Seen) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.seen.Store != before.Store || before.Behind(m.seen.Mark) == "" {
		before.keep(m.seen)
		m.seen = before
	}
}

// isBehind says why etcd, as it answered now, is older than a state that was listed; empty: it is not. newest is the
// revision at which it holds the state's contentKey.
func (st *state) isBehind(now readAt, newest int64) string {
	switch seen := max(st.revision, st.looked); {
	case now.revision < seen:
		return fmt.Sprintf("its revision is %d, seen was %d", now.revision, seen)
	case now.cluster != st.cluster && now.cluster != 0 && st.cluster != 0:
		return fmt.Sprintf("it is cluster %x, before it was cluster %x", now.cluster, st.cluster)
	case st.contentKey != "" && newest < st.content:
		return wordsOlder(st.contentKey, newest, st.content)
	}
	return ""
}
