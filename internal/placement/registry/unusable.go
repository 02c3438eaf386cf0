package registry

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"sheaf.dev/sheaf/internal/placement"
)

// Any process that can write to etcd may have left a value there that Sheaf did not write. A listing leaves such a key
// out and names it, so that one invalid key does not make the whole listing fail. A key that is left out counts as
// unknown, not as empty or absent:
//
//   - A process that knew an earlier value of the key continues with that value.
//   - A group without a readable key, or without a readable target, is neither placed nor created, and its replicas
//     remain as they are on their volumes.
//   - A freeze that cannot be read counts as a freeze.
//   - Without a readable meta, a listing fails. Meta is the only key that a listing needs.

// leaveOut records that the value of a key is invalid. It returns false if that was recorded before.
func (st *state) leaveOut(k keys, name string, kv *mvccpb.KeyValue, why error) bool {
	if before, known := st.unusable[name]; known && before.Revision == kv.ModRevision {
		return false
	}
	st.unusable[name] = k.unusable(name, kv, why)
	st.changed.unusable = true
	return true
}

// unusable describes a key whose value is invalid.
func (k keys) unusable(name string, kv *mvccpb.KeyValue, why error) placement.Unusable {
	var newer *placement.NeedsError
	return placement.Unusable{Key: k.prefix + name, Revision: kv.ModRevision, Why: why.Error(),
		Newer: errors.As(why, &newer)}
}

// usable records that the value of a key is valid, or that the key was deleted. It returns true if the value was
// invalid before.
func (st *state) usable(name string) (was bool) {
	if _, was = st.unusable[name]; was {
		delete(st.unusable, name)
		st.changed.unusable = true
	}
	return was
}

// goOnWithMeta restores the metadata of the previous state, last, if the current metadata is invalid. last may be nil.
func (st *state) goOnWithMeta(last *state) {
	if o, unusable := st.unusable[metaKey]; unusable && last != nil && last.hasMeta {
		st.view.Meta, st.hasMeta, st.metaRevision = last.view.Meta, true, o.Revision
	}
}

// goOnWith restores the values of the previous state, last, for all keys that are invalid now. last may be nil.
func (st *state) goOnWith(last *state) {
	if last == nil {
		return
	}
	for name := range st.unusable {
		switch kind, rest, _ := strings.Cut(name, "/"); kind + "/" {
		case groupsKey:
			carry(st.groups, last.groups, rest)
		case targetsKey:
			carry(st.targets, last.targets, rest)
		case shardsKey:
			carry(st.shards, last.shards, rest)
		case statesKey:
			carry(st.states, last.states, rest)
		}
	}
}

func carry[V any](to, from map[string]V, name string) {
	if v, known := from[name]; known {
		to[name] = v
	}
}

// unusableMeta returns an error if the listing does not show which store it belongs to, and nil otherwise.
func (st *state) unusableMeta() error {
	if o, unusable := st.unusable[metaKey]; unusable && !st.hasMeta {
		return fmt.Errorf("%w: %s", placement.ErrUnusable, o)
	}
	return nil
}

// reportUnusable logs each key with an invalid value, unless this process has already logged it.
func (m *memory) reportUnusable(logger *slog.Logger, unusable map[string]placement.Unusable) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, name := range slices.Sorted(maps.Keys(unusable)) {
		if o := unusable[name]; m.reportedUnusable[name] != o.Revision {
			logger.Error("a key in etcd cannot be used and is left out", "key", o.Key, "revision", o.Revision, "reason", o.Why)
		}
	}
	m.reportedUnusable = make(map[string]int64, len(unusable))
	for name, o := range unusable {
		m.reportedUnusable[name] = o.Revision
	}
}
