package placement

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
)

// What groups weigh changes all the time, and wakes no shard: each shard tells it of the groups that it leads in keys
// of its own, weights/SHARD/PART. That is one key up to a thousand groups, and one more for each further thousand,
// because etcd refuses values above 1 MiB or so.

// weightsPerKey is about how many groups are in one key, of 120 bytes each.
const weightsPerKey = 1000

// weights are what shards told of the groups that they lead.
type weights struct{ keys }

// Weight is what the leader of a group says of it now and then.
type Weight struct {
	UUID    uuid.UUID `json:"uuid"` // of the group: one of its name may have been there before
	Bytes   int64     `json:"bytes"`
	Records int64     `json:"records"`
	// Everywhere: as that of Group.
	Everywhere uint64 `json:"everywhere,omitempty"`
}

// weightsPart is the value of weights/SHARD/PART.
type weightsPart struct {
	Shard  string            `json:"shard"`
	Groups map[string]Weight `json:"groups"` // by name
}

// splitWeights says which groups are in which key.
func splitWeights(shard string, weights map[string]Weight) []weightsPart {
	n := 1 // a power of two: the parts stay the same while groups come and go
	for n*weightsPerKey < len(weights) {
		n *= 2
	}
	parts := make([]weightsPart, n)
	for i := range parts {
		parts[i] = weightsPart{Shard: shard, Groups: map[string]Weight{}}
	}
	for name, w := range weights {
		h := fnv.New32a()
		_, _ = h.Write([]byte(name)) // it never fails
		parts[int(h.Sum32())%len(parts)].Groups[name] = w
	}
	return parts
}

func (w *weights) weightKey(shard string, part int) string {
	return fmt.Sprintf("%s%s%s/%04x", w.prefix, weightsKey, shard, part)
}

// PutWeights writes what the groups weigh that a shard leads: of all of them, what it told before is replaced. Views of
// Watch and View take it over where the shard still leads the group and is registered with Shard.Weighs. No shard is
// woken. Nothing is written where the store does not exist.
func (w *weights) PutWeights(ctx context.Context, shard string, weights map[string]Weight) error {
	if err := ValidateShardName(shard); err != nil {
		return err
	}
	parts := splitWeights(shard, weights)
	for i, part := range parts {
		value, err := json.Marshal(part)
		if err != nil {
			return fmt.Errorf("encode what groups weigh: %w", err)
		}
		ops := []clientv3.Op{clientv3.OpPut(w.weightKey(shard, i), string(value))}
		if i == len(parts)-1 { // of when it led more
			ops = append(ops, clientv3.OpDelete(w.weightKey(shard, len(parts)),
				clientv3.WithRange(clientv3.GetPrefixRangeEnd(w.prefix+weightsKey+shard+"/"))))
		}
		if _, err := w.client.Txn(ctx).If(w.exists()).Then(ops...).Commit(); err != nil {
			return fmt.Errorf("write what the groups of shard %s weigh to etcd: %w", shard, err)
		}
	}
	return nil
}

// Weights reads what a shard told last of the groups that it led, by their names.
func (w *weights) Weights(ctx context.Context, shard string) (map[string]Weight, error) {
	all := newShardWeights()
	prefix := w.prefix + weightsKey + shard + "/"
	_, _, err := w.pages(ctx, prefix, clientv3.GetPrefixRangeEnd(prefix), 0, func(kv *mvccpb.KeyValue) error {
		return all.put(shard, strings.TrimPrefix(string(kv.Key), prefix), kv)
	})
	if err != nil {
		return nil, err
	}
	return all.merged(), nil
}

// shardWeights is what one shard told, by part.
type shardWeights struct {
	parts map[string]weightsPart
	at    map[string]int64  // revisions of the parts
	all   map[string]Weight // nil: to be made
}

func newShardWeights() *shardWeights {
	return &shardWeights{parts: map[string]weightsPart{}, at: map[string]int64{}}
}

func (w *shardWeights) put(shard, part string, kv *mvccpb.KeyValue) error {
	var p weightsPart
	if err := json.Unmarshal(kv.Value, &p); err != nil {
		return fmt.Errorf("decode what the groups of shard %s weigh: %w", shard, err)
	}
	if p.Shard != shard {
		return fmt.Errorf("what the groups of shard %s weigh names shard %q", shard, p.Shard)
	}
	w.parts[part], w.at[part], w.all = p, kv.ModRevision, nil
	return nil
}

// merged is what was told last of each group, whichever part it was in.
func (w *shardWeights) merged() map[string]Weight {
	if w.all == nil {
		w.all = map[string]Weight{}
		for _, part := range slices.SortedFunc(maps.Keys(w.parts), func(a, b string) int {
			return cmp.Compare(w.at[a], w.at[b])
		}) {
			maps.Copy(w.all, w.parts[part].Groups)
		}
	}
	return w.all
}

// putWeights takes one key in; name is SHARD/PART.
func (st *state) putWeights(name string, kv *mvccpb.KeyValue) error {
	shard, part, _ := strings.Cut(name, "/")
	w := st.weights[shard]
	if w == nil {
		w = newShardWeights()
	}
	if err := w.put(shard, part, kv); err != nil {
		return err
	}
	st.weights[shard], st.stale[1] = w, true
	return nil
}

// applyWeights takes changes of weights in, and says whether there were any. They do not change the epoch.
func (st *state) applyWeights(k keys, events []*clientv3.Event) bool {
	changed := false
	for _, e := range events {
		name := strings.TrimPrefix(k.name(e.Kv.Key), weightsKey)
		if e.Type != clientv3.EventTypeDelete {
			// A value that cannot be read leaves what was known before.
			changed = st.putWeights(name, e.Kv) == nil || changed
			continue
		}
		shard, part, _ := strings.Cut(name, "/")
		if w := st.weights[shard]; w != nil {
			delete(w.parts, part)
			delete(w.at, part)
			w.all, st.stale[1], changed = nil, true, true
		}
	}
	st.news = st.news || changed
	return changed
}

// weigh sets what the leaders' shards told of groups.
func (st *state) weigh(groups map[string]Group) {
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
			continue // a program of before runs there: it tells it in the group
		}
		w, ok := told.merged()[name]
		if !ok || w.UUID != g.UUID {
			continue
		}
		g.Bytes, g.Records, g.Everywhere = w.Bytes, w.Records, max(g.Everywhere, w.Everywhere)
		groups[name] = g
	}
}
