package move

import (
	"fmt"
	"slices"
)

// The order of the steps keeps copies in different failure domains. A learner takes the place of the voter in its own
// domain, where one is to leave; one in a domain that no voter is in may take any place. So a group whose voters are in
// different domains, on its way to a target whose shards are, never has two in one: each swap leaves the domains of the
// voters as they were, or exchanges one for another that was free. docs/adr/0022-moves-keep-domains.md has the proof.

// domain is the failure domain of a member. A shard that says none is one of its own, as in package placement.
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

// shared counts the members of a list that are in the domain of one before them.
func (d *decider) shared(ids []uint64) int {
	domains := map[string]bool{}
	for _, id := range ids {
		domains[d.domain(id)] = true
	}
	return len(ids) - len(domains)
}

// swap is a learner that may take the place of a voter.
type swap struct {
	out, in uint64
	shared  int // of the voters then
}

// bestSwap is the swap that leaves the fewest voters in shared domains; of several the one whose voter is not well, or
// at least does not lead, and then the first. Where nobody can take the lead over, the leader leaves only if no other
// can.
func (d *decider) bestSwap(extras, ready []uint64) swap {
	if first := extras[0]; first != d.Self && d.heir(false) == 0 {
		extras = without(extras, d.Self)
	}
	best := swap{shared: len(d.voters) + 1}
	for _, out := range extras { // in the order in which they may go
		for _, in := range ready {
			if shared := d.shared(append(without(d.voters, out), in)); shared < best.shared {
				best = swap{out: out, in: in, shared: shared}
			}
		}
	}
	return best
}

// coming tells whether a copy is being made whose voter can be swapped while this leader stays. Shards that are away
// are not waited for.
func (d *decider) coming() bool {
	return slices.ContainsFunc(d.learners, func(id uint64) bool {
		shard := d.where[id].Shard
		return slices.Contains(d.Target, shard) && d.Shards[shard].Alive && !d.well(id)
	})
}

// apart puts those first that share no domain with a voter or with one before them.
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
