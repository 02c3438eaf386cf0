package registry

import (
	"encoding/json"
	"maps"
	"strings"

	"github.com/google/uuid"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"sheaf.dev/sheaf/internal/placement"
)

// state is the mutable copy of etcd's content. Views get copies of its maps. A map is copied again only if something
// in it has changed.
type state struct {
	revision     int64 // revision of the listing, or of the latest change since then
	looked       int64 // revision of etcd at the last check
	metaRevision int64 // revision of the latest change to meta; 0 if meta does not exist
	hasMeta      bool
	content      int64   // see Mark.Content
	contentKey   string  // see Mark.ContentKey
	asked        wroteAt // contentKey of the earlier view, and the revision that this key has in this listing
	cluster      uint64
	base         uint64 // EpochBase in meta when this state was compared
	setBack      string // why this state is older than an earlier view; empty if it is not older
	freezeAt     int64  // revision of the key "frozen"; 0 if the key does not exist
	view         placement.View
	changed      changedParts
	shards       map[string]placement.Shard
	groups       map[string]placement.Group
	targets      map[string]placement.Target
	states       map[string]placement.ShardState
	weights      map[string]*shardWeights      // reports of group sizes, by shard
	unusable     map[string]placement.Unusable // keys with invalid values, without the prefix
	news         bool                          // a view must be sent although the epoch has not changed
}

// changedParts says which parts of a state have changed since the last call to publish.
type changedParts struct{ shards, groups, targets, states, unusable bool }

// wroteAt is a key and the revision at which it was written. The revision is 0 if the key does not exist.
type wroteAt struct {
	key string
	at  int64
}

func newState() *state {
	return &state{
		shards: map[string]placement.Shard{}, groups: map[string]placement.Group{},
		targets: map[string]placement.Target{}, states: map[string]placement.ShardState{},
		weights:  map[string]*shardWeights{},
		changed:  changedParts{shards: true, groups: true, targets: true, states: true},
		unusable: map[string]placement.Unusable{},
	}
}

func (st *state) epoch() uint64 { return st.view.Meta.EpochBase + uint64(st.revision) }

func (st *state) mark() placement.Mark {
	return placement.Mark{
		Base: st.view.Meta.EpochBase, Revision: max(st.revision, st.looked), Content: st.content, ContentKey: st.contentKey,
		Cluster: st.cluster,
	}
}

// wrote records a write of a key that is never deleted.
func (st *state) wrote(name string, revision int64) {
	if revision > st.content {
		st.content, st.contentKey = revision, name
	}
	if name == st.asked.key {
		st.asked.at = revision
	}
}

// publish returns a View of the state. Later changes to the state do not affect the View.
func (st *state) publish() placement.View {
	if st.changed.shards || st.changed.states {
		st.view.Shards = maps.Clone(st.shards)
		for name, state := range st.states {
			if shard, ok := st.view.Shards[name]; ok {
				shard.State = state
				st.view.Shards[name] = shard
			}
		}
	}
	if st.changed.groups || st.changed.shards && len(st.weights) > 0 {
		st.view.Groups, st.view.Deleted = maps.Clone(st.groups), map[string]uuid.UUID{}
		for name, g := range st.groups {
			if g.Deleted != "" {
				st.view.Deleted[name] = g.UUID
				delete(st.view.Groups, name)
			}
		}
		st.weigh(st.view.Groups)
	}
	if st.changed.targets {
		st.view.Targets = maps.Clone(st.targets)
	}
	if st.changed.states {
		st.view.States = maps.Clone(st.states)
	}
	if st.changed.unusable {
		st.view.Unusable = maps.Clone(st.unusable)
	}
	st.changed = changedParts{}
	st.view.Epoch, st.view.Mark, st.view.SetBack = st.epoch(), st.mark(), st.setBack
	return st.view
}

// apply applies changes and reports whether the view has changed.
func (st *state) apply(k keys, events []*clientv3.Event) bool {
	changed := false
	for _, e := range events {
		if st.change(k, e) {
			changed = true
			st.revision = max(st.revision, e.Kv.ModRevision)
		}
	}
	return changed
}

// change applies one change and reports whether the view has changed.
func (st *state) change(k keys, e *clientv3.Event) bool {
	if e.Type == clientv3.EventTypeDelete {
		return st.drop(k.name(e.Kv.Key))
	}
	return st.put(k, k.name(e.Kv.Key), e.Kv)
}

func (st *state) putAll(k keys, found map[string]*mvccpb.KeyValue) {
	for name, kv := range found {
		st.put(k, name, kv)
	}
}

// put applies the value of one key, and reports whether the view has changed. If the value is invalid, the previous
// value stays in force, and View.Unusable names the key.
func (st *state) put(k keys, name string, kv *mvccpb.KeyValue) (relevant bool) {
	relevant, err := st.decode(name, kv)
	if err != nil {
		return st.leaveOut(k, name, kv, err)
	}
	st.usable(name)
	return relevant
}

// decode applies the value of one key if the value is valid.
func (st *state) decode(name string, kv *mvccpb.KeyValue) (relevant bool, err error) {
	kind, rest, _ := strings.Cut(name, "/")
	switch kind + "/" {
	case metaKey + "/":
		st.wrote(name, kv.ModRevision)
		var meta placement.Meta
		if meta, err = decodeMeta(kv.Value); err == nil {
			st.view.Meta, st.hasMeta, st.metaRevision = meta, true, kv.ModRevision
			if meta.EpochBase > st.base {
				st.setBack = ""
			}
		}
	case frozenKey + "/":
		f := &placement.Freeze{}
		if err = json.Unmarshal(kv.Value, f); err != nil {
			f = &placement.Freeze{By: "a writer who is not known", Reason: "what key " + frozenKey + " says cannot be read"}
		}
		st.view.Freeze, st.freezeAt = f, kv.ModRevision
	case volumesKey:
		st.wrote(name, kv.ModRevision)
		return false, nil // this key is read only by the shard that registers the volume
	case shardsKey:
		var shard placement.Shard
		if shard, err = decodeShard(rest, kv.Value); err == nil {
			st.shards[rest], st.changed.shards = shard, true
		}
	case groupsKey:
		st.wrote(name, kv.ModRevision)
		var g placement.Group
		if g, err = decodeGroup(rest, kv.Value, kv.ModRevision); err == nil {
			st.groups[rest], st.changed.groups = g, true
		}
	case targetsKey:
		st.wrote(name, kv.ModRevision)
		var t placement.Target
		if t, err = decodeTarget(rest, kv.Value, kv.ModRevision); err == nil {
			st.targets[rest], st.changed.targets = t, true
		}
	case statesKey:
		var w wish
		if w, err = decodeWish(rest, kv.Value); err == nil {
			st.states[rest], st.changed.states = w.State, true
		}
	case weightsKey:
		err = st.putWeights(rest, kv)
	default:
		return false, nil
	}
	return err == nil, err
}

// drop applies the deletion of one key, and reports whether the view has changed. If meta is deleted, no further view
// is sent, because a store that is in use does not simply disappear.
func (st *state) drop(name string) bool {
	wasUnusable := st.usable(name)
	kind, rest, _ := strings.Cut(name, "/")
	switch kind + "/" {
	case metaKey + "/":
		st.hasMeta, st.metaRevision = false, 0
	case frozenKey + "/":
		st.view.Freeze, st.freezeAt = nil, 0
	case statesKey:
		delete(st.states, rest)
		st.changed.states = true
	case shardsKey:
		delete(st.shards, rest)
		st.changed.shards = true
	case groupsKey:
		delete(st.groups, rest)
		st.changed.groups = true
	case targetsKey:
		delete(st.targets, rest)
		st.changed.targets = true
	case weightsKey:
		return st.dropWeights(rest) || wasUnusable
	default:
		return wasUnusable
	}
	return true
}
