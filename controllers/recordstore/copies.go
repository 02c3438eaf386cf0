package recordstore

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sheaf.dev/sheaf/api/v1alpha1"
	"sheaf.dev/sheaf/controllers/fleet"
	"sheaf.dev/sheaf/controllers/step"
	"sheaf.dev/sheaf/internal/placement"
)

// Reasons of condition Redundant.
const (
	reasonRedundant     = "Redundant"
	reasonTooFewDomains = "TooFewDomains"
	reasonDomainUnknown = "DomainUnknown"
	reasonCopiesMissing = "CopiesMissing"
	reasonSharedDomain  = "SharedDomain"
)

// redundancy holds the contents of condition Redundant for a store with several copies of each group.
type redundancy struct {
	reason  string
	message string
}

// whole reports whether every group has all its copies in separate failure domains.
func (r redundancy) whole() bool { return r.reason == reasonRedundant }

// byPerson reports whether the missing copies can be created only after an administrator has acted.
func (r redundancy) byPerson() bool {
	return r.reason == reasonTooFewDomains || r.reason == reasonDomainUnknown
}

// decideRedundancy decides the condition Redundant. It checks the failure domains first, because a lack of failure
// domains explains missing copies.
func decideRedundancy(v *fleet.Places, replication v1alpha1.Replication, shardsWanted int32) redundancy {
	key := cmp.Or(replication.TopologyKey, corev1.LabelHostname)
	domains, unknown := domainsOf(v, key)
	behind, shared := v.Behind()
	switch {
	case len(unknown) > 0:
		return redundancy{reasonDomainUnknown, fmt.Sprintf(
			"two copies of a group may be in one failure domain: it is not known in which %s are shards %s. Label their nodes "+
				"with %s (a pod learns it when it starts: delete the pods then), or set spec.replication.topologyKey to %s",
			key, step.ShardWords(unknown), key, corev1.LabelHostname)}
	case len(domains) < v.Meta.Copies && len(v.Shards) >= int(shardsWanted):
		return redundancy{reasonTooFewDomains, fmt.Sprintf(
			"spec.replication.copies is %d, and %s in %s (%s: %s). Nothing is lost, "+
				"and no group is moved; groups that have no copy yet wait. Give the store shards in %d more: raise spec.shards of "+
				"a ShardPool where there are nodes and disks for them", v.Meta.Copies,
			step.Count(len(v.Shards), "shard is", "shards are"),
			step.Count(len(domains), "failure domain", "failure domains"), key, step.ShardWords(domains),
			v.Meta.Copies-len(domains))}
	case len(behind) > 0:
		message := fmt.Sprintf("%s fewer than %s: %s",
			step.CountOf(len(behind), len(v.Groups), "group has", "groups have"), step.Count(v.Meta.Copies, "copy", "copies"),
			fleet.GroupWords(behind))
		if away := v.ShardsWith(func(m placement.Member) bool { return !v.IsHere(m) }); len(away) > 0 {
			message += "; not registered in etcd: " + step.ShardWords(away)
		}
		if silent := v.ShardsWith(func(m placement.Member) bool {
			return v.IsHere(m) &&
				v.SilentDisks[m.Shard]
		}); len(silent) > 0 {
			message += "; on a disk that does not answer: " + step.ShardWords(silent)
		}
		if why := v.Unplaced[behind[0]]; why != "" {
			message += fmt.Sprintf("; group %s: %s", behind[0], why)
		}
		return redundancy{reasonCopiesMissing, message + v.ExposedWords(key)}
	case len(shared) > 0:
		return redundancy{reasonSharedDomain, fmt.Sprintf(
			"%s two copies in one %s, and these are moved apart: %s",
			step.CountOf(len(shared), len(v.Groups), "group has", "groups have"), key, fleet.GroupWords(shared))}
	}
	return redundancy{reasonRedundant, fmt.Sprintf("%s %s in different failure domains (%s)%s",
		step.All(len(v.Groups), "group has", "groups have"), step.Count(v.Meta.Copies, "copy", "copies"), key,
		v.ExposedWords(key))}
}

// domainsOf returns the failure domains of the registered shards, and the shards that could not determine theirs.
func domainsOf(v *fleet.Places, key string) (domains, unknown []string) {
	seen := map[string]bool{}
	for _, name := range slices.Sorted(maps.Keys(v.Shards)) {
		s := v.Shards[name]
		// If its node lacks the label, a shard uses the node itself as its failure domain.
		if s.Domain == "" || key != corev1.LabelHostname && s.Domain == s.Node {
			unknown = append(unknown, fmt.Sprintf("%s (node %s)", name, s.Node))
		}
		seen[cmp.Or(s.Domain, name)] = true
	}
	return slices.Sorted(maps.Keys(seen)), unknown
}

// countCopies counts the groups of a store with several copies, from three sources: the places of the copies in etcd,
// the states of the shards at these places, and the shards' reports about leaders.
func countCopies(v *fleet.Places, states map[string]v1alpha1.ShardStatus,
	heard fleet.GroupSum) (groups v1alpha1.GroupCounts) {
	for _, name := range v.Names() {
		voters := v.Groups[name].Voters()
		up, loads, lost := 0, 0, 0
		for _, m := range voters {
			switch s := states[m.Shard].State; {
			case s == v1alpha1.ShardDiskLost:
				lost++
			case v.IsThere(m) && (s == v1alpha1.ShardServing || s == v1alpha1.ShardDraining):
				up++
			case v.IsThere(m) && s == v1alpha1.ShardLoading:
				loads++
			}
		}
		groups.Total++
		if v.IsMoving(name) {
			groups.Moving++
		}
		said := heard.Groups[name]
		switch {
		case lost > 0 && lost == len(voters):
		case said.Leaderless && len(voters) > 0:
			groups.Degraded++
			groups.NotWell = append(groups.NotWell, said.NoLeader(name))
		case v.There(v.Groups[name], nil) < v.Meta.Copies:
			groups.Degraded++
			groups.NotWell = append(groups.NotWell, v1alpha1.GroupTrouble{Group: name, State: fleet.GroupDegraded,
				Message: step.Truncate(v.CopiesWords(name), fleet.TroubleBytesMax)})
		}
		switch need := placement.Majority(len(voters)); {
		case len(voters) == 0:
		case lost == len(voters):
			groups.DataLost++
			groups.NotWell = append(groups.NotWell, v1alpha1.GroupTrouble{Group: name, Shard: voters[0].Shard,
				State:   fleet.GroupLost,
				Message: "every copy is on a volume that is gone: bring one back"})
		case up >= need && !said.Leaderless:
			groups.Serving++
		case up+loads >= need:
			groups.Loading++
		}
	}
	return groups
}

// reportedCounts returns the counts while etcd cannot be asked, from the reports of the shards about their groups and
// from the previous counts.
func reportedCounts(before v1alpha1.GroupCounts, heard fleet.GroupSum, copies int32) v1alpha1.GroupCounts {
	if !heard.Known {
		return before
	}
	out := before
	out.Serving = min(heard.Led(), out.Total-out.DataLost)
	out.Loading = min(out.Loading, out.Total-out.DataLost-out.Serving)
	list := heard.Troubles(copies)
	out.Degraded = min(int32(len(list)), out.Total-out.DataLost) //nolint:gosec // there are at most 100000 groups
	for _, t := range before.NotWell {                           // keep the problems that shards cannot report
		if t.State != fleet.GroupDegraded && t.State != fleet.GroupNoLeader {
			list = append(list, t)
		}
	}
	out.NotWell = fleet.FirstTroubles(list)
	return out
}

// copies returns the wanted number of copies of each group.
func (seen *observed) copies() int32 { return max(seen.store.Spec.Replication.Copies, 1) }

// redundant returns the current redundancy. It returns false if etcd was not asked, or if each group has one copy
// only.
func (seen *observed) redundant() (redundancy, bool) {
	if !seen.hasPlaces || seen.copies() <= 1 {
		return redundancy{}, false
	}
	return decideRedundancy(&seen.places, seen.store.Spec.Replication, shardsWanted(seen.pools)), true
}

// setRedundant sets condition Redundant.
func (seen *observed) setRedundant() {
	store := seen.store
	if seen.copies() <= 1 {
		meta.RemoveStatusCondition(&store.Status.Conditions, v1alpha1.ConditionRedundant)
		return
	}
	r, known := seen.redundant()
	if !known {
		say(store, v1alpha1.ConditionRedundant, metav1.ConditionUnknown,
			"EtcdNotReady",
			"etcd, which knows where copies are, was not asked")
		return
	}
	if r.whole() && len(seen.places.Groups) == 0 && seen.store.Spec.Groups.Routing != v1alpha1.RoutingNamed {
		say(store, v1alpha1.ConditionRedundant, metav1.ConditionUnknown,
			"NoGroups", "no group is placed yet")
		return
	}
	sayWhether(store, v1alpha1.ConditionRedundant, r.whole(), r.reason, r.reason, r.message)
}

// awaitCopies waits until every group has all its copies.
func (seen *observed) awaitCopies() step.Outcome {
	redundant, known := seen.redundant()
	switch {
	case !known || redundant.whole():
		return step.Complete()
	case redundant.byPerson():
		return step.Fail(redundant.reason, redundant.message).Again(step.PauseShort) // etcd is not watched
	}
	pause := step.PauseShort
	if seen.store.Status.Groups.Moving > 0 { // as the last reconcile counted them
		pause = seen.movePause()
	}
	return step.Wait(redundant.reason, redundant.message, pause)
}

// disruptable returns, in the order of their names, the shards that may be evicted although copies are missing. If
// all missing copies are in one failure domain, and every group has a majority without that domain, then the
// remaining shards of that domain may be evicted as well. The result is empty if copies are missing in two domains,
// or if the domain of a missing shard is unknown.
func disruptable(v *fleet.Places, seen map[string]v1alpha1.ShardStatus) []string {
	missing := v.ShardsWith(func(m placement.Member) bool { return !v.IsThere(m) })
	for name, s := range seen { // includes shards without groups, because the budget counts them
		if _, here := v.Shards[name]; !here && s.State != v1alpha1.ShardParked {
			missing = append(missing, name)
		}
	}
	domain := ""
	for _, name := range missing {
		d := domainOfMissing(v, name, seen[name].Node)
		if d == "" || domain != "" && d != domain {
			return nil
		}
		domain = d
	}
	if domain == "" {
		return nil
	}
	gone := map[string]bool{}
	for _, name := range missing {
		gone[name] = true
	}
	var rest []string
	for _, name := range slices.Sorted(maps.Keys(v.Shards)) {
		if v.Shards[name].Domain == domain && !gone[name] {
			rest = append(rest, name)
		}
	}
	without := func(m placement.Member) bool { return gone[m.Shard] || slices.Contains(rest, m.Shard) }
	if len(v.Undecided(without)) > 0 {
		return nil
	}
	return rest
}

// domainOfMissing returns the failure domain of a shard, which need not be registered. For an unregistered shard, it is
// the domain of the registered shards on the same node, or the node itself if there are none. The result is empty if
// the domain is unknown.
func domainOfMissing(v *fleet.Places, shard, node string) string {
	if s, here := v.Shards[shard]; here {
		return s.Domain
	}
	for _, s := range v.Shards {
		if node != "" && s.Node == node {
			return s.Domain
		}
	}
	return node
}

// emptied returns, in the order of their names, the shards that may be evicted although others are missing, for a store
// with one copy of each group. If all missing shards are on one node and that node is cordoned, these are the other
// shards on that node: an administrator who drains a node wants it to become empty, and keeping some groups on it a
// little longer would only block the drain. If the node is not cordoned, the result is empty, because the missing
// shards are then expected to return without further evictions.
func emptied(v *fleet.Places, seen map[string]v1alpha1.ShardStatus, cordoned func(node string) (bool, error)) (
	rest []string, err error) {
	node := ""
	for name, s := range seen {
		if _, here := v.Shards[name]; here || s.State == v1alpha1.ShardParked {
			continue
		}
		if s.Node == "" || node != "" && s.Node != node {
			return nil, nil
		}
		node = s.Node
	}
	if node == "" {
		return nil, nil
	}
	if is, err := cordoned(node); err != nil || !is {
		return nil, err
	}
	for _, name := range slices.Sorted(maps.Keys(v.Shards)) {
		if v.Shards[name].Node == node {
			rest = append(rest, name)
		}
	}
	return rest, nil
}
