package fleet

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"sheaf.dev/sheaf/api/v1alpha1"
	"sheaf.dev/sheaf/controllers/step"
	"sheaf.dev/sheaf/internal/base/units"
	"sheaf.dev/sheaf/internal/placement"
)

// Places is the placement of a store in etcd, together with observations that only the operator has.
type Places struct {
	placement.Planned
	// SilentDisks are the shards whose disk did not answer when the shard was last observed. This is not recorded in
	// etcd, where such a shard looks like a healthy one.
	SilentDisks map[string]bool
}

// IsThere reports whether a copy answers calls, according to the last observation.
func (p *Places) IsThere(m placement.Member) bool { return p.IsHere(m) && !p.SilentDisks[m.Shard] }

// IsSilent reports whether the disk of a shard did not answer when the shard was last asked.
func IsSilent(s *v1alpha1.ShardStatus) bool { return s.Volume != nil && s.Volume.Silent }

// There counts the voters of a group that are present. If the function without is not nil, voters for which it returns
// true are not counted.
func (p *Places) There(g placement.Group, without func(placement.Member) bool) int {
	n := 0
	for _, m := range g.Voters() {
		if p.IsThere(m) && (without == nil || !without(m)) {
			n++
		}
	}
	return n
}

// decides reports whether the voters that are present form a majority, not counting those for which the function
// without returns true. If they do, no acknowledged write is lost, and a leader can be elected.
func (p *Places) decides(g placement.Group, without func(placement.Member) bool) bool {
	voters := len(g.Voters())
	return voters > 0 && p.There(g, without) >= placement.Majority(voters)
}

// Stuck returns those groups of a shard that cannot be moved to any other shard, and the reason for the first of them.
func (p *Places) Stuck(shard string) (names []string, why string) {
	for _, name := range p.Holds(shard) {
		if reason, ok := p.Unplaced[name]; ok && p.Groups[name].IsOn(shard) {
			names, why = append(names, name), cmp.Or(why, reason)
		}
	}
	return names, why
}

// Undecided returns the groups that would not have a majority of present copies if some copies were missing. The
// function without returns true for the copies to regard as missing.
func (p *Places) Undecided(without func(placement.Member) bool) (names []string) {
	for _, name := range p.Names() {
		if g := p.Groups[name]; slices.ContainsFunc(g.Voters(), without) && !p.decides(g, without) {
			names = append(names, name)
		}
	}
	return names
}

// OnShard returns a function that reports whether a copy is on a shard.
func OnShard(shard string) func(placement.Member) bool {
	return func(m placement.Member) bool { return m.Shard == shard }
}

// GroupWords returns a text such as "groups 1, 2, 3 and 7 more".
func GroupWords(names []string) string {
	if len(names) == 1 {
		return "group " + names[0]
	}
	return "groups " + units.Some(names, 5)
}

// ExposedWords lists the groups that will temporarily have two copies in one failure domain while they move. The
// result is empty if there are none.
func (p *Places) ExposedWords(key string) string {
	var groups, domains []string
	for _, name := range p.Names() {
		if shared := p.SharedDomains(name); len(shared) > 0 && p.IsMoving(name) {
			groups, domains = append(groups, name), append(domains, shared...)
		}
	}
	if len(groups) == 0 {
		return ""
	}
	slices.Sort(domains)
	return fmt.Sprintf(
		"; for a part of their move two copies of %s may be in one %s (%s): no order of the moves avoids it",
		GroupWords(groups), key,
		step.ShardWords(slices.Compact(domains)))
}

// Behind returns the groups that have fewer copies than wanted, and the groups that have two copies in one failure
// domain.
func (p *Places) Behind() (behind, shared []string) {
	for _, name := range p.Names() {
		g := p.Groups[name]
		if p.There(g, nil) < p.Meta.Copies {
			behind = append(behind, name)
			continue
		}
		seen := map[string]bool{}
		for _, m := range g.Voters() {
			seen[p.Shards[m.Shard].Domain] = true
		}
		if len(seen) < p.Meta.Copies {
			shared = append(shared, name)
		}
	}
	return behind, shared
}

// ShardsWith returns the shards that hold at least one voter for which the function such returns true.
func (p *Places) ShardsWith(such func(placement.Member) bool) []string {
	shards := map[string]bool{}
	for _, g := range p.Groups {
		for _, m := range g.Voters() {
			if such(m) {
				shards[m.Shard] = true
			}
		}
	}
	return slices.Sorted(maps.Keys(shards))
}

// CopiesWords describes which copies of a group are missing.
func (p *Places) CopiesWords(name string) string {
	g := p.Groups[name]
	if len(g.Voters()) == 0 {
		return cmp.Or(p.Unplaced[name], "it is being made")
	}
	var words []string
	for _, m := range g.Voters() {
		if !p.IsHere(m) {
			words = append(words, fmt.Sprintf("shard %s is not registered with its volume", m.Shard))
		} else if p.SilentDisks[m.Shard] {
			words = append(words, fmt.Sprintf("the disk of shard %s does not answer", m.Shard))
		}
	}
	for _, m := range g.Learners() {
		words = append(words, fmt.Sprintf("a copy is being made on shard %s", m.Shard))
	}
	if why := p.Unplaced[name]; why != "" {
		words = append(words, why)
	}
	text := step.CountOf(p.There(g, nil), p.Meta.Copies, "copy is", "copies are") + " there"
	if !p.decides(g, nil) {
		text += ", too few to go on"
	}
	return strings.Join(append([]string{text}, words...), "; ")
}
