package placement

import (
	"math"
	"slices"
)

// leadsMax limits how many groups at a time may be changing nothing but their leader.
const leadsMax = 64

// why returns the reason why a group's target differs from the group's current shards.
func (p *planner) why(g *planned) Reason {
	switch {
	case len(g.voters) == 0:
		return ForPlacement
	case p.sameShards(g.chosen, g.old.Shards):
		return g.old.Reason // this move is already in progress, so its reason stays the same
	}
	domains := map[int]bool{}
	reason := ForPlacement
	for _, i := range g.voters {
		s := &p.shards[i]
		switch {
		case slices.Contains(g.chosen, i):
		case s.state == Draining:
			return ForDrain
		case domains[s.domain] || p.inDomain(g.chosen, s.domain):
			reason = ForDomain
		case reason == ForPlacement && p.policy.Moves && g.old.Reason == ForBalance:
			// The group still moves to balance the load, but now to a shard other than the one planned at first.
			reason = ForBalance
		}
		domains[s.domain] = true
	}
	if len(g.voters) < p.policy.Copies {
		return ForRepair
	}
	return reason
}

func (p *planner) sameShards(chosen []int, names []string) bool {
	if len(chosen) != len(names) {
		return false
	}
	for _, i := range chosen {
		if !slices.Contains(names, p.shards[i].name) {
			return false
		}
	}
	return true
}

// moving returns the shards that gain or lose a copy if the group moves to the given shards.
func (g *planned) moving(shards []int) (out []int) {
	for _, i := range shards {
		if !slices.Contains(g.voters, i) {
			out = append(out, i)
		}
	}
	for _, i := range g.voters {
		if !slices.Contains(shards, i) {
			out = append(out, i)
		}
	}
	return out
}

// wave returns the groups whose targets change now, sorted by name. If the policy does not allow moves, these are all
// groups that need a new target. If the policy allows moves, a group starts to move only while the number of moves is
// below the limit, and groups that lack copies go first. The function balance has already applied the limits on moves
// that balance the load.
func (p *planner) wave() []int {
	var out, begin, leads []int
	leading := 0
	for i := range p.groups {
		g := &p.groups[i]
		if g.leadChanges(p) {
			leading++
		}
		switch {
		case !p.changes(g):
		case !p.policy.Moves || len(g.voters) == 0 || g.underWay(p) || g.change == ForBalance:
			out = append(out, i)
		case p.sameShards(g.chosen, g.old.Shards):
			leads = append(leads, i)
		default:
			begin = append(begin, i)
		}
	}
	slices.SortStableFunc(begin, func(a, b int) int { return urgency(p.groups[a].change) - urgency(p.groups[b].change) })
	inFlight := p.underWay()
	for _, i := range begin {
		if moving := p.groups[i].moving(p.groups[i].chosen); inFlight.has(moving) {
			inFlight.take(moving)
			out = append(out, i)
		}
	}
	if p.policy.MovesMax >= 0 {
		leads = leads[:min(len(leads), max(0, leadsMax-leading))]
	}
	out = append(out, leads...)
	slices.Sort(out)
	return out
}

// underWay reports whether the group's target differs from its current shards.
func (g *planned) underWay(p *planner) bool {
	return len(g.voters) > 0 && len(g.old.Shards) > 0 && len(g.moving(p.places(g.old.Shards))) > 0
}

// leadChanges reports whether the leadership should pass to another shard that is registered.
func (g *planned) leadChanges(p *planner) bool {
	return len(g.old.Shards) > 0 && g.Leader != "" && g.Leader != g.old.Shards[0] &&
		p.shards[p.find(g.old.Shards[0])].known
}

// places returns the indices of the shards with the given names.
func (p *planner) places(names []string) []int {
	out := make([]int, 0, len(names))
	for _, name := range names {
		out = append(out, p.find(name))
	}
	return out
}

func urgency(r Reason) int {
	return slices.Index([]Reason{ForRepair, ForDomain, ForDrain, ForPlacement, ForBalance}, r)
}

// moveBudget counts the moves in progress, both in total and for each shard, so that they stay within their limits.
type moveBudget struct {
	all, allMax int
	shard       []int
	shardMax    int
}

// underWay returns a budget from which the moves in progress have already been deducted.
func (p *planner) underWay() *moveBudget {
	limit := func(n, byDefault int) int {
		switch {
		case n == 0:
			return byDefault
		case n < 0:
			return math.MaxInt
		}
		return n
	}
	r := &moveBudget{
		allMax: limit(p.policy.MovesMax, MovesMaxDefault), shardMax: limit(p.policy.ShardMovesMax, ShardMovesMaxDefault),
		shard: make([]int, len(p.shards)),
	}
	for i := range p.groups {
		if g := &p.groups[i]; g.underWay(p) {
			r.take(g.moving(p.places(g.old.Shards)))
		}
	}
	return r
}

// take deducts from the budget one move that involves the given shards.
func (r *moveBudget) take(shards []int) {
	r.all++
	for _, i := range shards {
		r.shard[i]++
	}
}

// has reports whether the budget allows one more move that involves the given shards.
func (r *moveBudget) has(shards []int) bool {
	return r.all < r.allMax && !slices.ContainsFunc(shards, func(i int) bool { return r.shard[i] >= r.shardMax })
}
