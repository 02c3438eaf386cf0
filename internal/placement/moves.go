package placement

import "slices"

// Move describes one group whose copies should be on other shards than they are now. If Running is set, the group's
// stored target already names those other shards. Otherwise the move has not started.
type Move struct {
	Group   string
	From    []string // shards that have a copy now
	To      []string // shards that should have a copy
	Bytes   int64    // number of bytes to be copied
	Reason  Reason
	Running bool // the stored target already names the shards of To
	// SharedDomains is the value that the function SharedDomains returns for this move.
	SharedDomains []string
}

// Moves returns the moves in progress, together with all moves that the planner would start if nothing else changed
// and if the number of concurrent moves were not limited. It leaves out groups without members, and groups in which
// only the leader changes.
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
		m := Move{Group: g.Name, Reason: g.change, Running: running, From: p.names(g.voters), To: p.names(wanted)}
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
