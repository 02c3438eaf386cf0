package placement

import "slices"

// Move is one group that is to be elsewhere than it is.
type Move struct {
	Group   string
	From    []string // shards that hold a copy now
	To      []string // shards that are to
	Bytes   int64    // to be copied
	Reason  Reason
	Running bool // its target says so already
	// SharedDomains: see there.
	SharedDomains []string
}

// Moves shows what is under way, and all that the planner would do if nothing else changed, whatever the limits on
// moves at a time. Groups that nobody holds yet are left out, and those where only another copy is to lead.
func Moves(view View, policy Policy) []Move {
	if plansNothing(view, policy) != "" {
		return nil
	}
	policy.MovesMax, policy.ShardMovesMax = -1, -1
	p := newPlanner(view, policy)
	p.planAll()
	var out []Move
	for i := range p.groups {
		g := &p.groups[i]
		wanted, running := g.chosen, g.underWay(p)
		if g.reason != "" {
			wanted = p.places(g.old.Shards)
		}
		if len(g.voters) == 0 || len(wanted) == 0 || len(g.moving(wanted)) == 0 {
			continue
		}
		m := Move{Group: g.Name, Reason: g.change, Running: running}
		for _, i := range g.voters {
			m.From = append(m.From, p.shards[i].name)
		}
		for _, i := range wanted {
			m.To = append(m.To, p.shards[i].name)
		}
		for _, i := range g.moving(wanted) {
			if !slices.Contains(g.voters, i) {
				m.Bytes += g.Bytes
			}
		}
		m.SharedDomains = SharedDomains(m.From, m.To, view.Domain)
		out = append(out, m)
	}
	return out
}
