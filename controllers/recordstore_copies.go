package controllers

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sheaf.dev/sheaf/api/v1alpha1"
	"sheaf.dev/sheaf/internal/workload"
)

// Reasons of condition Redundant.
const (
	reasonRedundant     = "Redundant"
	reasonTooFewDomains = "TooFewDomains"
	reasonDomainUnknown = "DomainUnknown"
	reasonCopiesMissing = "CopiesMissing"
	reasonSharedDomain  = "SharedDomain"
)

// groupDegraded is the state of a group that has fewer copies than asked for, in GroupTrouble.
const groupDegraded = "Degraded"

// redundancy is what condition Redundant says of a store with several copies.
type redundancy struct {
	reason  string
	message string
}

// whole says whether every group has all its copies, and well apart.
func (r redundancy) whole() bool { return r.reason == reasonRedundant }

// byPerson says that what is missing is not made by waiting.
func (r redundancy) byPerson() bool {
	return r.reason == reasonTooFewDomains || r.reason == reasonDomainUnknown
}

// decideRedundancy looks at domains first: where they are too few, that is why copies are missing.
func decideRedundancy(v *PlacementView, replication v1alpha1.Replication, shardsWanted int32) redundancy {
	key := replication.TopologyKey
	if key == "" {
		key = corev1.LabelHostname
	}
	domains, unknown := domainsOf(v, key)
	behind, shared := v.behind()
	switch {
	case len(unknown) > 0:
		return redundancy{reasonDomainUnknown, fmt.Sprintf("two copies of a group may be in one failure domain: it is not known in which %s are shards %s. "+
			"Label their nodes with %s (a pod learns it when it starts: delete the pods then), or set spec.replication.topologyKey to %s",
			key, shardWords(unknown), key, corev1.LabelHostname)}
	case len(domains) < int(v.Copies) && len(v.Shards) >= int(shardsWanted):
		return redundancy{reasonTooFewDomains, fmt.Sprintf("spec.replication.copies is %d, and the %d shards are in %d failure domains (%s: %s). Nothing is lost, "+
			"and no group is moved; groups that have no copy yet wait. Give the store shards in %d more: raise spec.shards of a ShardPool where there "+
			"are nodes and disks for them", v.Copies, len(v.Shards), len(domains), key, shardWords(domains), int(v.Copies)-len(domains))}
	case len(behind) > 0:
		message := fmt.Sprintf("%d of %d groups have fewer than %d copies: %s", len(behind), len(v.Groups), v.Copies, groupWords(behind))
		if away := v.away(); len(away) > 0 {
			message += "; not registered in etcd: " + shardWords(away)
		}
		if why := v.Unplaced[behind[0]]; why != "" {
			message += fmt.Sprintf("; group %s: %s", behind[0], why)
		}
		return redundancy{reasonCopiesMissing, message + v.exposedWords(key)}
	case len(shared) > 0:
		return redundancy{reasonSharedDomain, fmt.Sprintf("%d of %d groups have two copies in one %s, and are moved apart: %s",
			len(shared), len(v.Groups), key, groupWords(shared))}
	}
	return redundancy{reasonRedundant, fmt.Sprintf("all %d groups have %d copies in different failure domains (%s)%s", len(v.Groups), v.Copies, key,
		v.exposedWords(key))}
}

// exposedWords foretells which groups will have two copies in one failure domain for a part of their move; empty: none.
func (v *PlacementView) exposedWords(key string) string {
	var groups, domains []string
	for _, name := range v.names() {
		if g := v.Groups[name]; g.moving() && len(g.Shares) > 0 {
			groups, domains = append(groups, name), append(domains, g.Shares...)
		}
	}
	if len(groups) == 0 {
		return ""
	}
	slices.Sort(domains)
	return fmt.Sprintf("; for a part of their move two copies of %s may be in one %s (%s): no order of the moves avoids it", groupWords(groups), key,
		shardWords(slices.Compact(domains)))
}

// domainsOf are the failure domains of the registered shards, and the shards that could not learn theirs.
func domainsOf(v *PlacementView, key string) (domains, unknown []string) {
	seen := map[string]bool{}
	for _, name := range slices.Sorted(maps.Keys(v.Shards)) {
		s := v.Shards[name]
		// Without the label a shard takes its node for its domain.
		if s.Domain == "" || key != corev1.LabelHostname && s.Domain == s.Node {
			unknown = append(unknown, fmt.Sprintf("%s (node %s)", name, s.Node))
		}
		seen[first(s.Domain, name)] = true
	}
	return slices.Sorted(maps.Keys(seen)), unknown
}

// behind are the groups with fewer copies than there are to be, and those with two in one domain.
func (v *PlacementView) behind() (behind, shared []string) {
	for _, name := range v.names() {
		g := v.Groups[name]
		if g.here(nil) < int(v.Copies) {
			behind = append(behind, name)
			continue
		}
		seen := map[string]bool{}
		for _, c := range g.Voters {
			seen[v.Shards[c.Shard].Domain] = true
		}
		if len(seen) < int(v.Copies) {
			shared = append(shared, name)
		}
	}
	return behind, shared
}

// away are the shards that have copies and are not registered with them.
func (v *PlacementView) away() []string {
	shards := map[string]bool{}
	for _, g := range v.Groups {
		for _, c := range g.Voters {
			if !c.Here {
				shards[c.Shard] = true
			}
		}
	}
	return slices.Sorted(maps.Keys(shards))
}

// countCopies counts the groups of a store with several copies: by where etcd says that copies are, by the states of the shards there,
// and by whether one of these leads.
func countCopies(v *PlacementView, states map[string]v1alpha1.ShardStatus, heard groupSum) (groups v1alpha1.GroupCounts) {
	for _, name := range v.names() {
		g := v.Groups[name]
		up, loads, lost := 0, 0, 0
		for _, c := range g.Voters {
			switch s := states[c.Shard].State; {
			case s == v1alpha1.ShardDiskLost:
				lost++
			case c.Here && (s == v1alpha1.ShardServing || s == v1alpha1.ShardDraining):
				up++
			case c.Here && s == v1alpha1.ShardLoading:
				loads++
			}
		}
		groups.Total++
		if g.moving() {
			groups.Moving++
		}
		said := heard.groups[name]
		switch {
		case lost > 0 && lost == len(g.Voters):
		case said.leaderless && len(g.Voters) > 0:
			groups.Degraded++
			groups.NotWell = append(groups.NotWell, said.noLeader(name))
		case g.here(nil) < int(v.Copies):
			groups.Degraded++
			groups.NotWell = append(groups.NotWell, v1alpha1.GroupTrouble{Group: name, State: groupDegraded, Message: cut(v.copiesWords(name), troubleBytesMax)})
		}
		switch need := majority(len(g.Voters)); {
		case len(g.Voters) == 0:
		case lost == len(g.Voters):
			groups.DataLost++
			groups.NotWell = append(groups.NotWell, v1alpha1.GroupTrouble{Group: name, Shard: g.Voters[0].Shard, State: groupLost,
				Message: "every copy is on a volume that is gone: bring one back"})
		case up >= need && !said.leaderless:
			groups.Serving++
		case up+loads >= need:
			groups.Loading++
		}
	}
	return groups
}

// heardCounts are the counts while etcd is not asked: what shards say of their groups, and what else was known before.
func heardCounts(before v1alpha1.GroupCounts, heard groupSum, copies int32) v1alpha1.GroupCounts {
	if !heard.known {
		return before
	}
	out := before
	out.Serving = min(heard.led(), out.Total-out.DataLost)
	out.Loading = min(out.Loading, out.Total-out.DataLost-out.Serving)
	list := heard.troubles(copies)
	out.Degraded = min(int32(len(list)), out.Total-out.DataLost) //nolint:gosec // at most 65536
	for _, t := range before.NotWell {                           // of what shards do not know
		if t.State != groupDegraded && t.State != groupNoLeader {
			list = append(list, t)
		}
	}
	out.NotWell = firstTroubles(list)
	return out
}

// copiesWords says which copies of a group are missing.
func (v *PlacementView) copiesWords(name string) string {
	g := v.Groups[name]
	if len(g.Voters) == 0 {
		return first(v.Unplaced[name], "it is being made")
	}
	var words []string
	for _, c := range g.Voters {
		if !c.Here {
			words = append(words, fmt.Sprintf("shard %s is not registered with its volume", c.Shard))
		}
	}
	for _, c := range g.Learners {
		words = append(words, fmt.Sprintf("a copy is being made on shard %s", c.Shard))
	}
	if why := v.Unplaced[name]; why != "" {
		words = append(words, why)
	}
	text := fmt.Sprintf("%d of %d copies are there", g.here(nil), v.Copies)
	if !g.decides(nil) {
		text += ", too few to go on"
	}
	return strings.Join(append([]string{text}, words...), "; ")
}

// copies of each group that the store is to have.
func (run *storeRun) copies() int32 { return max(run.store.Spec.Replication.Copies, 1) }

// redundant is what is known now; false: etcd was not asked, or there is one copy only.
func (run *storeRun) redundant() (redundancy, bool) {
	if !run.hasState || run.copies() <= 1 {
		return redundancy{}, false
	}
	return decideRedundancy(&run.state.View, run.store.Spec.Replication, shardsWanted(run.pools)), true
}

// setRedundant writes the condition.
func (run *storeRun) setRedundant() {
	status, generation := &run.store.Status, run.store.Generation
	if run.copies() <= 1 {
		meta.RemoveStatusCondition(&status.Conditions, v1alpha1.ConditionRedundant)
		return
	}
	r, known := run.redundant()
	if !known {
		SetCondition(&status.Conditions, generation, v1alpha1.ConditionRedundant, metav1.ConditionUnknown, "EtcdNotReady",
			"etcd, which knows where copies are, was not asked")
		return
	}
	setTruth(&status.Conditions, generation, v1alpha1.ConditionRedundant, r.whole(), r.reason, r.reason, r.message)
}

// awaitCopies waits until every group has all its copies.
func (r *RecordStoreReconciler) awaitCopies(_ context.Context, run *storeRun) Outcome {
	redundant, known := run.redundant()
	switch {
	case !known || redundant.whole():
		return Complete()
	case redundant.byPerson():
		out := Fail(redundant.reason, redundant.message)
		out.after = PauseShort // etcd is not watched
		return out
	}
	pause := PauseShort
	if run.store.Status.Groups.Moving > 0 { // as the last look saw
		pause = run.movePause()
	}
	return Wait(redundant.reason, redundant.message, pause)
}

// replaceLost empties shards whose node is lost, or whose device the kubelet neither mounts nor formats, where every group of theirs goes
// on without all of them. What it does is taken back when the node is back, or the device mounted.
func (r *RecordStoreReconciler) replaceLost(ctx context.Context, run *storeRun, states map[string]v1alpha1.PoolState) error {
	lost := map[string]bool{}
	for name, s := range run.seen.byName() {
		if s.State == v1alpha1.ShardNodeLost || s.State == v1alpha1.ShardFormatBlocked {
			lost[name] = true
		}
	}
	if len(lost) == 0 || run.copies() <= 1 {
		return nil
	}
	view, err := run.placement.Look(ctx, placementSpec(run))
	if err != nil {
		return err
	}
	if len(view.undecided(func(c CopyPlace) bool { return lost[c.Shard] })) > 0 {
		return nil // each shard's message names them
	}
	for name := range lost {
		states[name] = v1alpha1.PoolDrained
	}
	return nil
}

// applyBudgets applies the budget of the store's shards. While a group lacks a copy no shard may be evicted that serves.
func (r *RecordStoreReconciler) applyBudgets(ctx context.Context, run *storeRun) Outcome {
	shards := shardsWanted(run.pools)
	spare := int32(1)
	if run.copies() > 1 {
		whole := meta.IsStatusConditionTrue(run.store.Status.Conditions, v1alpha1.ConditionRedundant)
		if now, known := run.redundant(); known {
			whole = now.whole()
		}
		if !whole {
			spare = 0
		}
	}
	return r.apply(ctx, run.store, workload.ShardsBudget(run.store, shards-spare))
}
