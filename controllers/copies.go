package controllers

import (
	"fmt"
	"maps"
	"slices"
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
	// Shares are the failure domains in which two copies are, or may be, until the group is at its target: no order of the moves
	// avoids it.
	Shares []string
}

// CopyPlace is one copy of a group.
type CopyPlace struct {
	Shard  string
	Volume string // UUID
	// Here: the shard is registered with this very volume.
	Here bool
}

// majority of a number of voters.
func majority(voters int) int { return voters/2 + 1 }

// here counts the voters that are there, but for those that without names.
func (g GroupPlace) here(without func(CopyPlace) bool) int {
	n := 0
	for _, c := range g.Voters {
		if c.Here && (without == nil || !without(c)) {
			n++
		}
	}
	return n
}

// decides says whether a majority of the voters is there, but for those that without names: nothing that was acknowledged is
// lost, and a leader can be had.
func (g GroupPlace) decides(without func(CopyPlace) bool) bool {
	return len(g.Voters) > 0 && g.here(without) >= majority(len(g.Voters))
}

// moving says whether a copy is being made, or wanted elsewhere than the copies are.
func (g GroupPlace) moving() bool {
	if len(g.Voters) == 0 {
		return false // it is not made yet
	}
	if len(g.Learners) > 0 || len(g.Target) > 0 && len(g.Target) != len(g.Voters) {
		return true
	}
	return slices.ContainsFunc(g.Target, func(shard string) bool { return !g.votes(shard) })
}

func (g GroupPlace) votes(shard string) bool {
	return slices.ContainsFunc(g.Voters, func(c CopyPlace) bool { return c.Shard == shard })
}

// has says whether a shard has a copy of the group, or part of one.
func (g GroupPlace) has(shard string) bool {
	return g.votes(shard) || slices.ContainsFunc(g.Learners, func(c CopyPlace) bool { return c.Shard == shard })
}

// wants says whether the group is wanted on a shard.
func (g GroupPlace) wants(shard string) bool { return slices.Contains(g.Target, shard) }

// names of the groups, in the order in which people count: 2 comes before 10.
func (v *PlacementView) names() []string {
	return slices.SortedFunc(maps.Keys(v.Groups), compareGroups)
}

// holds are the groups that a shard has, or is to get.
func (v *PlacementView) holds(shard string) (names []string) {
	for _, name := range v.names() {
		if g := v.Groups[name]; g.has(shard) || g.wants(shard) {
			names = append(names, name)
		}
	}
	return names
}

// stuck are the groups of a shard that have nowhere else to go, and why the first has not.
func (v *PlacementView) stuck(shard string) (names []string, why string) {
	for _, name := range v.holds(shard) {
		if reason, ok := v.Unplaced[name]; ok && v.Groups[name].has(shard) {
			names, why = append(names, name), first(why, reason)
		}
	}
	return names, why
}

// undecided are the groups with a copy that without names, and too few others to go on without it.
func (v *PlacementView) undecided(without func(CopyPlace) bool) (names []string) {
	for _, name := range v.names() {
		if g := v.Groups[name]; slices.ContainsFunc(g.Voters, without) && !g.decides(without) {
			names = append(names, name)
		}
	}
	return names
}

// onShard names the copies on a shard.
func onShard(shard string) func(CopyPlace) bool {
	return func(c CopyPlace) bool { return c.Shard == shard }
}

// groupWords is such as "groups 1, 2, 3 and 7 more".
func groupWords(names []string) string {
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
