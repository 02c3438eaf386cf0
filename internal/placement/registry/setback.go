package registry

import (
	"fmt"
	"sync"
	"time"

	"sheaf.dev/sheaf/internal/placement"
)

// This file contains the only rule by which a process detects that etcd was rolled back to an earlier state. A process
// remembers, for each store:
//
//   - The highest revision at which the whole etcd was seen. Every write raises it. The process records this revision
//     with each listing, each read, and each check, every two seconds, even if none of the watched keys has changed.
//   - One of the known keys that are never deleted, namely the one that was written last, and the revision of that
//     write.
//   - All groups and targets that it follows, and the revision at which each was written.
//
// etcd was rolled back if its revision is lower, or if one of these keys is missing or was written earlier than the
// remembered write. The first condition detects most older states. The other conditions detect a rollback after which
// etcd received so many writes before the next check that its revision is higher again. The finding persists until
// etcd was rebuilt or reconciled, which raises Meta.EpochBase. If it did not persist, the older etcd would soon pass
// the comparison again, because writes raise its revision too.

// behind explains why a state is older than an earlier view of the same store. It returns an empty string if the
// state is not older.
func (st *state) behind(seen placement.Progress) string {
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

// compare checks whether the state is older than an earlier view. Once a state was found to be older, this finding
// remains until the epoch base has grown. Otherwise it would soon be lost, because writes to the older etcd raise its
// revision.
func (st *state) compare(seen placement.Progress, last *state) {
	if st.hasMeta && st.view.Meta.StoreUUID == seen.Store {
		if st.setBack = st.behind(seen); st.setBack == "" {
			st.setBack = st.older(last)
		}
	}
	st.base = st.view.Meta.EpochBase
}

// older returns the name of a group or target that is older in this state than in the earlier state last. The
// argument last may be nil. It returns an empty string if there is no such group or target.
func (st *state) older(last *state) string {
	if last == nil || last.view.Meta.StoreUUID != st.view.Meta.StoreUUID ||
		last.view.Meta.EpochBase != st.view.Meta.EpochBase {
		return ""
	}
	for name, g := range last.groups {
		if now := st.revisionOf(groupsKey + name); now < g.Revision {
			return wordsOlder(groupsKey+name, now, g.Revision)
		}
	}
	for name, t := range last.targets {
		if now := st.revisionOf(targetsKey + name); now < t.Revision {
			return wordsOlder(targetsKey+name, now, t.Revision)
		}
	}
	return ""
}

// memory holds what this process remembers about a store's earlier states.
type memory struct {
	mu         sync.Mutex         // guards the fields below
	observed   placement.Progress // latest state of the store that this process has seen
	lastAnswer time.Time          // when etcd last sent a response to a watch
	held       string             // why Watch does not pass on etcd's content; empty if it does
	domains    map[string]string  // failure domain with which each shard was last registered; see withDomains

	reportedUnusable map[string]int64 // keys that reportUnusable has logged, with their revisions
}

// LastAnswer returns the time of etcd's last response to a Watch or Follow of this Store, or the zero time if etcd
// has never responded. It also returns the reason why Watch does not pass on etcd's current content, or an empty
// string if Watch does.
func (m *memory) LastAnswer() (last time.Time, held string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.lastAnswer, m.held
}

// hold records that etcd has responded, and the reason why its content is not passed on. If the content is passed on,
// the reason is empty.
func (m *memory) hold(reason string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.lastAnswer, m.held = time.Now(), reason
}

// noteAnswer records that etcd has responded.
func (m *memory) noteAnswer() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.lastAnswer = time.Now()
}

// saw records that this process has now seen a state, and whether that state shows that etcd was rolled back.
func (m *memory) saw(st *state) {
	if !st.hasMeta {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if st.setBack != "" {
		recordFinding(&m.observed, st, st.setBack)
		return
	}
	now := placement.Progress{Store: st.view.Meta.StoreUUID, Mark: st.mark()}
	if m.observed.Store != now.Store || now.Behind(placement.Mark{Base: m.observed.Base,
		Revision: m.observed.Revision}) == "" {
		keepFinding(&now, m.observed)
		m.observed = now
	}
}

// recordFinding records in seen that a state is older than one that was seen earlier, and why. It does not replace a
// reason that is already recorded.
func recordFinding(seen *placement.Progress, st *state, why string) {
	if seen.Store == st.view.Meta.StoreUUID && seen.Base <= st.view.Meta.EpochBase && seen.SetBack == "" {
		seen.SetBack = why
	}
}

// keepFinding copies the finding that etcd was rolled back from the previous progress to the new one, unless etcd has
// been reconciled since.
func keepFinding(seen *placement.Progress, before placement.Progress) {
	if seen.Store == before.Store && seen.Base <= before.Base && seen.SetBack == "" {
		seen.SetBack = before.SetBack
	}
}

// Newest returns the later of two marks: the mark of the view, and the mark of the latest state of the store that
// this process has seen.
func (m *memory) Newest(view placement.Mark) placement.Mark {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.observed.SetBack != "" || m.observed.Base != view.Base || m.observed.Behind(view) != "" {
		return view
	}
	return m.observed.Mark
}

// setBackSince records that etcd is now older than the listed state, and returns the error that ends the follower.
func (m *memory) setBackSince(st *state, why string) error {
	st.setBack = why
	m.saw(st)
	return fmt.Errorf("%w: %s", errSetBack, why)
}

// before returns the latest state of the store that has been seen so far. It must be called before a read is started.
// Because every read goes through a majority of etcd's members, the read then cannot find an older state than the one
// that before has returned.
func (m *memory) before() placement.Progress {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.observed
}

// See records the latest state of the store that an earlier process has seen.
func (m *memory) See(before placement.Progress) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.observed.Store != before.Store || before.Behind(m.observed.Mark) == "" {
		keepFinding(&before, m.observed)
		m.observed = before
	}
}

// isBehind explains how a read shows that etcd is older than st, a state that was seen earlier. It returns an empty
// string if etcd is not older. The argument now identifies the state that was read, and newest is the revision that
// the key st.contentKey had in it.
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
