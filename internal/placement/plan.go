package placement

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Plan is pure: it says which targets differ from those in the view, with least movement: a group that has Members
// keeps its shards as long as the policy allows; new groups go to the shards with the least bytes, then the fewest
// groups, never two copies in one domain. Groups that cannot be placed are given in unplaced with the reason. The same
// input gives the same output.
//
// In detail. A member is kept on a shard that is Active, Cordoned or not registered (its data are there; a person
// removes it by draining); it is moved off a Draining shard and off a domain that holds another copy. The target of a
// group without members is kept on live shards. Where too few shards can take a copy, a group that has members keeps
// its target. Full shards (bytes at or above CapacityBytes, where that is given) and shards at the policy's limit get
// nothing new.
func Plan(view View, policy Policy) (targets []Target, unplaced map[string]string) {
	unplaced = map[string]string{}
	names := slices.Sorted(maps.Keys(view.Groups))
	if err := policy.Validate(); err != nil {
		for _, name := range names {
			unplaced[name] = err.Error()
		}
		return nil, unplaced
	}
	if reason := firstPlacementWaits(view, policy); reason != "" {
		for _, name := range names {
			unplaced[name] = reason
		}
		return nil, unplaced
	}
	p := newPlanner(view, policy)
	for _, name := range names {
		p.keep(view.Groups[name], view.Targets[name].Shards)
	}
	for _, name := range names {
		g, old := view.Groups[name], view.Targets[name].Shards
		wanted, reason := p.place(g, old)
		if reason != "" {
			unplaced[name] = reason
		}
		if wanted != nil && !slices.Equal(wanted, old) {
			targets = append(targets, Target{Group: name, Shards: wanted})
		}
	}
	return targets, unplaced
}

// firstPlacementWaits says for what; empty where it does not wait.
func firstPlacementWaits(view View, policy Policy) string {
	alive := 0
	for _, s := range view.Shards {
		if s.Alive {
			alive++
		}
	}
	if alive >= policy.ShardsMin {
		return ""
	}
	for _, g := range view.Groups {
		if len(g.Members) > 0 {
			return ""
		}
	}
	return fmt.Sprintf("the first placement waits until %d shards are alive, %d are", policy.ShardsMin, alive)
}

// load is what the planner knows of one shard.
type load struct {
	name    string
	domain  int // number of the domain
	known   bool
	state   ShardState
	bytes   int64
	limit   int64 // bytes, 0: none
	groups  int
	leaders int
}

// planner accumulates what each shard will hold.
type planner struct {
	policy  Policy
	shards  []load         // the registered ones by name, then unknown members
	byName  map[string]int // place in shards
	domains map[string]int
	kept    map[string][]int // per group
}

func newPlanner(view View, policy Policy) *planner {
	p := &planner{
		policy: policy, byName: make(map[string]int, len(view.Shards)),
		domains: map[string]int{}, kept: make(map[string][]int, len(view.Groups)),
	}
	for _, name := range slices.Sorted(maps.Keys(view.Shards)) {
		s := view.Shards[name]
		p.add(load{name: name, known: s.Alive, state: s.State, limit: s.CapacityBytes}, s.Domain)
	}
	return p
}

func (p *planner) add(l load, domain string) int {
	// A NUL keeps the shard's own domain apart from any domain that is named.
	if domain == "" {
		domain = "\x00" + l.name
	}
	number, ok := p.domains[domain]
	if !ok {
		number = len(p.domains)
		p.domains[domain] = number
	}
	l.domain = number
	p.byName[l.name] = len(p.shards)
	p.shards = append(p.shards, l)
	return len(p.shards) - 1
}

// find is the place of a shard by name; one that is not registered is added as unknown.
func (p *planner) find(name string) int {
	if i, ok := p.byName[name]; ok {
		return i
	}
	return p.add(load{name: name}, "")
}

// keep decides which shards of a group stay, and counts them.
func (p *planner) keep(g Group, old []string) {
	var kept []int
	for _, name := range current(g, old) {
		i := p.find(name)
		s := &p.shards[i]
		if s.state == Draining || len(g.Members) == 0 && (!s.known || s.state == Cordoned) {
			continue
		}
		if len(kept) == p.policy.Copies || slices.ContainsFunc(kept, func(k int) bool { return p.shards[k].domain == s.domain }) {
			continue
		}
		kept = append(kept, i)
		s.bytes += g.Bytes
		s.groups++
	}
	if len(kept) > 0 && len(kept) == p.policy.Copies {
		p.shards[kept[0]].leaders++
	}
	p.kept[g.Name] = kept
}

// current lists the shards of a group in the order in which they are kept: the target's order where it names members
// (its first one leads), then the leader, then the others. Replacements that the target names already come last, so
// that an unfinished move goes on to the same shard.
func current(g Group, old []string) []string {
	if len(g.Members) == 0 {
		return old
	}
	members := make([]string, 0, len(g.Members))
	for _, m := range g.Members {
		members = append(members, m.Shard)
	}
	rank := func(name string) int {
		if i := slices.Index(old, name); i >= 0 {
			return i
		}
		if name == g.Leader {
			return len(old)
		}
		return len(old) + 1
	}
	slices.SortStableFunc(members, func(a, b string) int { return rank(a) - rank(b) })
	for _, name := range old {
		if !slices.Contains(members, name) {
			members = append(members, name)
		}
	}
	return members
}

// place fills a group up to the number of copies. It returns the wanted shards, nil where the target stays as it is.
func (p *planner) place(g Group, old []string) (wanted []string, reason string) {
	chosen := p.kept[g.Name]
	full := len(chosen) == p.policy.Copies
	for len(chosen) < p.policy.Copies {
		i := p.best(chosen)
		if i < 0 {
			p.undo(g, chosen)
			return nil, p.reason(len(chosen))
		}
		chosen = append(chosen, i)
		p.shards[i].bytes += g.Bytes
		p.shards[i].groups++
	}
	if !full {
		p.lead(g, chosen)
	}
	wanted = make([]string, len(chosen))
	for n, i := range chosen {
		wanted[n] = p.shards[i].name
	}
	if sameSet(wanted, old) {
		return nil, ""
	}
	return wanted, ""
}

// undo takes back what place has added for a group that cannot be placed whole.
func (p *planner) undo(g Group, chosen []int) {
	for _, i := range chosen[len(p.kept[g.Name]):] {
		p.shards[i].bytes -= g.Bytes
		p.shards[i].groups--
	}
}

// lead puts the shard that is to lead first: of a group with members the first one kept, else the one that leads least.
func (p *planner) lead(g Group, chosen []int) {
	if len(p.kept[g.Name]) == 0 {
		first := 0
		for n, i := range chosen {
			if p.shards[i].leaders < p.shards[chosen[first]].leaders {
				first = n
			}
		}
		chosen[0], chosen[first] = chosen[first], chosen[0]
	}
	p.shards[chosen[0]].leaders++
}

// best is the shard that takes the next copy: least bytes, then fewest groups, then least leaders, then by name; -1
// where none can. A scan over the shards is linear, but at 1,000 shards no heap is faster where domains bar many.
func (p *planner) best(chosen []int) int {
	best := -1
	for i := range p.shards {
		s := &p.shards[i]
		if best >= 0 && !less(s, &p.shards[best]) || !p.takes(s) {
			continue
		}
		barred := false
		for _, c := range chosen {
			barred = barred || p.shards[c].domain == s.domain
		}
		if !barred {
			best = i
		}
	}
	return best
}

// less orders shards by load; shards lie in order of their names.
func less(a, b *load) bool {
	if a.bytes != b.bytes {
		return a.bytes < b.bytes
	}
	if a.groups != b.groups {
		return a.groups < b.groups
	}
	return a.leaders < b.leaders
}

// takes says whether a shard may get something new.
func (p *planner) takes(s *load) bool {
	return s.known && (s.state == Active || s.state == "") &&
		(s.limit <= 0 || s.bytes < s.limit) && (p.policy.ShardGroupsMax == 0 || s.groups < p.policy.ShardGroupsMax)
}

// reason says why a group could get no more than have copies.
func (p *planner) reason(have int) string {
	var cordoned, draining, full, open int
	domains := map[int]bool{}
	for i := range p.shards {
		switch s := &p.shards[i]; {
		case !s.known:
		case s.state == Cordoned:
			cordoned++
		case s.state == Draining:
			draining++
		case !p.takes(s):
			full++
		default:
			open++
			domains[s.domain] = true
		}
	}
	var parts []string
	for _, part := range []struct {
		n    int
		what string
	}{{cordoned, "cordoned"}, {draining, "draining"}, {full, "full or at their limit of groups"}} {
		if part.n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", part.n, part.what))
		}
	}
	more := ""
	if len(parts) > 0 {
		more = " (" + strings.Join(parts, ", ") + ")"
	}
	return fmt.Sprintf("needs %d shards in different failure domains, has %d: %d shards in %d domains can take a group%s",
		p.policy.Copies, have, open, len(domains), more)
}

func sameSet(a, b []string) bool {
	if len(a) != len(b) {
		return false
	}
	for _, name := range a {
		if !slices.Contains(b, name) {
			return false
		}
	}
	return true
}
