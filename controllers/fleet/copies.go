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
)

// PlacementView is the placement of all groups of a store as etcd holds it at one moment.
type PlacementView struct {
	Copies   int32                 // copies of each group, fixed when the store was created
	Shards   map[string]ShardPlace // the registered shards
	Groups   map[string]GroupPlace
	Unplaced map[string]string // group -> why its wanted placement is impossible
}

// ShardPlace is a registered shard.
type ShardPlace struct {
	Domain string // failure domain
	Node   string
}

// GroupPlace says where the copies of a group are, and where they should be.
type GroupPlace struct {
	Voters   []CopyPlace
	Learners []CopyPlace // copies that are being created
	Target   []string    // names of the shards that are to hold the copies
	// Shares are the failure domains that hold, or may hold, two copies until the group reaches its target. No order
	// of the moves avoids that.
	Shares []string
}

// CopyPlace is one copy of a group.
type CopyPlace struct {
	Shard  string
	Volume string // UUID
	// Here is true if the shard is registered with exactly this volume.
	Here bool
	// Silent is true if the shard reports that its disk does not answer. Etcd does not know that: see Silence.
	Silent bool
}

// There reports whether the copy answers calls, as far as is known.
func (c CopyPlace) There() bool { return c.Here && !c.Silent }

// Silence marks the copies on shards whose disk did not answer when the shard was last observed. Call it after each
// read of etcd, because such a shard is registered as if its disk were fine.
func (v *PlacementView) Silence(silent map[string]bool) {
	for _, g := range v.Groups {
		for _, copies := range [][]CopyPlace{g.Voters, g.Learners} {
			for i := range copies {
				copies[i].Silent = silent[copies[i].Shard]
			}
		}
	}
}

// IsSilent reports whether the disk of a shard did not answer when the shard was last asked.
func IsSilent(s *v1alpha1.ShardStatus) bool { return s.Volume != nil && s.Volume.Silent }

// Majority returns how many of the voters form a majority.
func Majority(voters int) int { return voters/2 + 1 }

// Here counts the voters that are present, except those that the function without matches.
func (g GroupPlace) Here(without func(CopyPlace) bool) int {
	n := 0
	for _, c := range g.Voters {
		if c.There() && (without == nil || !without(c)) {
			n++
		}
	}
	return n
}

// decides reports whether the voters that are present form a majority, except those that the function without matches.
// If so, no acknowledged write is lost and a leader can be elected.
func (g GroupPlace) decides(without func(CopyPlace) bool) bool {
	return len(g.Voters) > 0 && g.Here(without) >= Majority(len(g.Voters))
}

// Moving reports whether a copy is being created, or whether the target differs from the current placement.
func (g GroupPlace) Moving() bool {
	if len(g.Voters) == 0 {
		return false // the group does not exist yet
	}
	if len(g.Learners) > 0 || len(g.Target) > 0 && len(g.Target) != len(g.Voters) {
		return true
	}
	return slices.ContainsFunc(g.Target, func(shard string) bool { return !g.Votes(shard) })
}

// Votes reports whether a shard holds a voter of the group.
func (g GroupPlace) Votes(shard string) bool {
	return slices.ContainsFunc(g.Voters, func(c CopyPlace) bool { return c.Shard == shard })
}

// has reports whether a shard holds a copy of the group, complete or partial.
func (g GroupPlace) has(shard string) bool {
	return g.Votes(shard) || slices.ContainsFunc(g.Learners, func(c CopyPlace) bool { return c.Shard == shard })
}

// wants reports whether the group's target includes a shard.
func (g GroupPlace) wants(shard string) bool { return slices.Contains(g.Target, shard) }

// Names returns the names of the groups in natural order: 2 comes before 10.
func (v *PlacementView) Names() []string {
	return slices.SortedFunc(maps.Keys(v.Groups), compareGroups)
}

// Holds returns the groups that a shard holds or is to receive.
func (v *PlacementView) Holds(shard string) (names []string) {
	for _, name := range v.Names() {
		if g := v.Groups[name]; g.has(shard) || g.wants(shard) {
			names = append(names, name)
		}
	}
	return names
}

// Stuck returns the groups of a shard that no other shard can take, and the reason for the first of them.
func (v *PlacementView) Stuck(shard string) (names []string, why string) {
	for _, name := range v.Holds(shard) {
		if reason, ok := v.Unplaced[name]; ok && v.Groups[name].has(shard) {
			names, why = append(names, name), cmp.Or(why, reason)
		}
	}
	return names, why
}

// Undecided returns the groups that have a copy that the function without matches, and whose other copies that are
// present form no majority.
func (v *PlacementView) Undecided(without func(CopyPlace) bool) (names []string) {
	for _, name := range v.Names() {
		if g := v.Groups[name]; slices.ContainsFunc(g.Voters, without) && !g.decides(without) {
			names = append(names, name)
		}
	}
	return names
}

// OnShard returns a function that matches the copies on a shard.
func OnShard(shard string) func(CopyPlace) bool {
	return func(c CopyPlace) bool { return c.Shard == shard }
}

// GroupWords returns a text such as "groups 1, 2, 3 and 7 more".
func GroupWords(names []string) string {
	if len(names) == 1 {
		return "group " + names[0]
	}
	return "groups " + units.Some(names, 5)
}

// ExposedWords says which groups will have two copies in one failure domain during part of their move. It is empty if
// there are none.
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

// Behind returns the groups that have fewer copies than wanted, and the groups that have two copies in one failure
// domain.
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

// ShardsWith returns the shards that hold a voter for which such returns true.
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
	text := step.CountOf(g.Here(nil), int(v.Copies), "copy is", "copies are") + " there"
	if !g.decides(nil) {
		text += ", too few to go on"
	}
	return strings.Join(append([]string{text}, words...), "; ")
}
