package placement

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/google/uuid"
)

// Plan is pure: it says which targets differ from those in the view, with least movement: a group that has Members
// keeps its shards as long as the policy allows; new groups go to the shards with the least bytes, then the fewest
// groups, never two copies in one domain. Groups that cannot be placed are given in unplaced with the reason. The same
// input gives the same output.
//
// In detail. A shard that is not registered is in the domain that it was in last, as far as that is known. A member is
// kept on a shard that is Active, Cordoned or not registered (its data are there; a person removes it by draining); it
// is moved off a Draining shard and off a domain that holds another copy. The target of a group without members is kept
// on live shards. Where too few shards can take a copy, a group that has members keeps its target. Full shards (bytes
// at or above CapacityBytes, where that is given) and shards at the policy's limit get nothing new.
//
// Where the policy allows moves, settled groups are balanced too (balance.go), and targets change in waves (waves.go).
func Plan(view View, policy Policy) (targets []Target, unplaced map[string]string) {
	unplaced = map[string]string{}
	if reason := plansNothing(view, policy); reason != "" {
		for name := range view.Groups {
			unplaced[name] = reason
		}
		return nil, unplaced
	}
	p := newPlanner(view, policy)
	p.planAll()
	for i := range p.groups {
		g := &p.groups[i]
		if g.reason != "" {
			unplaced[g.Name] = g.reason
		}
	}
	for _, i := range p.wave() {
		targets = append(targets, p.target(&p.groups[i]))
	}
	return targets, unplaced
}

// plansNothing says why no group can be placed now; empty: some may.
func plansNothing(view View, policy Policy) string {
	if err := policy.Validate(); err != nil {
		return err.Error()
	}
	return firstPlacementWaits(view, policy)
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
	volume  uuid.UUID
	state   ShardState
	bytes   int64
	limit   int64   // bytes, 0: none
	weight  float64 // its part of the load; 1 on the average
	groups  int
	leaders int
}

// takesPart: the shard gives and takes where loads are balanced.
func (s *load) takesPart() bool { return s.known && (s.state == Active || s.state == "") }

// planned is what the planner knows of one group. Shards are places in planner.shards.
type planned struct {
	Group
	old    Target
	voters []int
	kept   int    // so many of chosen were kept
	chosen []int  // where it is wanted; the first one is to lead
	reason string // why it is not: chosen is what was kept
	change Reason // of the change from old to chosen
}

// planner accumulates what each shard will hold.
type planner struct {
	policy  Policy
	states  map[string]ShardState
	gone    map[string]string // failure domains of shards, also of those that are not registered
	shards  []load            // the registered ones by name, then unknown members
	byName  map[string]int    // place in shards
	domains map[string]int
	groups  []planned // by name
}

func newPlanner(view View, policy Policy) *planner {
	p := &planner{policy: policy, gone: view.Domains, byName: make(map[string]int, len(view.Shards)),
		domains: map[string]int{}}
	if policy.Moves {
		p.states = view.States
	}
	for _, name := range slices.Sorted(maps.Keys(view.Shards)) {
		s := view.Shards[name]
		p.add(load{name: name, known: s.Alive, volume: s.VolumeUUID, state: s.State, limit: s.CapacityBytes}, s.Domain)
	}
	p.weigh()
	p.groups = make([]planned, 0, len(view.Groups))
	for _, name := range slices.Sorted(maps.Keys(view.Groups)) {
		g := planned{Group: view.Groups[name], old: view.Targets[name]}
		for _, m := range g.Members {
			if m.Role == Voter && m.Shard != "" { // empty: nobody knows where it is
				g.voters = append(g.voters, p.find(m.Shard))
			}
		}
		p.groups = append(p.groups, g)
	}
	return p
}

// weigh gives each shard its part of the load: by capacity, where all that take part tell theirs.
func (p *planner) weigh() {
	var sum float64
	n, all := 0, true
	for i := range p.shards {
		s := &p.shards[i]
		s.weight = 1
		if s.takesPart() {
			n++
			sum += float64(s.limit)
			all = all && s.limit > 0
		}
	}
	for i := range p.shards {
		if s := &p.shards[i]; all && s.takesPart() {
			s.weight = float64(s.limit) * float64(n) / sum
		}
	}
}

// planAll decides where each group is wanted.
func (p *planner) planAll() {
	for i := range p.groups {
		p.keep(&p.groups[i])
	}
	for i := range p.groups {
		p.place(&p.groups[i])
	}
	for i := range p.groups {
		p.groups[i].change = p.why(&p.groups[i])
	}
	if p.policy.Moves {
		p.balance()
	}
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
	return p.add(load{name: name, weight: 1, state: p.states[name]}, p.gone[name])
}

// keep decides which shards of a group stay, and counts them.
func (p *planner) keep(g *planned) {
	for _, i := range p.current(g) {
		s := &p.shards[i]
		if s.state == Draining || len(g.Members) == 0 && (!s.known || s.state == Cordoned) {
			continue
		}
		if len(g.chosen) == p.policy.Copies ||
			slices.ContainsFunc(g.chosen, func(k int) bool { return k == i || p.shards[k].domain == s.domain }) {
			continue
		}
		g.chosen = append(g.chosen, i)
		s.bytes += g.Bytes
		s.groups++
	}
	if g.kept = len(g.chosen); g.kept > 0 && g.kept == p.policy.Copies {
		p.shards[g.chosen[0]].leaders++
	}
}

// current lists the shards of a group in the order in which they are kept: the target's order where it names members
// (its first one leads), then the leader, then the others. Replacements that the target names already come last, so
// that an unfinished move goes on to the same shard, and one whose reason has gone goes back. A move for balance has no
// such reason: its target comes first.
func (p *planner) current(g *planned) []int {
	old := make([]int, 0, len(g.old.Shards))
	for _, name := range g.old.Shards {
		old = append(old, p.find(name))
	}
	if len(g.Members) == 0 {
		return old
	}
	if p.policy.Moves && g.old.Reason == ForBalance {
		return append(old, g.voters...)
	}
	rank := func(shard int) int {
		if i := slices.Index(old, shard); i >= 0 {
			return i
		}
		if p.shards[shard].name == g.Leader {
			return len(old)
		}
		return len(old) + 1
	}
	list := slices.Clone(g.voters)
	slices.SortStableFunc(list, func(a, b int) int { return rank(a) - rank(b) })
	return append(list, old...)
}

// place fills a group up to the number of copies.
func (p *planner) place(g *planned) {
	for len(g.chosen) < p.policy.Copies {
		i := p.best(g.chosen)
		if i < 0 {
			g.reason = p.reason(len(g.chosen))
			p.undo(g)
			return
		}
		g.chosen = append(g.chosen, i)
		p.shards[i].bytes += g.Bytes
		p.shards[i].groups++
	}
	if g.kept < len(g.chosen) {
		p.lead(g)
	}
}

// undo takes back what place has added for a group that cannot be placed whole.
func (p *planner) undo(g *planned) {
	for _, i := range g.chosen[g.kept:] {
		p.shards[i].bytes -= g.Bytes
		p.shards[i].groups--
	}
	g.chosen = g.chosen[:g.kept]
}

// target is what is to be written for a group.
func (p *planner) target(g *planned) Target {
	t := Target{Group: g.Name, Shards: make([]string, len(g.chosen)), Reason: g.change}
	for n, i := range g.chosen {
		t.Shards[n] = p.shards[i].name
	}
	return t
}

// changes tells whether a group's target is another one now. Without moves the order alone is no change.
func (p *planner) changes(g *planned) bool {
	if g.reason != "" {
		return false
	}
	t := p.target(g)
	if p.policy.Moves {
		return !slices.Equal(t.Shards, g.old.Shards)
	}
	return !SameSet(t.Shards, g.old.Shards)
}

// lead puts the shard that is to lead first: of a group with members the first one kept, else the one that leads least.
func (p *planner) lead(g *planned) {
	chosen := g.chosen
	if g.kept == 0 {
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

// less orders shards by load, for their weight; shards lie in order of their names.
func less(a, b *load) bool {
	if x, y := float64(a.bytes)*b.weight, float64(b.bytes)*a.weight; x != y {
		return x < y
	}
	if x, y := float64(a.groups)*b.weight, float64(b.groups)*a.weight; x != y {
		return x < y
	}
	return a.leaders < b.leaders
}

// takes says whether a shard may get something new.
func (p *planner) takes(s *load) bool {
	return s.takesPart() &&
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

// SameSet says whether two slices without repetitions hold the same items, in whatever order.
func SameSet[T comparable](a, b []T) bool {
	if len(a) != len(b) {
		return false
	}
	for _, x := range a {
		if !slices.Contains(b, x) {
			return false
		}
	}
	return true
}
