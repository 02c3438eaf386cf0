package move

import (
	"fmt"
	"slices"
)

// The order of the steps keeps copies in different failure domains. When a voter must leave, a learner in the same
// domain takes its place. A learner in a domain without voters may take the place of any voter. So if a group's voters
// are in different domains, and so are the shards of its target, the group never has two voters in one domain during
// the move, because each swap leaves the voters' domains unchanged, or exchanges one for a free one.
// docs/adr/0022-moves-keep-domains.md has the proof.

// domain returns the failure domain of a member. A shard without a domain counts as a domain of its own, as in
// package placement.
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

// shared counts the listed members that share their domain with an earlier one in the list.
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

// bestSwap returns the swap that leaves the fewest voters in shared domains. Among equally good swaps, it takes the
// first one in the order of extras, in which voters that are not well come first, and this leader comes last. The
// leader leaves only if another member can become leader, or if no other voter can leave.
func (d *decider) bestSwap(extras, ready []uint64) swap {
	if first := extras[0]; first != d.Self && d.transferTarget() == 0 {
		extras = without(extras, d.Self)
	}
	best := swap{shared: len(d.voters) + 1}
	for _, out := range extras { // extras lists the voters in the order in which they may leave
		for _, in := range ready {
			if shared := d.shared(append(without(d.voters, out), in)); shared < best.shared {
				best = swap{out: out, in: in, shared: shared}
			}
		}
	}
	return best
}

// coming reports whether a live shard is still receiving a wanted copy. When that copy has caught up, it can take the
// place of another voter, so this leader need not leave yet.
func (d *decider) coming() bool {
	return slices.ContainsFunc(d.learners, func(id uint64) bool {
		shard := d.where[id].Shard
		return slices.Contains(d.Target, shard) && d.Shards[shard].Alive && !d.well(id)
	})
}

// apart sorts the members, so that those that share no failure domain with a voter or an earlier member come before the
// others.
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
