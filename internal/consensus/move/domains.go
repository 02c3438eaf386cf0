package move

import (
	"fmt"
	"slices"
)

// The steps are ordered so that copies stay in different failure domains. When a voter must leave, a learner in the
// same domain takes its place. A learner in a domain without voters may take the place of any voter. Suppose that a
// group's voters are all in different domains, and that its target's shards are as well. Then the group never has two
// voters in one domain during the move, because each swap either keeps the set of the voters' domains or exchanges
// one of them for a domain without voters. docs/adr/0022-moves-keep-domains.md has the proof.

// domain returns the failure domain of a member. If a member's shard has no domain, it counts as being in a domain of
// its own, as in package placement.
func (d *decider) domain(id uint64) string {
	shard := d.where[id].Shard
	switch domain := d.Shards[shard].Domain; {
	case domain != "":
		return domain
	case shard == "":
		return fmt.Sprintf("\x00%x", id)
	}
	return "\x00" + shard
}

// shared counts the members that are in the same domain as a member before them in the list.
func (d *decider) shared(ids []uint64) int {
	domains := map[string]bool{}
	for _, id := range ids {
		domains[d.domain(id)] = true
	}
	return len(ids) - len(domains)
}

// swap is a pair of a voter and a learner that may take its place.
type swap struct {
	out, in uint64
	shared  int // number of voters that share their domain with an earlier voter after the swap
}

// bestSwap returns the swap after which the fewest voters share a domain. Among equally good swaps, it returns the
// one whose leaving voter comes first in extras. The list extras begins with the unhealthy voters and ends with this
// leader. The leader may leave only if another member can become leader, or if no other voter can leave.
func (d *decider) bestSwap(extras, ready []uint64) swap {
	if first := extras[0]; first != d.Self && d.transferTarget() == 0 {
		extras = without(extras, d.Self)
	}
	best := swap{shared: len(d.voters) + 1}
	for _, out := range extras { // in the order in which the voters should leave
		for _, in := range ready {
			if shared := d.shared(append(without(d.voters, out), in)); shared < best.shared {
				best = swap{out: out, in: in, shared: shared}
			}
		}
	}
	return best
}

// coming reports whether a wanted learner on a live shard is still catching up. Once it has caught up, it can take
// the place of another voter, so this leader need not leave yet.
func (d *decider) coming() bool {
	return slices.ContainsFunc(d.learners, func(id uint64) bool {
		shard := d.where[id].Shard
		return slices.Contains(d.Target, shard) && d.Shards[shard].Alive && !d.well(id)
	})
}

// apart sorts the members. Members that share a failure domain with a voter or an earlier member come last.
func (d *decider) apart(ids []uint64) []uint64 {
	chosen := slices.Clone(d.voters)
	var others []uint64
	for _, id := range ids {
		if with := append(slices.Clone(chosen), id); d.shared(with) == d.shared(chosen) {
			chosen = with
		} else {
			others = append(others, id)
		}
	}
	return append(chosen[len(d.voters):], others...)
}
