package placement

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"strings"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// state is the mutable copy of etcd; published maps are copies, made only if something changed.
type state struct {
	revision     int64 // revision of the listing, then of the last change
	looked       int64 // etcd's revision at the last look
	metaRevision int64 // revision of the last change of meta; 0: it does not exist
	hasMeta      bool
	content      int64   // see Mark
	contentKey   string  // the key that was written at the revision content
	asked        wroteAt // the contentKey of the earlier view, as this listing found it
	cluster      uint64
	base         uint64 // the base of meta when it was compared
	setBack      string // why it is older than an earlier view; empty: it is not
	freezeAt     int64  // revision of the key frozen; 0: it does not exist
	view         View
	stale        [4]bool // shards, groups, targets, states: changed since the last publish
	shards       map[string]Shard
	groups       map[string]Group
	targets      map[string]Target
	states       map[string]ShardState
	weights      map[string]*shardWeights // by shard
	news         bool                     // something changed, but not the epoch
}

// wroteAt says when a key was written; 0: it does not exist.
type wroteAt struct {
	key string
	at  int64
}

func newState() *state {
	return &state{
		shards: map[string]Shard{}, groups: map[string]Group{}, targets: map[string]Target{}, states: map[string]ShardState{},
		weights: map[string]*shardWeights{}, stale: [4]bool{true, true, true, true},
	}
}

// epoch returns the routing epoch of the state.
func (st *state) epoch() uint64 { return st.view.Meta.EpochBase + uint64(st.revision) }

// mark returns the mark of the state.
func (st *state) mark() Mark {
	return Mark{
		Base: st.view.Meta.EpochBase, Revision: max(st.revision, st.looked), Content: st.content, ContentKey: st.contentKey,
		Cluster: st.cluster,
	}
}

// wrote records the write of a key that is never deleted.
func (st *state) wrote(name string, revision int64) {
	if revision > st.content {
		st.content, st.contentKey = revision, name
	}
	if name == st.asked.key {
		st.asked.at = revision
	}
}

// publish returns a View of the state. Later changes of the state do not change it.
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
	if st.stale[1] || st.stale[0] && len(st.weights) > 0 {
		st.view.Groups = maps.Clone(st.groups)
		st.weigh(st.view.Groups)
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

// apply applies changes and reports whether the view has changed.
func (st *state) apply(k keys, events []*clientv3.Event) bool {
	changed := false
	for _, e := range events {
		name := k.name(e.Kv.Key)
		var relevant bool
		if e.Type == clientv3.EventTypeDelete {
			relevant = st.drop(name)
		} else {
			var err error
			// A value that cannot be read leaves the known value in place: the fault is the writer's, not
			// this reader's.
			if relevant, err = st.put(name, e.Kv); err != nil {
				relevant = false
			}
		}
		if relevant {
			changed = true
			st.revision = max(st.revision, e.Kv.ModRevision)
		}
	}
	return changed
}

// putAll applies keys that were read.
func (st *state) putAll(found map[string]*mvccpb.KeyValue) error {
	for name, kv := range found {
		if _, err := st.put(name, kv); err != nil {
			return err
		}
	}
	return nil
}

// put applies one key.
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
		if t, err = decodeTarget(kv.Value, kv.ModRevision); err == nil && t.Group != rest {
			err = errors.New("names another group")
		}
		if err == nil {
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
	case weightsKey:
		err = st.putWeights(rest, kv)
	default:
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("key %s in etcd: %w", name, err)
	}
	return true, nil
}

// drop applies the deletion of one key. Without meta no further view is given: a store does not vanish while it is
// used.
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
