package rescue

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"sheaf.dev/sheaf/internal/placement"
)

// Reconciled describes how far the reconciliation of a frozen store has come.
type Reconciled struct {
	Written int      // number of groups whose members in etcd were overwritten
	Waits   []string // what the freeze still waits for; empty if the freeze has ended
}

// Correction is a group and its target as the volumes show them. It exists only if etcd holds something different.
type Correction struct {
	Group  placement.Group
	Target placement.Target
}

// Corrections compares a frozen etcd with the groups that were found on the volumes. The argument there is a view of
// etcd, whose Groups must include deleted groups. A group is corrected if a majority of its voters was found. The
// result waits says, for each group that is not accounted for, what its shards have to do. A group that no shard ever
// had counts as accounted for.
func (r Rebuilt) Corrections(there placement.View) (out []Correction, waits []string) {
	wait := func(format string, args ...any) { waits = append(waits, fmt.Sprintf(format, args...)) }
	found := map[string]bool{}
	for _, g := range r.Groups {
		found[g.Name] = true
		old := there.Groups[g.Name]
		switch short, isShort := r.Short[g.Name]; {
		case old.Deleted != "" && old.UUID == g.UUID:
			// etcd shows that this group was deleted. Its remaining members have not noticed that yet, so there is nothing to
			// correct.
		case isShort:
			wait("group %s: %s", g.Name, short)
		case old.UUID != g.UUID && len(old.Members) > 0:
			wait("group %s: etcd knows it as %s on shard %s, the volumes of %s hold it as %s: decide which one is right, "+
				"and move the folders of "+
				"the other away", g.Name, old.UUID, old.Members[0].Shard, shardsOf(g), g.UUID)
		default:
			if c, differs := correct(g, old, there.Targets[g.Name], there.Meta.Copies); differs {
				out = append(out, c)
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(there.Groups)) {
		if g := there.Groups[name]; !found[name] && len(g.Members) > 0 {
			wait("group %s: no volume that was asked holds it, etcd says it is on %s: start these shards", name, shardsOf(g))
		}
	}
	for _, name := range there.Unknown() {
		if !found[name] {
			wait("%s", there.UnusableGroup(name))
		}
	}
	waits = append(waits, restoreWaits(there, found)...)
	for _, name := range r.Missing {
		if len(there.Groups[name].Members) == 0 && there.Meta.Restore == nil {
			wait("group %s: no volume that was asked holds it: start the shards that do, or, where none ever did, let it "+
				"begin empty with "+
				"sheaf recover placement --force", name)
		}
	}
	return out, waits
}

// restoreWaits returns what the reconciliation of a restored store waits for, if etcd holds a state from before the
// restore was complete. By now, a group that waits in this etcd may be on a shard that does not answer and that this
// etcd does not know. If another shard installed the group again, the group would lose what was written to it since. So
// a person has to say that all shards were asked.
func restoreWaits(there placement.View, found map[string]bool) (waits []string) {
	const do = "a shard that does not answer may hold it by now: start all shards; if groups still wait for their " +
		"restore then, run sheaf recover placement --force with all shards, which lets them wait on"
	if there.Meta.Listing() {
		waits = append(waits, "etcd is from the time when the groups of the restore were listed, and may lack a group: "+do)
	}
	var names []string
	for _, name := range slices.Sorted(maps.Keys(there.Groups)) {
		if there.Groups[name].Restoring && !found[name] {
			names = append(names, name)
		}
	}
	if len(names) > 0 {
		waits = append(waits, fmt.Sprintf("group %s and %d more wait for their restore in this etcd: %s", names[0],
			len(names)-1, do))
	}
	if there.Meta.Restore == nil || there.Meta.Listing() {
		return waits
	}
	for n := range there.Meta.Routing.Groups {
		name := placement.GroupName(n)
		if _, known := there.Groups[name]; !found[name] && !known && !there.GroupUnknown(name) {
			waits = append(waits, fmt.Sprintf("group %s: no volume that was asked holds it: start the shards that do", name))
		}
	}
	return waits
}

// correct returns the group and the target that etcd should hold for a group on the volumes, and whether they differ
// from those that etcd holds now.
func correct(g, old placement.Group, target placement.Target, copies int) (Correction, bool) {
	same := old.UUID == g.UUID
	if same && old.ConfIndex > g.ConfIndex && len(old.Members) > 0 {
		// The leader has already written this membership to etcd, while the replicas that were found have not applied it
		// yet.
		return Correction{}, false
	}
	if same {
		// etcd may still name the shard of a member that did not respond, even though etcd's state is older.
		g.Members = slices.Clone(g.Members)
		for i, m := range g.Members {
			if was := slices.IndexFunc(old.Members, func(o placement.Member) bool {
				return o.RaftID == m.RaftID
			}); was >= 0 && m.Shard == "" {
				g.Members[i].Shard, g.Members[i].VolumeUUID = old.Members[was].Shard, old.Members[was].VolumeUUID
			}
		}
	}
	wanted := placement.Target{Group: g.Name, Shards: targetOf(g, copies)}
	g.WritesFrom = placement.WritesAfter(old, g) // the shards of voters may be unknown, but the voters exist
	sameTarget := placement.SameSet(target.Shards, wanted.Shards)
	if sameTarget {
		wanted.Shards = target.Shards
	}
	return Correction{g, wanted}, !same || !sameTarget || old.ConfIndex != g.ConfIndex ||
		!placement.SameSet(membersIn(old), membersIn(g))
}

// membersIn returns a string for each member that identifies the member, for a comparison by SameSet.
func membersIn(g placement.Group) []string {
	out := make([]string, 0, len(g.Members))
	for _, m := range g.Members {
		out = append(out, fmt.Sprintf("%s %s %x %s", m.Shard, m.VolumeUUID, m.RaftID, m.Role))
	}
	return out
}

// targetOf returns the current shards of a group as its target. If the shard of a voter is unknown, it returns no
// target. Otherwise the target would lack that voter's shard, and the voter's copy would be removed. Without a
// target, the leader changes nothing until the voter's shard reports its copy, or until the planner chooses another
// shard.
func targetOf(g placement.Group, copies int) []string {
	if slices.ContainsFunc(g.Members, func(m placement.Member) bool {
		return m.Role == placement.Voter && m.Shard == ""
	}) {
		return nil
	}
	var out []string
	for _, m := range g.Members {
		switch {
		case m.Role != placement.Voter || m.Shard == "" || slices.Contains(out, m.Shard):
		case m.Shard == g.Leader:
			out = slices.Insert(out, 0, m.Shard)
		default:
			out = append(out, m.Shard)
		}
	}
	return out[:min(len(out), copies)]
}

// shardsOf returns the names of the members' shards.
func shardsOf(g placement.Group) string {
	var names []string
	for _, m := range g.Members {
		if m.Shard != "" && !slices.Contains(names, m.Shard) {
			names = append(names, m.Shard)
		}
	}
	return strings.Join(names, ", ")
}

// FactsOf returns the properties of a store that etcd holds. Rebuild uses them if no volume records them.
func FactsOf(view placement.View) *FoundFacts {
	m := view.Meta
	return &FoundFacts{Routing: m.Routing, Copies: m.Copies, GroupsMax: m.GroupsMax, CreatedUTC: m.CreatedUTC,
		Epoch: view.Epoch}
}
