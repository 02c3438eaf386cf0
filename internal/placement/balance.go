package placement

import (
	"cmp"
	"slices"
)

// The planner balances the groups that are at their target. It levels three loads in this order: bytes, number of
// groups, number of leaders. Each load is relative to the shard's weight. Two shards count as level if their loads
// differ by at most a slack. The slack is a fraction of the more loaded shard's load, so that changes on a third shard
// do not cause moves. A step that levels bytes reduces the sum of the squares of the bytes. A step that levels groups
// reduces the sum of the squares of the group counts. In addition, it either leaves the bytes of all shards within
// their slack or does not increase the sum of the squares of the bytes. Therefore the steps terminate, and once a plan
// has been carried out, the next plan has no further moves.

// slack is the tolerated difference between two loads. It is a fraction of the greater load, but at least a minimum.
type slack struct{ part, least float64 }

func (s slack) of(load float64) float64 { return max(s.least, s.part*load) }

// The slack for groups is greater than the slack for bytes, because levelling the numbers of groups requires moves in
// addition to those that level bytes.
var (
	bytesSlack   = slack{0.1, 64 << 20}
	groupsSlack  = slack{0.25, 1}
	leadersSlack = slack{0.1, 1}
)

const (
	// slackAbove is a factor for the slack. A shard that has reached the mean receives groups only from shards whose
	// load is greater by more than slackAbove times the slack.
	slackAbove = 3
	// aboveMeanPart is the fraction of the mean by which a shard that was below the mean may exceed it after a move.
	aboveMeanPart = 0.05
	// bytesStepsMax limits how many groups are moved to level bytes. A group smaller than 1/bytesStepsMax of the
	// difference between two shards is not moved.
	bytesStepsMax = 1000
)

// balancer levels the loads of shards.
type balancer struct {
	*planner
	budget *moveBudget
	part   []int   // shards that take part in balancing
	on     [][]int // for each shard, the groups on it that may move
	movers []int   // the groups that may move

	stepsLeft   int
	bytesMean   float64
	least, most float64 // lowest and highest weighted bytes of the shards that take part
}

// balance moves the copies and leaders of groups that are at their target. It does nothing while any group moves, or
// has to move for a reason other than balance.
func (p *planner) balance() {
	b := &balancer{planner: p, on: make([][]int, len(p.shards)), budget: p.underWay()}
	for i := range p.groups {
		g := &p.groups[i]
		if p.atTarget(g) {
			b.movers = append(b.movers, i)
			for _, s := range g.chosen {
				b.on[s] = append(b.on[s], i)
			}
		} else if len(g.voters) > 0 && g.reason == "" && g.change != ForBalance && len(g.moving(g.chosen)) > 0 {
			return
		}
	}
	var bytes, groups float64
	for i := range p.shards {
		if p.shards[i].takesPart() {
			b.part = append(b.part, i)
			bytes += float64(p.shards[i].bytes)
			groups += float64(p.shards[i].groups)
		}
	}
	n := float64(max(1, len(b.part)))
	b.bytesMean = bytes / n
	b.extremes()
	b.stepsLeft = 1000 + 16*p.policy.Copies*len(b.movers) // more steps than balancing can need
	for moved := true; moved && b.stepsLeft > 0; {
		moved = b.level(b.bytesOf, b.bytesMean, bytesSlack, b.pickBytes)
		moved = b.level(b.groupsOf, groups/n, groupsSlack, b.pickSmall) || moved
	}
	b.levelLeaders()
}

// atTarget reports whether the group is at its target, all shards of the target are registered, and the group needs no
// move for another reason.
func (p *planner) atTarget(g *planned) bool {
	if g.reason != "" || len(g.voters) == 0 || len(g.voters) != len(g.Members) || len(g.voters) != len(g.chosen) {
		return false
	}
	for _, i := range g.chosen {
		if !p.shards[i].known || !slices.Contains(g.voters, i) || !slices.ContainsFunc(g.Members, func(m Member) bool {
			return m.Shard == p.shards[i].name && m.VolumeUUID == p.shards[i].volume
		}) || !slices.Contains(g.old.Shards, p.shards[i].name) {
			return false
		}
	}
	return true
}

func (b *balancer) bytesOf(i int) float64  { return float64(b.shards[i].bytes) / b.shards[i].weight }
func (b *balancer) groupsOf(i int) float64 { return float64(b.shards[i].groups) / b.shards[i].weight }

// extremes determines the lowest and the highest weighted bytes of any shard.
func (b *balancer) extremes() {
	for n, i := range b.part {
		bytes := b.bytesOf(i)
		if n == 0 || bytes < b.least {
			b.least = bytes
		}
		if n == 0 || bytes > b.most {
			b.most = bytes
		}
	}
}

// level moves groups from shards with a high load to shards with a low load, until no two shards differ by more than
// the slack. The function pick chooses the group to move between two shards, and returns -1 if there is none.
func (b *balancer) level(loadOf func(int) float64, mean float64, may slack,
	pick func(from, to int, gap float64) int) (moved bool) {
	order := slices.Clone(b.part)
	slices.SortStableFunc(order, func(x, y int) int { return cmp.Compare(loadOf(x), loadOf(y)) })
	for again := true; again; {
		again = false
		for high := len(order) - 1; high > 0; {
			from, done := order[high], false
			slack := may.of(loadOf(from))
			for low := 0; low < high && !done; low++ {
				to := order[low]
				gap := loadOf(from) - loadOf(to)
				if b.stepsLeft == 0 || gap <= slack || loadOf(to) >= mean && gap <= slackAbove*slack ||
					!b.budget.has([]int{from, to}) {
					// The remaining shards have more load than this one. If the budget does not allow a move to this shard now, the
					// move must wait; it must not go to a more loaded shard instead.
					break
				}
				if g := pick(from, to, gap); g >= 0 {
					b.move(g, from, to)
					sink(order, high, loadOf)
					rise(order, slices.Index(order, to), loadOf)
					done, again, moved = true, true, true
				}
			}
			if !done {
				high--
			}
		}
	}
	return moved
}

// sink moves the shard at an index down to its position in the order by load.
func sink(order []int, at int, loadOf func(int) float64) {
	for ; at > 0 && loadOf(order[at]) < loadOf(order[at-1]); at-- {
		order[at], order[at-1] = order[at-1], order[at]
	}
}

// rise moves the shard at an index up to its position in the order by load.
func rise(order []int, at int, loadOf func(int) float64) {
	for ; at+1 < len(order) && loadOf(order[at]) > loadOf(order[at+1]); at++ {
		order[at], order[at+1] = order[at+1], order[at]
	}
}

// may reports whether a group's copy may move from one shard to another. A shard that has fewer bytes than the mean
// must not end up above the mean by more than aboveMeanPart.
func (b *balancer) may(g *planned, from, to int) bool {
	s := &b.shards[to]
	if !b.takes(s) || s.limit > 0 && s.bytes+g.Bytes > s.limit || b.aboveMean(g, to) {
		return false
	}
	for _, i := range g.chosen {
		if i == to || i != from && b.shards[i].domain == s.domain {
			return false
		}
	}
	return true
}

// pickBytes returns the largest group whose move does not reverse the difference. If there is no such group, it returns
// the smallest group whose move leaves the difference within half the slack. It does not return a group that is so
// small that too many groups would have to move.
func (b *balancer) pickBytes(from, to int, gap float64) int {
	best, bestOver := -1, -1
	slack := bytesSlack.of(b.bytesOf(from))
	for _, i := range b.on[from] {
		g := &b.groups[i]
		step := b.step(g, from, to)
		switch {
		case step < gap/bytesStepsMax || step > gap+slack/2 || !b.may(g, from, to):
		case step <= gap:
			if best < 0 || g.Bytes > b.groups[best].Bytes || g.Bytes == b.groups[best].Bytes && i < best {
				best = i
			}
		case bestOver < 0 || g.Bytes < b.groups[bestOver].Bytes || g.Bytes == b.groups[bestOver].Bytes && i < bestOver:
			bestOver = i
		}
	}
	if best < 0 {
		return bestOver
	}
	return best
}

// aboveMean reports whether receiving a group would take a shard that is below the mean too far above it.
func (b *balancer) aboveMean(g *planned, to int) bool {
	have := b.bytesOf(to)
	return have < b.bytesMean && have+float64(g.Bytes)/b.shards[to].weight > b.bytesMean*(1+aboveMeanPart)
}

// step returns by how much moving a group changes the difference in bytes between two shards.
func (b *balancer) step(g *planned, from, to int) float64 {
	return float64(g.Bytes)/b.shards[from].weight + float64(g.Bytes)/b.shards[to].weight
}

// pickSmall returns the smallest group that may move from one shard to another to level the number of groups, or -1 if
// there is none.
func (b *balancer) pickSmall(from, to int, gap float64) int {
	if 1/b.shards[from].weight+1/b.shards[to].weight > gap+groupsSlack.of(b.groupsOf(from))/2 {
		return -1
	}
	best := -1
	for _, i := range b.on[from] {
		g := &b.groups[i]
		if best >= 0 && (g.Bytes > b.groups[best].Bytes || g.Bytes == b.groups[best].Bytes && i > best) {
			continue
		}
		if b.may(g, from, to) && b.bytesStay(g, from, to) {
			best = i
		}
	}
	return best
}

// bytesStay reports whether a move keeps the bytes balanced. This is the case if the bytes of all shards are within
// half their slack before and after it, or if the bytes of the two shards remain within their previous range.
func (b *balancer) bytesStay(g *planned, from, to int) bool {
	gap := b.bytesOf(from) - b.bytesOf(to)
	less, more := float64(g.Bytes)/b.shards[from].weight, float64(g.Bytes)/b.shards[to].weight
	if less <= gap && more <= gap || g.Bytes == 0 {
		return true
	}
	within := func(load, other float64) bool { return load-other <= bytesSlack.of(load)/2 }
	after, afterTo := b.bytesOf(from)-less, b.bytesOf(to)+more
	return within(b.most, b.least) && within(afterTo, b.least) && within(b.most, after) && within(afterTo, after)
}

// move plans to move a copy from one shard to another, and updates the loads.
func (b *balancer) move(at, from, to int) {
	g := &b.groups[at]
	g.change = ForBalance
	b.budget.take([]int{from, to})
	b.stepsLeft--
	n := slices.Index(g.chosen, from)
	g.chosen[n] = to
	x, y := &b.shards[from], &b.shards[to]
	x.bytes -= g.Bytes
	y.bytes += g.Bytes
	x.groups--
	y.groups++
	if n == 0 {
		x.leaders--
		y.leaders++
	}
	i := slices.Index(b.on[from], at)
	last := len(b.on[from]) - 1
	b.on[from][i] = b.on[from][last]
	b.on[from] = b.on[from][:last]
	b.on[to] = append(b.on[to], at)
	b.extremes()
}

// levelLeaders makes another copy of a group the leader if that copy's shard leads fewer groups.
func (b *balancer) levelLeaders() {
	if b.policy.Copies == 1 || len(b.part) == 0 {
		return
	}
	sum := 0
	for _, i := range b.part {
		sum += b.shards[i].leaders
	}
	slack := int(leadersSlack.of(float64(sum) / float64(len(b.part))))
	for again := true; again; {
		again = false
		for _, at := range b.movers {
			g := &b.groups[at]
			first := &b.shards[g.chosen[0]]
			n := 0
			for k, i := range g.chosen {
				if b.shards[i].takesPart() && (n == 0 || b.shards[i].leaders < b.shards[g.chosen[n]].leaders) && k > 0 {
					n = k
				}
			}
			next := &b.shards[g.chosen[n]]
			if n == 0 || !first.takesPart() || first.leaders-next.leaders <= slack {
				continue
			}
			first.leaders--
			next.leaders++
			g.chosen[0], g.chosen[n] = g.chosen[n], g.chosen[0]
			again = true
		}
	}
}
