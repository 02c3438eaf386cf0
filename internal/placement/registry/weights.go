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

// The sizes of groups change all the time, and these changes must not wake any shard. Therefore each shard reports
// the sizes of the groups that it leads in separate keys, weights/SHARD/PART. A shard uses one key for up to a
// thousand groups, and more keys for more groups, because etcd rejects values above about 1 MiB.

// weightsPerKey is the approximate number of groups in one key. Each group takes 120 bytes.
const weightsPerKey = 1000

// weights reads and writes the values that shards report about the groups that they lead.
type weights struct{ keys }

// Weight is what the leader of a group reports about the group from time to time.
type Weight struct {
	UUID    uuid.UUID `json:"uuid"` // UUID of the group, because an earlier group may have had the same name
	Bytes   int64     `json:"bytes"`
	Records int64     `json:"records"`
	// Everywhere has the same meaning as Group.Everywhere.
	Everywhere uint64 `json:"everywhere,omitempty"`
	// Hold is the index up to which the group is archived, or 0 if nothing is archived yet. It is valid only if Holds is
	// set. The members of the group must keep every version that was superseded at a higher index, because it is not
	// archived yet.
	Hold  uint64 `json:"hold,omitempty"`
	Holds bool   `json:"holds,omitempty"`
	// Term is the leader's term when it made the report. Only a report of the present term proves that there is no
	// archive: an older one may be from before the archive began. It is 0 in reports of older versions of Sheaf.
	Term uint64 `json:"term,omitempty"`
}

// weightsPart is the value of a key weights/SHARD/PART.
type weightsPart struct {
	Shard  string            `json:"shard"`
	Groups map[string]Weight `json:"groups"` // reports by the names of the groups

	at int64 // revision of the key from which the value was read
}

// splitWeights distributes the reports about a shard's groups over several keys.
func splitWeights(shard string, weights map[string]Weight) []weightsPart {
	n := 1 // a power of two, so that groups usually stay in their part when others are added or removed
	for n*weightsPerKey < len(weights) {
		n *= 2
	}
	parts := make([]weightsPart, n)
	for i := range parts {
		parts[i] = weightsPart{Shard: shard, Groups: map[string]Weight{}}
	}
	for name, w := range weights {
		h := fnv.New32a()
		_, _ = h.Write([]byte(name)) // writing to a hash never fails
		parts[int(h.Sum32())%len(parts)].Groups[name] = w
	}
	return parts
}

func weightKey(shard string, part int) string {
	return fmt.Sprintf("%s%s/%04x", weightsKey, shard, part)
}

// PutWeights writes the sizes of all groups that a shard leads, in place of the shard's previous report. The views
// that Watch and View return use the report about a group as long as the shard leads the group and is registered with
// Shard.Weighs. PutWeights does not notify any shard. If the store does not exist, it writes nothing.
func (w *weights) PutWeights(ctx context.Context, shard string, weights map[string]Weight) error {
	if err := placement.ValidateShardName(shard); err != nil {
		return err
	}
	parts := splitWeights(shard, weights)
	for i, part := range parts {
		ops := []clientv3.Op{w.opPut(weightKey(shard, i), part)}
		if i == len(parts)-1 { // if the shard led more groups before, there are parts left over
			ops = append(ops, clientv3.OpDelete(w.prefix+weightKey(shard, len(parts)),
				clientv3.WithRange(clientv3.GetPrefixRangeEnd(w.prefix+weightsKey+shard+"/"))))
		}
		if _, err := w.client.Txn(ctx).If(w.exists()).Then(ops...).Commit(); err != nil {
			return fmt.Errorf("write what the groups of shard %s weigh to etcd: %w", shard, err)
		}
	}
	return nil
}

// Weights reads the last report of a shard about the groups that it led, by the names of the groups.
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

// shardWeights holds the report of one shard, by part.
type shardWeights struct {
	parts map[string]weightsPart
	all   map[string]Weight // reports from all parts; nil if they must be merged again
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

// merged returns the reports about all groups, from all parts.
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

// putWeights applies the value of one key. The argument name is SHARD/PART.
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

// applyWeights applies changes to reports, and returns true if there were any. Such changes do not change the epoch.
func (st *state) applyWeights(k keys, events []*clientv3.Event) bool {
	changed := false
	for _, e := range events {
		changed = st.change(k, e) || changed
	}
	st.news = st.news || changed
	return changed
}

// dropWeights applies the deletion of one key. It returns true if the key's shard had reported anything. The argument
// name is SHARD/PART.
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

// weigh fills in the bytes and records of the groups from the reports of the leaders' shards.
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
			continue // the shard runs an older version of Sheaf, which reports sizes in the group's own key
		}
		w, ok := told.merged()[name]
		if !ok || w.UUID != g.UUID {
			continue
		}
		g.Bytes, g.Records, g.Everywhere = w.Bytes, w.Records, max(g.Everywhere, w.Everywhere)
		groups[name] = g
	}
}
