package fleet

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"sheaf.dev/sheaf/api/v1alpha1"
	"sheaf.dev/sheaf/controllers/step"
)

// PlacementView is where etcd says that groups are, at one moment.
type PlacementView struct {
	Copies   int32                 // of each group, as the store was made
	Shards   map[string]ShardPlace // those that are registered
	Groups   map[string]GroupPlace
	Unplaced map[string]string // group -> why it cannot be placed as it is wanted
}

// ShardPlace is a registered shard.
type ShardPlace struct {
	Domain string // failure domain
	Node   string
}

// GroupPlace is where a group is, and where it is wanted.
type GroupPlace struct {
	Voters   []CopyPlace
	Learners []CopyPlace // copies that are being made
	Target   []string    // shards
	// Shares are the failure domains in which two copies are, or may be, until the group is at its target: no order of
	// the moves avoids it.
	Shares []string
}

// CopyPlace is one copy of a group.
type CopyPlace struct {
	Shard  string
	Volume string // UUID
	// Here: the shard is registered with this very volume.
	Here bool
	// Silent: the shard says that its disk does not answer. Etcd does not know it: see Silence.
	Silent bool
}

// There says whether the copy answers calls, as far as is known.
func (c CopyPlace) There() bool { return c.Here && !c.Silent }

// Silence marks the copies of shards whose disk does not answer, by what was seen of the shards last. It must follow
// each look at etcd: such a shard is registered as if nothing were wrong.
func (v *PlacementView) Silence(silent map[string]bool) {
	for _, g := range v.Groups {
		for _, copies := range [][]CopyPlace{g.Voters, g.Learners} {
			for i := range copies {
				copies[i].Silent = silent[copies[i].Shard]
			}
		}
	}
}

// IsSilent says whether the disk of a shard did not answer when it was asked last.
func IsSilent(s *v1alpha1.ShardStatus) bool { return s.Volume != nil && s.Volume.Silent }

// Majority of a number of voters.
func Majority(voters int) int { return voters/2 + 1 }

// Here counts the voters that are there, but for those that without names.
func (g GroupPlace) Here(without func(CopyPlace) bool) int {
	n := 0
	for _, c := range g.Voters {
		if c.There() && (without == nil || !without(c)) {
			n++
		}
	}
	return n
}

// decides says whether a majority of the voters is there, but for those that without names: nothing that was
// acknowledged is lost, and a leader can be had.
func (g GroupPlace) decides(without func(CopyPlace) bool) bool {
	return len(g.Voters) > 0 && g.Here(without) >= Majority(len(g.Voters))
}

// Moving says whether a copy is being made, or wanted elsewhere than the copies are.
func (g GroupPlace) Moving() bool {
	if len(g.Voters) == 0 {
		return false // it is not made yet
	}
	if len(g.Learners) > 0 || len(g.Target) > 0 && len(g.Target) != len(g.Voters) {
		return true
	}
	return slices.ContainsFunc(g.Target, func(shard string) bool { return !g.Votes(shard) })
}

// Votes tells whether a shard has a voter of the group.
func (g GroupPlace) Votes(shard string) bool {
	return slices.ContainsFunc(g.Voters, func(c CopyPlace) bool { return c.Shard == shard })
}

// has says whether a shard has a copy of the group, or part of one.
func (g GroupPlace) has(shard string) bool {
	return g.Votes(shard) || slices.ContainsFunc(g.Learners, func(c CopyPlace) bool { return c.Shard == shard })
}

// wants says whether the group is wanted on a shard.
func (g GroupPlace) wants(shard string) bool { return slices.Contains(g.Target, shard) }

// Names of the groups, in the order in which people count: 2 comes before 10.
func (v *PlacementView) Names() []string {
	return slices.SortedFunc(maps.Keys(v.Groups), compareGroups)
}

// Holds are the groups that a shard has, or is to get.
func (v *PlacementView) Holds(shard string) (names []string) {
	for _, name := range v.Names() {
		if g := v.Groups[name]; g.has(shard) || g.wants(shard) {
			names = append(names, name)
		}
	}
	return names
}

// Stuck are the groups of a shard that have nowhere else to go, and why the first has not.
func (v *PlacementView) Stuck(shard string) (names []string, why string) {
	for _, name := range v.Holds(shard) {
		if reason, ok := v.Unplaced[name]; ok && v.Groups[name].has(shard) {
			names, why = append(names, name), cmp.Or(why, reason)
		}
	}
	return names, why
}

// Undecided are the groups with a copy that without names, and too few others to go on without it.
func (v *PlacementView) Undecided(without func(CopyPlace) bool) (names []string) {
	for _, name := range v.Names() {
		if g := v.Groups[name]; slices.ContainsFunc(g.Voters, without) && !g.decides(without) {
			names = append(names, name)
		}
	}
	return names
}

// OnShard names the copies on a shard.
func OnShard(shard string) func(CopyPlace) bool {
	return func(c CopyPlace) bool { return c.Shard == shard }
}

// GroupWords is such as "groups 1, 2, 3 and 7 more".
func GroupWords(names []string) string {
	const show = 5
	words := ""
	for n, name := range names[:min(show, len(names))] {
		if n > 0 {
			words += ", "
		}
		words += name
	}
	if len(names) == 1 {
		return "group " + words
	}
	if len(names) > show {
		words += fmt.Sprintf(" and %d more", len(names)-show)
	}
	return "groups " + words
}

// ExposedWords foretells which groups will have two copies in one failure domain for a part of their move; empty: none.
func (v *PlacementView) ExposedWords(key string) string {
	var groups, domains []string
	for _, name := range v.Names() {
		if g := v.Groups[name]; g.Moving() && len(g.Shares) > 0 {
			groups, domains = append(groups, name), append(domains, g.Shares...)
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

// Behind are the groups with fewer copies than there are to be, and those with two in one domain.
func (v *PlacementView) Behind() (behind, shared []string) {
	for _, name := range v.Names() {
		g := v.Groups[name]
		if g.Here(nil) < int(v.Copies) {
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

// ShardsWith are the shards that have such copies.
func (v *PlacementView) ShardsWith(such func(CopyPlace) bool) []string {
	shards := map[string]bool{}
	for _, g := range v.Groups {
		for _, c := range g.Voters {
			if such(c) {
				shards[c.Shard] = true
			}
		}
	}
	return slices.Sorted(maps.Keys(shards))
}

// CopiesWords says which copies of a group are missing.
func (v *PlacementView) CopiesWords(name string) string {
	g := v.Groups[name]
	if len(g.Voters) == 0 {
		return cmp.Or(v.Unplaced[name], "it is being made")
	}
	var words []string
	for _, c := range g.Voters {
		if !c.Here {
			words = append(words, fmt.Sprintf("shard %s is not registered with its volume", c.Shard))
		} else if c.Silent {
			words = append(words, fmt.Sprintf("the disk of shard %s does not answer", c.Shard))
		}
	}
	for _, c := range g.Learners {
		words = append(words, fmt.Sprintf("a copy is being made on shard %s", c.Shard))
	}
	if why := v.Unplaced[name]; why != "" {
		words = append(words, why)
	}
	text := fmt.Sprintf("%d of %d copies are there", g.Here(nil), v.Copies)
	if !g.decides(nil) {
		text += ", too few to go on"
	}
	return strings.Join(append([]string{text}, words...), "; ")
}
