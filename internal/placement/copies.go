package placement

import (
	"maps"
	"slices"
)

// The functions in this file are pure, and describe the copies of groups in a view. A view comes from etcd, so a shard
// that is registered in a view does not necessarily respond.

// Voters returns the members that vote.
func (g Group) Voters() []Member { return g.members(false) }

// Learners returns the members that are catching up.
func (g Group) Learners() []Member { return g.members(true) }

func (g Group) members(learn bool) (out []Member) {
	for _, m := range g.Members {
		if (m.Role == Learner) == learn {
			out = append(out, m)
		}
	}
	return out
}

// IsOn reports whether a shard has a copy of the group, complete or not.
func (g Group) IsOn(shard string) bool {
	return slices.ContainsFunc(g.Members, func(m Member) bool { return m.Shard == shard })
}

// Majority returns how many of the voters form a majority.
func Majority(voters int) int { return voters/2 + 1 }

// IsHere reports whether a member's shard is registered with the member's volume.
func (v View) IsHere(m Member) bool {
	shard, registered := v.Shards[m.Shard]
	return registered && shard.VolumeUUID == m.VolumeUUID
}

// Names returns the names of the groups in the order of CompareGroups.
func (v View) Names() []string { return slices.SortedFunc(maps.Keys(v.Groups), CompareGroups) }

// Holds returns the groups that a shard holds or will receive, sorted as by CompareGroups.
func (v View) Holds(shard string) (names []string) {
	for name, g := range v.Groups {
		if g.IsOn(shard) || slices.Contains(v.Targets[name].Shards, shard) {
			names = append(names, name)
		}
	}
	slices.SortFunc(names, CompareGroups)
	return names
}

// IsMoving reports whether a copy of a group is being created, or whether the shards of the group's target differ from
// those of its voters. It is false for a group that no shard has created yet.
func (v View) IsMoving(group string) bool {
	g, target := v.Groups[group], v.Targets[group].Shards
	voters := g.Voters()
	if len(voters) == 0 {
		return false
	}
	if len(voters) < len(g.Members) || len(target) > 0 && len(target) != len(voters) {
		return true
	}
	return slices.ContainsFunc(target, func(shard string) bool {
		return !slices.ContainsFunc(voters, func(m Member) bool { return m.Shard == shard })
	})
}

// SharedDomains returns the failure domains in which a group has, or may have, two copies until the group reaches its
// target. No order of the move's steps avoids this. See the function SharedDomains.
func (v View) SharedDomains(group string) []string {
	voters := v.Groups[group].Voters()
	from := make([]string, 0, len(voters))
	for _, m := range voters {
		from = append(from, m.Shard)
	}
	to := v.Targets[group].Shards
	if len(from) == 0 || len(to) == 0 || v.Meta.Copies == 1 {
		return nil
	}
	return SharedDomains(from, to, v.Domain)
}

// Silent returns the groups with too few registered shards to serve. It maps each of them to the shard of its first
// voter that is not registered.
func (v View) Silent() map[string]string {
	out := map[string]string{}
	for name, g := range v.Groups {
		voters, registered, away := g.Voters(), 0, -1
		for i, m := range voters {
			if _, is := v.Shards[m.Shard]; is {
				registered++
			} else if away < 0 {
				away = i
			}
		}
		if away >= 0 && registered < Majority(len(voters)) {
			out[name] = voters[away].Shard
		}
	}
	return out
}

// Homeless returns the number of groups that no shard has created yet.
func (v View) Homeless() (n int) {
	for _, g := range v.Groups {
		if len(g.Voters()) == 0 {
			n++
		}
	}
	return n
}

// SharedDomains returns the failure domains, sorted by name, that unavoidably hold two copies of a group while the
// group moves between shards. Leaders order the steps of a move so that no domain holds two copies (package move). In
// the following cases, no such order exists:
//
//   - two of the group's current shards, or two of its target shards, are in one domain;
//   - the group has fewer shards than its target. A missing copy is replaced immediately, even if a copy that will
//     leave is in the same domain. In this case a domain may be shared, but need not be.
//
// A shard without a known domain belongs to no domain.
func SharedDomains(from, to []string, domain func(shard string) string) (shared []string) {
	note := func(a, b string) {
		d := domain(a)
		if a != b && d != "" && d == domain(b) && !slices.Contains(shared, d) {
			shared = append(shared, d)
		}
	}
	for _, list := range [][]string{from, to} {
		for n, a := range list {
			for _, b := range list[:n] {
				note(a, b)
			}
		}
	}
	if len(from) < len(to) {
		for _, a := range from {
			for _, b := range to {
				note(a, b)
			}
		}
	}
	slices.Sort(shared)
	return shared
}
