package placement

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/google/uuid"
)

// Plan chooses a target for each group so that as little as possible moves. It returns the targets that differ from
// those in the view. A group that has members keeps its shards as far as the policy allows. A new group goes to the
// shards with the fewest bytes and, among these, to those with the fewest groups. Two copies of a group are never
// placed in one domain. The result unplaced maps each group that cannot be placed to the reason. Plan is a pure
// function: the same input gives the same output.
//
// A shard that is not registered counts as part of its last known domain. A member stays on a shard that is Active,
// Cordoned or not registered, because the group's data is there. To remove such a shard, a person drains it. A member
// is moved off a Draining shard, and out of a domain that holds another copy. The target of a group without members
// keeps only live shards. The first shard of the target of a group that waits for its restore keeps its place while it
// is alive, even if it is Cordoned or Draining, because it may have begun to install the group, which then needs no
// second shard that installs it too. If too few shards can take a copy, a group with members keeps its target. Full
// shards (whose bytes have reached CapacityBytes, if that is known) and shards at the policy's limit get no new copies.
//
// If the policy allows moves, Plan also balances groups that have reached their target (balance.go), and changes
// targets in waves (waves.go).
func Plan(view View, policy Policy) (targets []Target, unplaced map[string]string) {
	unplaced = map[string]string{}
	if reason := plansNothing(view, policy); reason != "" {
		for name := range view.Groups {
			unplaced[name] = reason
		}
		return nil, unplaced
	}
	view = readable(view, unplaced)
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

// readable returns the view without the groups whose key or target is invalid, and adds these groups to unplaced.
func readable(view View, unplaced map[string]string) View {
	if len(view.Unusable) == 0 {
		return view
	}
	view.Groups = maps.Clone(view.Groups)
	for name := range view.Groups {
		if reason := view.UnusableGroup(name); reason != "" {
			unplaced[name] = reason
			delete(view.Groups, name)
		}
	}
	for _, name := range view.Unknown() {
		unplaced[name] = view.UnusableGroup(name)
	}
	return view
}

// plansNothing returns the reason why no group can be placed now: the policy is invalid, the list of the groups of a
// restore is not complete, or the first placement waits for more shards. It returns an empty string if groups can be
// placed.
func plansNothing(view View, policy Policy) string {
	if err := policy.Validate(); err != nil {
		return err.Error()
	}
	if view.Meta.Listing() {
		return view.Meta.WaitsForList()
	}
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

// load describes one shard from the planner's point of view.
type load struct {
	name    string
	domain  int // number that represents the failure domain
	known   bool
	volume  uuid.UUID
	state   ShardState
	bytes   int64
	limit   int64   // maximum number of bytes; 0 means that there is no limit
	weight  float64 // capacity relative to the average shard, which has weight 1
	groups  int
	leaders int
}

// takesPart reports whether balancing moves groups to and from the shard.
func (s *load) takesPart() bool { return s.known && (s.state == Active || s.state == "") }

// planned describes one group from the planner's point of view. Shards are identified by their indices in
// planner.shards.
type planned struct {
	Group
	old    Target
	voters []int
	kept   int    // number of the chosen shards that already had the group
	chosen []int  // target shards, preferred leader first
	reason string // why the group cannot be placed; empty if it can
	change Reason // reason for the change from old to chosen
}

// planner chooses the targets of all groups, and tracks the load that each shard will have as a result.
type planner struct {
	policy  Policy
	states  map[string]ShardState
	gone    map[string]string // last known failure domain of each shard, registered or not
	shards  []load            // registered shards in the order of their names, then unregistered shards that have members
	byName  map[string]int    // index of each shard in shards
	domains map[string]int
	groups  []planned // sorted by name
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
			if m.Role == Voter && m.Shard != "" { // the name is empty if the member's shard is unknown
				g.voters = append(g.voters, p.find(m.Shard))
			}
		}
		p.groups = append(p.groups, g)
	}
	return p
}

// weigh sets the weight of each shard. If all shards that take part in balancing report their capacity, the weight is
// the shard's capacity.
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

// planAll chooses the target of each group.
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

// add adds a shard with a failure domain, and returns the shard's index.
func (p *planner) add(l load, domain string) int {
	if domain == "" {
		domain = "\x00" + l.name // a NUL makes the name unique, because no configured domain contains one
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

// find returns the index of the shard with the given name. If the shard is not registered, find adds it as an unknown
// shard.
func (p *planner) find(name string) int {
	if i, ok := p.byName[name]; ok {
		return i
	}
	return p.add(load{name: name, weight: 1, state: p.states[name]}, p.gone[name])
}

// keep decides which of a group's current shards the group keeps, and adds the group to the load of these shards.
func (p *planner) keep(g *planned) {
	for n, i := range p.current(g) {
		s := &p.shards[i]
		installs := g.Restoring && n == 0 && s.known
		if !installs && (s.state == Draining || len(g.Members) == 0 && (!s.known || s.state == Cordoned)) {
			continue
		}
		if len(g.chosen) == p.policy.Copies || p.inDomain(g.chosen, s.domain) {
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

// current lists a group's shards in the order in which they should be kept. First come the members that the target
// names, in the order of the target, because its first shard should lead. They are followed by the leader, and then
// by the other members. Last come the shards that the target names as replacements. Thus an unfinished move continues
// to the same shard, while a move whose reason has disappeared is reversed. If the purpose of the move is to balance
// the load, the replacements come first, because that reason cannot disappear.
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

// place adds shards to a group until the group has the required number of copies.
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

// undo removes the shards that place has added to a group that cannot be placed completely.
func (p *planner) undo(g *planned) {
	for _, i := range g.chosen[g.kept:] {
		p.shards[i].bytes -= g.Bytes
		p.shards[i].groups--
	}
	g.chosen = g.chosen[:g.kept]
}

func (p *planner) target(g *planned) Target {
	return Target{Group: g.Name, Shards: p.names(g.chosen), Reason: g.change}
}

func (p *planner) names(shards []int) []string {
	out := make([]string, len(shards))
	for n, i := range shards {
		out[n] = p.shards[i].name
	}
	return out
}

// changes reports whether the plan changes a group's target now. If the policy does not allow moves, a target with
// the same shards in a different order does not count as a change.
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

// lead moves the shard that should lead to the first position. In a group with members, that is the first of the
// shards that the group keeps. In a new group, it is the shard that leads the fewest groups.
func (p *planner) lead(g *planned) {
	chosen := g.chosen
	if g.kept == 0 {
		first := slices.Index(chosen, slices.MinFunc(chosen, func(a, b int) int {
			return p.shards[a].leaders - p.shards[b].leaders
		}))
		chosen[0], chosen[first] = chosen[first], chosen[0]
	}
	p.shards[chosen[0]].leaders++
}

// best returns the shard that takes the next copy. It prefers the shard with the fewest bytes, then the one with the
// fewest groups, then the one with the fewest leaders, and finally the first by name. It returns -1 if no shard can
// take the copy. best scans all shards, because even with 1,000 shards a heap is not faster if domains exclude many
// of them.
func (p *planner) best(chosen []int) int {
	best := -1
	for i := range p.shards {
		s := &p.shards[i]
		if (best < 0 || less(s, &p.shards[best])) && p.takes(s) && !p.inDomain(chosen, s.domain) {
			best = i
		}
	}
	return best
}

func (p *planner) inDomain(shards []int, domain int) bool {
	return slices.ContainsFunc(shards, func(i int) bool { return p.shards[i].domain == domain })
}

// less orders shards by bytes and then by groups, both relative to the shard's weight, and then by leaders. Equal
// shards keep their order in planner.shards, which is the order of their names.
func less(a, b *load) bool {
	if x, y := float64(a.bytes)*b.weight, float64(b.bytes)*a.weight; x != y {
		return x < y
	}
	if x, y := float64(a.groups)*b.weight, float64(b.groups)*a.weight; x != y {
		return x < y
	}
	return a.leaders < b.leaders
}

// takes reports whether a shard may receive a new copy.
func (p *planner) takes(s *load) bool {
	return s.takesPart() &&
		(s.limit <= 0 || s.bytes < s.limit) && (p.policy.ShardGroupsMax == 0 || s.groups < p.policy.ShardGroupsMax)
}

// reason explains why a group has fewer copies than it should have. The argument have is the number of shards that
// could be found for it.
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

// SameSet reports whether two slices without duplicates hold the same items, in any order.
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

// Planned holds a view, the planner's decisions for that view, and the number of resulting writes.
type Planned struct {
	View                       // View is the view on which the plan is based. It does not contain the plan's writes yet.
	Unplaced map[string]string // groups that cannot be placed now, with the reason
	// All three numbers are 0 if there was nothing to write, or if the caller requested a plan without writes.
	StatesWritten, GroupsCreated, TargetsWritten int
}

// Writes returns the number of states, groups and targets that were written.
func (p Planned) Writes() int { return p.StatesWritten + p.GroupsCreated + p.TargetsWritten }
