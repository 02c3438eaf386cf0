package fleet

import (
	"cmp"
	"fmt"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"sheaf.dev/sheaf/api/v1alpha1"
)

// LeaderGrace is how long a group may be without a leader before it counts as not serving: an election, or a shard that
// hands its groups over, takes less.
const LeaderGrace = 3 * time.Second

// GroupBook keeps what the shards of each store said of their groups last. Pools write it when they have asked their
// shards, stores read it. It is in memory only: an operator that starts asks anew. The zero value is ready. Safe for
// concurrent use.
type GroupBook struct {
	mu     sync.Mutex
	stores map[types.NamespacedName]*storeBook
}

// storeBook is about one store.
type storeBook struct {
	pools map[string]*poolPage
	// leaders counts the shards that say that they lead a group.
	leaders map[string]int
	// lostAt is when a group was first seen without a leader.
	lostAt map[string]time.Time
}

// poolPage is what the shards of one pool said at one moment.
type poolPage struct {
	at     time.Time
	shards map[string]shardPage
}

// shardPage is what one shard said last. answers: it said so now.
type shardPage struct {
	answers bool
	groups  []GroupReport
}

// GroupSum is what the book says of the groups of a store.
type GroupSum struct {
	// known: every pool was asked since the operator began.
	Known bool
	// unsettled: a group has no leader, and it is not known yet whether that passes.
	Unsettled bool
	Groups    map[string]BookedGroup
	Records   int64
	// copyingBytes are left to copy of the copies that are being made.
	CopyingBytes int64
}

// BookedGroup is what the shards say of one group.
type BookedGroup struct {
	Serving    int  // copies whose shards serve them
	Leaderless bool // no shard leads it, and that has not passed
}

// Note writes down what the shards of a pool said, in place of what they said before. What a shard that is silent now
// said last is kept.
func (b *GroupBook) Note(store types.NamespacedName, pool string, reports map[string]*ShardReport, now time.Time) {
	if b == nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.stores == nil {
		b.stores = map[types.NamespacedName]*storeBook{}
	}
	s := b.stores[store]
	if s == nil {
		s = &storeBook{pools: map[string]*poolPage{}, leaders: map[string]int{}, lostAt: map[string]time.Time{}}
		b.stores[store] = s
	}
	page := &poolPage{at: now, shards: map[string]shardPage{}}
	before := s.pools[pool]
	for shard, report := range reports {
		if report != nil && Serving(report.State) {
			page.shards[shard] = shardPage{answers: true, groups: report.Groups}
		} else if before != nil {
			page.shards[shard] = shardPage{groups: before.shards[shard].groups}
		}
	}
	s.replace(pool, page, now)
}

// Forget drops a pool that is gone.
func (b *GroupBook) Forget(store types.NamespacedName, pool string, now time.Time) {
	if b == nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if s := b.stores[store]; s != nil {
		s.replace(pool, nil, now)
		if len(s.pools) == 0 {
			delete(b.stores, store)
		}
	}
}

// Unsettled says whether a group of a store has no leader, so that its shards are to be asked again soon.
func (b *GroupBook) Unsettled(store types.NamespacedName) bool {
	if b == nil {
		return false
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	s := b.stores[store]
	if s == nil {
		return false
	}
	asked := s.asked()
	for group := range s.lostAt {
		if !s.leaderless(group, asked) {
			return true
		}
	}
	return false
}

// asked is since when every pool was asked at least once.
func (s *storeBook) asked() (oldest time.Time) {
	for _, page := range s.pools {
		if oldest.IsZero() || page.at.Before(oldest) {
			oldest = page.at
		}
	}
	return oldest
}

// leaderless says whether all pools were asked again some time after a group had lost its leader, and still none of
// their shards leads it.
func (s *storeBook) leaderless(group string, asked time.Time) bool {
	at, lost := s.lostAt[group]
	return lost && asked.Sub(at) >= LeaderGrace
}

// replace the page of a pool, and keep count of leaders.
func (s *storeBook) replace(pool string, page *poolPage, now time.Time) {
	if before := s.pools[pool]; before != nil {
		before.leads(func(group string) { s.leaders[group]-- })
	}
	delete(s.pools, pool)
	if page != nil {
		s.pools[pool] = page
		page.leads(func(group string) { s.leaders[group]++ })
	}
	there := map[string]bool{}
	for _, p := range s.pools {
		for _, shard := range p.shards {
			for _, g := range shard.groups {
				there[g.Group] = true
			}
		}
	}
	for group := range there {
		if s.leaders[group] > 0 {
			delete(s.lostAt, group)
		} else if _, known := s.lostAt[group]; !known {
			s.lostAt[group] = now
		}
	}
	for group := range s.leaders {
		if !there[group] {
			delete(s.leaders, group)
			delete(s.lostAt, group)
		}
	}
}

// leads calls f for each group that a shard leads now.
func (p *poolPage) leads(f func(group string)) {
	for _, shard := range p.shards {
		for _, g := range shard.groups {
			if shard.answers && g.Leader && g.Serves() {
				f(g.Group)
			}
		}
	}
}

// Sum of a store that has these pools.
func (b *GroupBook) Sum(store types.NamespacedName, pools []v1alpha1.ShardPool) GroupSum {
	out := GroupSum{Groups: map[string]BookedGroup{}}
	if b == nil {
		return out
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	s := b.stores[store]
	if s == nil {
		return out
	}
	out.Known = len(pools) > 0
	for n := range pools {
		out.Known = out.Known && s.pools[pools[n].Name] != nil
	}
	best := map[string]bookedReport{}
	for _, page := range s.pools {
		for _, shard := range page.shards {
			for _, g := range shard.groups {
				now := bookedReport{answers: shard.answers, GroupReport: g}
				if was, there := best[g.Group]; !there || now.compare(was) > 0 {
					best[g.Group] = now
				}
				group := out.Groups[g.Group]
				if shard.answers {
					out.CopyingBytes += g.CopyingBytes
					if g.Serves() {
						group.Serving++
					}
				}
				out.Groups[g.Group] = group
			}
		}
	}
	for _, g := range best {
		out.Records += g.Records
	}
	asked := s.asked()
	for name := range s.lostAt {
		group := out.Groups[name]
		group.Leaderless = out.Known && s.leaderless(name, asked)
		out.Groups[name] = group
		out.Unsettled = out.Unsettled || !group.Leaderless
	}
	return out
}

// bookedReport is a report of one copy of a group.
type bookedReport struct {
	answers bool
	GroupReport
}

// compare orders by how much a report says of its group: that of a leader first, of several leaders the one that has
// applied most, as an older one applies nothing any more; without a leader the copy that has applied most.
func (r bookedReport) compare(other bookedReport) int {
	return cmp.Or(compareTruth(r.answers && r.Leader, other.answers && other.Leader),
		compareTruth(r.Serves(), other.Serves()),
		cmp.Compare(r.AppliedIndex, other.AppliedIndex), compareTruth(r.Leader, other.Leader))
}

func compareTruth(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return 1
	}
	return -1
}

// Led counts the groups that have a leader, or lost it just now.
func (s GroupSum) Led() (n int32) {
	for _, g := range s.Groups {
		if !g.Leaderless {
			n++
		}
	}
	return n
}

// Troubles are the groups that have fewer serving copies than there are to be, or no leader.
func (s GroupSum) Troubles(copies int32) (list []v1alpha1.GroupTrouble) {
	for name, g := range s.Groups {
		switch {
		case g.Leaderless:
			list = append(list, g.NoLeader(name))
		case g.Serving < int(copies):
			list = append(list, v1alpha1.GroupTrouble{Group: name, State: GroupDegraded,
				Message: fmt.Sprintf("%d of %d copies serve", g.Serving, copies)})
		}
	}
	return list
}

// NoLeader says what is wrong with a group that nobody leads.
func (g BookedGroup) NoLeader(name string) v1alpha1.GroupTrouble {
	return v1alpha1.GroupTrouble{Group: name, State: GroupNoLeader,
		Message: fmt.Sprintf("no shard leads it, so that calls of it fail; %d of its copies are loaded on shards that answer",
			g.Serving)}
}
