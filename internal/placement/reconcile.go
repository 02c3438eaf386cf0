package placement

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// Reconciled is the progress of reconciling a frozen store.
type Reconciled struct {
	Written int      // groups whose members in etcd were overwritten
	Waits   []string // what prevents the end of the freeze; empty if the freeze was lifted
}

// Reconcile overwrites the placement in the etcd of a frozen store with what the shards' volumes report. It never
// changes a volume according to etcd. It lifts the freeze when every group is accounted for: a majority of its voters
// was found, or no shard ever had the group. silent describes the shards that did not answer.
func (s *Store) Reconcile(ctx context.Context, r Rebuilt, silent []string) (Reconciled, error) {
	st, err := s.list(ctx)
	if err != nil {
		return Reconciled{}, err
	}
	if !st.hasMeta || st.view.Freeze == nil || st.view.Meta.StoreUUID != r.Meta.StoreUUID {
		return Reconciled{}, nil
	}
	c := &reconciler{keys: s.keys, st: st}
	for _, g := range r.Groups {
		if there := c.st.groups[g.Name]; there.Deleted != "" && there.UUID == g.UUID {
			continue // what is left of its members has not seen the deletion yet
		}
		if short, ok := r.Short[g.Name]; ok {
			c.waits("group %s: %s", g.Name, short)
			continue
		}
		if err := c.group(ctx, g); err != nil {
			return c.done, err
		}
	}
	c.unfound(r)
	if len(c.done.Waits) > 0 {
		c.done.Waits = append(c.done.Waits, silent...)
		return c.done, c.say(ctx)
	}
	return c.done, c.lift(ctx, r.Meta.EpochBase)
}

// Unreconciled records why the store cannot be reconciled now.
func (s *Store) Unreconciled(ctx context.Context, why ...string) error {
	st, err := s.list(ctx)
	if err != nil || st.view.Freeze == nil {
		return err
	}
	c := &reconciler{keys: s.keys, st: st, done: Reconciled{Waits: why}}
	return c.say(ctx)
}

// reconciler compares one listing with the volumes that were found.
type reconciler struct {
	keys

	st   *state
	done Reconciled
}

func (c *reconciler) waits(format string, args ...any) {
	c.done.Waits = append(c.done.Waits, fmt.Sprintf(format, args...))
}

// group writes one group for which a majority of voters was found.
func (c *reconciler) group(ctx context.Context, g Group) error {
	there, known := c.st.groups[g.Name]
	if known && there.UUID != g.UUID && len(there.Members) > 0 {
		c.waits("group %s: etcd knows it as %s on shard %s, the volumes of %s hold it as %s: decide which one is right, "+
			"and move the folders of "+
			"the other away", g.Name, there.UUID, there.Members[0].Shard, shardsOf(g), g.UUID)
		return nil
	}
	if there.UUID == g.UUID {
		if there.ConfIndex > g.ConfIndex && len(there.Members) > 0 {
			return nil // the leader wrote this membership, and the found replicas do not know it yet
		}
		// The older state may still know the shard of a member that did not answer.
		for i, m := range g.Members {
			if old := slices.IndexFunc(there.Members, func(o Member) bool {
				return o.RaftID == m.RaftID
			}); old >= 0 && m.Shard == "" {
				g.Members[i].Shard, g.Members[i].VolumeUUID = there.Members[old].Shard, there.Members[old].VolumeUUID
			}
		}
	}
	target := Target{Group: g.Name, Shards: targetOf(g, c.st.view.Meta.Copies)}
	old := c.st.targets[g.Name]
	if known && there.UUID == g.UUID && there.ConfIndex == g.ConfIndex && SameSet(membersIn(there), membersIn(g)) &&
		SameSet(old.Shards, target.Shards) {
		return nil
	}
	if SameSet(old.Shards, target.Shards) {
		target.Shards = old.Shards
	}
	// The content of the volumes also overwrites keys that cannot be used.
	there.Revision, old.Revision = c.st.revisionOf(groupsKey+g.Name), c.st.revisionOf(targetsKey+g.Name)
	return c.put(ctx, g, target, pair{there, old})
}

// put writes a group and its target if neither has changed.
func (c *reconciler) put(ctx context.Context, g Group, target Target, before pair) error {
	value, err := json.Marshal(g)
	if err != nil {
		return fmt.Errorf("encode group %s: %w", g.Name, err)
	}
	wanted, err := json.Marshal(target)
	if err != nil {
		return fmt.Errorf("encode target of %s: %w", g.Name, err)
	}
	answer, err := c.client.Txn(ctx).
		If(append(c.unchanged(g.Name, before), clientv3.Compare(clientv3.CreateRevision(c.prefix+frozenKey), ">", 0))...).
		Then(append(c.wakeOps(g.Name, before.concerned(), concerned(g, target)),
			clientv3.OpPut(c.prefix+groupsKey+g.Name, string(value)),
			clientv3.OpPut(c.prefix+targetsKey+g.Name, string(wanted)), clientv3.OpDelete(c.prefix+deletedKey+g.Name))...).
		Commit()
	if err != nil {
		return fmt.Errorf("write group %s to etcd: %w", g.Name, err)
	}
	if !answer.Succeeded {
		return fmt.Errorf("%w: %s", ErrChanged, g.Name)
	}
	c.done.Written++
	return nil
}

// unfound records the groups that were not found, although some shard may have them.
func (c *reconciler) unfound(r Rebuilt) {
	found := map[string]bool{}
	for _, g := range r.Groups {
		found[g.Name] = true
	}
	for _, name := range slices.Sorted(maps.Keys(c.st.groups)) {
		if g := c.st.groups[name]; !found[name] && len(g.Members) > 0 {
			c.waits("group %s: no volume that was asked holds it, etcd says it is on %s: start these shards", name, shardsOf(g))
		}
	}
	for name, o := range c.st.unusable {
		if group, is := strings.CutPrefix(name, groupsKey); is && !found[group] {
			c.waits("%s", o)
		}
	}
	for _, name := range r.Missing {
		if len(c.st.groups[name].Members) == 0 {
			c.waits("group %s: no volume that was asked holds it: start the shards that do, or, where none ever did, let it "+
				"begin empty with "+
				"sheaf recover placement --force", name)
		}
	}
}

// say writes to etcd what the freeze waits for, if that has changed.
func (c *reconciler) say(ctx context.Context) error {
	f := *c.st.view.Freeze
	waits := c.done.Waits
	if len(waits) > shortWordsMax {
		waits = append(slices.Clone(waits[:shortWordsMax]), fmt.Sprintf("and %d more", len(waits)-shortWordsMax))
	}
	if slices.Equal(f.Waits, waits) {
		return nil
	}
	f.Waits = waits
	value, err := json.Marshal(f)
	if err != nil {
		return fmt.Errorf("encode the freeze: %w", err)
	}
	if _, err := c.replace(ctx, frozenKey, value, c.at(frozenKey, c.st.freezeAt)); err != nil {
		return fmt.Errorf("write %s to etcd: %w", c.prefix+frozenKey, err)
	}
	return nil
}

// lift ends the freeze. It raises the epoch above all epochs that were ever seen. Then all processes follow etcd again.
func (c *reconciler) lift(ctx context.Context, base uint64) error {
	meta := c.st.view.Meta
	meta.EpochBase = max(base, meta.EpochBase+epochJump)
	value, err := json.Marshal(meta)
	if err != nil {
		return fmt.Errorf("encode meta: %w", err)
	}
	answer, err := c.client.Txn(ctx).If(c.at(frozenKey, c.st.freezeAt), c.at(metaKey, c.st.metaRevision)).
		Then(clientv3.OpPut(c.prefix+metaKey, string(value)), clientv3.OpDelete(c.prefix+frozenKey)).Commit()
	if err != nil {
		return fmt.Errorf("lift the freeze in etcd: %w", err)
	}
	if !answer.Succeeded {
		return fmt.Errorf("lifting the freeze: %w", ErrChanged)
	}
	return nil
}

// membersIn returns keys that identify the members, for SameSet.
func membersIn(g Group) []string {
	out := make([]string, 0, len(g.Members))
	for _, m := range g.Members {
		out = append(out, fmt.Sprintf("%s %s %x %s", m.Shard, m.VolumeUUID, m.RaftID, m.Role))
	}
	return out
}

// targetOf returns the present shards of a group as its target. If the shard of a voter is unknown, it returns no
// target. A target with only the other shards would look complete without that voter's copy, and the copy would be
// dropped. Without a target the leader changes nothing until the shard with the copy reports the copy, or the planner
// chooses another shard.
func targetOf(g Group, copies int) []string {
	if slices.ContainsFunc(g.Members, func(m Member) bool { return m.Role == Voter && m.Shard == "" }) {
		return nil
	}
	var out []string
	for _, m := range g.Members {
		switch {
		case m.Role != Voter || m.Shard == "" || slices.Contains(out, m.Shard):
		case m.Shard == g.Leader:
			out = slices.Insert(out, 0, m.Shard)
		default:
			out = append(out, m.Shard)
		}
	}
	return out[:min(len(out), copies)]
}

// shardsOf returns the names of the members' shards.
func shardsOf(g Group) string {
	var names []string
	for _, m := range g.Members {
		if m.Shard != "" && !slices.Contains(names, m.Shard) {
			names = append(names, m.Shard)
		}
	}
	return strings.Join(names, ", ")
}

// FactsOf returns the facts about a store that are in etcd, for volumes that do not remember them.
func FactsOf(view View) *FoundFacts {
	m := view.Meta
	return &FoundFacts{Routing: m.Routing, Copies: m.Copies, GroupsMax: m.GroupsMax, CreatedUTC: m.CreatedUTC,
		Epoch: view.Epoch}
}
