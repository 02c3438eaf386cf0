package registry

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"maps"
	"slices"
	"strings"

	"github.com/google/uuid"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"sheaf.dev/sheaf/internal/placement"
)

// The weights of groups change all the time, and must wake no shard. Therefore each shard reports the weights of the
// groups that it leads in separate keys, weights/SHARD/PART. There is one key for up to a thousand groups, and one more
// for each further thousand, because etcd refuses values above about 1 MiB.

// weightsPerKey is the approximate number of groups in one key; each group takes 120 bytes.
const weightsPerKey = 1000

// weights accesses the values that shards have reported about the groups that they lead.
type weights struct{ keys }

// Weight is the periodic report of a group's leader.
type Weight struct {
	UUID    uuid.UUID `json:"uuid"` // UUID of the group, because an earlier group may have had the same name
	Bytes   int64     `json:"bytes"`
	Records int64     `json:"records"`
	// Everywhere has the meaning of Group.Everywhere.
	Everywhere uint64 `json:"everywhere,omitempty"`
	// Hold is the index up to which the group is archived, if Holds is set. The group's members keep versions
	// superseded above it. The index is 0 if nothing is archived yet.
	Hold  uint64 `json:"hold,omitempty"`
	Holds bool   `json:"holds,omitempty"`
}

// weightsPart is the value of a key weights/SHARD/PART.
type weightsPart struct {
	Shard  string            `json:"shard"`
	Groups map[string]Weight `json:"groups"` // by name of the group

	at int64 // revision of the key when the value was read
}

// splitWeights distributes the groups over several keys.
func splitWeights(shard string, weights map[string]Weight) []weightsPart {
	n := 1 // a power of two, so that groups stay in their part when others are added or removed
	for n*weightsPerKey < len(weights) {
		n *= 2
	}
	parts := make([]weightsPart, n)
	for i := range parts {
		parts[i] = weightsPart{Shard: shard, Groups: map[string]Weight{}}
	}
	for name, w := range weights {
		h := fnv.New32a()
		_, _ = h.Write([]byte(name)) // a write to a hash never fails
		parts[int(h.Sum32())%len(parts)].Groups[name] = w
	}
	return parts
}

func weightKey(shard string, part int) string {
	return fmt.Sprintf("%s%s/%04x", weightsKey, shard, part)
}

// PutWeights writes the weights of all groups that a shard leads, and replaces the shard's previous report. Views from
// Watch and View use a report while the shard still leads the group and is registered with Shard.Weighs. PutWeights
// wakes no shard. It writes nothing if the store does not exist.
func (w *weights) PutWeights(ctx context.Context, shard string, weights map[string]Weight) error {
	if err := placement.ValidateShardName(shard); err != nil {
		return err
	}
	parts := splitWeights(shard, weights)
	for i, part := range parts {
		ops := []clientv3.Op{w.opPut(weightKey(shard, i), part)}
		if i == len(parts)-1 { // parts are left over if the shard led more groups before
			ops = append(ops, clientv3.OpDelete(w.prefix+weightKey(shard, len(parts)),
				clientv3.WithRange(clientv3.GetPrefixRangeEnd(w.prefix+weightsKey+shard+"/"))))
		}
		if _, err := w.client.Txn(ctx).If(w.exists()).Then(ops...).Commit(); err != nil {
			return fmt.Errorf("write what the groups of shard %s weigh to etcd: %w", shard, err)
		}
	}
	return nil
}

// Weights reads a shard's last report on the groups that it led, by name.
func (w *weights) Weights(ctx context.Context, shard string) (map[string]Weight, error) {
	all := &shardWeights{parts: map[string]weightsPart{}}
	prefix := w.prefix + weightsKey + shard + "/"
	_, _, err := w.pages(ctx, prefix, clientv3.GetPrefixRangeEnd(prefix), 0, func(kv *mvccpb.KeyValue) error {
		return all.put(shard, strings.TrimPrefix(string(kv.Key), prefix), kv)
	})
	if err != nil {
		return nil, err
	}
	return all.merged(), nil
}

// shardWeights holds one shard's report, by part.
type shardWeights struct {
	parts map[string]weightsPart
	all   map[string]Weight // merged result, or nil if it must be computed
}

func (w *shardWeights) put(shard, part string, kv *mvccpb.KeyValue) error {
	var p weightsPart
	if err := json.Unmarshal(kv.Value, &p); err != nil {
		return fmt.Errorf("decode what the groups of shard %s weigh: %w", shard, err)
	}
	if p.Shard != shard {
		return otherName("shard", p.Shard)
	}
	for name, g := range p.Groups {
		if g.Bytes < 0 || g.Records < 0 {
			return fmt.Errorf("group %.40q has %d bytes and %d records", name, g.Bytes, g.Records)
		}
	}
	p.at = kv.ModRevision
	w.parts[part], w.all = p, nil
	return nil
}

// merged returns the last report about each group, from all parts.
func (w *shardWeights) merged() map[string]Weight {
	if w.all == nil {
		w.all = map[string]Weight{}
		for _, part := range slices.SortedFunc(maps.Keys(w.parts), func(a, b string) int {
			return cmp.Compare(w.parts[a].at, w.parts[b].at)
		}) {
			maps.Copy(w.all, w.parts[part].Groups)
		}
	}
	return w.all
}

// putWeights applies one key. The argument name is SHARD/PART.
func (st *state) putWeights(name string, kv *mvccpb.KeyValue) error {
	shard, part, _ := strings.Cut(name, "/")
	w := st.weights[shard]
	if w == nil {
		w = &shardWeights{parts: map[string]weightsPart{}}
	}
	if err := w.put(shard, part, kv); err != nil {
		return err
	}
	st.weights[shard], st.changed.groups = w, true
	return nil
}

// applyWeights applies changes to weights, and reports whether there were any. These changes leave the epoch unchanged.
func (st *state) applyWeights(k keys, events []*clientv3.Event) bool {
	changed := false
	for _, e := range events {
		changed = st.change(k, e) || changed
	}
	st.news = st.news || changed
	return changed
}

// dropWeights applies the deletion of one key, and reports whether the key's shard has any reports. The argument name
// is SHARD/PART.
func (st *state) dropWeights(name string) bool {
	shard, part, _ := strings.Cut(name, "/")
	w := st.weights[shard]
	if w == nil {
		return false
	}
	delete(w.parts, part)
	w.all, st.changed.groups = nil, true
	return true
}

// weigh sets the bytes and records of groups, as reported by their leaders' shards.
func (st *state) weigh(groups map[string]placement.Group) {
	if len(st.weights) == 0 {
		return
	}
	for name, g := range groups {
		leader := g.Leader
		if leader == "" && len(g.Members) == 1 {
			leader = g.Members[0].Shard
		}
		told := st.weights[leader]
		if told == nil {
			continue
		}
		if shard, registered := st.shards[leader]; registered && !shard.Weighs {
			continue // the shard runs an older version of Sheaf, which reports its weights in the group
		}
		w, ok := told.merged()[name]
		if !ok || w.UUID != g.UUID {
			continue
		}
		g.Bytes, g.Records, g.Everywhere = w.Bytes, w.Records, max(g.Everywhere, w.Everywhere)
		groups[name] = g
	}
}
